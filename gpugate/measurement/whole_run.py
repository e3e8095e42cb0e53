"""The time of a whole run: all items of a finite job, start-up included. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from gpugate.measurement.record import Measurement, SideCost
from gpugate.workload import Size


class WholeRun(NamedTuple):
    """Seconds from start to end of one run on either side."""

    reference_s: float
    optimized_s: float

    @property
    def speedup(self) -> float:
        return self.reference_s / self.optimized_s


def whole_run(size: Size, measurement: Measurement) -> WholeRun | None:
    """Computes the whole run of both sides; None where a run has no end, and where nothing was timed.

    A whole run is start-up, which includes a first step, and then every other item at the median rate. Both start-ups
    are those of the first timed build. Both sides were built before it, the optimization for a proof or once untimed,
    the baseline for its outputs: caches of the process and the disk are warm, and no start-up imports packages.
    """
    items, pairs = size.whole_run_items, measurement.pairs
    if items is None or not pairs:
        return None
    steps = items / size.items - 1

    def seconds(cost: SideCost, times_ms: Sequence[float]) -> float:
        return cost.compile_s + steps * statistics.median(times_ms) / 1e3

    return WholeRun(
        seconds(measurement.reference_cost, [pair.reference_ms for pair in pairs]),
        seconds(measurement.optimized_cost, [pair.optimized_ms for pair in pairs]),
    )


def with_whole_run(found: Measurement, size: Size) -> Measurement:
    """Adds the counter `whole_run_speedup` to the optimized side, where it was counted and its run has an end."""
    whole = whole_run(size, found)
    if whole is None or found.counters_missing is not None or not found.optimized_counters:
        return found
    return replace(found, optimized_counters={**found.optimized_counters, "whole_run_speedup": whole.speedup})
