"""The judgement of a value that this machine has not recorded. Pure.

A gate needs records: a value without one is NO_BASELINE. In a developer's run a case that keeps its promises passes as
"not recorded yet". The size of its speedup is then known from the interval of this run alone, which must be narrow.
"""

from __future__ import annotations

from gpugate.measurement.record import Counters
from gpugate.results.case import Remembered
from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.run import Mode
from gpugate.results.verdict import Outcome
from gpugate.statistics.intervals import Estimate

OTHER_BYTES = 1.5  # times as many bytes from the host: another reference, and no change of the same one
WIDEST_HALF_WIDTH = 0.15  # of the interval of an unrecorded speedup, relative to its median


def judge_unrecorded(mode: Mode) -> tuple[Outcome, Reason]:
    """The outcome of a value without a record, and its reason."""
    if mode is Mode.GATE:
        return Outcome.NO_BASELINE, Reason(ReasonCode.NO_RECORD)
    code = ReasonCode.BEING_RECORDED if mode is Mode.RECORDING else ReasonCode.NOT_RECORDED_YET
    return Outcome.PASS, Reason(code)


def describe_other_reference(recorded: Counters, now: Counters) -> str | None:
    """Returns what shows that the reference computes otherwise than when it was recorded; None for the same reference.

    The speedup over one reference says nothing about the speedup over another one, such as FP32 with and without TF32.
    """
    then, today = (counters.get("tensor_core_kernels") for counters in (recorded, now))
    if then is not None and today is not None and (then == 0) != (today == 0):
        return f"it ran {then:g} tensor-core kernels in a step then, and runs {today:g} now"
    then, today = (counters.get("host_to_device_bytes", 0.0) for counters in (recorded, now))
    if max(then, today) > OTHER_BYTES * min(then, today) > 0:
        return f"it copied {then / 1e6:.3g} MB to the device in a step then, and copies {today / 1e6:.3g} MB now"
    return None


def find_wide_interval(speedup: Estimate, remembered: Remembered | None, mode: Mode) -> Reason | None:
    """The reason not to decide about an unrecorded speedup in a developer's run; None for a narrow interval."""
    if mode is not Mode.DEVELOPER or remembered is not None or speedup.half_width <= WIDEST_HALF_WIDTH:
        return None
    return Reason(ReasonCode.INTERVAL_TOO_WIDE, {"half_width": speedup.half_width, "widest": WIDEST_HALF_WIDTH})
