"""What a measurement means: medians and intervals. Pure; the samples stay where they are."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpugate.intervals import Estimate, coefficient_of_variation, median_interval, robust_spread
from gpugate.measurement.record import Instance, Measurement
from gpugate.measurement.speedup import speedup_of

MIN_SITTINGS = 5  # occasions that tell how much nights differ
MIN_PROCESSES = 5  # fresh processes that tell how much runs differ
DISTURBED = 4.0  # times as wide an interval as the others' median: something else ran in the middle of it
ALWAYS_UNDISTURBED = 0.01  # relative half-width
SITTING_GAP = datetime.timedelta(hours=6)  # what a machine is like for hours is another by the next night


@dataclass(frozen=True)
class Summary:
    """The numbers that are judged. `speedup` is reference time over optimized time, from pairs."""

    case_id: str
    speedup: Estimate
    reference_ms: Estimate
    optimized_ms: Estimate
    pairs: int
    discarded: int
    instances: int
    pair_spread: float  # robust standard deviation of the paired log-ratio
    instance_spread: float | None  # standard deviation of the log-ratio between fresh instances


def summarize(measurement: Measurement) -> Summary:
    """Raises ValueError for a measurement without pairs."""
    ratios = [instance.log_ratios for instance in measurement.instances if instance.pairs]
    medians = [float(np.median(values)) for values in ratios]
    return Summary(
        case_id=measurement.case_id,
        speedup=speedup_of(measurement.instances),
        reference_ms=median_interval([pair.reference_ms for pair in measurement.pairs]),
        optimized_ms=median_interval([pair.optimized_ms for pair in measurement.pairs]),
        pairs=len(measurement.pairs),
        discarded=sum(instance.discarded for instance in measurement.instances),
        instances=len(ratios),
        pair_spread=robust_spread([value for values in ratios for value in values]),
        instance_spread=float(np.std(medians, ddof=1)) if len(medians) > 1 else None,
    )


@dataclass(frozen=True)
class History:
    """What several fresh processes gave for one case: medians over processes, and how much they vary between runs.

    `*_cv` is the coefficient of variation of the process medians; None with a single process.
    """

    speedup: float
    speedup_cv: float | None
    reference_ms: float
    optimized_ms: float
    optimized_ms_cv: float | None
    processes: int
    sittings: int = 1  # how many occasions, hours apart, the processes were measured on


def by_sitting(started_at: Sequence[str]) -> list[list[int]]:
    """Indices of processes by the occasion on which they ran; between two occasions SITTING_GAP or more passed.

    `started_at` are ISO 8601 times. Raises ValueError for others, and TypeError where only some have an offset.
    """
    times = [datetime.datetime.fromisoformat(time) for time in started_at]
    groups: list[list[int]] = []
    for index in sorted(range(len(times)), key=times.__getitem__):
        if groups and times[index] - times[groups[-1][-1]] < SITTING_GAP:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def undisturbed(speedups: Sequence[Estimate]) -> list[int]:
    """Indices of the processes whose own interval does not say that they were disturbed.

    A process in which another program came between tells so by its interval. It says nothing of how much processes
    differ by themselves, and with it in the cv a tolerance would hide any regression.
    """
    usual = float(np.median([one.half_width for one in speedups])) if speedups else 0.0
    limit = max(ALWAYS_UNDISTURBED, DISTURBED * usual)
    return [index for index, one in enumerate(speedups) if one.half_width <= limit]


def counted(speedups: Sequence[Estimate]) -> list[int]:
    """Indices of the processes that count: the undisturbed ones where they are enough, else all."""
    kept = undisturbed(speedups)
    return kept if len(kept) >= MIN_PROCESSES else list(range(len(speedups)))


def history(processes: Sequence[Sequence[Instance]], started_at: Sequence[str] = ()) -> History:
    """Each process is the instances that it measured, and `started_at` when it did. Raises ValueError for none.

    From MIN_SITTINGS occasions on, the speedup and its cv are those of the occasions' medians: what one night's
    processes share is then in the cv. Before that, disturbed processes do not count where enough others are left.
    """
    if not processes:
        raise ValueError("no processes: a history needs at least one")
    groups = by_sitting(started_at)
    estimates = [speedup_of(process) for process in processes]
    if len(groups) < MIN_SITTINGS:
        kept = counted(estimates)
        processes, estimates = [processes[index] for index in kept], [estimates[index] for index in kept]
    pairs = [[pair for instance in process for pair in instance.pairs] for process in processes]
    speedups = [estimate.median for estimate in estimates]
    if len(groups) >= MIN_SITTINGS:
        speedups = [float(np.median([speedups[index] for index in group])) for group in groups]
    optimized = [float(np.median([pair.optimized_ms for pair in process])) for process in pairs]
    reference = [float(np.median([pair.reference_ms for pair in process])) for process in pairs]
    return History(
        speedup=float(np.median(speedups)),
        speedup_cv=coefficient_of_variation(speedups),
        reference_ms=float(np.median(reference)),
        optimized_ms=float(np.median(optimized)),
        optimized_ms_cv=coefficient_of_variation(optimized),
        processes=len(processes),
        sittings=max(1, len(groups)),
    )
