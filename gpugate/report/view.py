"""A run in words and tables: all that a terminal, a page and a Markdown template print of it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from gpugate.report.machine import facts, load, yardsticks
from gpugate.report.next_step import advised_step, describe_next_step, describe_recording
from gpugate.report.tables import bill_table, results_tables, series_tables
from gpugate.report.worth import (
    bounds,
    code_comparisons,
    describe_cost,
    describe_gains,
    is_not_gated,
    reasons,
    remembered_proofs,
    sharpness,
    whole_runs,
)
from gpugate.results.case import CaseResult
from gpugate.results.reason import ReasonCode
from gpugate.results.run import RunResult
from gpugate.results.verdict import CASE_CHECKS, NOT_JUDGED, SEVERITY, Outcome, Verdict, outcome_word
from gpugate.units import number_of

_NOT_BAD = frozenset((Outcome.PASS, Outcome.IMPROVED, Outcome.UNDECIDED))


@dataclass(frozen=True)
class Finding:
    """Everything about a case that is not PASS, the most severe verdict first, and the other cases it is true of."""

    verdicts: tuple[Verdict, ...]
    case_ids: tuple[str, ...]
    next_step: str

    @property
    def outcome(self) -> Outcome:
        return self.verdicts[0].outcome

    @property
    def reason(self) -> str:
        return self.verdicts[0].reason

    @property
    def checks(self) -> str:
        """`throughput, counters; INCONCLUSIVE speedup`: checks of another outcome stand behind it."""
        by_outcome: dict[Outcome, list[str]] = {}
        for one in self.verdicts:
            by_outcome.setdefault(one.outcome, []).append(one.check)
        rows = [f"{outcome.value} {', '.join(checks)}" for outcome, checks in by_outcome.items()]
        return "; ".join(rows).removeprefix(f"{self.outcome.value} ")

    @property
    def sentences(self) -> list[str]:
        """The reason, then a line for each check with all that its verdict adds; nothing is said twice."""
        lines, said = [self.reason], {self.reason}
        for verdict in self.verdicts:
            words = [one for one in (verdict.reason, *verdict.circumstances) if one not in said]
            said.update(words)
            lines += [f"{verdict.check}: {'; '.join(words)}"] if words else []
        return lines


class RunView:
    """A run in words and tables. A renderer chooses, orders and cuts them; it adds no word about a case."""

    def __init__(self, run: RunResult) -> None:
        self.run = run
        self.headline = headline(run)
        self.fault = mutation(run)
        self.problems = tuple(run.problems)
        self.warnings = tuple(warnings(run))
        self.interruption = interruption(run)
        self.machine = {"machine": facts(run.environment), "yardsticks": yardsticks(run), "load": load(run)}
        self.results, self.overview = results_tables(run)
        self.series = series_tables(run)
        self.bill = bill_table(run)
        self.findings = findings(run)
        self.attention = attention(run)
        self.autopsies = {
            case.case_id: case.autopsy.sentences for case in run.cases.values() if case.autopsy is not None
        }
        self.skips = skips(run)
        self.errors = errors(run)
        self.gains = describe_gains(run)
        self.whole_runs = whole_runs(run)
        self.bounds = bounds(run)
        self.reasons = reasons(run)
        self.sharpness = sharpness(run)
        self.comparisons = code_comparisons(run)
        self.proofs = remembered_proofs(run)
        self.cost = describe_cost(run)
        self.tally = tally(run)

    @property
    def worth(self) -> list[str]:
        """The worth of a run's verdicts, a sentence each."""
        return [words for words in (self.sharpness, self.comparisons, self.proofs) if words]


def find_in_case(case: CaseResult, run: RunResult) -> Finding | None:
    """The finding of a case; None where every verdict is PASS."""
    found = sorted(
        (one for one in case.verdicts if one.outcome is not Outcome.PASS), key=lambda one: SEVERITY.index(one.outcome)
    )
    return Finding(tuple(found), (case.case_id,), describe_next_step(found[0], run)) if found else None


def findings(run: RunResult) -> list[Finding]:
    """Everything that is not PASS, the worst first; equal words about several cases are said once."""
    return _merge(run, lambda one: tuple(one.sentences))


def attention(run: RunResult) -> list[Finding]:
    """Everything that is not PASS, the worst first: the cases with one reason code and one step together.

    The reason is the one of the first case. An interval that is too wide is no failure: the gains count those cases.
    """
    return [one for one in _merge(run, lambda one: one.verdicts[0].code) if one.outcome is not Outcome.UNDECIDED]


def _merge(run: RunResult, key: Callable[[Finding], Hashable]) -> list[Finding]:
    """The findings of the cases; those with equal checks, steps and keys as one, with one command for all of them."""
    merged: dict[Hashable, list[Finding]] = {}
    for found in (one for case in run.cases.values() if (one := find_in_case(case, run)) is not None):
        step = advised_step(found.verdicts[0], run)
        merged.setdefault((found.outcome, found.checks, step, key(found)), []).append(found)
    whole = []
    for first, *others in merged.values():
        case_ids = (*first.case_ids, *(case_id for one in others for case_id in one.case_ids))
        whole.append(Finding(first.verdicts, case_ids, describe_next_step(first.verdicts[0], run, case_ids)))
    return sorted(whole, key=lambda finding: SEVERITY.index(finding.outcome))


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


def errors(run: RunResult) -> dict[str, str]:
    """The one sentence of each case that failed, by case id."""
    return {case.case_id: case.error for case in run.cases.values() if case.error is not None}


def headline(run: RunResult) -> str:
    """The kind of the run, with the number of cases of each bad outcome: `gate: 1 REGRESSED of 89 cases`."""
    outcomes = [outcome for case in run.cases.values() if (outcome := case.worst) is not None]
    failed = len(errors(run))
    bad = Counter(outcome for outcome in outcomes if outcome not in _NOT_BAD)
    words = [f"{bad[outcome]} {outcome.value}" for outcome in SEVERITY if bad[outcome]]
    words += [f"{failed} failed"] if failed else []
    words += [number_of(len(run.problems), "problem")] if run.problems else []
    words += [f"exit status {run.exit_status}"] if run.exit_status and not words else []
    kind = "gate" if run.gate else "run without --gate"
    kind += f", shard {run.shard}" if run.shard is not None else ""
    if not outcomes and not failed:
        measured = any(case.measurement is not None for case in run.cases.values())
        return f"{kind}: nothing was {'judged' if measured else 'measured'}"
    cases = number_of(len(outcomes) + failed, "case")
    undecided = outcomes.count(Outcome.UNDECIDED)
    good = f"none bad, {undecided} UNDECIDED" if undecided else "all good"
    return f"{kind}: {', '.join(words)} of {cases}" if words else f"{kind}: {cases}, {good}"


def tally(run: RunResult) -> str:
    """`7 cases measured (6 PASS, 1 REGRESSED), 2 cases skipped, 1 case failed, in 182 s, seed 0`."""
    measured = [case for case in run.cases.values() if case.measurement is not None]
    counts = Counter(outcome_word(case.worst) for case in measured)
    order = [*(outcome.value for outcome in SEVERITY), NOT_JUDGED]
    words = ", ".join(f"{counts[name]} {name}" for name in order if counts[name])
    parts = [f"{number_of(len(measured), 'case')} measured{f' ({words})' if words else ''}"]
    not_gated = sum(map(is_not_gated, measured)) if run.gate else 0
    others = {"not gated tonight": not_gated, "skipped": sum(map(len, skips(run).values())), "failed": len(errors(run))}
    parts += [f"{number_of(count, 'case')} {word}" for word, count in others.items() if count]
    parts += [f"in {run.wall_s:.0f} s", f"seed {run.seed}"]
    return ", ".join(parts)


def mutation(run: RunResult) -> str | None:
    """One sentence where a known fault was put in; None otherwise."""
    return f"MUTATED by {run.mutated}: every optimized side has this fault on purpose" if run.mutated else None


def warnings(run: RunResult) -> list[str]:
    """One sentence for each condition that limits the run as a whole."""
    return [words for words in (interruption(run), describe_unheld_checks(run)) if words]


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


def next_command(run: RunResult) -> list[str]:
    """The recording of the cases that pass and are not recorded yet; none where there are none, or a fault is in."""
    unrecorded = [case for case in run.cases.values() if _is_unrecorded(case)]
    if run.mutated is not None or not unrecorded:
        return []
    count = number_of(len(unrecorded), "case")
    verb = "passes and is" if len(unrecorded) == 1 else "pass and are"
    return [f"{describe_recording(run, [case.case_id for case in unrecorded])} ({count} {verb} not recorded yet)"]


def _is_unrecorded(case: CaseResult) -> bool:
    if case.worst is not Outcome.PASS:
        return False
    found = (verdict.reasons[0] for verdict in case.verdicts if verdict.code is ReasonCode.NO_RECORD)
    return any(reason.facts.get("purpose") == "developer" for reason in found)
