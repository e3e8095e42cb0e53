"""The words beside the numbers of a run, a plan and a history: verdicts, skips, errors and the tally. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpugate.judging.evidence import duet_of
from gpugate.report.next_step import OF_ONE_CASE, advised_step, describe_next_step
from gpugate.report.rows import NOT_JUDGED, outcome_word, worst_of
from gpugate.results.case import CaseResult
from gpugate.results.reason import ReasonCode
from gpugate.results.reason_words import describe
from gpugate.results.run import RunResult
from gpugate.results.verdict import CASE_CHECKS, SEVERITY, NextStep, Outcome, Verdict
from gpugate.statistics.policy import SHARP
from gpugate.units import date_of, list_names, number_of, percent, percent_rounded_up


@dataclass(frozen=True)
class Finding:
    """One outcome with its reason and next step; `judged` says `speedup, counters of <case id>`, one entry a case."""

    outcome: Outcome
    reason: str
    next_step: str
    judged: tuple[str, ...]


def findings(run: RunResult) -> list[Finding]:
    """Everything that is not PASS, the worst first; equal words about several cases are said once."""
    by_words: dict[tuple[Outcome, str, NextStep | None, str], list[Verdict]] = {}
    for verdict in (verdict for case in run.cases.values() for verdict in case.verdicts):
        if verdict.outcome is not Outcome.PASS:
            step = advised_step(verdict, run)
            alone = verdict.case_id if step in OF_ONE_CASE else ""
            by_words.setdefault((verdict.outcome, verdict.reason, step, alone), []).append(verdict)
    found = [
        Finding(outcome, reason, describe_next_step(verdicts, run), _list_checks(verdicts))
        for (outcome, reason, _, _), verdicts in by_words.items()
    ]
    return sorted(found, key=lambda finding: SEVERITY.index(finding.outcome))


@dataclass(frozen=True)
class Attention:
    """One outcome for one reason, of all cases that have it; `reason` is the one of the first case, without its
    circumstances."""

    outcome: Outcome
    checks: tuple[str, ...]
    case_ids: tuple[str, ...]
    reason: str
    next_step: str


def attention(run: RunResult) -> list[Attention]:
    """Everything that is not PASS, the worst first: the cases of one outcome, one reason code and one step together."""
    by_code: dict[tuple[Outcome, ReasonCode, NextStep | None], list[Verdict]] = {}
    for verdict in (verdict for case in run.cases.values() for verdict in case.verdicts):
        if verdict.outcome is not Outcome.PASS:
            by_code.setdefault((verdict.outcome, verdict.code, advised_step(verdict, run)), []).append(verdict)
    found = [
        Attention(
            outcome,
            tuple(dict.fromkeys(one.check for one in verdicts)),
            tuple(dict.fromkeys(one.case_id for one in verdicts)),
            describe(verdicts[0].check, verdicts[0].reasons[:1], verdicts[0].numbers),
            describe_next_step(verdicts, run),
        )
        for (outcome, _, _), verdicts in by_code.items()
    ]
    return sorted(found, key=lambda one: SEVERITY.index(one.outcome))


def _list_checks(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    checks: dict[str, list[str]] = {}
    for verdict in verdicts:
        checks.setdefault(verdict.case_id, []).append(verdict.check)
    return tuple(f"{', '.join(names)} of {case_id}" for case_id, names in checks.items())


def skips(run: RunResult) -> dict[str, list[str]]:
    """Case ids by the reason for which they were skipped."""
    by_reason: dict[str, list[str]] = {}
    for case in run.cases.values():
        if case.skipped is not None:
            by_reason.setdefault(case.skipped, []).append(case.case_id)
    return by_reason


def describe_absence(case: CaseResult) -> str:
    """The reason of a skip, and the option by which a gate accepts it, where there is one."""
    accepted = f"; --allow-missing {','.join(case.lacking)} lets a gate pass without it" if case.lacking else ""
    return f"{case.skipped}{accepted}"


def describe_unfit(case_ids: Sequence[str], noun: str) -> str | None:
    """`2 cases not counted, since the machine was not well (ENV_INVALID): tiny/a/cuda, tiny/b/cuda`, if any."""
    if not case_ids:
        return None
    names = list_names(sorted(set(case_ids)), most=3)
    return f"{number_of(len(case_ids), noun)} not counted, since the machine was not well (ENV_INVALID): {names}"


def errors(run: RunResult) -> dict[str, str]:
    """The one sentence of each case that failed, by case id."""
    return {case.case_id: case.error for case in run.cases.values() if case.error is not None}


def autopsies(run: RunResult) -> dict[str, tuple[str, ...]]:
    """The lines of each autopsy, its likely cause first, by case id."""
    return {case.case_id: case.autopsy.sentences for case in run.cases.values() if case.autopsy is not None}


def tally(run: RunResult) -> str:
    """`7 cases measured (6 PASS, 1 REGRESSED), 2 cases skipped, 1 case failed, in 182 s, seed 0`."""
    measured = [case for case in run.cases.values() if case.measurement is not None]
    counts = Counter(outcome_word(worst_of(case)) for case in measured)
    order = [*(outcome.value for outcome in SEVERITY), NOT_JUDGED]
    words = ", ".join(f"{counts[name]} {name}" for name in order if counts[name])
    parts = [f"{number_of(len(measured), 'case')} measured{f' ({words})' if words else ''}"]
    not_gated = sum(map(is_not_gated, measured)) if run.gate else 0
    others = {"not gated tonight": not_gated, "skipped": sum(map(len, skips(run).values())), "failed": len(errors(run))}
    parts += [f"{number_of(count, 'case')} {word}" for word, count in others.items() if count]
    parts += [f"in {run.wall_s:.0f} s", f"seed {run.seed}"]
    return ", ".join(parts)


def is_not_gated(case: CaseResult) -> bool:
    """True where neither the wall time nor a duet decided about the time of a case: its record misses a slowdown of
    SHARP, and its duet stayed undecided, or its wall time did."""
    wall = next((one for one in case.verdicts if one.check == "throughput"), None)
    if wall is None or case.remembered is None:
        return False
    undecided = any(reason.code is ReasonCode.CODE_UNDECIDED for reason in wall.reasons)
    return wall.outcome is Outcome.INCONCLUSIVE or (undecided and wall.good and _detectable(case) > SHARP)


def worth(run: RunResult) -> list[str]:
    """The worth of a run's verdicts, a sentence each: its sharpness, its duets with the recorded code, and the dates of
    remembered proofs."""
    return [words for words in (sharpness(run), code_comparisons(run), remembered_proofs(run)) if words]


def remembered_proofs(run: RunResult) -> str | None:
    """The number of proofs by the date of the run that showed them; None where this run showed all of its proofs."""
    proofs = [proof for case in run.cases.values() if case.measurement for proof in case.measurement.proofs]
    before = Counter(date_of(proof.proved_at) for proof in proofs if proof.proved_at is not None)
    if not before:
        return None
    words = [f"{count} proved on {date}" for date, count in sorted(before.items())]
    now = len(proofs) - before.total()
    return f"proofs: {', '.join([*words, *([f'{now} in this run'] if now else [])])}"


def code_comparisons(run: RunResult) -> str | None:
    """The outcomes of the duets with the recorded code, and the first reason for which there are none; None where no
    case was to be compared with it."""
    codes = [case.recorded_code for case in run.cases.values() if case.recorded_code is not None]
    duets = [duet for code in codes if (duet := duet_of(code)) is not None]
    unchanged = sum(code.unchanged for code in codes)
    problems = [code.problem.partition("\n")[0] for code in codes if code.problem is not None]
    counts = Counter(duet.outcome.value for duet in duets)
    outcomes = ", ".join(f"{count} {word}" for word, count in counts.items())
    parts = [f"{number_of(len(duets), 'case')} in turns ({outcomes})"] if duets else []
    parts += [f"{unchanged} unchanged"] if unchanged else []
    such_as = "such as: " if len(set(problems)) > 1 else ""
    parts += [f"{len(problems)} not compared ({such_as}{problems[0]})"] if problems else []
    return f"recorded code: {', '.join(parts)}" if parts else None


def sharpness(run: RunResult) -> str | None:
    """The share of cases that would catch a slowdown; None where no case has a record.

    A case catches a slowdown by its wall time or by a duet, whichever shows the smaller one.
    """
    recorded = [case for case in run.cases.values() if case.remembered is not None and case.verdicts]
    if not recorded:
        return None
    found = [_detectable(case) for case in recorded]
    sharp, middle = sum(one <= SHARP for one in found), statistics.median(found)
    median = f"{100 * middle:.2g} %" if math.isfinite(middle) else "none"
    return (
        f"sharpness: {sharp} of {number_of(len(found), 'case')} would catch a slowdown of {percent(SHARP)} by the wall "
        f"time or a duet (median detectable {median})"
    )


def _detectable(case: CaseResult) -> float:
    """The smallest slowdown that the case would catch, a share; infinite where there is none."""
    duet = duet_of(case.recorded_code) if case.recorded_code else None
    known = (case.detectable_slowdown, duet.detectable if duet else None)
    return min((one for one in known if one is not None), default=math.inf)


def mutation(run: RunResult) -> str | None:
    """One sentence where a known fault was put in; None otherwise."""
    return f"MUTATED by {run.mutated}: every optimized side has this fault on purpose" if run.mutated else None


def below_floor(run: RunResult) -> str | None:
    """One sentence where a run was decided with a tolerance that its machine does not resolve; None otherwise."""
    asked = run.asked_tolerance
    recorded = ((case.remembered, case.case_id) for case in run.cases.values() if case.remembered and case.verdicts)
    floors = ((then.current.wall_tolerance(then.checks) or 0.0, case_id) for then, case_id in recorded)
    above = [(floor, case_id) for floor, case_id in floors if asked is not None and asked < floor]
    if asked is None or not above:
        return None
    smallest, case_id = max(above)
    others = f" ({len(above)} cases in all)" if len(above) > 1 else ""
    return (
        f"decided with a tolerance of {100 * asked:g} %, below the {percent_rounded_up(smallest)} % that the machine "
        f"resolves for {case_id}{others}: chance alone can make it alarm"
    )


def warnings(run: RunResult) -> list[str]:
    """One sentence for each condition that limits the run as a whole."""
    return [words for words in (below_floor(run), interruption(run), describe_unheld_checks(run)) if words]


def describe_unheld_checks(run: RunResult) -> str | None:
    """One sentence with the checks of measured cases that no test of a gate held; None otherwise."""
    measured = [case for case in run.cases.values() if case.verdicts]
    if not run.gate or run.interrupted:
        return None
    words = []
    for check in CASE_CHECKS:
        found = [one for case in measured for one in case.verdicts if one.check == check and check not in case.held]
        bad = Counter(one.outcome.value for one in found if one.bad)
        counts = [f"{len(found)} of {len(measured)} cases"] if len(found) < len(measured) else []
        counts += [f"{count} {word}" for word, count in bad.items()]
        words += [f"{check} ({', '.join(counts)})" if counts else check] if found else []
    return f"checks that no selected test held: {', '.join(words)}" if words else None


def interruption(run: RunResult) -> str | None:
    """One sentence when the session ended early, with what was not reached; None otherwise."""
    if not run.interrupted:
        return None
    cases = run.cases.values()
    missed = [
        case.case_id for case in cases if case.measurement is None and case.skipped is None and case.error is None
    ]
    unfinished = f"; not finished: {', '.join(missed)}" if missed else ""
    return f"interrupted{unfinished}"
