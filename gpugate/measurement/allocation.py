"""How many pairs one build of both sides is worth, before the next build tells more than the next pair would."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gpugate.statistics.intervals import robust_spread

# What two identical builds typically differ by, as a log-ratio: 0.03 to 1 % were seen. A round is too early to know it.
BUILD_SPREAD = 0.003


def pairs_worth_taking(log_ratios: Sequence[Sequence[float]], build_s: float, pair_s: float) -> int:
    """sqrt(build_s / pair_s) * s / BUILD_SPREAD, rounded up, s the spread of pairs within builds; at least 1.

    This many pairs of each build make the error of a mean over builds smallest for the time spent (Kalibera & Jones,
    Rigorous Benchmarking in Reasonable Time, ISMM 2013, section 6). `log_ratios` are those of each build so far,
    `build_s` is what a fresh build costs, its warm-up included, `pair_s` what a pair costs.
    """
    residuals = [value - float(np.median(build)) for build in log_ratios if build for value in build]
    return max(1, math.ceil(math.sqrt(build_s / pair_s) * robust_spread(residuals) / BUILD_SPREAD))
