"""The verdicts of a case, and the decision to measure more of it. Pure.

A `CaseResult` has everything that its verdicts rest on, so `decide` also decides a stored run again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpugate.judging.counters import judge_counters, rests_on_times
from gpugate.judging.equivalence import judge_equivalence
from gpugate.judging.machine_state import busy_cores, with_environment, with_other_work
from gpugate.judging.next_step import unless_wrong
from gpugate.judging.plausibility import TIMES_CEILING, impossible_rate, slowed_reference, without_result
from gpugate.judging.processes import vote
from gpugate.judging.recorded_code import RECORDED, change_of_launches, with_recorded_code
from gpugate.judging.times import MOVED, judge_speedup, judge_throughput, judged_summaries, middle_by_speedup
from gpugate.measurement.record import Measurement
from gpugate.results.case import CaseResult, Promise
from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.run import Mode
from gpugate.results.summary import Summary, summarize_process
from gpugate.results.verdict import OPEN, Check, NextStep, Outcome, Verdict
from gpugate.statistics.intervals import LAST_DIGIT
from gpugate.statistics.policy import SPARE_PROCESSES

TIMED: tuple[Check, ...] = ("speedup", "throughput")


def decide(result: CaseResult, mode: Mode, asked_tolerance: float | None) -> list[Verdict]:
    """The four verdicts of a measured case.

    Only a gate needs a record of the case. `asked_tolerance` is the share by which the user lets a speedup
    fall, None for what the machine can resolve. Raises ValueError for a case that was not measured.
    """
    measurement, promise = result.measurement, result.promise
    if measurement is None or promise is None:
        raise ValueError(f"{result.case_id} was not measured: there is nothing to decide")
    confirming, counted, disturbed = _confirming(result), _counted(result), _disturbed(result)
    undisturbed = [result.summarize(one) for one in counted if one not in disturbed]
    summaries = judged_summaries(undisturbed, [result.summarize(one) for one in disturbed])
    first = counted[0] if counted else measurement
    timed = (
        judge_speedup(first, summaries, promise.min_speedup, result.remembered, asked_tolerance, mode),
        judge_throughput(first, summaries, result.remembered, mode),
    )
    impossible = impossible_rate(first, summaries[0], result.size) if summaries else None
    outputs = [judge_equivalence(one, promise.tolerance) for one in (measurement, *confirming)]
    verdicts = [
        next((one for one in outputs if one.outcome is Outcome.WRONG), outputs[0]),
        *(
            with_environment(without_result(verdict, impossible or slowed_reference(first)), result.environment_problem)
            for verdict in _with_disturbances(result, timed, summaries)
        ),
        _counters(result, promise, (measurement, *confirming)),
    ]
    if ranks_share_cores(result):
        verdicts = [refuse_time(one) if one.check in TIMED else one for one in verdicts]
    verdicts = [_without_evidence(with_recorded_code(one, result), result) for one in verdicts]
    if impossible is None:
        on_cpu = result.device_kind == "cpu"
        verdicts = [with_other_work(one, measurement, on_cpu) if one.check in TIMED else one for one in verdicts]
    verdicts = [one if one.check == "equivalence" else _with_failed_confirmations(one, result) for one in verdicts]
    return unless_wrong(verdicts)


def _with_failed_confirmations(verdict: Verdict, result: CaseResult) -> Verdict:
    """The verdict with the problems of fresh processes, INCONCLUSIVE for an alarm of one process without a duet."""
    problems = dict.fromkeys(one.problem for one in result.attempts if one.problem)
    found = [Reason(ReasonCode.NOT_CONFIRMED, {"problem": problem}) for problem in problems]
    alarms = verdict.outcome is Outcome.REGRESSED or rests_on_times(verdict)
    confirmed = len(_counted(result) if verdict.check in TIMED else [None, *_confirming(result)]) > 1
    if not found or not alarms or confirmed or verdict.code is ReasonCode.CODE_SLOWER:
        return _with_reasons(verdict, found)
    reasons = (*found, *verdict.reasons)
    return replace(verdict, outcome=Outcome.INCONCLUSIVE, reasons=reasons, next_step=NextStep.REPEAT)


def ranks_share_cores(result: CaseResult) -> bool:
    """True for a case that spans GPUs and was measured on a CPU, whose cores all ranks share."""
    counted = result.measurement.optimized_counters if result.measurement else {}
    return result.device_kind == "cpu" and counted.get("ranks", 1.0) > 1


def refuse_time(verdict: Verdict) -> Verdict:
    """INCONCLUSIVE for a verdict about times of ranks that share the cores of a CPU."""
    reasons = (Reason(ReasonCode.RANKS_SHARE_CORES), *verdict.reasons)
    return replace(verdict, outcome=Outcome.INCONCLUSIVE, reasons=reasons, next_step=NextStep.USE_CUDA)


def _confirming(result: CaseResult) -> list[Measurement]:
    return [one.measurement for one in result.attempts if one.measurement is not None and one.problem is None]


def _timed(result: CaseResult) -> list[Measurement]:
    """The processes with times; none where this process itself has none."""
    if result.measurement is None or not result.measurement.pairs:
        return []
    return [result.measurement, *(one for one in _confirming(result) if one.pairs)]


def _disturbed(result: CaseResult) -> list[Measurement]:
    """The processes beside which another program ran, by the rule that leaves such processes out of records, and those
    with a slowed reference."""
    remembered = result.remembered
    usual = remembered.current.usual if remembered is not None else None
    same_software = remembered is not None and remembered.match == "exact"

    def is_disturbed(one: Measurement) -> bool:
        if slowed_reference(one) is not None:
            return True
        return usual is not None and usual.disturbance(summarize_process(one.instances), same_software) > 1

    return [one for one in _timed(result) if is_disturbed(one)]


def is_always_slowed(result: CaseResult) -> bool:
    """True for a reference that every process found slower beside the optimized side."""
    return bool(_timed(result)) and all(map(slowed_reference, _timed(result)))


def _all_disturbed(result: CaseResult) -> bool:
    disturbed = _disturbed(result)
    return bool(disturbed) and len(disturbed) == len(_timed(result))


def _counted(result: CaseResult) -> list[Measurement]:
    """The processes whose times count: the undisturbed ones, or all where every one was disturbed."""
    disturbed = _disturbed(result)
    return [one for one in _timed(result) if one not in disturbed] or _timed(result)


def _with_disturbances(
    result: CaseResult, timed: tuple[Verdict, Verdict], summaries: Sequence[Summary]
) -> tuple[Verdict, Verdict]:
    """The verdicts of the speedup and the throughput, with the number of disturbed processes among their reasons.

    Where every process was disturbed, a slow reference may hide a slower optimized side in the speedup: it passes only
    if the optimized side takes no longer than recorded. An absolute time hides nothing.
    """
    disturbed, remembered = len(_disturbed(result)), result.remembered
    if not disturbed or remembered is None:
        return timed
    processes = len(_timed(result))
    found = [Reason(ReasonCode.DISTURBED, {"disturbed": disturbed, "processes": processes})]
    speedup, throughput = (_with_reasons(one, found) for one in timed)
    then, now = remembered.current, middle_by_speedup(summaries)
    slower = now.optimized_ms.median > then.optimized_ms * (1 + then.tolerance(remembered.checks))
    if speedup.good and slower and disturbed == processes:
        times = {
            "optimized_then": then.optimized_ms,
            "optimized_now": now.optimized_ms.median,
            "reference_then": then.reference_ms,
            "reference_now": now.reference_ms.median,
        }
        reasons = (Reason(ReasonCode.ALL_DISTURBED, times), *speedup.reasons)
        speedup = replace(speedup, outcome=Outcome.INCONCLUSIVE, reasons=reasons, next_step=NextStep.REPEAT)
    return speedup, throughput


def _without_evidence(verdict: Verdict, result: CaseResult) -> Verdict:
    """INCONCLUSIVE for an alarm that the record alone raises, about times of other conditions than the recorded ones.

    Without a comparison with the recorded code, the record is the only evidence, and its alarm stays.
    """
    bound = next((reason.facts["bound"] for reason in verdict.reasons if "bound" in reason.facts), None)
    unproven = verdict.outcome is Outcome.REGRESSED and verdict.code is not ReasonCode.CODE_SLOWER
    change = _change_of_conditions(result) if unproven and bound in RECORDED else None
    if change is None:
        return verdict
    reasons = (Reason(ReasonCode.OTHER_CONDITIONS, {"change": change}), *verdict.reasons)
    return replace(verdict, outcome=Outcome.INCONCLUSIVE, reasons=reasons, next_step=NextStep.COOL_MACHINE)


def _change_of_conditions(result: CaseResult) -> str | None:
    """The change since the record that can slow the work of the host; None where there is none, or no comparison."""
    if result.recorded_code is None:
        return None
    return "every process was disturbed" if _all_disturbed(result) else change_of_launches(result.recorded_code)


@dataclass(frozen=True)
class Decider:
    """The process whose speedup decided about a case, and how many processes count."""

    summary: Summary
    processes: int


def decider(result: CaseResult) -> Decider | None:
    """None for a case without times."""
    if result.summary is None:
        return None
    summaries = [result.summarize(one) for one in _counted(result)]
    return Decider(middle_by_speedup(summaries), len(summaries))


def left_open_by_other_work(result: CaseResult) -> bool:
    """True where other work on the CPU left a time open: more pairs beside that work would not narrow its interval."""
    if not _is_busy_cpu(result):
        return False
    open_ones = (*OPEN, Outcome.ENV_INVALID)
    timed = [one.outcome for one in result.verdicts if one.check in TIMED and TIMES_CEILING not in one.numbers]
    return Outcome.REGRESSED not in timed and any(outcome in open_ones for outcome in timed)


def _is_busy_cpu(result: CaseResult) -> bool:
    return result.device_kind == "cpu" and result.measurement is not None and busy_cores(result.measurement) is not None


def wants_more_pairs(result: CaseResult) -> bool:
    """True where a time is open, which more pairs can settle, or REGRESSED, which more pairs must repeat.

    A result that is open because the reference moved, or because processes differ, needs another process, and more
    pairs do not make an impossible time possible.
    """
    timed = [one for one in result.verdicts if one.check in TIMED and TIMES_CEILING not in one.numbers]
    if ranks_share_cores(result):
        return False
    if any(verdict.outcome is Outcome.REGRESSED for verdict in timed):
        return True
    open_ones = [one for one in timed if one.outcome in OPEN and MOVED not in one.numbers]
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


def allowed_processes(result: CaseResult, attempts: int) -> int:
    """The number of processes that may measure a case, of which the user allows `attempts`: where a gate confirms at
    all, spare ones measure in place of disturbed ones, as in a recording."""
    return attempts + (min(SPARE_PROCESSES, len(_disturbed(result))) if attempts > 1 else 0)


def wants_fresh_process(result: CaseResult) -> bool:
    """True where one more process must measure.

    A second process measures before every alarm: a difference between processes (placement, autotuned algorithms, the
    host's state) looks like a regression in one of them, or like a gain where it slows the reference alone. A third one
    measures where two contradict each other. A process that was disturbed is measured again, since it does not count;
    the first undisturbed one then takes its place, and two disturbed ones suffice where the optimized side took no
    longer than recorded. No further process changes a wrong output, a side that did not engage, an unfit machine or an
    impossible time. The overlap of copies is a time: a side that did not engage by such limits alone is measured again.
    """
    outcomes = {verdict.check: verdict.outcome for verdict in result.verdicts}
    if ranks_share_cores(result) or any(TIMES_CEILING in verdict.numbers for verdict in result.verdicts):
        return False
    if result.environment_problem or any(map(_is_certain, result.verdicts)):
        return False
    if _all_disturbed(result):
        passes = all(verdict.good for verdict in result.verdicts if verdict.check in TIMED)
        slowed = any(map(slowed_reference, _timed(result)))  # this process may be spoiled, and a fresh one is not
        return (slowed or not _is_busy_cpu(result)) and not (result.attempts and passes)
    contradicted = Outcome.INCONCLUSIVE in (outcomes[one] for one in TIMED)
    disturbed = _disturbed(result)
    if not result.attempts or (disturbed and len(_timed(result)) - len(disturbed) == 1):
        # Without a record no gate passes the case, so an open promise needs no further process.
        moved = any(MOVED in verdict.numbers for verdict in result.verdicts)
        still_open = contradicted and result.remembered is not None and not left_open_by_other_work(result)
        return moved or any(verdict.bad for verdict in result.verdicts) or still_open
    return contradicted or (outcomes["counters"] is Outcome.INCONCLUSIVE and not _open_by_itself(result))


def _open_by_itself(result: CaseResult) -> bool:
    """True where the counters of this process alone are INCONCLUSIVE, which further processes cannot change."""
    if result.measurement is None or result.promise is None:
        return True
    alone = judge_counters(result.measurement, result.promise.contract, result.remembered, result.environment_problem)
    return alone.outcome is Outcome.INCONCLUSIVE


def _counters(result: CaseResult, promise: Promise, measurements: Sequence[Measurement]) -> Verdict:
    """Some counts depend on the algorithms that a process's autotuning picks: the middle one of three decides, as for
    times. What did not engage in one process did not engage, unless only limits of times show it."""
    problem = result.environment_problem
    judged = [judge_counters(one, promise.contract, result.remembered, problem) for one in measurements]
    first = judged[0]
    certain = next(filter(_is_certain, judged), None)
    if certain is not None or len(judged) == 1 or first.outcome is Outcome.INCONCLUSIVE:
        return certain or first
    bad = [one for one in judged if one.bad]
    outcome = vote([Outcome.REGRESSED if one.bad else one.outcome for one in judged])
    found = [Reason(ReasonCode.IN_SOME_PROCESSES, {"found": len(bad), "processes": len(judged)})]
    if outcome is not Outcome.PASS:
        outcome = bad[0].outcome if outcome is Outcome.REGRESSED else outcome
        return _with_reasons(replace(bad[0], outcome=outcome), found)
    passed = next(one for one in judged if one.outcome is Outcome.PASS)
    return _with_reasons(passed, [*bad[0].reasons, *found]) if bad else passed


def _is_certain(verdict: Verdict) -> bool:
    """True for a wrong output, and for a side that did not engage: no further process changes them."""
    not_engaged = verdict.outcome is Outcome.NOT_ENGAGED and not rests_on_times(verdict)
    return verdict.outcome is Outcome.WRONG or not_engaged


def _with_reasons(verdict: Verdict, more: Sequence[Reason]) -> Verdict:
    return replace(verdict, reasons=(*verdict.reasons, *more))
