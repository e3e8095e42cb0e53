"""A run as GitHub Markdown, for results/: machine, date and versions above its tables, skips and findings below."""

from __future__ import annotations

from gpugate.report.bounds import bounds, reasons
from gpugate.report.findings import autopsies, errors, findings, mutation, skips, tally, warnings, worth
from gpugate.report.gains import whole_runs
from gpugate.report.machine import facts, load, yardsticks
from gpugate.report.rows import results_table
from gpugate.report.series_tables import series_tables
from gpugate.report.table import plain
from gpugate.results.run import RunResult


def results_page(run: RunResult) -> str:
    """Machine, date, driver and versions, the tables, and what was not PASS, skipped or failed."""
    results, fault = results_table(run), mutation(run)
    blocks = [
        [f"**{fault}**"] if fault else [],
        [f"- {plain(line)}" for line in _header(run)],
        [results.markdown() if results.rows else "Nothing was measured."],
        *([table.markdown()] for table in series_tables(run)),
        [f"- {plain(line)}" for line in (*whole_runs(run), *bounds(run), *reasons(run))],
        [f"- {plain(line)}" for line in _below(run)],
        [plain(words) for words in (*worth(run), tally(run))],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _header(run: RunResult) -> list[str]:
    parts_by_label = {"machine": facts(run.environment), "yardsticks": yardsticks(run), "load": load(run)}
    lines = [f"{label}: {', '.join(parts)}" for label, parts in parts_by_label.items() if parts]
    return [f"date: {run.started_at}", *lines, f"versions: {_versions(run)}"]


def _versions(run: RunResult) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(run.environment.packages.items())) or "unknown"


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
