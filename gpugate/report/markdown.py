"""A run as GitHub Markdown: the summary of a night and a page of results, each a template of the run's view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gpugate import units
from gpugate.report.pages.rendering import fill
from gpugate.report.table import Table, code, columns, plain
from gpugate.report.tables import moved_cells
from gpugate.report.view import RunView
from gpugate.results.case import CaseResult, decider
from gpugate.results.run import RunResult
from gpugate.results.series import Sweep, sweeps
from gpugate.results.verdict import NOT_JUDGED, SEVERITY, outcome_word
from gpugate.store.night_files import RUN

# Of everything that grows with the suite so much is shown that all of a summary stays on one screen.
MAX_WORKLOADS, MAX_FINDINGS, MAX_CAUSES, MAX_MOVES, MAX_KNEES, MAX_REASONS, MAX_IDS = 8, 5, 3, 4, 2, 4, 3
WORTH_TELLING = 0.5  # of the tolerance: what moved less is what the machine does by itself
_NOT_MEASURED = "not measured"
_WORDS = (*(outcome.value for outcome in SEVERITY), NOT_JUDGED, _NOT_MEASURED)


def results_page(view: RunView) -> str:
    """Machine, date, driver and versions, the tables, and what was not PASS, skipped or failed; for results/."""
    packages = sorted(view.run.environment.packages.items())
    versions = ", ".join(f"{name} {version}" for name, version in packages) or "unknown"
    return fill("results.md", view=view, versions=versions, plain=plain) + "\n"


def night_summary(view: RunView) -> str:
    """One screen: the verdicts by workload, what failed, what moved, what was not measured and why."""
    found = moves(view.run)
    values = {name: value for name, value in globals().items() if name.startswith("MAX_")}
    words = fill(
        "summary.md",
        view=view,
        verdicts=_verdict_table(view.run),
        moved=_moves_table(found) if found else None,
        moves=found,
        knees=_moved_knees(view.run),
        unmeasured=list(_list_unmeasured(view)),
        judged=any(case.remembered is not None for case in view.run.cases.values()),
        file=RUN,
        plain=plain,
        code=code,
        cut=_cut,
        ids=_ids,
        **values,
    )
    return f"{words}\n"


def _verdict_table(run: RunResult) -> Table:
    """Cases by workload and outcome, the worst workload first; those that do not fit are one row."""
    by_name: dict[str, Counter[str]] = {}
    for case in run.cases.values():
        by_name.setdefault(case.workload, Counter())[_word(case)] += 1
    counted = sorted(by_name.items(), key=lambda entry: min(map(_WORDS.index, entry[1])))
    shown, rest = counted[:MAX_WORKLOADS], counted[MAX_WORKLOADS:]
    if rest:
        shown.append((f"{len(rest)} further workloads", sum((counts for _, counts in rest), Counter())))
    order = [*(outcome.value for outcome in reversed(SEVERITY)), NOT_JUDGED, _NOT_MEASURED]
    words = [word for word in order if any(counts[word] for _, counts in shown)]
    rows = tuple((name, *(str(counts[word] or "") for word in words)) for name, counts in shown)
    return Table("", columns("workload", *words), rows)


def _word(case: CaseResult) -> str:
    if case.measurement is None and not case.verdicts:
        return _NOT_MEASURED
    return outcome_word(case.worst)


def moves(run: RunResult) -> list[CaseResult]:
    """The cases that moved by more than WORTH_TELLING of what the gate tolerates, the furthest first."""
    shares = {case.case_id: _share(case) for case in run.cases.values()}
    found = [case for case in run.cases.values() if shares[case.case_id] > WORTH_TELLING]
    return sorted(found, key=lambda case: -shares[case.case_id])


def _share(case: CaseResult) -> float:
    """The move of the wall time from the record, in tolerances; 0 for a case whose times were not judged."""
    change, allowed = case.number("wall_change"), case.number("time_tolerance")
    return 0.0 if change is None or allowed is None else abs(change) / allowed


def _moves_table(found: Sequence[CaseResult]) -> Table:
    rows = []
    for case in found[:MAX_MOVES]:
        then, now = case.remembered, decider(case)
        if then is not None and now is not None:
            speedups = then.current.speedup, now.summary.speedup.median
            times_ms = then.current.optimized_ms, now.summary.optimized_ms.median
            rows.append(moved_cells(case.case_id, speedups, times_ms))
    return Table("", columns("case", "speedup", "", "per step", ""), tuple(rows))


def _moved_knees(run: RunResult) -> list[Sweep]:
    found = (sweep for sweep in sweeps(run.cases) if sweep.knee is not None and sweep.recorded_knee is not None)
    return [sweep for sweep in found if sweep.knee != sweep.recorded_knee]


def _cut(words: str, most: int) -> str:
    whole = " ".join(words.split())
    return plain(whole if len(whole) <= most else f"{whole[: most - 3]}...")


def _list_unmeasured(view: RunView) -> Iterator[str]:
    for reason, ids in view.skips.items():
        yield f"{_ids(ids)}: {_cut(reason, 200)}"
    for case_id, error in view.errors.items():
        yield f"**failed** {plain(case_id)}: {_cut(error, 200)}"


def _ids(ids: Sequence[str]) -> str:
    return plain(units.list_names(ids, MAX_IDS))
