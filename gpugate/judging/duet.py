"""The outcome of a duet from the processes that measured it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpugate.measurement.record import Measurement, SideCost
from gpugate.results.duet import Duet, DuetOutcome, DuetProcess, DuetSide
from gpugate.statistics.intervals import Estimate, speedup_estimate
from gpugate.statistics.policy import DUET_FLOOR

ALIKE = 0.03  # an interval inside +-3 % is the same speed
CHANGES = (DuetOutcome.SLOWER, DuetOutcome.FASTER)
FEWEST_FOR_ALARM = 2  # processes: a build or a placement in memory that one process got by chance is no change
# Builds of all processes: fewer do not show how much builds differ. Two equal sides that torch.compile built differed
# by 2.4 and 2.6 %, with the same sign, in two processes of one build each, on an H100.
FEWEST_BUILDS_FOR_ALARM = 3


def time_ratio(measurement: Measurement, swapped: bool) -> Estimate:
    """The head's time over the base's in one process. Raises ValueError for a measurement without pairs."""
    return combine([(measurement, swapped)])


def combine(processes: Sequence[tuple[Measurement, bool]], by_median: bool = False) -> Estimate:
    """The head's time over the base's in all processes, each with its `swapped`.

    The builds of all processes are one sample: host, clock and process are the same for both sides of a pair, and what
    is left differs from build to build. In a swapped process the head is the reference, so that what the engine does to
    one role cancels. `by_median`: see `speedup_estimate`. Raises ValueError without any pair.
    """
    builds = [(build, swapped) for measurement, swapped in processes for build in measurement.instances]
    return speedup_estimate(
        [[value if swapped else -value for value in build.log_ratios] for build, swapped in builds],
        [build.reference_built_first is not swapped for build, swapped in builds],
        shrink_builds=True,
        by_median=by_median,
    )


def judge_ratio(ratio: Estimate, processes: Sequence[float], builds: int) -> DuetOutcome:
    """SLOWER or FASTER where the interval is beyond DUET_FLOOR and no process contradicts, SAME where it is within
    ALIKE.

    `processes` are the ratios of single processes, and `builds` is the number of builds in all of them. A change that
    one process or too few builds have seen is UNDECIDED.
    """
    slower, faster = ratio.low > 1 + DUET_FLOOR, ratio.high < 1 / (1 + DUET_FLOOR)
    enough = len(processes) >= FEWEST_FOR_ALARM and builds >= FEWEST_BUILDS_FOR_ALARM
    if enough and slower and min(processes) > 1:
        return DuetOutcome.SLOWER
    if enough and faster and max(processes) < 1:
        return DuetOutcome.FASTER
    within = ratio.low >= 1 / (1 + ALIKE) and ratio.high <= 1 + ALIKE
    return DuetOutcome.SAME if within and not (slower or faster) else DuetOutcome.UNDECIDED


def judge_duet(case_id: str, processes: Sequence[DuetProcess]) -> Duet:
    """The duet of one case. Raises ValueError where no process measured a pair of it.

    Where the interval of the mean of the builds leaves it UNDECIDED, that of their median may show a change: it ignores
    a few builds with another memory. It never shows SAME, since a change may be in a few builds.
    """
    measured = [(one.measured[case_id], one.swapped) for one in processes if case_id in one.measured]
    timed = [(measurement, swapped) for measurement, swapped in measured if measurement.pairs]
    ratios = tuple(time_ratio(*one) for one in timed)
    builds = sum(bool(build.pairs) for measurement, _ in timed for build in measurement.instances)
    medians = [one.median for one in ratios]
    ratio = combine(timed)
    outcome = judge_ratio(ratio, medians, builds)
    if outcome is DuetOutcome.UNDECIDED:
        of_median = combine(timed, by_median=True)
        change = judge_ratio(of_median, medians, builds)
        outcome, ratio = (change, of_median) if change in CHANGES else (outcome, ratio)
    roles = [_sides(measurement)[::-1] if swapped else _sides(measurement) for measurement, swapped in measured]
    base, head = (_cheapest([sides[version] for sides in roles]) for version in (0, 1))
    return Duet(
        case_id=case_id,
        outcome=outcome,
        ratio=ratio,
        processes=ratios,
        detectable=math.expm1(math.log1p(DUET_FLOOR) + 2 * _half_log(ratio)),
        relative_l2=max((one.relative_l2 for measurement, _ in measured for one in measurement.differences), default=0),
        base=base,
        head=head,
    )


def judge_duets(taken: Sequence[DuetProcess]) -> tuple[list[Duet], dict[str, str]]:
    """The duet of every case that was measured, in the order of the first process, and the reasons of the others."""
    names = list(dict.fromkeys(name for process in taken for name in process.measured))
    problems = {name: reason for process in taken for name, reason in process.problems.items()}
    duets = []
    for name in names:
        if any(process.measured[name].pairs for process in taken if name in process.measured):
            duets.append(judge_duet(name, taken))
        else:
            problems[name] = "the outputs of the two versions cannot be compared"
    return duets, problems


def needs_process(duet: Duet) -> bool:
    """True for a case that is not decided, which includes every change that one process alone has seen, and for one
    whose change is larger than DUET_FLOOR, though not surely."""
    change = abs(math.log(duet.ratio.median))
    is_open = duet.outcome is DuetOutcome.SAME and change > math.log1p(DUET_FLOOR)
    return is_open or duet.outcome is DuetOutcome.UNDECIDED


def _sides(measurement: Measurement) -> tuple[DuetSide, DuetSide]:
    return (
        DuetSide(measurement.reference_counters, measurement.reference_cost),
        DuetSide(measurement.optimized_counters, measurement.optimized_cost),
    )


def _cheapest(sides: Sequence[DuetSide]) -> DuetSide:
    return DuetSide(sides[0].counters, SideCost.lowest([side.cost for side in sides]))


def _half_log(ratio: Estimate) -> float:
    return math.log(ratio.high / ratio.low) / 2
