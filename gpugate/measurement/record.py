"""What happened while a case was measured: facts only. What they mean is derived, in `gpugate.results.summary`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from gpugate.measurement.step_profile import StepProfile
from gpugate.units import Count, Milliseconds, Natural, NotNegative, Positive, Share

StopReason = Literal["narrow", "noise", "budget", "outputs not comparable"]
# A counter that this machine could not measure is absent from the mapping: never 0.
Counters = Mapping[str, NotNegative]


@dataclass(frozen=True)
class ClockReading:
    """State of the GPU around one block; None where the machine does not tell."""

    sm_clock_mhz: int | None = None
    throttled_by: tuple[str, ...] = ()  # only reasons that spoil a block: thermal or hardware slowdown
    capped: bool = False  # below the clock of short bursts, by the power limit


@dataclass(frozen=True)
class Pair:
    """One block of each side, next to each other: time per step of each, and who went first."""

    reference_ms: Milliseconds
    optimized_ms: Milliseconds
    reference_first: bool
    sm_clock_mhz: Count | None = None


@dataclass(frozen=True)
class Instance:
    """Pairs taken with one build of both sides. `discarded` counts pairs dropped for a throttled or capped clock."""

    reference_built_first: bool
    pairs: tuple[Pair, ...]
    discarded: Count = 0
    throttled_by: tuple[str, ...] = ()
    reference_steps_per_block: Natural = 1
    optimized_steps_per_block: Natural = 1

    @property
    def log_ratios(self) -> list[float]:
        """log(reference time / optimized time) of every pair: what is gated."""
        return [math.log(pair.reference_ms / pair.optimized_ms) for pair in self.pairs]


@dataclass(frozen=True)
class SideCost:
    """What it took to build a side; never part of a sample."""

    build_s: NotNegative  # model, buffers, engines and compilation
    first_step_s: NotNegative  # lazy compilation, autotuning, graph capture
    peak_bytes: Count | None = None

    @property
    def compile_s(self) -> float:
        return self.build_s + self.first_step_s


@dataclass(frozen=True)
class Difference:
    """How far one output is from the FP32 baseline's output for the same input."""

    relative_l2: NotNegative
    max_error: NotNegative
    top1_agreement: Share | None
    when: Literal["fresh inputs", "timed steps"]
    problem: str | None = None  # NaN, another shape, another dtype: the numbers are then infinite


@dataclass(frozen=True)
class Mismatch:
    """What an output that is too far off looks like; None where it cannot be told."""

    from_step_before: NotNegative | None  # relative L2 error against the output for the input before: stale outputs
    rows_right: Share | None  # share of its rows that are ten times closer than the whole: work that was left out


@dataclass(frozen=True)
class Shown:
    """What a proof said; `problem` is how it failed."""

    name: str
    words: str = ""
    problem: str | None = None


Resemblance = Literal["", "zeros", "not finite", "step before", "other input", "unreadable", "unknown"]


@dataclass(frozen=True)
class StepChecks:
    """The result of the checking pass: the number of steps that were compared, and of those with a wrong output.

    `exchanged`: the contents of the inputs changed places. `new_input_ratio` is the time of a step on an input that
    the side has not met, over its time on the same input again, as a multiple of the reference's where that is
    above 1. `block_share` is the work of a step in a block over that of a step by itself, see `work_in_blocks`. Both
    are None where they were not measured.
    """

    steps: Natural
    wrong: Count = 0
    first_wrong: Natural | None = None
    resembles: Resemblance = ""  # what the first wrong output is
    problem: str = ""  # why it could not be read
    exchanged: bool = False
    overwritten: bool = False  # most outputs were, before they could be read
    new_input_ratio: Positive | None = None
    block_share: NotNegative | None = None


@dataclass(frozen=True)
class Yardstick:
    """A one-second probe of this machine's own ceilings, by name; the unit is in the name."""

    values: Mapping[str, Positive]
    taken: Literal["before", "between", "after"] = "between"


@dataclass(frozen=True)
class Measurement:
    """Everything that one case gave: times in pairs, instance by instance, outputs, counters, costs."""

    case_id: str
    instances: tuple[Instance, ...]
    stopped_because: StopReason
    differences: tuple[Difference, ...]
    reference_cost: SideCost
    optimized_cost: SideCost
    reference_counters: Counters = field(default_factory=dict)
    optimized_counters: Counters = field(default_factory=dict)
    reference_profile: StepProfile | None = None
    optimized_profile: StepProfile | None = None
    mismatch: Mismatch | None = None
    step_checks: StepChecks | None = None  # None: outputs were not comparable
    ceilings: Mapping[str, Positive] = field(
        default_factory=dict
    )  # of this machine, see `gpugate.measurement.ceilings`
    accounts_for_itself: bool = False  # it has a `Side.engaged` of its own
    proofs: tuple[Shown, ...] = ()
    not_engaged: str | None = None  # what Side.engaged() said
    inert: bool = False  # the same bits by the same kernels or operators, and nothing said
    counters_missing: str | None = None  # why there are no counters
    event_host_ratio: NotNegative | None = None  # event time over host time of the same window
    timer: Literal["cuda events", "host clock"] = "host clock"
    input_sets: Natural = 1
    resolution_ms: NotNegative = 0.0
    seed: int = 0
    attempts: Natural = 1  # 1, plus the times that an inconclusive result needed more pairs
    wall_s: NotNegative = 0.0
    spent_s: Mapping[str, NotNegative] = field(default_factory=dict)  # by what was done, see `Progress.doing`

    @property
    def pairs(self) -> tuple[Pair, ...]:
        return tuple(pair for instance in self.instances for pair in instance.pairs)

    def with_more(self, second: Measurement) -> Measurement:
        """Both as one: `second` is of the same case and process, asked for by an undecided result.

        Of every counter the worse value stays: a call that happened in one of them happened.
        """
        return replace(
            second,
            reference_counters=_worse(self.reference_counters, second.reference_counters),
            optimized_counters=_worse(self.optimized_counters, second.optimized_counters),
            instances=self.instances + second.instances,
            differences=self.differences + second.differences,
            proofs=self.proofs,
            reference_cost=self.reference_cost,
            optimized_cost=self.optimized_cost,
            not_engaged=self.not_engaged or second.not_engaged,
            step_checks=_more_wrong(self.step_checks, second.step_checks),
            inert=self.inert and second.inert,
            attempts=self.attempts + 1,
            wall_s=self.wall_s + second.wall_s,
            spent_s=_added(self.spent_s, second.spent_s),
        )


MORE_IS_BETTER = (
    "graph_launches",
    "tensor_core_kernels",
    "active_fraction",
    "kernel_fraction",
    "overlap_fraction",
    "bus_share",
    "data_path_efficiency",
    "whole_run_speedup",
)


def _worse(first: Counters, second: Counters) -> Counters:
    """The worse value of each counter that either measured."""
    both = {**first, **second}
    return {
        name: (min if name in MORE_IS_BETTER else max)(first.get(name, value), second.get(name, value))
        for name, value in both.items()
    }


def _more_wrong(first: StepChecks | None, second: StepChecks | None) -> StepChecks | None:
    """The checks of the second measurement, unless the first one found more wrong steps."""
    return first if second is None or (first is not None and first.wrong > second.wrong) else second


def _added(first: Mapping[str, float], second: Mapping[str, float]) -> Mapping[str, float]:
    return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in {**first, **second}}
