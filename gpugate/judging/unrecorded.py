"""The judgement of a value that this machine has not recorded. Pure.

A gate needs records: a value without one is NO_BASELINE. In a developer's run a case that keeps its promises passes as
"not recorded yet". The size of its speedup is then known from the interval of this run alone, which must be narrow.
"""

from __future__ import annotations

from gpugate.results.case import Remembered
from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.run import Mode
from gpugate.results.verdict import Outcome
from gpugate.statistics.intervals import Estimate

WIDEST_HALF_WIDTH = 0.15  # of the interval of an unrecorded speedup, relative to its median


def judge_unrecorded(mode: Mode) -> tuple[Outcome, Reason]:
    """The outcome of a value without a record, and its reason."""
    if mode is Mode.GATE:
        return Outcome.NO_BASELINE, Reason(ReasonCode.NO_RECORD)
    code = ReasonCode.BEING_RECORDED if mode is Mode.RECORDING else ReasonCode.NOT_RECORDED_YET
    return Outcome.PASS, Reason(code)


def find_wide_interval(speedup: Estimate, remembered: Remembered | None, mode: Mode) -> Reason | None:
    """The reason not to decide about an unrecorded speedup in a developer's run; None for a narrow interval."""
    if mode is not Mode.DEVELOPER or remembered is not None or speedup.half_width <= WIDEST_HALF_WIDTH:
        return None
    return Reason(ReasonCode.INTERVAL_TOO_WIDE, {"half_width": speedup.half_width, "widest": WIDEST_HALF_WIDTH})
