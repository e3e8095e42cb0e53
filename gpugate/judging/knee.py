"""The verdict about a sweep: the knee of its throughput is where it was recorded, or next to it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.run import Mode
from gpugate.results.series import Sweep
from gpugate.results.verdict import NextStep, Outcome, Verdict


def judge_knee(
    sweep: Sweep, mode: Mode = Mode.GATE, unfit: str | None = None, ranks_share_cores: bool = False
) -> Verdict:
    """PASS for a knee at its recorded value or at a neighbour of it, REGRESSED for any other knee.

    `unfit` is the reason why the times of the sweep are no evidence. A neighbour may take the knee's place by chance.
    """
    knee, recorded = sweep.knee, sweep.recorded_knee
    reasons, step = list(_describe(sweep)), None
    if ranks_share_cores:
        reasons.insert(0, Reason(ReasonCode.RANKS_SHARE_CORES))
        outcome, step = Outcome.UNDECIDED, NextStep.USE_CUDA
    elif unfit is not None:
        reasons.insert(0, Reason(ReasonCode.MACHINE_UNFIT, {"problem": unfit}))
        outcome, step = Outcome.ENV_INVALID, NextStep.COOL_MACHINE
    elif knee is None:
        outcome = Outcome.UNDECIDED
    elif recorded is None:
        outcome, step = (Outcome.NO_BASELINE, NextStep.RECORD) if mode is Mode.GATE else (Outcome.PASS, None)
    else:
        values = [point.value for point in sweep.points]
        moved = abs(values.index(knee) - values.index(recorded)) > 1
        outcome, step = (Outcome.REGRESSED, NextStep.MEASURE_LONGER) if moved else (Outcome.PASS, None)
    return Verdict("knee", sweep.id, outcome, tuple(reasons), step, {"knee": knee, "recorded_knee": recorded})


def _describe(sweep: Sweep) -> Iterator[Reason]:
    """Yields the knee, and with a recorded one the share of the best throughput by the value of each point."""
    if sweep.knee is None:
        problem = next((point.problem for point in sweep.points if point.problem), "one value is no sweep")
        yield Reason(ReasonCode.NOTHING_MEASURED, {"problem": problem})
        return
    recorded = {} if sweep.recorded_knee is None else {"recorded_knee": sweep.recorded_knee}
    yield Reason(ReasonCode.KNEE, {"knee": sweep.knee, **recorded})
    if recorded:
        best = sweep.best_speedup
        shares = {str(one.value): "none" if one.speedup is None else one.speedup / best for one in sweep.points}
        yield Reason(ReasonCode.THROUGHPUT_CURVE, shares)
