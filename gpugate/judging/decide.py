"""The verdicts of a case, and the decision to measure more of it. Pure.

A `CaseResult` has everything that its verdicts rest on, so `decide` also decides a stored run again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpugate.judging.counters import judge_counters
from gpugate.judging.equivalence import judge_equivalence
from gpugate.judging.machine_state import busy_cores, with_environment, with_other_work
from gpugate.judging.next_step import unless_wrong
from gpugate.judging.plausibility import TIMES_CEILING, impossible_rate, without_result
from gpugate.judging.processes import vote
from gpugate.judging.times import MOVED, judge_speedup, judge_throughput, middle_by_speedup
from gpugate.measurement.record import Measurement
from gpugate.results.case import CaseResult, Promise
from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.summary import Summary
from gpugate.results.verdict import Check, Outcome, Verdict
from gpugate.statistics.intervals import LAST_DIGIT

TIMED: tuple[Check, ...] = ("speedup", "throughput")


def decide(result: CaseResult, recording: bool, asked_tolerance: float | None) -> list[Verdict]:
    """The four verdicts of a measured case.

    A recording takes a missing baseline for granted. `asked_tolerance` is the share by which the user lets a speedup
    fall, None for what the machine can resolve. Raises ValueError for a case that was not measured.
    """
    measurement, promise = result.measurement, result.promise
    if measurement is None or promise is None:
        raise ValueError(f"{result.case_id} was not measured: there is nothing to decide")
    confirming = _confirming(result)
    summaries = [result.summarize(one) for one in (measurement, *confirming) if one.pairs] if measurement.pairs else []
    timed = (
        judge_speedup(measurement, summaries, promise.min_speedup, result.remembered, asked_tolerance),
        judge_throughput(measurement, summaries, result.remembered),
    )
    impossible = impossible_rate(measurement, summaries[0], result.size) if summaries else None
    outputs = [judge_equivalence(one, promise.tolerance) for one in (measurement, *confirming)]
    verdicts = [
        next((one for one in outputs if one.outcome is Outcome.WRONG), outputs[0]),
        *(with_environment(without_result(verdict, impossible), result.environment_problem) for verdict in timed),
        _counters(result, promise, (measurement, *confirming)),
    ]
    if impossible is None:
        on_cpu = result.device_kind == "cpu"
        verdicts = [with_other_work(one, measurement, on_cpu) if one.check in TIMED else one for one in verdicts]
    problems = dict.fromkeys(one.problem for one in result.attempts if one.problem)
    unconfirmed = [Reason(ReasonCode.NOT_CONFIRMED, {"problem": problem}) for problem in problems]
    verdicts = [one if one.check == "equivalence" else _with_reasons(one, unconfirmed) for one in verdicts]
    if recording:
        verdicts = [_about_to_be_recorded(verdict) for verdict in verdicts]
    return unless_wrong(verdicts)


def _confirming(result: CaseResult) -> list[Measurement]:
    return [one.measurement for one in result.attempts if one.measurement is not None and one.problem is None]


@dataclass(frozen=True)
class Decider:
    """The process whose speedup decided about a case, and how many processes were measured."""

    summary: Summary
    processes: int


def decider(result: CaseResult) -> Decider | None:
    """None for a case without times."""
    if result.summary is None:
        return None
    summaries = [result.summary, *(result.summarize(one) for one in _confirming(result) if one.pairs)]
    return Decider(middle_by_speedup(summaries), len(summaries))


def left_open_by_other_work(result: CaseResult) -> bool:
    """True where other work on the CPU left a time open: more pairs beside that work would not narrow its interval."""
    if result.device_kind != "cpu" or result.measurement is None or busy_cores(result.measurement) is None:
        return False
    open_ones = (Outcome.INCONCLUSIVE, Outcome.ENV_INVALID)
    timed = [one.outcome for one in result.verdicts if one.check in TIMED and TIMES_CEILING not in one.numbers]
    return Outcome.REGRESSED not in timed and any(outcome in open_ones for outcome in timed)


def wants_more_pairs(result: CaseResult) -> bool:
    """True where a time is INCONCLUSIVE, which more pairs can settle, or REGRESSED, which more pairs must repeat.

    A result that is open because the reference moved, or because processes differ, needs another process, and more
    pairs do not make an impossible time possible.
    """
    timed = [one for one in result.verdicts if one.check in TIMED and TIMES_CEILING not in one.numbers]
    if any(verdict.outcome is Outcome.REGRESSED for verdict in timed):
        return True
    open_ones = [one for one in timed if one.outcome is Outcome.INCONCLUSIVE and MOVED not in one.numbers]
    return any(_can_narrow(result, one.check) for one in open_ones) and not left_open_by_other_work(result)


def _can_narrow(result: CaseResult, check: Check) -> bool:
    """True where the interval is wider than what processes differ by, since more pairs cannot narrow it further."""
    if result.remembered is None or result.measurement is None or not result.measurement.pairs:
        return True
    half_width = dict(zip(TIMED, result.remembered.current.half_widths, strict=True))[check]
    summary = result.summarize(result.measurement)
    interval = summary.speedup if check == "speedup" else summary.optimized_ms
    most = math.expm1(2 * half_width) if half_width else 0.0
    return interval.high / interval.low - 1 > most * (1 + LAST_DIGIT)


def wants_fresh_process(result: CaseResult) -> bool:
    """True where one more process must measure.

    A second process measures before every alarm: a difference between processes (placement, autotuned algorithms, the
    host's state) looks like a regression in one of them, or like a gain where it slows the reference alone. A third one
    measures where two contradict each other. No further process changes a wrong output, a side that did not engage, an
    unfit machine or an impossible time.
    """
    outcomes = {verdict.check: verdict.outcome for verdict in result.verdicts}
    if any(TIMES_CEILING in verdict.numbers for verdict in result.verdicts):
        return False
    if result.environment_problem or {Outcome.WRONG, Outcome.NOT_ENGAGED} & set(outcomes.values()):
        return False
    contradicted = Outcome.INCONCLUSIVE in (outcomes[one] for one in TIMED)
    if not result.attempts:
        # Without a record no gate passes the case, so an open promise needs no further process.
        moved = any(MOVED in verdict.numbers for verdict in result.verdicts)
        still_open = contradicted and result.remembered is not None and not left_open_by_other_work(result)
        return moved or Outcome.REGRESSED in outcomes.values() or still_open
    return contradicted or (outcomes["counters"] is Outcome.INCONCLUSIVE and not _open_by_itself(result))


def _open_by_itself(result: CaseResult) -> bool:
    """True where the counters of this process alone are INCONCLUSIVE, which further processes cannot change."""
    if result.measurement is None or result.promise is None:
        return True
    alone = judge_counters(result.measurement, result.promise.contract, result.remembered, result.environment_problem)
    return alone.outcome is Outcome.INCONCLUSIVE


def _counters(result: CaseResult, promise: Promise, measurements: Sequence[Measurement]) -> Verdict:
    """Some counts depend on the algorithms that a process's autotuning picks: the middle one of three decides, as for
    times. What did not engage in one process did not engage."""
    problem = result.environment_problem
    judged = [judge_counters(one, promise.contract, result.remembered, problem) for one in measurements]
    first = judged[0]
    idle = next((one for one in judged if one.outcome in (Outcome.NOT_ENGAGED, Outcome.WRONG)), None)
    if idle is not None or len(judged) == 1 or first.outcome is Outcome.INCONCLUSIVE:
        return idle or first
    outcome = vote([one.outcome for one in judged])
    regressed = [one for one in judged if one.outcome is Outcome.REGRESSED]
    found = [Reason(ReasonCode.IN_SOME_PROCESSES, {"found": len(regressed), "processes": len(judged)})]
    if outcome is not Outcome.PASS:
        return _with_reasons(replace(regressed[0], outcome=outcome), found)
    passed = next(one for one in judged if one.outcome is Outcome.PASS)
    return _with_reasons(passed, [*regressed[0].reasons, *found]) if regressed else passed


def _with_reasons(verdict: Verdict, more: Sequence[Reason]) -> Verdict:
    return replace(verdict, reasons=(*verdict.reasons, *more))


def _about_to_be_recorded(verdict: Verdict) -> Verdict:
    """A missing baseline is what a recording is for."""
    if verdict.outcome is not Outcome.NO_BASELINE:
        return verdict
    return replace(verdict, outcome=Outcome.PASS, reasons=(Reason(ReasonCode.BEING_RECORDED),), next_step=None)
