"""The facts of one measurement of a case. `gpugate.results.summary` derives medians and intervals from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields, replace
from typing import Annotated, Any, Literal

from gpugate.measurement.settings import SLOWED
from gpugate.units import (
    Count,
    Milliseconds,
    Natural,
    NotFinite,
    NotNegative,
    Positive,
    Seed,
    Share,
    round_stored,
    stored_unless,
)
from gpugate.workload.counter_names import MORE_IS_BETTER

OTHERS = "(others)"  # the parts of a profile beyond the longest ones
StopReason = Literal["narrow", "noise", "budget", "outputs not comparable"]
# A counter that this machine could not measure is absent from the mapping: never 0.
Counters = Mapping[str, NotNegative]


@dataclass(frozen=True)
class ClockReading:
    """State of the GPU around one block; `sm_clock_mhz` is None where the clock cannot be read."""

    sm_clock_mhz: int | None = None
    throttled_by: tuple[str, ...] = ()  # only reasons that spoil a block: thermal or hardware slowdown
    capped: bool = False  # below the clock of short bursts, by the power limit


@dataclass(frozen=True)
class Pair:
    """A block of each side, next to each other: the time per step of each, and the side that ran first."""

    reference_ms: Milliseconds
    optimized_ms: Milliseconds
    reference_first: bool
    sm_clock_mhz: Count | None = None


@dataclass(frozen=True)
class TimedBuild:
    """Pairs taken with one build of both sides. `discarded` counts pairs dropped for a throttled or capped clock."""

    pairs: tuple[Pair, ...]
    discarded: Count = 0
    throttled_by: tuple[str, ...] = ()
    reference_steps_per_block: Natural = 1
    optimized_steps_per_block: Natural = 1

    @property
    def log_ratios(self) -> list[float]:
        """log(reference time / optimized time) of every pair: the numbers that a gate judges."""
        return [math.log(pair.reference_ms / pair.optimized_ms) for pair in self.pairs]


@dataclass(frozen=True)
class Columns:
    """The builds of one process as they are stored: a list per field, so that a new process changes a few lines.

    A field of `Pair` has one inner list per build.
    """

    discarded: tuple[Count, ...]
    throttled_by: tuple[tuple[str, ...], ...]
    reference_steps_per_block: tuple[Natural, ...]
    optimized_steps_per_block: tuple[Natural, ...]
    reference_ms: tuple[tuple[Milliseconds, ...], ...]
    optimized_ms: tuple[tuple[Milliseconds, ...], ...]
    reference_first: tuple[tuple[bool, ...], ...]
    sm_clock_mhz: tuple[tuple[Count | None, ...], ...]
    reference_built_first: InitVar[object] = None  # of older files

    @property
    def instances(self) -> tuple[TimedBuild, ...]:
        """Raises ValueError for columns of different lengths."""
        try:
            builds = [
                dict(zip(_COLUMNS, values, strict=True))
                for values in zip(*(getattr(self, name) for name in _COLUMNS), strict=True)
            ]
            of_pairs = [zip(*(build.pop(name) for name in _OF_PAIR), strict=True) for build in builds]
            pairs = [tuple(Pair(*values) for values in each) for each in of_pairs]
        except ValueError:
            raise ValueError("its lists differ in length") from None
        return tuple(TimedBuild(pairs=each, **build) for each, build in zip(pairs, builds, strict=True))


_COLUMNS = tuple(column.name for column in fields(Columns))
_OF_PAIR = tuple(column.name for column in fields(Pair))


def _to_columns(process: Sequence[TimedBuild]) -> Mapping[str, list[Any]]:
    """The fields of `Columns`, with times of 6 significant digits."""
    columns: dict[str, list[Any]] = {}
    for name in _COLUMNS:
        if name not in _OF_PAIR:
            columns[name] = [getattr(build, name) for build in process]
        else:
            columns[name] = [[getattr(pair, name) for pair in build.pairs] for build in process]
    for name in ("reference_ms", "optimized_ms"):
        columns[name] = [[round_stored(value) for value in values] for values in columns[name]]
    return columns


class _InColumns:
    """Makes pydantic store a tuple of builds as `Columns`, an empty one as an empty list."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        none = core_schema.tuple_variable_schema(max_length=0)
        columns = core_schema.no_info_after_validator_function(
            lambda columns: columns.instances, handler.generate_schema(Columns)
        )
        return core_schema.tagged_union_schema(
            {"none": none, "": columns},  # an empty tag is no part of a path
            lambda stored: "none" if stored == [] else "",
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda process: _to_columns(process) if process else []
            ),
        )


Process = Annotated[tuple[TimedBuild, ...], _InColumns()]


Parts = Mapping[str, tuple[NotNegative, NotNegative]]  # by name: count per step, and milliseconds per step in all


@dataclass(frozen=True)
class StepProfile:
    """A step of a side under the profiler: the longest parts first, times in milliseconds per step.

    `kernels` are the kernels of the GPU; on a CPU, the operators, each without the operators that it calls. `copies`
    are by kind, memsets among them; `waits` are host calls in which the stepping thread waits for the device. `after`
    is all the device work that `Side.finish()` adds after the last step. `stages` are the ranges that the side names,
    in order, with the time of their work on the GPU, or their own time on a CPU. `kernel_ms` is the time in which
    kernels run, however many at once; `copy_ms` is the time in which copies run and no kernel does. `layers` are those
    of a compiled engine, by their names, as `Side.layers` lists them.
    """

    kernels: Parts = field(default_factory=dict)
    copies: Parts = field(default_factory=dict)
    waits: Parts = field(default_factory=dict)
    after: Parts = field(default_factory=dict)
    stages: Parts = field(default_factory=dict)
    kernel_ms: NotNegative = 0.0
    copy_ms: NotNegative = 0.0
    layers: tuple[str, ...] = stored_unless(())

    def longer(self, factor: float) -> StepProfile:
        """Returns this profile with every time multiplied by `factor`."""
        parts = self.kernels, self.copies, self.waits, self.after, self.stages
        kernels, copies, waits, after, stages = (_longer(one, factor) for one in parts)
        times_ms = factor * self.kernel_ms, factor * self.copy_ms
        return StepProfile(kernels, copies, waits, after, stages, *times_ms, self.layers)


def _longer(parts: Parts, factor: float) -> Parts:
    return {name: (count, factor * ms) for name, (count, ms) in parts.items()}


@dataclass(frozen=True)
class SideCost:
    """The start-up of a side, which is no sample: the time of its build and first step, and the memory of a step."""

    build_s: NotNegative  # model, buffers, engines and compilation
    first_step_s: NotNegative  # lazy compilation, autotuning, graph capture
    peak_bytes: Count | None = None  # of a step: above what was allocated before the build
    first_sights_s: NotNegative = stored_unless(0.0)  # of inputs in other forms, before any block is timed

    @property
    def compile_s(self) -> float:
        return self.build_s + self.first_step_s + self.first_sights_s

    @classmethod
    def lowest(cls, costs: Sequence[SideCost]) -> SideCost:
        """The lowest of each cost: what a side alone needs. The side that is built first also loads libraries."""
        peaks = [cost.peak_bytes for cost in costs if cost.peak_bytes is not None]
        return cls(
            min(cost.build_s for cost in costs),
            min(cost.first_step_s for cost in costs),
            min(peaks, default=None),
            min(cost.first_sights_s for cost in costs),
        )


@dataclass(frozen=True)
class Difference:
    """Errors of one tensor of an output against the FP32 baseline's for the same input.

    `part` names the tensor in an output of several, such as `hidden[1]`. `unequal` counts the integers or booleans
    that differ, of `values`; None for other numbers. `not_finite` counts infinity and NaN, equal in both.
    """

    relative_l2: Annotated[NotNegative, NotFinite(("Infinity",))]
    max_error: Annotated[NotNegative, NotFinite(("Infinity",))]
    top1_agreement: Share | None
    when: Literal["fresh inputs", "timed steps"]
    problem: str | None = None  # NaN, another shape, another dtype: the numbers are then infinite
    part: str = stored_unless("")
    unequal: Count | None = stored_unless(None)
    values: Count = stored_unless(0)
    not_finite: Count = stored_unless(0)


@dataclass(frozen=True)
class ProofResult:
    """The result of a proof: the words that it returned, or the `problem` for which it failed.

    `proved_at` is the start of the earlier run that showed a remembered proof, in ISO 8601; None: this run showed it.
    """

    name: str
    words: str = ""
    problem: str | None = None
    proved_at: str | None = None


Resemblance = Literal["", "zeros", "not finite", "step before", "other input", "some rows", "unreadable", "unknown"]


@dataclass(frozen=True)
class StepChecks:
    """The result of the checking pass: the number of steps that were compared, and of those with a wrong output.

    `exchanged`: the contents of the inputs changed places. `new_input_ratio` is the time of a step on an input that
    the side has not read before, over its time on a timed input, as a multiple of the reference's ratio where that is
    above 1. `block_share` is the work of a step in a block over its work in groups that are joined one by one, see
    `block_work_share`. Both are None where they were not measured.
    """

    steps: Natural
    wrong: Count = 0
    first_wrong: Natural | None = None
    resembles: Resemblance = ""  # the kind of the first wrong output
    problem: str = ""  # why the first wrong output could not be read
    exchanged: bool = False
    overwritten: bool = False  # later steps overwrote outputs before they could be read
    new_input_ratio: Positive | None = None
    block_share: NotNegative | None = None

    def with_new(self, new: StepChecks) -> StepChecks:
        """Adds the steps on new inputs, which ran after these."""
        found = replace(self, steps=self.steps + new.steps, wrong=self.wrong + new.wrong)
        if self.wrong or not new.wrong:
            return found
        first = self.steps + (new.first_wrong or 0)
        return replace(found, first_wrong=first, resembles=new.resembles, problem=new.problem)


@dataclass(frozen=True)
class Yardstick:
    """Ceilings of this machine from a probe of one second, by name; the unit is in the name."""

    values: Mapping[str, Positive]
    taken: InitVar[object] = None  # of older files


@dataclass(frozen=True)
class Measurement:
    """All results of measuring one case in one process: pairs by build, differences of outputs, counters, costs."""

    case_id: str
    instances: Process
    stopped_because: StopReason
    differences: tuple[Difference, ...]
    reference_cost: SideCost
    optimized_cost: SideCost
    reference_counters: Counters = field(default_factory=dict)
    optimized_counters: Counters = field(default_factory=dict)
    reference_profile: StepProfile | None = None
    optimized_profile: StepProfile | None = None
    step_checks: StepChecks | None = None  # None: outputs were not comparable
    ceilings: Mapping[str, Positive] = field(default_factory=dict)  # of this machine, see `derived.with_ceilings`
    accounts_for_itself: bool = False  # the optimized side has a `Side.engaged` of its own
    proofs: tuple[ProofResult, ...] = ()
    not_engaged: str | None = None  # the reason that Side.engaged() returned
    inert: bool = False  # the same bits by the same kernels or operators, and no `Side.engaged`
    counters_missing: str | None = None  # why there are no counters
    cpu_missing: str | None = stored_unless(None)  # why there is no CPU time of a side
    event_host_ratio: NotNegative | None = None  # event time over host time of a window: the lower quartile
    timer: Literal["cuda events", "host clock"] = "host clock"
    seed: Seed = 0
    # The reference's time of a step, over its time before the other side was built.
    reference_slowdown: NotNegative | None = stored_unless(None)
    # The same ratio of a reference built after both sides are closed; None where the ratio above is at most SLOWED.
    lasting_slowdown: NotNegative | None = stored_unless(None)
    attempts: Natural = 1  # 1, plus the number of times that an undecided result was measured on
    wall_s: NotNegative = 0.0
    spent_s: Mapping[str, NotNegative] = field(default_factory=dict)  # by activity, see `Progress.doing`
    # Of older files.
    input_sets: InitVar[object] = None
    mismatch: InitVar[object] = None
    resolution_ms: InitVar[object] = None

    @property
    def pairs(self) -> tuple[Pair, ...]:
        return tuple(pair for build in self.instances for pair in build.pairs)

    @property
    def has_slowed_reference(self) -> bool:
        """True where the other side made the reference take more than SLOWED times as long as before that was built."""
        return (self.reference_slowdown or 1.0) > SLOWED

    def with_more(self, second: Measurement) -> Measurement:
        """Merges both: `second` continues the same case in the same process after an undecided result.

        The worse value of every counter stays: a call that either measurement counted did happen.
        """
        spent = {**self.spent_s, **second.spent_s}
        return replace(
            second,
            reference_counters=_worse(self.reference_counters, second.reference_counters),
            optimized_counters=_worse(self.optimized_counters, second.optimized_counters),
            instances=self.instances + second.instances,
            differences=self.differences + second.differences,
            proofs=self.proofs,
            reference_cost=self.reference_cost,
            optimized_cost=self.optimized_cost,
            reference_slowdown=self.reference_slowdown,
            lasting_slowdown=self.lasting_slowdown,
            not_engaged=self.not_engaged or second.not_engaged,
            cpu_missing=self.cpu_missing and second.cpu_missing,
            step_checks=_more_wrong(self.step_checks, second.step_checks),
            inert=self.inert and second.inert,
            attempts=self.attempts + 1,
            wall_s=self.wall_s + second.wall_s,
            spent_s={name: self.spent_s.get(name, 0.0) + second.spent_s.get(name, 0.0) for name in spent},
        )


def _worse(first: Counters, second: Counters) -> Counters:
    """Takes the worse value of each counter that either measurement has."""
    both = {**first, **second}
    return {
        name: (min if name in MORE_IS_BETTER else max)(first.get(name, value), second.get(name, value))
        for name, value in both.items()
    }


def _more_wrong(first: StepChecks | None, second: StepChecks | None) -> StepChecks | None:
    """Takes the checks of the second measurement, unless the first one found more wrong steps."""
    return first if second is None or (first is not None and first.wrong > second.wrong) else second
