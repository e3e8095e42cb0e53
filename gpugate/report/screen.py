"""A whole run on one screen: the machine, one table, what needs attention, what was learned, the next command.

`-v` prints every figure and reason (`gpugate.report.details`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from gpugate import units
from gpugate.report.findings import (
    Attention,
    attention,
    autopsies,
    describe_absence,
    errors,
    skips,
)
from gpugate.report.gains import describe_gains
from gpugate.report.next_step import describe_recording
from gpugate.report.rows import MARK, outcome_word, rows, worst_of
from gpugate.report.run_paragraphs import fault_line, last_lines, machine_lines
from gpugate.report.table import STYLES, Column, Table
from gpugate.report.terminal import indent, section
from gpugate.results.case import CaseResult
from gpugate.results.reason import ReasonCode
from gpugate.results.run import RunResult
from gpugate.results.series import ladders
from gpugate.results.verdict import Outcome

MOST_PARAGRAPHS = 5  # of what needs attention; -v prints all
MOST_NAMED = 3  # cases by name in one sentence
DETAILS = "-v lists all"


def screen(run: RunResult, width: int) -> list[RenderableType]:
    """The report as rich renderables for `width` columns, in the order of reading."""
    table = screen_table(run)
    return [
        *fault_line(run),
        *machine_lines(run, width),
        *([Text(), *table.rich(width)] if table.rows else []),
        *section("needs attention", _attention_paragraphs(run)),
        *section("autopsy", ([indent(case_id, 2), indent(lines[0], 6)] for case_id, lines in autopsies(run).items())),
        *section("not measured", ([_cut(line, width)] for line in list_skips(run))),
        Text(),
        *last_lines(run, describe_gains(run)),
    ]


def screen_table(run: RunResult) -> Table:
    """A row for each case with times; the name of a workload stands in the first of its rows."""
    totals = {
        f"{ladder.workload}/{rung.name}/{ladder.device_kind}": units.ratio(rung.total.median)
        for ladder in ladders(run.cases)
        for rung in ladder.rungs
        if rung.total is not None
    }
    found = rows(run)
    cells = [
        (
            name,
            f"{row.reference.removesuffix(' ms')} -> {row.optimized}",
            row.speedup,
            row.interval,
            totals.get(row.case.case_id, ""),
            row.detectable,
            outcome_word(worst_of(row.case)),
        )
        for name, row in zip(_names([row.case for row in found]), found, strict=True)
    ]
    columns = (
        Column("case", left=True),
        Column("time per step"),
        Column("speedup"),
        Column("interval", rank=1),
        Column("ladder", note="ladder: the product of the gains up to this rung"),
        Column("MDE", note="MDE: the smallest slowdown that a gate catches 95 times in 100", rank=2),
        Column("verdict", left=True),
    )
    marked = any(row.speedup.endswith(MARK) for row in found)
    notes = (f"{MARK} the times of the row do not give this speedup, which is from pairs: -v prints the reason",)
    shown = [number for number, column in enumerate(zip(*cells, strict=True)) if any(column)]
    return Table(
        "",
        tuple(columns[number] for number in shown),
        tuple(tuple(row[number] for number in shown) for row in cells),
        notes if marked else (),
    )


def _names(cases: Sequence[CaseResult]) -> Iterator[str]:
    """`net/fast`, and below it `   /faster`: blanks in place of a workload that the row above names."""
    kinds = {case.device_kind for case in cases}
    for workload, group in groupby(cases, key=lambda case: case.workload):
        for number, case in enumerate(group):
            kind = f"/{case.device_kind}" if len(kinds) > 1 else ""
            yield f"{workload if number == 0 else ' ' * len(workload)}/{case.optimization}{kind}"


def _attention_paragraphs(run: RunResult) -> Iterator[list[RenderableType]]:
    failed = [(case_id, error) for case_id, error in errors(run).items()]
    found = attention(run)
    for case_id, error in failed[:MOST_PARAGRAPHS]:
        yield [_head("FAILED", case_id, "bold red"), indent(error, 4)]
    for one in found[:MOST_PARAGRAPHS]:
        yield _attention_lines(one)
    left_out = len(failed[MOST_PARAGRAPHS:]) + len(found[MOST_PARAGRAPHS:])
    if left_out:
        yield [indent(f"and {left_out} more: {DETAILS}", 2)]


def _attention_lines(found: Attention) -> list[RenderableType]:
    checks = f"{', '.join(found.checks)} of "
    step = [indent(f"next: {found.next_step}", 4)] if found.next_step else []
    such_as = "such as: " if len(found.case_ids) > 1 else ""
    return [
        _head(found.outcome.value, f"{checks}{units.list_names(found.case_ids, MOST_NAMED)}", STYLES[found.outcome]),
        indent(f"{such_as}{found.reason}", 4),
        *step,
    ]


def _head(word: str, words: str, style: str) -> RenderableType:
    return Padding(Text.assemble((word, style), f"  {words}", overflow="fold"), (0, 0, 0, 2))


def list_skips(run: RunResult) -> list[str]:
    """`96 cases: needs a CUDA GPU, ...`, one line for each reason."""
    skipped = skips(run)
    reasons = {reason: describe_absence(run.cases[ids[0]]) if run.gate else reason for reason, ids in skipped.items()}
    return [f"  {units.number_of(len(ids), 'case')}: {reasons[reason]}" for reason, ids in skipped.items()]


def _cut(words: str, width: int) -> RenderableType:
    return Text(words if cell_len(words) <= width else f"{words[: width - 3]}...", overflow="fold")


def next_command(run: RunResult) -> list[str]:
    """The recording of the cases that pass and are not recorded yet; none where there are none, or a fault is in."""
    unrecorded = [case for case in run.cases.values() if _is_unrecorded(case)]
    if run.mutated is not None or not unrecorded:
        return []
    count = units.number_of(len(unrecorded), "case")
    verb = "passes and is" if len(unrecorded) == 1 else "pass and are"
    return [f"{describe_recording(run, [case.case_id for case in unrecorded])} ({count} {verb} not recorded yet)"]


def _is_unrecorded(case: CaseResult) -> bool:
    if worst_of(case) is not Outcome.PASS:
        return False
    found = (verdict.reasons[0] for verdict in case.verdicts if verdict.code is ReasonCode.NO_RECORD)
    return any(reason.facts.get("purpose") == "developer" for reason in found)
