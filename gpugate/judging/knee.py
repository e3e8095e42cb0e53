"""The verdict about a sweep: the knee of its throughput is where it was recorded, or next to it. Pure."""

from __future__ import annotations

from gpugate.results.case import CaseResult
from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.run import Mode
from gpugate.results.series import Sweep
from gpugate.results.verdict import NextStep, Outcome, Verdict


def judge_knee(sweep: Sweep, mode: Mode = Mode.GATE, unfit: CaseResult | None = None) -> Verdict:
    """PASS for a knee at its recorded value or at a neighbour of it, REGRESSED for any other knee.

    `unfit` is a point whose times are no evidence. A neighbour may take the knee's place by chance.
    """
    knee, recorded, step = sweep.knee, sweep.recorded_knee, None
    reason = Reason(ReasonCode.KNEE)
    if unfit is not None:
        reason, outcome = Reason(ReasonCode.MACHINE_UNFIT, {"problem": str(unfit.unfit)}), Outcome.ENV_INVALID
        step = NextStep.USE_CUDA if unfit.environment_problem is None else NextStep.COOL_MACHINE
    elif knee is None:
        problem = next(iter(sweep.problems.values()), "one value is no sweep")
        reason, outcome = Reason(ReasonCode.NOTHING_MEASURED, {"problem": problem}), Outcome.UNDECIDED
    elif recorded is None:
        outcome, step = (Outcome.NO_BASELINE, NextStep.RECORD) if mode is Mode.GATE else (Outcome.PASS, None)
    else:
        values = list(sweep.points)
        moved = abs(values.index(knee) - values.index(recorded)) > 1
        outcome, step = (Outcome.REGRESSED, NextStep.MEASURE_LONGER) if moved else (Outcome.PASS, None)
    return Verdict("knee", sweep.id, outcome, (reason,), step, {"knee": knee, "recorded_knee": recorded})
