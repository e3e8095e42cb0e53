"""The same rows as GitHub Markdown, for results/: machine, date and versions above, skips and findings below."""

from __future__ import annotations

from collections.abc import Sequence

from gpugate.report.bounds import bounds, reasons
from gpugate.report.findings import autopsies, errors, findings, mutation, skips, tally, warnings
from gpugate.report.machine import facts, load, yardsticks
from gpugate.report.rows import HEADINGS, Row, notes, rows, told_columns
from gpugate.report.series_tables import WordTable, series_tables
from gpugate.report.whole_runs import whole_runs
from gpugate.results.run import RunResult

_LEFT = ("workload", "optimization", "verdict")


def results_table(run: RunResult) -> str:
    """Machine, date, driver and versions, the table, its notes, and what was not PASS, skipped or failed."""
    made = rows(run)
    columns = told_columns(made)
    said = mutation(run)
    blocks = [
        [f"**{said}**"] if said else [],
        [f"- {plain(line)}" for line in _header(run)],
        _table(made, columns) if made else ["Nothing was measured."],
        [f"- {plain(note)}" for note in (notes(run, made, columns) if made else [])],
        *(block for table in series_tables(run) for block in _series(table)),
        [f"- {plain(line)}" for line in (*whole_runs(run), *bounds(run), *reasons(run))],
        [f"- {plain(line)}" for line in _below(run)],
        [plain(tally(run))],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def escaped(words: str) -> str:
    """A cell that cannot end early: backslashes, pipes, line breaks and `<` are written so that they stay text."""
    return plain(words).replace("\\", "\\\\").replace("|", "\\|")


def plain(words: str) -> str:
    """One line of text in which nothing begins an HTML tag."""
    return " ".join(words.split()).replace("<", "&lt;")


def _header(run: RunResult) -> list[str]:
    told = {"machine": facts(run.environment), "yardsticks": yardsticks(run), "load": load(run)}
    lines = [f"{label}: {', '.join(parts)}" for label, parts in told.items() if parts]
    return [f"date: {run.started_at}", *lines, f"versions: {_versions(run)}"]


def _versions(run: RunResult) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(run.environment.packages.items())) or "not told"


def _table(made: Sequence[Row], columns: Sequence[str]) -> list[str]:
    names = ("workload", *columns)
    heading = table_row([HEADINGS.get(name, name) for name in names])
    rule = "|" + "|".join("---" if name in _LEFT else "---:" for name in names) + "|"
    return [heading, rule, *(table_row([escaped(_cell(row, name)) for name in names]) for row in made)]


def _series(table: WordTable) -> list[list[str]]:
    rule = "|---" + "|---:" * (len(table.headings) - 1) + "|"
    lines = [table_row(table.headings), rule, *(table_row([escaped(cell) for cell in row]) for row in table.rows)]
    return [[plain(table.title)], lines, [f"- {plain(line)}" for line in table.below]]


def table_row(cells: Sequence[str]) -> str:
    """Cells that are `escaped` already, as one row of a table."""
    return f"| {' | '.join(cells)} |"


def _cell(row: Row, name: str) -> str:
    if name == "workload":
        return row.group
    if name == "optimization" and row.versus:
        return f"{row.optimization} vs {row.versus}"
    return str(getattr(row, name))


def _below(run: RunResult) -> list[str]:
    """One sentence for everything that the table does not say."""
    return [
        *(
            f"{finding.outcome.value}: {'; '.join(finding.judged)}: {finding.reason}{_next(finding.next_step)}"
            for finding in findings(run)
        ),
        *(f"autopsy of {case_id}: {'; '.join(lines)}" for case_id, lines in autopsies(run).items()),
        *(f"skipped {', '.join(ids)}: {reason}" for reason, ids in skips(run).items()),
        *(f"failed {case_id}: {error}" for case_id, error in errors(run).items()),
        *warnings(run),
    ]


def _next(next_step: str) -> str:
    return f"; next: {next_step}" if next_step else ""
