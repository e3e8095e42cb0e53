"""The outcome of a duet from the processes that measured it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from gpugate.judging.bill import TIMES
from gpugate.measurement.record import Counters, Measurement
from gpugate.results.duet import Duet, DuetOutcome, DuetProcess
from gpugate.statistics.intervals import PairsMean, collect_means, mean_of_pairs
from gpugate.statistics.sequential import decide, detectable_change, is_alarming


def mean_of(measurement: Measurement, swapped: bool) -> PairsMean:
    """The log of the head's time over the base's in one process. Raises ValueError for a measurement without pairs.

    In a swapped process the head is the reference, so that what the engine does to one role cancels.
    """
    return mean_of_pairs([[value if swapped else -value for value in one.log_ratios] for one in measurement.instances])


def judge_duet(case_id: str, processes: Sequence[DuetProcess]) -> Duet:
    """The duet of one case, by all processes that measured it. Raises ValueError where none measured a pair."""
    measured = [(one.measured[case_id], one.swapped) for one in processes if case_id in one.measured]
    means = [mean_of(measurement, swapped) for measurement, swapped in measured if measurement.pairs]
    found = collect_means(means)
    outcome = DuetOutcome[decide(found).upper()]
    return Duet(
        case_id=case_id,
        outcome=outcome,
        ratio=found.ratio,
        processes=tuple(collect_means([one]).ratio for one in means),
        detectable=detectable_change(found),
        relative_l2=max((one.relative_l2 for measurement, _ in measured for one in measurement.differences), default=0),
        base=_version(measured, is_head=False),
        head=_version(measured, is_head=True),
        seems_slower=outcome is DuetOutcome.UNDECIDED and is_alarming(found),
    )


def _version(measured: Sequence[tuple[Measurement, bool]], is_head: bool) -> Counters:
    """The counters of one version of a side. The side that is built first also loads libraries: its peak is higher."""
    sides = [
        (one.reference_counters, one.reference_cost)
        if swapped is is_head
        else (one.optimized_counters, one.optimized_cost)
        for one, swapped in measured
    ]
    every = [counters for counters, _ in sides]
    times = {name: median(one[name] for one in every if name in one) for name in every[0].keys() & set(TIMES)}
    peaks = [float(cost.peak_bytes) for _, cost in sides if cost.peak_bytes is not None]
    return {**every[0], **times, **({"peak_bytes": min(peaks)} if peaks else {})}


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
