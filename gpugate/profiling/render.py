"""A profile's summary for people: the same tables as Markdown and for a terminal. Times and counts are per step."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpugate import units
from gpugate.explaining.words import shortened
from gpugate.profiling.device_activity import Kernel
from gpugate.profiling.expert_rules import Finding
from gpugate.profiling.summary import ProfileSummary
from gpugate.report.markdown import escaped
from gpugate.report.series_tables import WordTable
from gpugate.report.terminal import GAP, RULE_UNDER_HEAD

MOST_ROWS, MOST_GAPS, MOST_BRIEF = 15, 8, 3
WORTH_A_ROW = 0.01  # of the sum of a table's times
MOST_FOUND = 3
ONLY_WHERE = ("Row#", "Start (ns)", "PID", "TID", "Device ID", "Context ID", "Green Context ID")
NONE, OTHER_THREAD = "-", "another than the steps'"
_ARGUMENTS = re.compile(r"\((?!anonymous namespace\)|lambda)[^()]*(?:\([^()]*\)[^()]*)*\)(?: const)?$")


def markdown(summary: ProfileSummary) -> str:
    """The whole summary as GitHub Markdown, its headings from the second level on."""
    blocks = [f"## Profile of {escaped(summary.report)}", "\n".join(f"- {escaped(line)}" for line in overview(summary))]
    for table in word_tables(summary):
        head = f"| {' | '.join(map(escaped, table.headings))} |"
        rule = "|---" + "|---:" * (len(table.headings) - 1) + "|"
        rows = [f"| {' | '.join(map(cell, row))} |" for row in table.rows]
        below = [f"\n{escaped(line)}" for line in table.below]
        blocks.append("\n".join([f"### {escaped(table.title)}\n", head, rule, *rows, *below]))
    return "\n\n".join(blocks) + "\n"


def cell(words: str) -> str:
    """C++ as code: only there `<` may stay as it is."""
    return f"`{words.replace('|', chr(92) + '|')}`" if "<" in words and "`" not in words else escaped(words)


def tables(summary: ProfileSummary) -> list[RenderableType]:
    """The whole summary as rich renderables, in the order of reading. Words come as `Text`, never as markup."""
    parts: list[RenderableType] = [Text(f"profile of {summary.report}", style="bold")]
    parts += map(_indented, overview(summary))
    for words in word_tables(summary):
        table = Table(box=RULE_UNDER_HEAD, padding=0, collapse_padding=True, pad_edge=False, show_edge=False)
        for number, heading in enumerate(words.headings):
            table.add_column(
                Text(heading),
                justify="right" if number else "left",
                overflow="fold",
                min_width=None if number else GAP + 10,
            )
        # rich narrows the widest of the columns that may wrap: that of the names, whose cells do not.
        for row in words.rows:
            table.add_row(Text(row[0], no_wrap=True, overflow="ellipsis"), *map(Text, row[1:]))
        parts += [Text(), Text(words.title, style="bold"), table, *map(_indented, words.below)]
    return parts


def _indented(line: str) -> RenderableType:
    return Padding(Text(line), (0, 0, 0, 2))


def overview(summary: ProfileSummary) -> list[str]:
    """What was profiled, how busy the GPU was, what a step did, and what the report does not say."""
    active, counters, steps = summary.active, summary.counters, summary.steps
    items = f" of {summary.items / steps:g} items" if summary.items else ""
    source = f"Nsight Systems {summary.product or 'of unknown version'}, schema {summary.schema or 'unknown'}"
    lines = [
        f"{steps} steps{items} in {units.milliseconds(summary.span_ms)}, {summary.gpu or 'no GPU named'}; {source}"
    ]
    if active.window_ms:
        kernels, copies = active.kernel_ms / active.window_ms, active.copy_ms / active.window_ms
        overlap = f", {units.percent(active.overlap_ms / active.copy_ms)} of copies under kernels" if copies else ""
        busy, whole = units.percent(active.any_ms / active.window_ms), units.milliseconds(active.window_ms)
        lines.append(
            f"GPU active {busy} of the {whole} from its first to its last activity (kernels {units.percent(kernels)}, "
            f"copies {units.percent(copies)}{overlap}), idle {units.milliseconds(active.idle_ms / steps)} a step"
        )
    counted = ("kernel_launches", "graph_launches", "kernels", "memsets", "synchronizing_calls", "streams")
    lines.append(
        "a step: " + ", ".join(f"{name.replace('_', ' ')} {counters[name]:g}" for name in counted if name in counters)
    )
    if summary.graphs.ran:
        graphs, of_steps = summary.graphs, summary.graphs.ran / steps
        lines.append(
            f"graph nodes: {of_steps:g} a step ({graphs.nodes} different ones), {units.milliseconds(graphs.ms / steps)}"
        )
    return [*lines, *summary.notes]


def brief(summary: ProfileSummary) -> list[str]:
    """The overview, and the kernels that take most: what a run says of each of its reports."""
    names = kernel_names([kernel.name for kernel in summary.kernels])
    told = [f"{name} {units.percent(one.share)}" for name, one in zip(names, summary.kernels, strict=True)][:MOST_BRIEF]
    more = f"; {len(names) - len(told)} kernels more" if len(names) > len(told) else ""
    return [*overview(summary), *([f"most of its kernels' time: {', '.join(told)}{more}"] if told else [])]


def kernel_names(names: Sequence[str]) -> list[str]:
    """Short ones, without arguments, of which no two are alike where the names are not."""
    return shortened([_ARGUMENTS.sub("", name) for name in names])


def word_tables(summary: ProfileSummary) -> list[WordTable]:
    """Every table that has a row, in the order of reading."""
    steps, names = summary.steps, kernel_names([kernel.name for kernel in summary.kernels])
    idle_ms = sum(one.ms for one in summary.idle_while)

    def per(total_ms: float) -> str:
        return units.milliseconds(total_ms / steps)

    def count(total: float) -> str:
        return f"{total / steps:g}"

    kernels = [
        (name, per(one.ms), units.percent(one.share), count(one.count), units.milliseconds(one.mean_ms), *_shape(one))
        for name, one in zip(names, summary.kernels, strict=True)
    ]
    ranges = [
        (one.name, count(one.count), *map(per, spent), _lag(one.start_lag_ms), _lag(one.end_lag_ms))
        for one in summary.ranges
        for spent in [(one.host_ms, one.gpu_span_ms, one.gpu_busy_ms)]
    ]
    gaps = [
        (one.nvtx_range or NONE, *map(units.milliseconds, (one.at_ms, one.ms)), *map(_call, called))
        for one in summary.gaps[:MOST_GAPS]
        for called in [((one.call, one.call_ms), (one.os_call, one.os_call_ms))]
    ]
    idle = [
        (one.call or "no CUDA call", per(one.ms), count(one.gaps))
        for one in summary.idle_while
        if one.ms >= WORTH_A_ROW * idle_ms
    ]
    waits = [
        (one.call, one.nvtx_range or NONE, count(one.count), per(one.ms), "" if one.of_steps else OTHER_THREAD)
        for one in summary.waits
    ]
    calls = [(one.name, per(one.ms), count(one.count), units.milliseconds(one.longest_ms)) for one in summary.calls]
    copies = [
        (f"{one.direction}, {one.source} to {one.target}", count(one.count), *moved, rate)
        for one in summary.copies
        for moved in [(_size(one.bytes / steps), per(one.ms))]
        for rate in [NONE if one.gb_per_s is None else f"{one.gb_per_s:.3g} GB/s"]
    ]
    streams = [
        (f"{one.stream} of GPU {one.device}", *map(count, (one.kernels, one.copies, one.memsets)), per(one.ms))
        for one in summary.streams
    ]
    memory = [
        (one.kind, f"{one.allocations:,}", f"{one.frees:,}", *map(_size, sizes))
        for one in summary.memory
        for sizes in [(one.allocated_bytes, one.freed_bytes, one.peak_bytes)]
    ]
    below = "GPU: first to last activity launched inside; begins, ends: after the range does so on the host"
    tables = [
        _table("kernels", "kernel|time|share|count|mean|grid|block", kernels),
        _table("NVTX ranges on the GPU", "range|count|host|GPU|GPU busy|begins|ends", ranges, below),
        _table("longest times without GPU work", "host was in range|at|idle|in CUDA call|in OS call", gaps),
        _table("GPU idle while the host was in", "call|time|gaps", idle),
        _table("calls that wait for the device", "call|in range|count|time|thread", waits),
        _table("CUDA calls", "call|time|count|longest", calls),
        _table("copies", "copy|count|size|time|rate", copies),
        _table("streams", "stream|kernels|copies|memsets|time", streams),
        _table("memory, of all steps", "kind|allocations|frees|allocated|freed|peak above the start", memory),
        *map(_finding, summary.findings),
    ]
    return [_without_empty_columns(table) for table in tables if table.rows]


def _table(title: str, headings: str, rows: Sequence[tuple[str, ...]], *below: str) -> WordTable:
    shown = tuple(rows[:MOST_ROWS])
    of = f", {len(shown)} of {len(rows)}" if len(rows) > len(shown) else ""
    return WordTable(f"{title}{of}", tuple(headings.split("|")), shown, below)


def _without_empty_columns(table: WordTable) -> WordTable:
    """Drops the columns behind the first one in which no row says anything."""
    columns = list(zip(table.headings, *table.rows, strict=False))
    columns = [column for column in columns if column is columns[0] or set(column[1:]) - {"", NONE}]
    headings, *rows = zip(*columns, strict=True)
    return WordTable(table.title, headings, tuple(rows), table.below)


def _shape(kernel: Kernel) -> tuple[str, str]:
    more = f" (of {kernel.shapes})" if kernel.shapes > 1 else ""
    return "x".join(map(str, kernel.grid)) + more, "x".join(map(str, kernel.block))


def _lag(value_ms: float | None) -> str:
    return NONE if value_ms is None else units.milliseconds(value_ms)


def _call(called: tuple[str, float]) -> str:
    name, ms = called
    return f"{name} {units.milliseconds(ms)}" if name else NONE


def _size(bytes_: float) -> str:
    factor, unit = (1e9, "GB") if bytes_ >= 1e9 else (1e6, "MB") if bytes_ >= 1e5 else (1e3, "kB")
    return f"{bytes_ / factor:.3g} {unit}"


def _finding(finding: Finding) -> WordTable:
    """Its longest rows, without the columns that say where in the report they are."""
    shown = [number for number, heading in enumerate(finding.headings) if heading not in ONLY_WHERE]
    rows = [tuple(row[number] for number in shown if number < len(row)) for row in finding.rows[:MOST_FOUND]]
    headings = tuple(finding.headings[number] for number in shown)
    if not shown or not rows:
        rows, headings = [("no table",)], ("rule",)
    more = (f"{finding.count - len(rows)} more",) if finding.count > len(rows) else ()
    return WordTable(f"nsys says: {finding.title}", headings, tuple(rows), (finding.advice, *more))
