"""Every figure and reason of a run on the terminal, for `-v`. Decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from gpugate.report.bill_table import bill_table
from gpugate.report.bounds import bounds, reasons
from gpugate.report.cost import list_longest
from gpugate.report.findings import Finding, autopsies, errors, findings, skips
from gpugate.report.gains import whole_runs
from gpugate.report.rows import results_table
from gpugate.report.run_paragraphs import fault_line, last_lines, machine_lines
from gpugate.report.series_tables import series_tables
from gpugate.report.table import STYLES
from gpugate.report.terminal import indent, section
from gpugate.results.run import RunResult


def details(run: RunResult, width: int) -> list[RenderableType]:
    """The report as rich renderables for `width` columns, in the order of reading."""
    return [
        *fault_line(run),
        *machine_lines(run, width),
        *(part for table in (results_table(run), *series_tables(run)) if table.rows for part in table.rich(width)),
        *section("bill", (bill.rich(width - 2) for bill in [bill_table(run)] if bill.rows)),
        *section("start-up included", ([indent(words, 2)] for words in whole_runs(run))),
        *section("bounded by", ([indent(words, 2)] for words in bounds(run))),
        *section("why", ([indent(words, 2)] for words in reasons(run))),
        *section("not PASS", (_finding(finding) for finding in findings(run))),
        *section("autopsy", (_autopsy(case_id, lines) for case_id, lines in autopsies(run).items())),
        *section("skipped", (_reason(reason, ids) for reason, ids in skips(run).items())),
        *section("most expensive", ([indent(words, 2)] for words in list_longest(run))),
        *section("failed", (_error(case_id, error) for case_id, error in errors(run).items())),
        Text(),
        *last_lines(run),
    ]


def _finding(finding: Finding) -> list[RenderableType]:
    first, *others = finding.judged
    head = Text.assemble((finding.outcome.value, STYLES[finding.outcome]), f"  {first}", overflow="fold")
    return [
        Padding(head, (0, 0, 0, 2)),
        *(indent(f"{' ' * len(finding.outcome.value)}  {judged}", 2) for judged in others),
        indent(finding.reason, 6),
        *([indent(f"next: {finding.next_step}", 6)] if finding.next_step else []),
    ]


def _autopsy(case_id: str, lines: Sequence[str]) -> list[RenderableType]:
    return [indent(case_id, 2), *(indent(line, 6) for line in lines)]


def _reason(reason: str, ids: Sequence[str]) -> list[RenderableType]:
    return [indent(reason, 2), *(indent(case_id, 6) for case_id in ids)]


def _error(case_id: str, error: str) -> list[RenderableType]:
    return [Padding(Text(case_id, style="bold red", overflow="fold"), (0, 0, 0, 2)), indent(error, 6)]
