"""Medians and intervals of a measurement, and of the processes that a record is made of. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, replace
from statistics import fmean, median, stdev
from typing import NamedTuple

import numpy as np

from gpugate.measurement.record import Measurement, Pair, TimedBuild
from gpugate.measurement.speedup import speedup_of
from gpugate.results.bill import Bills, ProcessBills, stored_bills
from gpugate.statistics.intervals import Estimate, robust_spread, time_interval, widen
from gpugate.statistics.policy import DECIDING_PROCESSES
from gpugate.statistics.variation import (
    WALL_FACTOR,
    Control,
    Variation,
    detectable_slowdown,
    fit_control,
    log_tolerance,
    shrink_all,
)
from gpugate.units import Count, Milliseconds, NotNegative, Positive, Processes, stored_unless

UNKNOWN_TOLERANCE = 0.05  # of a speedup whose variation is not known


@dataclass(frozen=True)
class Summary:
    """The numbers that are judged. `speedup` is reference time over optimized time, from pairs."""

    case_id: str
    speedup: Estimate
    reference_ms: Estimate
    optimized_ms: Estimate
    pairs: Count
    discarded: Count
    instances: Count


def summarize(measurement: Measurement, recorded: History | None = None) -> Summary:
    """Raises ValueError for a measurement without pairs.

    Where the variation between processes is `recorded`, the intervals of the speedup and of the optimized side's time
    contain it: they speak of the machine. Without it they speak of this process alone.
    """
    of_speedup, of_time = recorded.half_widths if recorded is not None else (0.0, 0.0)
    return Summary(
        case_id=measurement.case_id,
        speedup=widen(speedup_of(measurement.instances), of_speedup),
        reference_ms=time_interval([pair.reference_ms for pair in measurement.pairs]),
        optimized_ms=widen(time_interval([pair.optimized_ms for pair in measurement.pairs]), of_time),
        pairs=len(measurement.pairs),
        discarded=sum(build.discarded for build in measurement.instances),
        instances=sum(bool(build.pairs) for build in measurement.instances),
    )


class ProcessSummary(NamedTuple):
    """The numbers of one fresh process by which a record counts it, or a night judges it."""

    speedup: Estimate  # its interval is of this process alone
    reference_ms: float


class WallLimits(NamedTuple):
    """The limits of a wall time, both as shares: the rise beyond its `control` that may be chance, and the smallest
    slowdown that is then detected 95 times in 100."""

    control: Control
    allowed: float
    detectable: float


@dataclass(frozen=True)
class History:
    """Medians over several fresh processes of one case, and their variation between processes.

    `*_cv` is the coefficient of variation of the process medians; None with a single process.
    """

    speedup: Positive
    speedup_cv: NotNegative | None
    reference_ms: Milliseconds
    optimized_ms: Milliseconds
    optimized_ms_cv: NotNegative | None
    processes: Processes
    sm_clock_mhz: NotNegative | None = None  # median over all pairs, of a GPU
    optimized_steps_per_block: Positive = 1.0  # median over all builds
    pair_noise: NotNegative | None = None  # standard error that its pairs alone give a process's log speedup, median
    shrunk: Variation | None = None  # variation of the speedup as all records of the machine predict it
    control: Control | None = stored_unless(None)  # of the optimized side's time; None: of an older run
    bills: ProcessBills = stored_bills()  # of each of the processes; empty: no process has one
    sittings: InitVar[object] = None  # of older files

    @property
    def variation(self) -> Variation | None:
        """The variation of the speedup by which it is judged; None with a single process."""
        if self.shrunk is not None or self.speedup_cv is None:
            return self.shrunk
        return Variation(self.speedup_cv, self.processes - 1)

    @property
    def wall(self) -> Control | None:
        """The control of the optimized side's time; None for fewer than DECIDING_PROCESSES. A history of an older run
        has the variation of the time alone."""
        if self.processes < DECIDING_PROCESSES or self.optimized_ms_cv is None:
            return None
        return self.control or Control(0.0, Variation(self.optimized_ms_cv, self.processes - 1))

    @property
    def half_widths(self) -> tuple[float, float]:
        """The half-widths of intervals that one process gives for its machine, of the speedup and of the optimized
        side's time; 0 for fewer than DECIDING_PROCESSES."""
        if self.processes < DECIDING_PROCESSES or self.variation is None or self.optimized_ms_cv is None:
            return 0.0, 0.0
        return self.variation.half_width, Variation(self.optimized_ms_cv, self.processes - 1).half_width

    def tolerance(self, checks_per_night: int) -> float:
        """The share by which a speedup may fall short of this one by chance, in a night of so many checks of times."""
        if self.variation is None or self.processes < DECIDING_PROCESSES:
            return UNKNOWN_TOLERANCE
        return -math.expm1(-log_tolerance(self.variation, self.processes, checks_per_night))

    def wall_limits(self, checks_per_night: int) -> WallLimits | None:
        """The limits of the wall time in a night of so many checks of times; None for too few processes."""
        if self.wall is None:
            return None
        allowed = log_tolerance(self.wall.variation, self.processes, checks_per_night, times=WALL_FACTOR)
        detectable = detectable_slowdown(self.wall.variation, self.processes, allowed)
        return WallLimits(self.wall, math.expm1(allowed), detectable)


def sm_clock_mhz(pairs: Iterable[Pair]) -> float | None:
    """Computes the median SM clock of the pairs whose clock was read; None without such a pair."""
    clocks = [pair.sm_clock_mhz for pair in pairs if pair.sm_clock_mhz is not None]
    return float(median(clocks)) if clocks else None


def summarize_process(builds: Sequence[TimedBuild]) -> ProcessSummary:
    """Raises ValueError for builds without pairs."""
    reference_ms = [pair.reference_ms for build in builds for pair in build.pairs]
    return ProcessSummary(speedup_of(builds), median(reference_ms))


def history(processes: Sequence[Sequence[TimedBuild]], bills: Sequence[Bills | None] = ()) -> History:
    """Each process is the builds that it measured, and `bills` has the bill of each. All of them count, those beside
    other work, too: without them a gate alarms as often and finds as much. Raises ValueError for no process."""
    if not processes:
        raise ValueError("no processes: a history needs at least one")
    summaries = [summarize_process(process) for process in processes]
    pairs = [[pair for build in process for pair in build.pairs] for process in processes]
    optimized = [median([pair.optimized_ms for pair in process]) for process in pairs]
    speedups, references = [one.speedup.median for one in summaries], [one.reference_ms for one in summaries]
    return History(
        speedup=median(speedups),
        speedup_cv=_variation(speedups),
        reference_ms=median(references),
        optimized_ms=median(optimized),
        optimized_ms_cv=_variation(optimized),
        processes=len(processes),
        sm_clock_mhz=sm_clock_mhz(pair for process in pairs for pair in process),
        optimized_steps_per_block=float(
            np.median([one.optimized_steps_per_block for process in processes for one in process])
        ),
        pair_noise=median(_pair_noise(process) for process in processes),
        control=fit_control(np.log(optimized).tolist(), np.log(references).tolist()),
        bills=tuple(bills) if any(bills) else (),
    )


def _variation(values: Sequence[float]) -> float | None:
    return stdev(values) / fmean(values) if len(values) > 1 else None


def _pair_noise(process: Sequence[TimedBuild]) -> float:
    ratios = [ratio for build in process if build.pairs for ratio in build.log_ratios]
    return robust_spread(ratios) / math.sqrt(len(ratios))


def shrink_records(current: Sequence[History]) -> list[History]:
    """Shrinks the variations of the records of one machine towards their predictions from the noise of the
    pairs: those of the speedups, and those of the times beyond their controls.

    The predictions are fitted to these records. A history of fewer than DECIDING_PROCESSES stays as it is.
    """
    of_speedups = shrink_all([_observe(one, one.variation) for one in current])
    of_times = shrink_all([_observe(one, one.control.variation if one.control else None) for one in current])
    return [
        replace(
            one,
            shrunk=of_speedup,
            control=replace(one.control, variation=of_time) if one.control and of_time else one.control,
        )
        for one, of_speedup, of_time in zip(current, of_speedups, of_times, strict=True)
    ]


def _observe(history: History, variation: Variation | None) -> tuple[Variation, float] | None:
    if variation is None or history.pair_noise is None or history.processes < DECIDING_PROCESSES:
        return None
    return variation, history.pair_noise
