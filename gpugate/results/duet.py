"""A duet: two versions of one side, measured live and in turns; no record, host or night comes between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from enum import Enum
from statistics import median

from gpugate.machine.environment import Environment
from gpugate.measurement.record import Counters, Measurement, Process
from gpugate.measurement.settings import FEWEST_PAIRS, Settings
from gpugate.statistics.intervals import UNKNOWN_BUILD_SPREAD, Estimate, mean_of_pairs
from gpugate.units import Natural, NotNegative, Positive

BUDGET_S = 15.0  # of sampling a case in a process of a duet


class DuetOutcome(str, Enum):
    """The change of a side's time from the base to the head. It is UNDECIDED until the evidence suffices."""

    SLOWER = "SLOWER"
    FASTER = "FASTER"
    SAME = "SAME"
    UNDECIDED = "UNDECIDED"


@dataclass(frozen=True)
class DuetSize:
    """The size of a process of a duet: the pairs of a build, the builds, and the seconds that all pairs take."""

    pairs: Natural
    builds: Natural
    sampling_s: Positive


@dataclass(frozen=True)
class DuetProcess:
    """The duets of one fresh process, by case id. In a `swapped` process the head is the engine's reference side.

    `wanted` are the cases of its orders, and `problems` the reasons of those that could not be measured, and of cases
    that are not wanted since they need what this machine lacks. `added` cases are only in the head, `removed` ones only
    in the base.
    """

    swapped: bool
    environment: Environment
    wanted: tuple[str, ...] = ()
    measured: Mapping[str, Measurement] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    apart: InitVar[object] = None  # of older files
    software: InitVar[object] = None  # of older files

    @property
    def unfinished(self) -> tuple[str, ...]:
        """The cases that the process left when it died: first the one that was running, then those not begun."""
        return tuple(name for name in self.wanted if name not in self.measured and name not in self.problems)


@dataclass(frozen=True)
class RecordedCode:
    """The comparison of a case's code with the code that its record was measured with.

    `unchanged`: the code is the same, so that nothing was measured. `processes` have the recorded code as their base;
    `problem` is the reason why there are none. `machine_changes` are the differences between both machines, such as
    `driver 580.1 -> 590.2`.
    """

    commit: str
    unchanged: bool = False
    processes: tuple[DuetProcess, ...] = ()
    problem: str | None = None
    machine_changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Duet:
    """The result of one case. `ratio` is the head's time per step over the base's, so that 1.05 is 5 % slower.

    `detectable` is the slowdown, a share, that a duet with this noise detects. `relative_l2` is the largest error of
    the head's outputs against the base's on the same inputs. `base` and `head` are the counters of either version in
    the first process, but for the times of the bill, which are medians of all processes, and the lowest peak of memory.
    `seems_slower`: it is UNDECIDED for no other reason than that a slowdown needs more processes.
    """

    case_id: str
    outcome: DuetOutcome
    ratio: Estimate
    processes: tuple[Estimate, ...]
    detectable: NotNegative
    relative_l2: NotNegative
    base: Counters
    head: Counters
    seems_slower: bool = False


def plan_size(processes: Sequence[Process]) -> DuetSize | None:
    """The size of a process of a duet, by the noise of the pairs of a recorded case; None where no build has two pairs.

    The pairs are as many as give their median a standard deviation of UNKNOWN_BUILD_SPREAD, by which processes differ
    anyway, but no more than take BUDGET_S, and at least FEWEST_PAIRS in a build.

    The differences between recorded processes are left out, since they are of two different sides, and those of a duet
    are one: their rank correlation with the differences of a duet is 0.17 over 85 cases of an H200 and 0.21 over 55 of
    an H100; that of the spreads of pairs is 0.59 and 0.49. The differences between recorded builds are left out, too.
    """
    recorded = [build for process in processes for build in process if len(build.pairs) > 1]
    if not recorded:
        return None
    # Both sides of a duet take the time of the optimized one.
    pairs_ms = [2 * pair.optimized_ms * build.optimized_steps_per_block for build in recorded for pair in build.pairs]
    pair_s, builds = median(pairs_ms) / 1e3, Settings.min_builds
    # The variance of a median falls as the number of its pairs rises.
    needed = len(pairs_ms) * mean_of_pairs(build.log_ratios for build in recorded).variance / UNKNOWN_BUILD_SPREAD**2
    pairs = max(FEWEST_PAIRS, math.ceil(min(needed, BUDGET_S / pair_s) / builds))
    return DuetSize(pairs, builds, builds * pairs * pair_s)
