"""The summary of a night as GitHub Markdown, a template of the run's view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gpugate import units
from gpugate.report.pages.rendering import fill
from gpugate.report.table import Table, code, columns, plain
from gpugate.report.view import RunView
from gpugate.results.case import CaseResult
from gpugate.results.run import RunResult
from gpugate.results.verdict import NOT_JUDGED, SEVERITY, outcome_word
from gpugate.store.night_files import PAGE

# Of everything that grows with the suite so much is shown that all of a summary stays on one screen.
MAX_WORKLOADS, MAX_FINDINGS, MAX_CAUSES, MAX_REASONS, MAX_IDS = 8, 5, 3, 4, 3
_NOT_MEASURED = "not measured"
_WORDS = (*(outcome.value for outcome in SEVERITY), NOT_JUDGED, _NOT_MEASURED)


def night_summary(view: RunView) -> str:
    """One screen: the verdicts by workload, what failed, what was not measured and why."""
    values = {name: value for name, value in globals().items() if name.startswith("MAX_")}
    words = fill(
        "summary.md",
        view=view,
        verdicts=_verdict_table(view.run),
        unmeasured=list(_list_unmeasured(view)),
        file=PAGE,
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
