"""The number of pairs per build of both sides that makes the error of a measurement smallest for its time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gpugate.statistics.intervals import robust_spread

# Typical difference between two identical builds, as a log-ratio: 0.03 to 1 % were measured. One round of pairs cannot
# estimate it.
BUILD_SPREAD = 0.003


def pairs_worth_taking(log_ratios: Sequence[Sequence[float]], build_s: float, pair_s: float) -> int:
    """Computes the pairs per build, at least 1: sqrt(build_s / pair_s) * s / BUILD_SPREAD, rounded up.

    s is the spread of pairs within builds. This number makes the error of a mean over builds smallest for the time
    spent (Kalibera & Jones, Rigorous Benchmarking in Reasonable Time, ISMM 2013, section 6). `log_ratios` has one
    sequence per build so far, `build_s` is the time of a fresh build with its warm-up, `pair_s` the time of a pair.
    """
    residuals = [value - float(np.median(build)) for build in log_ratios if build for value in build]
    return max(1, math.ceil(math.sqrt(build_s / pair_s) * robust_spread(residuals) / BUILD_SPREAD))
