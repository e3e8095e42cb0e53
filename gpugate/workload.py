"""What a workload and an optimization are, and the catalogue that knows them all.

A workload is ordinary PyTorch: a function that builds the baseline side, one that makes inputs, and one build
function per optimization. Nothing here imports torch, so that the catalogue costs nothing until it is used.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from gpugate.counter_names import COUNTER_NAMES
from gpugate.errors import CatalogueError

if TYPE_CHECKING:
    import torch

BASELINE = "baseline"
DeviceKind = Literal["cuda", "cpu"]
DEVICE_KINDS: tuple[DeviceKind, ...] = ("cuda", "cpu")
ENTRY_POINT_GROUP = "gpugate.workloads"
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")
_DEVICE_CLASS = re.compile(r"cpu|cuda|sm_\d+")
_Entry = TypeVar("_Entry")


@dataclass(frozen=True)
class Context:
    """What a build function is told.

    `cache_dir` exists and outlives the session: compiled engines go there. `input_path` and `checkpoint_path` are
    the user's `--perf-input` and `--perf-checkpoint`, or None.
    """

    device: torch.device
    items: int
    seed: int
    cache_dir: Path
    input_path: Path | None = None
    checkpoint_path: Path | None = None


def _nothing() -> None:
    """The default of `Side.finish` and `Side.close`."""


def _engaged() -> str | None:
    """The default of `Side.engaged`: nothing to say beyond the counters."""
    return None


@dataclass
class Side:
    """One built side of a comparison: it owns its model, buffers, graphs and streams.

    `step(inputs)` does one step and returns its output, which may be overwritten by the next step. A pipeline may
    return before its output is there: `finish()` joins every stream and thread it uses, and is called inside the
    timed window. `model` lets the engine prove that nobody else changed it. `engaged()` returns why the optimization
    did not really happen, or None. `close()` frees what garbage collection would not.
    """

    step: Callable[[Any], torch.Tensor]
    model: torch.nn.Module | None = None
    finish: Callable[[], None] = _nothing
    engaged: Callable[[], str | None] = _engaged
    close: Callable[[], None] = _nothing


Build = Callable[[Context], Side]
MakeInput = Callable[[Context, int], Any]


@dataclass(frozen=True)
class Size:
    """How much one step does on one kind of device: items, floating-point operations, bytes that must move."""

    items: int
    flops: float
    bytes: float


@dataclass(frozen=True)
class Needs:
    """What an optimization cannot do without. `install` is the next step for a missing package."""

    packages: tuple[str, ...] = ()
    compute_capability: tuple[int, int] = (0, 0)
    cpu_flags: tuple[str, ...] = ()  # as /proc/cpuinfo names them
    cpp_compiler: bool = False
    install: str = ""


@dataclass(frozen=True)
class Tolerance:
    """How far outputs may be from the FP32 baseline's.

    `relative_l2` bounds ||out - ref|| / ||ref||; `max_error` bounds max|out - ref| / max|ref|; `top1_agreement` is
    the smallest share of equal argmax over the last dimension (0 turns it off).
    """

    relative_l2: float
    max_error: float
    top1_agreement: float = 0.0


TOLERANCE_BY_DTYPE: Mapping[str, Tolerance] = {
    "float32": Tolerance(relative_l2=1e-5, max_error=1e-4),
    "tf32": Tolerance(relative_l2=2e-3, max_error=1e-2),
    "float16": Tolerance(relative_l2=2e-3, max_error=1e-2),
    "bfloat16": Tolerance(relative_l2=2e-2, max_error=1e-1),
}


@dataclass(frozen=True)
class Limit:
    """A bound on one counter per step, absolute or as a share of the reference side's."""

    counter: str
    at_least: float | None = None
    at_most: float | None = None
    at_most_of_reference: float | None = None


@dataclass(frozen=True)
class Contract:
    """`engaged` proves that the optimization happened; `limits` what it may cost. Only measured on CUDA."""

    engaged: tuple[Limit, ...] = ()
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True)
class Optimization:
    """One change to the baseline, and what it promises.

    `min_speedup` and `contract` are keyed by device class, the most specific first: `sm_90`, `cuda`, `cpu`. The
    keys of `min_speedup` say on which kinds of device the optimization runs. `compared_with` names the baseline or
    another optimization of the same workload. `dtype` is the precision it computes in and picks the tolerance.
    """

    name: str
    build: Build
    min_speedup: Mapping[str, float]
    dtype: str = "float32"
    compared_with: str = BASELINE
    needs: Needs = Needs()
    tolerance: Mapping[str, Tolerance] = field(default_factory=lambda: TOLERANCE_BY_DTYPE)
    contract: Mapping[str, Contract] = field(default_factory=dict)

    @property
    def device_kinds(self) -> tuple[DeviceKind, ...]:
        wanted = {"cpu" if name == "cpu" else "cuda" for name in self.min_speedup}
        return tuple(kind for kind in DEVICE_KINDS if kind in wanted)


@dataclass(frozen=True)
class Workload:
    """A baseline, its inputs and its optimizations. `sizes` is keyed by kind of device and says where it runs.

    `timing` is `device` (CUDA events around a block of steps) or `pipeline` (host clock over a window that begins
    and ends synchronized, for steps whose host work counts). `cold` rotates inputs over more sets than fit in L2.
    """

    name: str
    baseline: Build
    inputs: MakeInput
    sizes: Mapping[DeviceKind, Size]
    optimizations: tuple[Optimization, ...]
    seed: int = 0
    cold: bool = True
    timing: Literal["device", "pipeline"] = "device"

    def optimization(self, name: str) -> Optimization:
        for optimization in self.optimizations:
            if optimization.name == name:
                return optimization
        raise CatalogueError(
            f"workload {self.name!r} has no optimization {name!r}: it has {', '.join(o.name for o in self.optimizations)}"
        )


@dataclass(frozen=True)
class Case:
    """One test parameter: an optimization of a workload on one kind of device."""

    workload: Workload
    optimization: Optimization
    device_kind: DeviceKind

    @property
    def id(self) -> str:
        return f"{self.workload.name}/{self.optimization.name}/{self.device_kind}"

    @property
    def size(self) -> Size:
        return self.workload.sizes[self.device_kind]

    @property
    def reference_name(self) -> str:
        return self.optimization.compared_with

    def builder(self, side_name: str) -> Build:
        """The build function of the baseline or of a named optimization."""
        if side_name == BASELINE:
            return self.workload.baseline
        return self.workload.optimization(side_name).build


def for_device_class(table: Mapping[str, _Entry], classes: tuple[str, ...]) -> _Entry | None:
    """The entry of the most specific device class that `table` knows, or None."""
    return next((table[name] for name in classes if name in table), None)


class Catalogue:
    """Every workload that this session knows: registered ones, and modules named before they are imported."""

    def __init__(self) -> None:
        self._workloads: dict[str, Workload] = {}
        self._modules: list[str] = []

    def register(self, workload: Workload) -> Workload:
        """Adds a workload; raises CatalogueError when its name is taken or it cannot be measured."""
        known = self._workloads.get(workload.name)
        if known is not None and known is not workload:
            raise CatalogueError(
                f"two workloads are named {workload.name!r} (in {_module_of(known)} and {_module_of(workload)}): rename one"
            )
        check(workload)
        self._workloads[workload.name] = workload
        return workload

    def register_module(self, name: str) -> None:
        """Names a module that registers workloads when imported; it is imported when tests are collected."""
        self._modules.append(name)

    def load(self) -> None:
        """Imports what was only named: `register_module` and the entry points of the group `gpugate.workloads`."""
        while self._modules:
            importlib.import_module(self._modules.pop(0))
        for entry_point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
            loaded = entry_point.load()
            for workload in loaded if isinstance(loaded, (tuple, list)) else (loaded,):
                if isinstance(workload, Workload):
                    self.register(workload)

    def workloads(self) -> Iterator[Workload]:
        return iter(self._workloads.values())

    def cases(self) -> list[Case]:
        """Every optimization on every kind of device that both it and its workload name."""
        return [
            Case(workload, optimization, kind)
            for workload in self._workloads.values()
            for optimization in workload.optimizations
            for kind in optimization.device_kinds
            if kind in workload.sizes
        ]

    def clear(self) -> None:
        self._workloads.clear()
        self._modules.clear()


catalogue = Catalogue()
register = catalogue.register
register_module = catalogue.register_module


def _module_of(workload: Workload) -> str:
    return getattr(workload.baseline, "__module__", "an unknown module")


def check(workload: Workload) -> None:
    """Raises CatalogueError, in one sentence, for a workload that cannot be measured as declared."""
    if not _NAME.fullmatch(workload.name):
        raise CatalogueError(
            f"workload name {workload.name!r} is not usable in a test id and a file name: use a-z, 0-9, '.', '_' and '-'"
        )
    if not workload.sizes or not set(workload.sizes) <= set(DEVICE_KINDS):
        raise CatalogueError(
            f"workload {workload.name!r} has sizes for {sorted(workload.sizes)}: give 'cuda', 'cpu' or both"
        )
    for kind, size in workload.sizes.items():
        if size.items < 1 or size.flops < 0 or size.bytes < 0:
            raise CatalogueError(
                f"workload {workload.name!r} on {kind} has {size}: items must be at least 1, flops and bytes not negative"
            )
    names = [optimization.name for optimization in workload.optimizations]
    if not names:
        raise CatalogueError(f"workload {workload.name!r} has no optimization: add one, there is nothing to compare")
    for name in {name for name in names if names.count(name) > 1 or name == BASELINE}:
        raise CatalogueError(f"workload {workload.name!r} has more than one side named {name!r}: rename one")
    for optimization in workload.optimizations:
        _check_optimization(workload, optimization)


def _check_optimization(workload: Workload, optimization: Optimization) -> None:
    where = f"{workload.name}/{optimization.name}"
    if not _NAME.fullmatch(optimization.name):
        raise CatalogueError(f"optimization name {where!r} is not usable in a test id: use a-z, 0-9, '.', '_' and '-'")
    if not optimization.min_speedup:
        raise CatalogueError(f"{where} has no min_speedup: give one per device class, such as {{'cuda': 1.2}}")
    for device_class in (*optimization.min_speedup, *optimization.contract):
        if not _DEVICE_CLASS.fullmatch(device_class):
            raise CatalogueError(
                f"{where} names the device class {device_class!r}: use 'sm_90' or the like, 'cuda' or 'cpu'"
            )
    for device_class, speedup in optimization.min_speedup.items():
        if not (speedup > 0 and speedup < float("inf")):
            raise CatalogueError(
                f"{where} has min_speedup {speedup!r} on {device_class}: give a number above 0, such as 1.2"
            )
    if optimization.compared_with != BASELINE:
        if workload.optimization(optimization.compared_with) is optimization:
            raise CatalogueError(f"{where} is compared with itself: name the baseline or another optimization")
    if optimization.dtype not in optimization.tolerance:
        raise CatalogueError(
            f"{where} computes in {optimization.dtype!r} but has a tolerance only for {', '.join(optimization.tolerance)}: add one"
        )
    for contract in optimization.contract.values():
        for limit in (*contract.engaged, *contract.limits):
            if limit.counter not in COUNTER_NAMES:
                raise CatalogueError(
                    f"{where} limits the counter {limit.counter!r}: known are {', '.join(COUNTER_NAMES)}"
                )
