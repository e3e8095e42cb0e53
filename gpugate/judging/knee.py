"""The verdict about a sweep: the knee of its throughput is where it was recorded, or next to it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpugate.judging.rules import Facts, Rule, judge
from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.run import Mode
from gpugate.results.series import Sweep
from gpugate.results.verdict import NextStep, Outcome, Verdict

STEPS_TO_MOVE = 1  # a neighbour may take the knee's place by chance


class SweepEvidence(NamedTuple):
    """A sweep and the machine of its points: `unfit` is why its times are no evidence."""

    sweep: Sweep
    mode: Mode
    unfit: str | None = None
    ranks_share_cores: bool = False

    @property
    def moved(self) -> int:
        """The places by which the knee moved among the values."""
        values = [point.value for point in self.sweep.points]
        now, then = self.sweep.knee, self.sweep.recorded_knee
        return 0 if now is None or then is None else abs(values.index(now) - values.index(then))


def _few_points(one: SweepEvidence) -> list[Reason]:
    problem = next((point.problem for point in one.sweep.points if point.problem), "one value is no sweep")
    return [Reason(ReasonCode.NOTHING_MEASURED, {"problem": problem})]


def _curve(one: SweepEvidence) -> list[Reason]:
    """The share of the best throughput by the value of each point."""
    best = one.sweep.best_speedup
    shares = {str(each.value): "none" if each.speedup is None else each.speedup / best for each in one.sweep.points}
    return [Reason(ReasonCode.THROUGHPUT_CURVE, shares)]


RULES: tuple[Rule[SweepEvidence], ...] = (
    Rule(lambda one: one.ranks_share_cores, ReasonCode.RANKS_SHARE_CORES, Outcome.INCONCLUSIVE, NextStep.USE_CUDA),
    Rule(lambda one: one.unfit, ReasonCode.MACHINE_UNFIT, Outcome.ENV_INVALID, NextStep.COOL_MACHINE),
    Rule(lambda one: one.sweep.knee is None, _few_points, Outcome.INCONCLUSIVE),
    Rule(
        lambda one: one.sweep.recorded_knee is None and one.mode is Mode.GATE,
        ReasonCode.KNEE,
        Outcome.NO_BASELINE,
        NextStep.RECORD,
    ),
    Rule(lambda one: one.moved > STEPS_TO_MOVE, ReasonCode.KNEE, Outcome.REGRESSED, NextStep.MEASURE_LONGER),
    Rule(lambda one: one.sweep.knee is not None, ReasonCode.KNEE, Outcome.PASS),
    Rule(lambda one: one.sweep.knee is not None and one.sweep.recorded_knee is not None, _curve),
)
FACTS: Mapping[ReasonCode, Callable[[SweepEvidence], Facts]] = {
    ReasonCode.MACHINE_UNFIT: lambda one: {"problem": one.unfit},
    ReasonCode.KNEE: lambda one: {"knee": one.sweep.knee, "recorded_knee": one.sweep.recorded_knee},
}


def judge_knee(
    sweep: Sweep, mode: Mode = Mode.GATE, unfit: str | None = None, ranks_share_cores: bool = False
) -> Verdict:
    """PASS for a knee at its recorded value or at a neighbour of it, REGRESSED for any other knee."""

    evidence = SweepEvidence(sweep, mode, unfit, ranks_share_cores)
    numbers: dict[str, float | str | None] = {"knee": sweep.knee, "recorded_knee": sweep.recorded_knee}
    return judge("knee", sweep.id, RULES, FACTS, evidence, numbers)
