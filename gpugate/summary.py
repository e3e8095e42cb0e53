"""What a measurement means: medians and intervals. Pure; the samples stay where they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from gpugate.measurement.record import Instance, Measurement

CONFIDENCE = 0.99  # one-sided: a bound is wrong at most once in a hundred
MIN_PAIRS = 8
MIN_INSTANCES_FOR_SPREAD = 3


@dataclass(frozen=True)
class Estimate:
    """A median with its lower and upper bound, each at one-sided 99 %."""

    median: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the interval's width relative to the median: 0.005 is +-0.5 %."""
        return (self.high - self.low) / (2 * self.median) if self.median else math.inf


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


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Median with a distribution-free interval from order statistics.

    The k-th smallest of n samples is a lower bound of the median at one-sided confidence
    1 - P(Binomial(n, 1/2) < k); the upper bound is its mirror image (Conover, Practical Nonparametric Statistics,
    3rd ed., 1999, section 3.2). With too few samples for that confidence the bounds are the extremes widened by the
    range, which says "not known" rather than a false precision. Raises ValueError for no samples.
    """
    if not samples:
        raise ValueError("no samples: a median needs at least one")
    ordered = np.sort(np.asarray(samples, dtype=float))
    count = len(ordered)
    rank = int(stats.binom.ppf(1 - confidence, count, 0.5))  # samples below the bound
    if stats.binom.cdf(rank, count, 0.5) > 1 - confidence:
        rank -= 1
    spread = float(ordered[-1] - ordered[0])
    median = float(np.median(ordered))
    if rank < 0:
        return Estimate(median, float(ordered[0]) - spread, float(ordered[-1]) + spread)
    return Estimate(median, float(ordered[rank]), float(ordered[count - 1 - rank]))


def log_ratios(instance: Instance) -> list[float]:
    return [math.log(pair.reference_ms / pair.optimized_ms) for pair in instance.pairs]


def instance_half_width(medians: Sequence[float], confidence: float = CONFIDENCE) -> float:
    """Half-width of the t interval over the medians of fresh instances: t(n-1) * s / sqrt(n); 0 below three.

    The fresh instance is the unit of replication for what pairs cannot see: memory placement and algorithm choice
    (Kalibera & Jones, Rigorous Benchmarking in Reasonable Time, ISMM 2013, section 9).
    """
    count = len(medians)
    if count < MIN_INSTANCES_FOR_SPREAD:
        return 0.0
    spread = float(np.std(medians, ddof=1))
    return float(stats.t.ppf(confidence, count - 1)) * spread / math.sqrt(count)


def speedup_estimate(instances: Sequence[Instance]) -> Estimate:
    """The speedup from paired log-ratios: the wider of what the pairs and what the fresh instances allow."""
    per_instance = [log_ratios(instance) for instance in instances if instance.pairs]
    pooled = median_interval([value for values in per_instance for value in values])
    between = instance_half_width([float(np.median(values)) for values in per_instance])
    return Estimate(
        median=math.exp(pooled.median),
        low=math.exp(min(pooled.low, pooled.median - between)),
        high=math.exp(max(pooled.high, pooled.median + between)),
    )


def robust_spread(values: Sequence[float]) -> float:
    """Standard deviation from the median absolute deviation (scaled by 1.4826 for a normal distribution)."""
    return float(stats.median_abs_deviation(np.asarray(values), scale="normal")) if len(values) > 1 else 0.0


def summarize(measurement: Measurement) -> Summary:
    """Raises ValueError for a measurement without pairs."""
    instances = [instance for instance in measurement.instances if instance.pairs]
    ratios = [log_ratios(instance) for instance in instances]
    medians = [float(np.median(values)) for values in ratios]
    return Summary(
        case_id=measurement.case_id,
        speedup=speedup_estimate(instances),
        reference_ms=median_interval([pair.reference_ms for pair in measurement.pairs]),
        optimized_ms=median_interval([pair.optimized_ms for pair in measurement.pairs]),
        pairs=len(measurement.pairs),
        discarded=sum(instance.discarded for instance in measurement.instances),
        instances=len(instances),
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


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """Sample standard deviation over the mean; None for fewer than two values."""
    return float(np.std(values, ddof=1) / np.mean(values)) if len(values) > 1 else None


def history(processes: Sequence[Sequence[Instance]]) -> History:
    """Raises ValueError for no processes. Each process is the instances that it measured."""
    if not processes:
        raise ValueError("no processes: a history needs at least one")
    pairs = [[pair for instance in process for pair in instance.pairs] for process in processes]
    speedups = [speedup_estimate(process).median for process in processes]
    optimized = [float(np.median([pair.optimized_ms for pair in process])) for process in pairs]
    reference = [float(np.median([pair.reference_ms for pair in process])) for process in pairs]
    return History(
        speedup=float(np.median(speedups)),
        speedup_cv=coefficient_of_variation(speedups),
        reference_ms=float(np.median(reference)),
        optimized_ms=float(np.median(optimized)),
        optimized_ms_cv=coefficient_of_variation(optimized),
        processes=len(processes),
    )
