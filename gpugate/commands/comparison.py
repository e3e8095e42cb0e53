"""The result of a comparison for a terminal, as Markdown, as a page and as JSON. It decides nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.padding import Padding
from rich.text import Text

from gpugate.report.machine import describe_load, facts
from gpugate.report.pages.rendering import render
from gpugate.report.pages.shapes import Scale, Strip, reach_of
from gpugate.report.table import Column, Table, plain
from gpugate.report.terminal import render_text
from gpugate.results.duet import Duet, DuetOutcome, DuetProcess
from gpugate.results.night import BILL_TIMES
from gpugate.statistics.intervals import Estimate
from gpugate.statistics.sequential import ALTERNATIVE
from gpugate.store.codec import to_json
from gpugate.store.json_file import with_header
from gpugate.store.version import Version
from gpugate.units import number_of, percent, signed_percent

# The outcomes that need a reader first.
ORDER = (DuetOutcome.SLOWER, DuetOutcome.UNDECIDED, DuetOutcome.FASTER, DuetOutcome.SAME)
FORMAT, FORMAT_VERSION = "gpugate-comparison", 1
EXACT = ("kernel_launches", "graph_launches", "kernels", "copies", "memsets", "synchronizing_calls")
HALF_A_CALL = 0.5
MEMORY_CHANGE = 0.02  # allocators round, and the side that is built first also gets the buffers of libraries
COLUMNS = (
    Column("case", left=True),
    Column("time per step"),
    Column("interval"),
    *(Column(words, rank=4) for words in BILL_TIMES.values()),
    Column("verdict", left=True),
    Column("detectable", note="detectable: the slowdown that this measurement would have shown", rank=2),
    Column("outputs", note="outputs: relative L2 difference on the same inputs", rank=1),
    Column(
        "start-up",
        note="start-up: the shorter of two, since a process's first build loads libraries",
        rank=3,
    ),
)


@dataclass(frozen=True)
class Comparison:
    """The duets of two versions, from the processes `taken`, and the reasons of the cases that have none."""

    base: Version
    head: Version
    taken: Sequence[DuetProcess]
    duets: Sequence[Duet]
    problems: Mapping[str, str]


def text(compared: Comparison, width: int, colour: bool) -> str:
    lines = [Padding(Text(line, overflow="fold"), (0, 0, 0, 2)) for line in _notes(compared)]
    last = Text(summary(compared.duets))
    return render_text([*_table(compared).rich(width), *lines, Text(), last], width, colour)


def markdown(compared: Comparison) -> str:
    notes = "\n".join(f"- {plain(line)}" for line in _notes(compared))
    return "\n\n".join(part for part in (_table(compared).markdown(), notes, summary(compared.duets)) if part) + "\n"


def compare_page(compared: Comparison) -> bytes:
    """The page of `--html`: slower cases first, then undecided ones."""
    duets = sorted(compared.duets, key=lambda duet: (ORDER.index(duet.outcome), -abs(duet.ratio.median - 1)))
    strips = [_strip(duet) for duet in duets]
    return render(
        "compare.html",
        base=compared.base,
        head=compared.head,
        summary=summary(compared.duets),
        alike=percent(ALTERNATIVE),
        machine=facts(compared.taken[0].environment) if compared.taken else [],
        rows=[
            (duet.case_id, _page_notes(duet), duet.outcome.value, strip, _figures(duet))
            for duet, strip in zip(duets, strips, strict=True)
        ],
        scale=Scale(reach_of(strips, 0.95, most=0.5), of_roots=True),
        notes=list(_other_notes(compared)),
        problems=dict(compared.problems),
    )


def _strip(duet: Duet) -> Strip:
    ratio = duet.ratio
    words = f"time per step against the base: {write_change(ratio.median)} ({write_interval(ratio)})"
    ends = ratio.median - 1, ratio.low - 1, ratio.high - 1
    return Strip(*ends, ALTERNATIVE, duet.detectable, words, less_is_better=True)


def _page_notes(duet: Duet) -> list[str]:
    bill = ((words, _write_bill_change(duet, name)) for name, words in BILL_TIMES.items())
    return [*(f"{words} {change}" for words, change in bill if change), *_counter_changes(duet)]


def _figures(duet: Duet) -> tuple[str, ...]:
    start_up = f"{duet.base.cost.compile_s:.1f} s → {duet.head.cost.compile_s:.1f} s"
    change, interval = write_change(duet.ratio.median), write_interval(duet.ratio)
    return change, interval, percent(duet.detectable), _outputs(duet), start_up, str(len(duet.processes))


def document(compared: Comparison) -> dict[str, Any]:
    """The JSON document: both versions, each duet, and the cases that have none, with the reasons."""
    body: dict[str, Any] = {}
    for name, version in (("base", compared.base), ("head", compared.head)):
        body[name] = {"commit": version.commit, "changes": version.changes}
    body["duets"] = [to_json(duet) for duet in compared.duets]
    body["problems"] = dict(compared.problems)
    body["added"], body["removed"] = list(compared.taken[0].added), list(compared.taken[0].removed)
    return with_header(FORMAT, FORMAT_VERSION, body)


def summary(duets: Sequence[Duet]) -> str:
    """`2 cases: 1 SLOWER, 1 SAME`."""
    counts = {outcome: sum(duet.outcome is outcome for duet in duets) for outcome in DuetOutcome}
    words = ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items() if count)
    return f"{number_of(len(duets), 'case')}{': ' if words else ''}{words}"


def _table(compared: Comparison) -> Table:
    """The table without the columns that no case has: a start-up of one process, and items of the bill."""
    rows = [_row(duet) for duet in compared.duets]
    shown = [number for number in range(len(COLUMNS)) if any(row[number] for row in rows)]
    cells = tuple(tuple(row[number] for number in shown) for row in rows)
    columns = tuple(COLUMNS[number] for number in shown) if rows else COLUMNS
    return Table(f"{compared.base.label} -> {compared.head.label}", columns, cells)


def _row(duet: Duet) -> tuple[str, ...]:
    return (
        duet.case_id,
        write_change(duet.ratio.median),
        write_interval(duet.ratio),
        *(_write_bill_change(duet, name) for name in BILL_TIMES),
        duet.outcome.value,
        percent(duet.detectable),
        _outputs(duet),
        f"{duet.base.cost.compile_s:.1f} s -> {duet.head.cost.compile_s:.1f} s" if len(duet.processes) > 1 else "",
    )


def _outputs(duet: Duet) -> str:
    return f"{duet.relative_l2:.1e}" if duet.relative_l2 else "equal"


def write_change(ratio: float) -> str:
    """Writes a ratio of times such as 1.05 as `+5.0 %`."""
    return signed_percent(ratio - 1)


def write_interval(ratio: Estimate) -> str:
    """Writes `+4.0 %..+6.1 %`."""
    return f"{write_change(ratio.low)}..{write_change(ratio.high)}"


def _write_bill_change(duet: Duet, name: str) -> str:
    """Writes the change of a time of the bill, empty where it was not measured, and of CPU time where threads spin."""
    before, after = duet.base.counters, duet.head.counters
    spins = name == "cpu_ms" and any(one.get("spinning") for one in (before, after))
    return write_change(after[name] / before[name]) if before.get(name) and name in after and not spins else ""


def _notes(compared: Comparison) -> Iterator[str]:
    for duet in compared.duets:
        changed = ", ".join(_counter_changes(duet))
        if changed:
            yield f"{duet.case_id}: {changed}"
    yield from _other_notes(compared, compared.problems)


def _other_notes(compared: Comparison, problems: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yields the note about the base, the load of the machine, the `problems`, and the cases of one version."""
    yield from filter(None, [compared.base.note])
    yield from describe_load([one for process in compared.taken for one in process.measured.values()])
    yield from (f"{name}: not measured: {reason}" for name, reason in (problems or {}).items())
    if any(duet.outcome is DuetOutcome.UNDECIDED for duet in compared.duets):
        yield "UNDECIDED: give more --processes, or repeat on a quieter machine"
    yield from (f"{name}: only in the head" for name in compared.taken[0].added)
    yield from (f"{name}: only in the base" for name in compared.taken[0].removed)


def _counter_changes(duet: Duet) -> Iterator[str]:
    """The counts that changed by half a call per step or more: those of a pipeline have fractions."""
    before, after = duet.base.counters, duet.head.counters
    for name in EXACT:
        if name in before and name in after and abs(before[name] - after[name]) >= HALF_A_CALL:
            yield f"{name.replace('_', ' ')} {before[name]:g} -> {after[name]:g} per step"
    then, now = duet.base.cost.peak_bytes or 0, duet.head.cost.peak_bytes or 0
    if len(duet.processes) > 1 and abs(now - then) > MEMORY_CHANGE * max(now, then):
        yield f"peak memory {then / 2**20:.0f} -> {now / 2**20:.0f} MiB"
