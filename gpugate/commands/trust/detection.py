"""The smallest slowdown that a rule catches. Pure statistics."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.optimize import isotonic_regression

from gpugate.commands.trust.rates import Rate

CAUGHT = 0.95
ROUNDING = 1e-9  # 19 of 20 must not become less than 95 % by an average


def smallest_caught(rates: Mapping[float, Rate]) -> float | None:
    """The smallest slowdown tried from which on every one was caught in at least 95 % of its trials; None: not reached.

    `rates` are alarms by slowdown, a share of the time per step; 0, where an alarm catches nothing, is left out.
    """
    found = None
    for slowdown in sorted((slowdown for slowdown in rates if slowdown > 0), reverse=True):
        if rates[slowdown].share < CAUGHT:
            break
        found = slowdown
    return found


def minimum_detectable_effect(rates: Mapping[float, Rate]) -> float | None:
    """The slowdown at which the detection curve crosses 95 %; None where no slowdown tried is the smallest caught, and
    where the rule alarms as often when nothing changed: what it does then is no detection.

    The curve is the isotonic regression of the shares on the slowdown, weighted by trials (Barlow et al., Statistical
    Inference under Order Restrictions, 1972), with straight lines between sizes: between neighbours d0 and d1 with
    p0 < 95 % <= p1 it crosses at d0 + (d1 - d0) (0.95 - p0) / (p1 - p0). The share of false alarms is its value at 0.
    """
    if smallest_caught(rates) is None:
        return None
    slowdowns = sorted(rates)
    shares = [rates[slowdown].share for slowdown in slowdowns]
    curve = isotonic_regression(shares, weights=[rates[slowdown].trials for slowdown in slowdowns]).x
    above = int(np.argmax(curve > CAUGHT - ROUNDING))
    if above == 0:
        return slowdowns[0] or None
    part = (CAUGHT - curve[above - 1]) / (curve[above] - curve[above - 1])
    return float(slowdowns[above - 1] + (slowdowns[above] - slowdowns[above - 1]) * part)
