"""The nouns with which a workload and its optimizations are declared.

A workload is ordinary PyTorch: a function that builds the baseline side, one that makes inputs, and one build
function per optimization. Nothing here imports torch, so that declaring one costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from gpugate.errors import CatalogueError
from gpugate.units import Natural, NotNegative, Share

if TYPE_CHECKING:
    import torch

BASELINE = "baseline"
DeviceKind = Literal["cuda", "cpu"]
DEVICE_KINDS: tuple[DeviceKind, ...] = ("cuda", "cpu")
_Entry = TypeVar("_Entry")


@dataclass(frozen=True)
class Context:
    """The argument of a build function.

    `cache_dir` exists and outlives the session: compiled engines go there. `settings` holds the user's `--perf-set
    NAME=VALUE` by name; the names are those that the selected workloads declare. Where `capture_graphs` is False, a
    build function that captures CUDA graphs runs the same steps without: it asks each time, so that the fault
    `no-graph` can be shown.
    """

    device: torch.device
    items: int
    seed: int
    cache_dir: Path
    capture_graphs: bool = True
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)


def nothing_to_join() -> None:
    """The default of `Side.finish`: an output is there, in stream order, when its step returns."""


def _nothing_to_close() -> None:
    """The default of `Side.close`."""


def nothing_to_say() -> str | None:
    """The default of `Side.engaged`: the side says nothing of itself beyond its counters."""
    return None


@dataclass
class Side:
    """One built side of a comparison: it owns its model, buffers, graphs and streams.

    `step(inputs)` does one step and returns its output, which may be overwritten by a later step that returns the same
    memory. The output depends on `inputs` alone, whose contents change between blocks. A pipeline may return before its
    output is there: `finish()` joins every stream and thread it uses, completes the outputs, and is called inside the
    timed window. `model` lets the engine prove that nobody else changed it. `engaged()` returns why the optimization
    did not really happen, or None: it did, even where the same kernels run at the same speed. `close()` frees what
    garbage collection would not.

    For pipelines: `stock_steps` is how many steps' data its loaders and queues can hold ready, rounded up; so many are
    taken before a timed block begins, which then lasts several times longer, or it would time the stock. `cached_step`
    is the same step on data that is already where it is needed, over and over: the time it saves is the data path's.
    `works_ahead` says that threads of the side do the work of later steps, and that `finish()` returns when they have
    as much ready as the time before: what is counted then ends with it. `round_steps` is the period of work that not
    every step does, such as closing a file: on a GPU a block is whole rounds, where a round takes 1.5 s at most.
    """

    step: Callable[[Any], torch.Tensor]
    model: torch.nn.Module | None = None
    finish: Callable[[], None] = nothing_to_join
    engaged: Callable[[], str | None] = nothing_to_say
    close: Callable[[], None] = _nothing_to_close
    stock_steps: int = 0
    cached_step: Callable[[], object] | None = None
    works_ahead: bool = False
    round_steps: int = 1


Build = Callable[[Context], Side]
MakeInput = Callable[[Context, int], Any]


@dataclass(frozen=True)
class Size:
    """The work of one step on one kind of device: items, floating-point operations, bytes that must move.

    `whole_run_items` is the number of items of a run from its start to its end, for a workload whose start-up counts.
    """

    items: Natural
    flops: NotNegative
    bytes: NotNegative
    whole_run_items: Natural | None = None

    def items_per_second(self, step_ms: float) -> float:
        return self.items / (step_ms / 1e3)


@dataclass(frozen=True)
class Engine:
    """A part that not every GPU has, such as a video encoder. `name` is what `--allow-missing` calls it.

    `why_not` is given CUDA's index of the GPU and says in one sentence why it has none, with the next step, or None. It
    may take seconds and may be asked often, so it remembers its answers. What could break CUDA it tries in a child.
    """

    name: str
    why_not: Callable[[int], str | None]


@dataclass(frozen=True)
class Needs:
    """Requirements of an optimization. `install` is the next step for a missing package.

    `engine` is looked for on a GPU, once all the rest is there.
    """

    packages: tuple[str, ...] = ()
    compute_capability: tuple[int, int] = (0, 0)
    cpu_flags: tuple[str, ...] = ()  # as /proc/cpuinfo names them
    cpp_compiler: bool = False
    install: str = ""
    engine: Engine | None = None


@dataclass(frozen=True)
class Tolerance:
    """The largest accepted error of outputs against the FP32 baseline's.

    `relative_l2` bounds ||out - ref|| / ||ref||; `max_error` bounds max|out - ref| / max|ref|; `top1_agreement` is
    the smallest share of equal argmax over the last dimension (0 turns it off).
    """

    relative_l2: NotNegative
    max_error: NotNegative
    top1_agreement: Share = 0.0


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
class Proof:
    """A test of a fact beyond the outputs of steps, such as "the network still learns" or "no frame is lost".

    `show` runs once in every measurement of it, before its times, and says in words what it found ("accuracy 98.1 %
    after 60 steps"). It raises DisprovedError, saying what is wrong by how much, where it is not true: the verdict is
    then WRONG.
    """

    name: str
    show: Callable[[Context], str]


@dataclass(frozen=True)
class Point:
    """One value of a swept parameter, such as `Point("batch-size", 32)`.

    All points of one sweep of a workload are compared with the same side. Its knee is the smallest value within 3 % of
    the best throughput.
    """

    sweep: str
    value: int


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
    proofs: tuple[Proof, ...] = ()
    point: Point | None = None
    why: str = ""  # the physics in one sentence, where a reader of the figures needs it: why it may lose, for instance

    @property
    def tolerated(self) -> Tolerance:
        """The tolerance of its outputs."""
        return self.tolerance[self.dtype]

    @property
    def device_kinds(self) -> tuple[DeviceKind, ...]:
        wanted = {"cpu" if name == "cpu" else "cuda" for name in self.min_speedup}
        return tuple(kind for kind in DEVICE_KINDS if kind in wanted)


@dataclass(frozen=True)
class Workload:
    """A baseline, its inputs and its optimizations. `sizes` is keyed by kind of device and says where it runs.

    `timing` is `device` (CUDA events around a block of steps) or `pipeline` (host clock over a window that begins
    and ends synchronized, for steps whose host work counts). `cold` rotates inputs over more sets than fit in L2.
    `ladder` says that its optimizations are rungs: each of them that is compared with the one before it, the first one
    with the baseline, is shown with its gain over both. `settings` declares each name that `--perf-set` may give, with
    its meaning in one line.
    """

    name: str
    baseline: Build
    inputs: MakeInput
    sizes: Mapping[DeviceKind, Size]
    optimizations: tuple[Optimization, ...]
    seed: int = 0
    cold: bool = True
    timing: Literal["device", "pipeline"] = "device"
    ladder: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)

    def optimization(self, name: str) -> Optimization:
        for optimization in self.optimizations:
            if optimization.name == name:
                return optimization
        known = ", ".join(optimization.name for optimization in self.optimizations)
        raise CatalogueError(f"workload {self.name!r} has no optimization {name!r}: it has {known}")


@dataclass(frozen=True, repr=False)
class Case:
    """One test parameter: an optimization of a workload on one kind of device."""

    workload: Workload
    optimization: Optimization
    device_kind: DeviceKind

    def __repr__(self) -> str:
        return self.id  # reports of other plugins print the parameter

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


@dataclass(frozen=True, repr=False)
class SweepCases:
    """One test parameter: the cases that are the points of one sweep on one kind of device, by value."""

    parameter: str
    cases: tuple[Case, ...]

    def __repr__(self) -> str:
        return self.id

    @property
    def id(self) -> str:
        return f"{self.cases[0].workload.name}/{self.parameter}/{self.device_kind}"

    @property
    def device_kind(self) -> DeviceKind:
        return self.cases[0].device_kind


def for_device_class(table: Mapping[str, _Entry], classes: tuple[str, ...]) -> _Entry | None:
    """The entry of the most specific device class that `table` knows, or None."""
    return next((table[name] for name in classes if name in table), None)
