"""The speedup of a case from all its builds, the pairs that one build is worth, and the end of sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpugate.measurement.record import StopReason, TimedBuild
from gpugate.measurement.settings import FEWEST_PAIRS
from gpugate.statistics.intervals import BUILD_SPREAD, Estimate, residuals_within, robust_spread, speedup_estimate


def speedup_of(builds: Sequence[TimedBuild]) -> Estimate:
    """Estimates the speedup by `gpugate.statistics.intervals.speedup_estimate`. Raises ValueError without any pair."""
    return speedup_estimate([build.log_ratios for build in builds])


SETTLED_CHANGE = 0.05  # the half-width changed by less than this over the last builds
SETTLED_LOOKBACK = 4
MIN_PAIRS_TO_CALL_IT_NOISE = 32


def pairs_worth_taking(log_ratios: Sequence[Sequence[float]], build_s: float, pair_s: float) -> int:
    """Computes the pairs per build, at least 1: sqrt(build_s / pair_s) * s / BUILD_SPREAD, rounded up.

    s is the spread of pairs within builds. This number makes the error of a mean over builds smallest for the time
    spent (Kalibera & Jones, Rigorous Benchmarking in Reasonable Time, ISMM 2013, section 6). `log_ratios` has one
    sequence per build so far, `build_s` is the time of a fresh build with its warm-up, `pair_s` the time of a pair.
    """
    spread = robust_spread(residuals_within(log_ratios))
    return max(1, math.ceil(math.sqrt(build_s / pair_s) * spread / BUILD_SPREAD))


def stop_reason(
    half_widths: Sequence[float], pairs: int, builds_missing: int, seconds_left: float, wanted: float
) -> StopReason | None:
    """Returns the reason to stop sampling, or None to go on.

    `half_widths` is the interval's relative half-width after each build so far, the latest last. `builds_missing`
    is the number of further builds that are wanted and affordable, `wanted` the half-width that ends the sampling.
    """
    if pairs < FEWEST_PAIRS:
        return None
    if seconds_left <= 0:
        return "budget"
    if builds_missing > 0:
        return None
    if half_widths and half_widths[-1] <= wanted:
        return "narrow"
    if pairs >= MIN_PAIRS_TO_CALL_IT_NOISE and len(half_widths) > SETTLED_LOOKBACK:
        before, now = half_widths[-1 - SETTLED_LOOKBACK], half_widths[-1]
        if before > 0 and abs(now - before) / before < SETTLED_CHANGE:
            return "noise"
    return None
