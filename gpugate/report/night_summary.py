"""One screen of Markdown about a night: `summary.md` of `--perf-report`. It decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpugate import units
from gpugate.report.cost import describe_cost, list_longest
from gpugate.report.findings import Finding, autopsies, errors, findings, mutation, skips, tally, warnings, worth
from gpugate.report.machine import facts, load, yardsticks
from gpugate.report.rows import NOT_JUDGED, outcome_word, worst_of
from gpugate.report.table import Table, code, columns, plain
from gpugate.results.case import CaseResult, Remembered, decider
from gpugate.results.run import RunResult
from gpugate.results.series import sweeps
from gpugate.results.summary import Summary
from gpugate.results.verdict import SEVERITY, Outcome
from gpugate.store.night_files import RUN

# Of everything that grows with the suite so much is shown that all of it stays on one screen.
MAX_WORKLOADS, MAX_FINDINGS, MAX_CAUSES, MAX_MOVES, MAX_KNEES, MAX_REASONS, MAX_IDS = 8, 5, 3, 4, 2, 4, 3
WORTH_TELLING = 0.5  # of the tolerance: what moved less is what the machine does by itself
_GOOD = (Outcome.PASS, Outcome.IMPROVED)


def night_summary(run: RunResult) -> str:
    """The verdicts by workload, what failed, what moved, what was not measured and why: as GitHub Markdown."""
    fault = mutation(run)
    warned = [*([fault] if fault else []), *run.problems[:MAX_REASONS], *warnings(run)]
    blocks = [
        [f"### {headline(run)}"],
        [f"{plain(', '.join(facts(run.environment)))}; {run.started_at}"],
        [plain(line) for line in (", ".join(yardsticks(run)), *load(run)) if line],
        [f"**{_cut(words, 400)}**" for words in warned],
        [_verdict_table(run)] if run.cases else [],
        _list("Not PASS", [_describe(finding) for finding in findings(run)], MAX_FINDINGS),
        _list("Why", [f"{plain(case)}: {_cut(words[0], 200)}" for case, words in autopsies(run).items()], MAX_CAUSES),
        _list_moves(run),
        _list("Not measured", list(_list_unmeasured(run)), MAX_REASONS),
        [plain(words) for words in worth(run)],
        [plain(words) for words in describe_cost(run)],
        [f"Most expensive: {plain(', '.join(longest))}"] if (longest := list_longest(run)) else [],
        [f"{plain(tally(run))}. Every number: `python -m gpugate.report {RUN}`"],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def headline(run: RunResult) -> str:
    """The kind of the run, with the number of cases of each bad outcome: `gate: 1 REGRESSED of 89 cases`."""
    outcomes = [outcome for case in run.cases.values() if (outcome := worst_of(case)) is not None]
    failed = len(errors(run))
    bad = Counter(outcome for outcome in outcomes if outcome not in _GOOD)
    words = [f"{bad[outcome]} {outcome.value}" for outcome in SEVERITY if bad[outcome]]
    words += [f"{failed} failed"] if failed else []
    words += [units.number_of(len(run.problems), "problem")] if run.problems else []
    words += [f"exit status {run.exit_status}"] if run.exit_status and not words else []
    kind = "gate" if run.gate else "run without --gate"
    kind += f", shard {run.shard}" if run.shard is not None else ""
    if not outcomes and not failed:
        measured = any(case.measurement is not None for case in run.cases.values())
        return f"{kind}: nothing was {'judged' if measured else 'measured'}"
    cases = units.number_of(len(outcomes) + failed, "case")
    return f"{kind}: {', '.join(words)} of {cases}" if words else f"{kind}: {cases}, all good"


@dataclass(frozen=True)
class _Counted:
    """The number of cases of one workload by word: an outcome's, NOT_JUDGED, or `not measured`."""

    name: str
    counts: Counter[str]

    @property
    def severity(self) -> int:
        words = [*(outcome.value for outcome in SEVERITY), *_OTHERS]
        return min(words.index(word) for word in self.counts)


_NOT_MEASURED = "not measured"
_OTHERS = (NOT_JUDGED, _NOT_MEASURED)


def _verdict_table(run: RunResult) -> str:
    """Cases by workload and outcome, the worst workload first; those that do not fit are one row."""
    by_name: dict[str, Counter[str]] = {}
    for case in run.cases.values():
        by_name.setdefault(case.workload, Counter())[_word(case)] += 1
    counted = sorted((_Counted(*entry) for entry in by_name.items()), key=lambda one: one.severity)
    shown, rest = counted[:MAX_WORKLOADS], counted[MAX_WORKLOADS:]
    if rest:
        together: Counter[str] = sum((one.counts for one in rest), Counter())
        shown.append(_Counted(f"{len(rest)} further workloads", together))
    order = [*(outcome.value for outcome in reversed(SEVERITY)), *_OTHERS]
    words = [word for word in order if any(one.counts[word] for one in shown)]
    rows = tuple((one.name, *(str(one.counts[word] or "") for word in words)) for one in shown)
    return Table("", columns("workload", *words), rows).markdown()


def _word(case: CaseResult) -> str:
    if case.measurement is None and not case.verdicts:
        return _NOT_MEASURED
    return outcome_word(worst_of(case))


def _describe(found: Finding) -> str:
    step = f"; next: {code(found.next_step)}" if found.next_step else ""
    return f"**{found.outcome.value}** {_ids(found.judged)}: {_cut(found.reason, 300)}{step}"


@dataclass(frozen=True)
class Move:
    """A case that is no longer where its baseline was: `share` is the move of its wall time, in tolerances."""

    case_id: str
    then: Remembered
    now: Summary
    share: float


def moves(run: RunResult) -> list[Move]:
    """The cases that moved by more than WORTH_TELLING of what the gate tolerates, the furthest first."""
    found = [
        Move(case.case_id, case.remembered, now, share)
        for case in run.cases.values()
        if case.remembered is not None
        and (decided := decider(case))
        and (now := decided.summary)
        and (share := _share(case)) is not None
    ]
    return sorted((move for move in found if move.share > WORTH_TELLING), key=lambda move: -move.share)


def _share(case: CaseResult) -> float | None:
    """None for a case whose times were not judged."""
    change, allowed = case.number("wall_change"), case.number("time_tolerance")
    return None if change is None or allowed is None else abs(change) / allowed


def _list_moves(run: RunResult) -> list[str]:
    """The table of what moved, and every knee that did."""
    found = moves(run)
    knees = [
        f"- knee of {plain(sweep.id)}: {sweep.recorded_knee} -> {sweep.knee}"
        for sweep in sweeps(run.cases)
        if sweep.recorded_knee is not None and sweep.knee not in (None, sweep.recorded_knee)
    ][:MAX_KNEES]
    if not found and not knees:
        judged = any(case.remembered is not None for case in run.cases.values())
        return ["Nothing moved by more than half of its tolerance."] if judged else []
    furthest = f", the {MAX_MOVES} furthest of {len(found)}" if len(found) > MAX_MOVES else ""
    head = [f"**Moved** since the baseline by more than half of the tolerance{furthest}:"]
    table = Table("", columns("case", "speedup", "", "per step", ""), tuple(map(_cells, found[:MAX_MOVES])))
    return [*head, *(["", table.markdown()] if found else []), *(["", *knees] if knees else [])]


def _cells(move: Move) -> tuple[str, ...]:
    then, now = move.then.current, move.now
    return (
        move.case_id,
        f"{units.ratio(then.speedup)} -> {units.ratio(now.speedup.median)}",
        units.signed_percent(now.speedup.median / then.speedup - 1),
        f"{units.milliseconds(then.optimized_ms)} -> {units.milliseconds(now.optimized_ms.median)}",
        units.signed_percent(now.optimized_ms.median / then.optimized_ms - 1),
    )


def _list_unmeasured(run: RunResult) -> Iterator[str]:
    for reason, ids in skips(run).items():
        yield f"{_ids(ids)}: {_cut(reason, 200)}"
    for case_id, error in errors(run).items():
        yield f"**failed** {plain(case_id)}: {_cut(error, 200)}"


def _list(title: str, entries: Sequence[str], most: int) -> list[str]:
    if not entries:
        return []
    further = [f"- and {len(entries) - most} more"] if len(entries) > most else []
    return [f"**{title}**", "", *(f"- {entry}" for entry in entries[:most]), *further]


def _ids(ids: Sequence[str]) -> str:
    return plain(units.list_names(ids, MAX_IDS))


def _cut(words: str, most: int) -> str:
    whole = " ".join(words.split())
    return plain(whole if len(whole) <= most else f"{whole[: most - 3]}...")
