"""The nouns with which a workload and its optimizations are declared.

A workload is ordinary PyTorch: a function that builds the baseline side, a function that makes inputs, and a build
function per optimization. This module does not import torch, so that a declaration costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeVar

from gpugate.errors import CatalogueError
from gpugate.errors import DisprovedError as DisprovedError  # which a proof raises
from gpugate.units import Natural, NotNegative, Share, Speedup, stored_unless

if TYPE_CHECKING:
    import torch

BASELINE = "baseline"
DeviceKind = Literal["cuda", "cpu"]
DEVICE_KINDS: tuple[DeviceKind, ...] = ("cuda", "cpu")
SET = "--perf-set="  # before the name and the value of a setting, in a command
RANKS = (8, 4, 2)  # of a case that spans GPUs: the largest number for which there are GPUs
_Entry = TypeVar("_Entry")


@dataclass(frozen=True)
class Form:
    """The form of a name, also in files, which anybody may have written: paths are made of the names in them."""

    pattern: str
    rule: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        words = f"Input should be a name for files and tests ({self.rule})"
        return core_schema.custom_error_schema(
            core_schema.str_schema(pattern=f"^({self.pattern})$"), "name", custom_error_message=words
        )


# A file name has 255 characters, with our endings.
NAME = Form("[a-z0-9]([a-z0-9._-]{0,198}[a-z0-9])?", "use a-z, 0-9, '.', '_' and '-', at most 200 in each part")
FAMILY_NAME = Form(f"({NAME.pattern}/)?{NAME.pattern}", f"{NAME.rule}, and '/' once, behind a family's name")
Name = Annotated[str, NAME]
WorkloadName = Annotated[str, FAMILY_NAME]
CaseKey = Annotated[str, Form(f"{NAME.pattern}/(cuda|cpu)", "OPTIMIZATION/cuda or OPTIMIZATION/cpu")]
CaseId = Annotated[str, Form(f"{FAMILY_NAME.pattern}/{NAME.pattern}/(cuda|cpu)", "WORKLOAD/OPTIMIZATION/cuda or /cpu")]


class Ranks(Protocol):
    """The processes of one job, a rank each: this process is rank 0, and every other rank repeats its calls."""

    def build(self, build: Build, context: Context) -> Side:
        """Builds the side on every rank; each later step of the returned side is a step of every rank."""

    def free_sent_memory(self) -> None:
        """Frees the memory of collectives that have ended."""


@dataclass(frozen=True)
class Context:
    """The argument of a build function.

    `cache_dir` exists and outlives the session: compiled engines go there. `settings` holds the user's `--perf-set
    NAME=VALUE` by name; the names are those that the selected workloads declare. Where `capture_graphs` is False, a
    build function that captures CUDA graphs runs its steps without graphs: it reads the field at each build, so that
    the fault `no-graph` works. `ranks` is the job of a case that spans GPUs: `torch.distributed` is initialized then.
    """

    device: torch.device
    items: int
    seed: int
    cache_dir: Path
    capture_graphs: bool = True
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)
    ranks: Ranks | None = field(default=None, compare=False)


def nothing_to_join() -> None:
    """The default of `Side.finish`: an output is complete, in stream order, when its step returns."""


def nothing_to_close() -> None:
    """The default of `Side.close`."""


def no_engagement_problem() -> str | None:
    """The default of `Side.engaged`: only the side's counters show that it engaged."""
    return None


@dataclass
class Side:
    """A side of a comparison, which owns its model, buffers, graphs and streams.

    `step(inputs)` does one step and returns its output: a tensor, or tensors in tuples, lists, dicts or data classes. A
    later step may overwrite the output, where it returns the same memory. The output depends on `inputs` alone, whose
    contents change between blocks. A pipeline may return before its output is complete: `finish()` joins every stream
    and thread of the side, completes the outputs, and is called inside the timed window. By `model` the engine checks
    that no other side changes the model. `engaged()` returns the reason why the optimization did not really happen, or
    None where it happened, even if the same kernels run at the same speed. `close()` frees what garbage collection
    would not.

    Four fields are for pipelines. `stock_steps` is the number of steps, rounded up, whose data the loaders and queues
    can keep ready: the engine runs so many steps before a timed block and makes the block several times longer, since
    a shorter block would time the stock. `cached_step` is the step on data that is already in place, over and over: its
    saving is the time of the data path. `works_ahead`: threads of the side do the work of later steps, and `finish()`
    returns when they have as much ready as at its last return, so that counted work ends with it. `round_steps` is the
    period of work that not every step does, such as closing a file: on a GPU a block has whole rounds, where a round
    takes 1.5 s at most.

    `expected_step` is for a baseline whose step leaves work out on purpose, such as the communication between GPUs: it
    computes, on rank 0 alone and never timed, the output that the optimizations must give.

    `layers` is for a compiled engine, such as TensorRT's: the names of its layers, each after the operators that were
    fused into it. Their number is a counter, and an autopsy names what is fused no more.

    `waits_ms` is for a side that waits: the waits in the steps since the last call, such as from one token of a
    text to the next, or for the batches of a loader, in milliseconds. Their mean and 99th percentile are counters.
    """

    step: Callable[[Any], Any]
    model: torch.nn.Module | None = None
    finish: Callable[[], None] = nothing_to_join
    engaged: Callable[[], str | None] = no_engagement_problem
    close: Callable[[], None] = nothing_to_close
    stock_steps: int = 0
    cached_step: Callable[[], object] | None = None
    works_ahead: bool = False
    round_steps: int = 1
    expected_step: Callable[[Any], Any] | None = None
    layers: Callable[[], Sequence[str]] | None = None
    waits_ms: Callable[[], Sequence[float]] | None = None


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
    """A part that not every GPU has, such as a video encoder; `name` is its name in `--allow-missing`.

    `why_not` takes CUDA's index of a GPU and returns None, or one sentence with the reason why the GPU has no such part
    and the next step. A call may take seconds and is repeated, so `why_not` caches its results. It tries in a child
    process whatever could break CUDA.
    """

    name: str
    why_not: Callable[[int], str | None]


@dataclass(frozen=True)
class Needs:
    """Requirements of an optimization. `install` is the next step for a missing package.

    `engine` is looked for on a GPU, once all other needs are met. With `gpus` above 1 the case spans GPUs: both sides
    are built on every rank of a job, which has a process for each of 2, 4 or 8 visible GPUs, and on a CPU two
    processes. `gpus` is 1, 2, 4 or 8. The build functions are then functions of a module, or a `partial` of one with
    values that JSON has, and the inputs are int64 tensors on the host.
    """

    packages: tuple[str, ...] = ()
    compute_capability: tuple[int, int] = (0, 0)
    cpu_flags: tuple[str, ...] = ()  # as /proc/cpuinfo names them
    cpp_compiler: bool = False
    install: str = ""
    engine: Engine | None = None
    gpus: Literal[1, 2, 4, 8] = 1


@dataclass(frozen=True)
class Tolerance:
    """The largest accepted error of outputs against the baseline's, which are computed in FP32 without TF32.

    `relative_l2` bounds ||out - ref|| / ||ref||, at most 0.5, where zeros have 1; `max_error` bounds max|out - ref| /
    max|ref|, at most 1; `top1_agreement` is
    the smallest share of equal argmax over the last dimension (0 turns it off). `equal_share` is the smallest share of
    equal values of integers and booleans, to which the other bounds do not apply; None, where integers are numbers,
    such as pixels, and the other bounds apply.
    """

    relative_l2: NotNegative
    max_error: NotNegative
    top1_agreement: Share = 0.0
    equal_share: Share | None = stored_unless(1.0)


TOLERANCE_BY_DTYPE: Mapping[str, Tolerance] = {
    "float32": Tolerance(relative_l2=1e-5, max_error=1e-4),
    "tf32": Tolerance(relative_l2=2e-3, max_error=1e-2),
    "float16": Tolerance(relative_l2=2e-3, max_error=1e-2),
    "bfloat16": Tolerance(relative_l2=2e-2, max_error=1e-1),
}


@dataclass(frozen=True)
class Limit:
    """A bound on one counter per step, absolute or as a multiple of the reference side's."""

    counter: str
    at_least: float | None = None
    at_most: float | None = None
    at_most_of_reference: float | None = None
    at_least_of_reference: float | None = stored_unless(None)


@dataclass(frozen=True)
class Contract:
    """Limits of counters: `engaged` proves that the optimization happened, `limits` bounds its cost."""

    engaged: tuple[Limit, ...] = ()
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True)
class Proof:
    """A test of a fact beyond the outputs of steps, such as "the network still learns" or "no frame is lost".

    `show` runs once in a measurement of the optimization, before its times, and returns its result in words
    ("accuracy 98.1 % after 60 steps"). Where the fact is not true, it raises DisprovedError with the problem and its
    size: the verdict is then WRONG. A success is remembered for seven days, see docs/verdicts.md.
    """

    name: str
    show: Callable[[Context], str]


@dataclass(frozen=True)
class Point:
    """A value of a swept parameter, such as `Point("batch-size", 32)`.

    All points of one sweep of a workload are compared with the same side. The knee of a sweep is the smallest value
    within 3 % of the best throughput.
    """

    sweep: Name
    value: int


@dataclass(frozen=True)
class Optimization:
    """A change to the baseline, with its promises.

    `min_speedup` and `contract` are keyed by device class, the most specific first: `nvidia-h200`, `sm_90`, `cuda`,
    `cpu`. `nvidia-h200` is the name of a product, as of its folder in `baselines/`. The keys of `min_speedup` say on
    which kinds of device the optimization runs. `compared_with` names the baseline or another optimization of the same
    workload. `dtype` is the precision it computes in and picks the tolerance: `tf32` on CUDA where outputs come from
    convolutions of float32 values, unless the build function turns TF32 off. `min_speedup_why` is the reason why
    `min_speedup` is less than 0.8 of the recorded speedup (of the lower stored run, where a machine has no record), or
    below a target. `bytes` replaces the bytes of the workload's size, where a step of the optimization must move fewer.
    """

    name: Name
    build: Build
    min_speedup: Mapping[str, Speedup]
    dtype: str = "float32"
    compared_with: str = BASELINE
    needs: Needs = Needs()
    tolerance: Mapping[str, Tolerance] = field(default_factory=lambda: TOLERANCE_BY_DTYPE)
    contract: Mapping[str, Contract] = field(default_factory=dict)
    proofs: tuple[Proof, ...] = ()
    point: Point | None = None
    why: str = ""  # the physics in one sentence, where a reader of the figures needs it, such as the cause of a loss
    min_speedup_why: str = ""
    bytes: NotNegative | None = None

    @property
    def tolerated(self) -> Tolerance:
        """The tolerance of the optimization's outputs."""
        return self.tolerance[self.dtype]

    @property
    def device_kinds(self) -> tuple[DeviceKind, ...]:
        wanted = {"cpu" if name == "cpu" else "cuda" for name in self.min_speedup}
        return tuple(kind for kind in DEVICE_KINDS if kind in wanted)


@dataclass(frozen=True)
class Workload:
    """A baseline, its inputs and its optimizations. The keys of `sizes` are the kinds of device on which it runs.

    `timing` is `device` (CUDA events around a block of steps) or `pipeline` (host clock over a window that begins
    and ends synchronized, for steps whose host work counts). `cold` rotates inputs over more sets than fit in L2.
    `ladder`: the optimizations are rungs, and reports show the gain of each rung over its reference (the rung before,
    or the baseline for the first) and over the baseline. `settings` declares each name that `--perf-set` may give, with
    its meaning in one line. `writes_inputs`: steps write to their inputs, as an optimizer does. The engine gives the
    sets their contents back before each block, outside of the timed window, and compares what the steps wrote.
    """

    name: WorkloadName
    baseline: Build
    inputs: MakeInput
    sizes: Mapping[DeviceKind, Size]
    optimizations: tuple[Optimization, ...]
    seed: int = 0
    cold: bool = True
    timing: Literal["device", "pipeline"] = "device"
    ladder: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    writes_inputs: bool = False

    def optimization(self, name: str) -> Optimization:
        for optimization in self.optimizations:
            if optimization.name == name:
                return optimization
        known = ", ".join(optimization.name for optimization in self.optimizations)
        raise CatalogueError(f"workload {self.name!r} has no optimization {name!r}: it has {known}")


@dataclass(frozen=True, repr=False)
class Case:
    """An optimization of a workload on one kind of device: a test parameter."""

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
        size, own = self.workload.sizes[self.device_kind], self.optimization.bytes
        return size if own is None else replace(size, bytes=own)

    @property
    def spans_gpus(self) -> bool:
        return self.optimization.needs.gpus > 1

    @property
    def reference_name(self) -> str:
        return self.optimization.compared_with

    def builder(self, side_name: str) -> Build:
        """Returns the build function of the baseline or of a named optimization."""
        if side_name == BASELINE:
            return self.workload.baseline
        return self.workload.optimization(side_name).build


@dataclass(frozen=True, repr=False)
class SweepCases:
    """The cases that are the points of one sweep on one kind of device, by value: a test parameter."""

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
    """Looks up the entry of the most specific device class that `table` has, or None."""
    return next((table[name] for name in classes if name in table), None)
