"""The verdicts about times, after the code of a case was compared with the code of its record. Pure.

A record is of another night and another host. The code of the record, measured live and in turns with today's, shows
whether a slower step comes from the code, and slowdowns that the record is too blunt for.
"""

from __future__ import annotations

from dataclasses import replace

from gpugate.judging.duet import judge_duets
from gpugate.results.case import CaseResult
from gpugate.results.duet import Duet, DuetOutcome, RecordedCode
from gpugate.results.reason import Fact, Reason, ReasonCode
from gpugate.results.verdict import NextStep, Outcome, Verdict
from gpugate.statistics.policy import SHARP

TIMED = ("speedup", "throughput")
RECORDED = ("recorded", "anchored")  # bounds that a record gives, not a promise


def has_alarm(result: CaseResult) -> bool:
    """True where a check of times failed or stayed open."""
    open_ones = (Outcome.REGRESSED, Outcome.INCONCLUSIVE)
    return any(verdict.check in TIMED and verdict.outcome in open_ones for verdict in result.verdicts)


def is_blunt(result: CaseResult) -> bool:
    """True where the record of the case would miss a slowdown of SHARP."""
    detectable = result.detectable_slowdown
    return detectable is None or detectable > SHARP


def may_need_duet(result: CaseResult) -> bool:
    """True where the times of a case are evidence, and its record is too blunt or alarms.

    No comparison of times changes a wrong output, a side that did not engage, or an unfit machine.
    """
    unfit = (Outcome.WRONG, Outcome.NOT_ENGAGED)
    if result.environment_problem or any(verdict.outcome in unfit for verdict in result.verdicts):
        return False
    measured = result.measurement is not None and bool(result.measurement.pairs)
    return measured and (has_alarm(result) or is_blunt(result))


def duet_of(code: RecordedCode) -> Duet | None:
    """The duet of the case with the recorded code; None where no process measured one."""
    duets, _ = judge_duets(code.processes)
    return duets[0] if duets else None


def with_recorded_code(verdict: Verdict, code: RecordedCode | None, same_software: bool) -> Verdict:
    """The verdict of a check of times with the evidence of the duet.

    A slower code is REGRESSED. Where the code is not slower, an alarm is about the machine (ENV_INVALID), or about its
    software where `same_software` is False (REGRESSED). A check that the record left open then passes. A duet that is
    not decided changes no outcome.
    """
    if code is None or verdict.check not in TIMED:
        return verdict
    alarmed = verdict.outcome is Outcome.REGRESSED
    if code.problem is not None:
        return _add(verdict, Reason(ReasonCode.NO_DUET, {"problem": code.problem}))
    if code.unchanged:
        unchanged = Reason(ReasonCode.CODE_UNCHANGED, {"commit": code.commit, "changed": _changed(code)})
        return _blame_machine(verdict, unchanged, same_software) if alarmed else verdict
    duet = duet_of(code)
    if duet is None:
        return verdict
    facts = _facts(code, duet)
    if duet.outcome is DuetOutcome.SLOWER:
        slower = Reason(ReasonCode.CODE_SLOWER, facts)
        return replace(
            verdict, outcome=Outcome.REGRESSED, reasons=(slower, *verdict.reasons), next_step=NextStep.FIND_COMMIT
        )
    if duet.outcome is DuetOutcome.UNDECIDED:
        return _add(verdict, Reason(ReasonCode.CODE_UNDECIDED, facts))
    if alarmed:
        return _blame_machine(
            verdict, Reason(ReasonCode.CODE_NOT_SLOWER, {**facts, "changed": _changed(code)}), same_software
        )
    as_fast = _add(verdict, Reason(ReasonCode.CODE_AS_FAST, facts))
    # Only the record left it open, and the code of the record is as slow: the code did not become slower.
    open_by_record = verdict.outcome is Outcome.INCONCLUSIVE and verdict.reasons[0].facts.get("bound") in RECORDED
    return replace(as_fast, outcome=Outcome.PASS, next_step=None) if open_by_record and same_software else as_fast


def with_other_cores(verdict: Verdict, result: CaseResult) -> Verdict:
    """ENV_INVALID in place of NO_BASELINE where this CPU has a record, but of another number of cores."""
    missing = verdict.check in TIMED and verdict.outcome is Outcome.NO_BASELINE and result.remembered is None
    if not missing or result.cores_changed is None:
        return verdict
    cores: dict[str, Fact] = {"recorded_cores": result.cores_changed.recorded, "cores": result.cores_changed.now}
    reasons = (Reason(ReasonCode.OTHER_CORES, cores),)
    return replace(verdict, outcome=Outcome.ENV_INVALID, reasons=reasons, next_step=NextStep.SAME_CORES)


def _blame_machine(verdict: Verdict, reason: Reason, same_software: bool) -> Verdict:
    outcome = Outcome.ENV_INVALID if same_software else Outcome.REGRESSED
    step = NextStep.COOL_MACHINE if same_software else verdict.next_step
    return replace(verdict, outcome=outcome, reasons=(reason, *verdict.reasons), next_step=step)


def _add(verdict: Verdict, reason: Reason) -> Verdict:
    return replace(verdict, reasons=(*verdict.reasons, reason))


def _changed(code: RecordedCode) -> str:
    return ", ".join(code.machine_changes) or "nothing that a record contains"


def _facts(code: RecordedCode, duet: Duet) -> dict[str, Fact]:
    """Changes are shares of the time per step."""
    return {
        "commit": code.commit,
        "change": duet.ratio.median - 1,
        "change_low": duet.ratio.low - 1,
        "change_high": duet.ratio.high - 1,
        "processes": len(duet.processes),
    }
