"""The verdicts about times, after the code of a case was compared with the code of its record. Pure.

A record is of another night and another host. The code of the record, measured live and in turns with today's, shows
whether a slower step comes from the code, and slowdowns that the record is too blunt for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpugate.judging.duet import judge_duets
from gpugate.judging.machine_state import LAUNCHES
from gpugate.results.case import CaseResult
from gpugate.results.duet import Duet, DuetOutcome, RecordedCode
from gpugate.results.reason import Fact, Reason, ReasonCode
from gpugate.results.verdict import NextStep, Outcome, Verdict
from gpugate.statistics.policy import SHARP

TIMED = ("speedup", "throughput")
RECORDED = ("recorded", "anchored")  # bounds that a record gives, not a promise
UNPROVEN = (ReasonCode.MACHINE_CHANGED, ReasonCode.OTHER_CORES)  # which only times suggest: the code may be slower, too
UNRECORDED = (Outcome.NO_BASELINE, Outcome.PASS, Outcome.UNDECIDED)  # of a time that has no record
NOT_OPEN = (Outcome.PASS, Outcome.IMPROVED, Outcome.NO_BASELINE)


def may_need_duet(result: CaseResult, has_ref: bool) -> bool:
    """True where the times of a case are evidence, and its record alarms or would miss a slowdown of SHARP.

    A case without a record is compared only where `has_ref`: the user names the version to compare with. No comparison
    of times changes a wrong output, a side that did not engage, or an unfit machine.
    """
    unfit = (Outcome.WRONG, Outcome.NOT_ENGAGED)
    if result.environment_problem or any(verdict.outcome in unfit for verdict in result.verdicts):
        return False
    measured = result.measurement is not None and bool(result.measurement.pairs)
    alarms = any(  # failed, stayed open, or may lay to the machine what the code does
        verdict.outcome in (Outcome.REGRESSED, Outcome.INCONCLUSIVE) or verdict.code in UNPROVEN
        for verdict in result.verdicts
        if verdict.check in TIMED
    )
    is_blunt = result.detectable_slowdown is None or result.detectable_slowdown > SHARP
    return measured and (has_ref or _has_record(result)) and (alarms or is_blunt)


def _has_record(result: CaseResult) -> bool:
    return result.remembered is not None or result.cores_changed is not None


def duet_of(code: RecordedCode) -> Duet | None:
    """The duet of the case with the recorded code; None where no process measured one."""
    duets, _ = judge_duets(code.processes)
    return duets[0] if duets else None


def change_of_launches(code: RecordedCode) -> str | None:
    """The change of the launch latency among those of the machine; None where launches are not far slower."""
    return next((change for change in code.machine_changes if change.startswith(LAUNCHES)), None)


def with_recorded_code(verdict: Verdict, result: CaseResult) -> Verdict:
    """The verdict of a check of times with the evidence of the duet.

    A slower code is REGRESSED. Where the code is not slower, an alarm is about the machine (ENV_INVALID), or about its
    software where that is not the recorded one (the alarm's own outcome). A check that the record left open then
    passes. A duet that is not decided changes no outcome.
    """
    if verdict.check not in TIMED:
        return verdict
    verdict, code = _with_other_cores(verdict, result), result.recorded_code
    if code is None:
        return verdict
    if code.problem is not None:
        return _add(verdict, Reason(ReasonCode.NO_DUET, {"problem": code.problem}))
    if code.unchanged:
        return _without_slower_code(verdict, result, code, {"commit": code.commit})
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
    return _without_slower_code(verdict, result, code, facts)


def _with_other_cores(verdict: Verdict, result: CaseResult) -> Verdict:
    """ENV_INVALID for a time without a record where this CPU has one, but of another number of cores."""
    missing = verdict.outcome in UNRECORDED and result.remembered is None
    if not missing or result.cores_changed is None:
        return verdict
    cores: dict[str, Fact] = {"recorded_cores": result.cores_changed.recorded, "cores": result.cores_changed.now}
    reasons = (Reason(ReasonCode.OTHER_CORES, cores),)
    return replace(verdict, outcome=Outcome.ENV_INVALID, reasons=reasons, next_step=NextStep.SAME_CORES)


def _without_slower_code(
    verdict: Verdict, result: CaseResult, code: RecordedCode, facts: Mapping[str, Fact]
) -> Verdict:
    """The verdict of a code that is not slower than the recorded one, or equal to it."""
    alarm, calm = (
        (ReasonCode.CODE_UNCHANGED, ReasonCode.CODE_AS_RECORDED)
        if code.unchanged
        else (ReasonCode.CODE_NOT_SLOWER, ReasonCode.CODE_AS_FAST)
    )
    same_software = result.remembered is None or result.remembered.match == "exact"
    alarmed = verdict.outcome is Outcome.REGRESSED or verdict.code is ReasonCode.MACHINE_CHANGED
    if alarmed and _has_record(result):
        changed = ", ".join(code.machine_changes) or "nothing that a record contains"
        blamed = replace(verdict, reasons=(Reason(alarm, {**facts, "changed": changed}), *verdict.reasons))
        lasting = set(code.machine_changes) - {change_of_launches(code)}
        step = NextStep.RECORD_THIS_MACHINE if lasting else NextStep.COOL_MACHINE
        return replace(blamed, outcome=Outcome.ENV_INVALID, next_step=step) if same_software else blamed
    if code.unchanged and verdict.outcome in NOT_OPEN:
        return verdict  # which needs no further reason
    found = _add(verdict, Reason(calm, facts))
    # Only the record left it open, and the code did not become slower since.
    settled = same_software and _is_open_by_record(verdict)
    return replace(found, outcome=Outcome.PASS, next_step=None) if settled else found


def _is_open_by_record(verdict: Verdict) -> bool:
    """True where a comparison with the record stayed open, and no promise did."""
    first = verdict.reasons[0]
    of_record = first.code is ReasonCode.ALL_DISTURBED or first.facts.get("bound") in RECORDED
    return verdict.outcome is Outcome.INCONCLUSIVE and of_record


def _add(verdict: Verdict, reason: Reason) -> Verdict:
    return replace(verdict, reasons=(*verdict.reasons, reason))


def _facts(code: RecordedCode, duet: Duet) -> dict[str, Fact]:
    """Changes are shares of the time per step."""
    return {
        "commit": code.commit,
        "change": duet.ratio.median - 1,
        "change_low": duet.ratio.low - 1,
        "change_high": duet.ratio.high - 1,
        "processes": len(duet.processes),
    }
