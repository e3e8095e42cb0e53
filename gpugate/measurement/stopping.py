"""The end of sampling: the interval is narrow enough, the noise has stopped changing, or the budget is spent."""

from __future__ import annotations

from collections.abc import Sequence

from gpugate.measurement.record import StopReason
from gpugate.measurement.settings import Settings

SETTLED_CHANGE = 0.05  # the half-width changed by less than this over the last instances
SETTLED_LOOKBACK = 4
MIN_PAIRS_TO_CALL_IT_NOISE = 32


def stop_reason(
    half_widths: Sequence[float], pairs: int, instances_missing: int, seconds_left: float, settings: Settings
) -> StopReason | None:
    """Returns the reason to stop sampling, or None to go on.

    `half_widths` is the interval's relative half-width after each build so far, the latest last. `instances_missing`
    is the number of further builds that are wanted and affordable.
    """
    if pairs < settings.min_pairs:
        return None
    if seconds_left <= 0:
        return "budget"
    if instances_missing > 0:
        return None
    if half_widths and half_widths[-1] <= settings.half_width:
        return "narrow"
    if pairs >= MIN_PAIRS_TO_CALL_IT_NOISE and len(half_widths) > SETTLED_LOOKBACK:
        before, now = half_widths[-1 - SETTLED_LOOKBACK], half_widths[-1]
        if before > 0 and abs(now - before) / before < SETTLED_CHANGE:
            return "noise"
    return None
