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
from gpugate.profiling.host_calls import ProjectedRange
from gpugate.profiling.summary import ProfileSummary
from gpugate.report.markdown import escaped
from gpugate.report.series_tables import WordTable
from gpugate.report.terminal import GAP, RULE_UNDER_HEAD

MOST_ROWS, MOST_GAPS, MOST_BRIEF = 15, 8, 3
WORTH_A_ROW = 0.01  # of the sum of a table's times
MOST_FOUND = 3
ONLY_WHERE = ("Row#", "Start (ns)", "PID", "TID", "Device ID", "Context ID", "Green Context ID")
NONE = "-"
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
            f"copies {units.percent(copies)}{overlap}), idle {_per(active.idle_ms, steps)} a step"
        )
    counted = ("kernel_launches", "graph_launches", "kernels", "memsets", "synchronizing_calls", "streams")
    lines.append(
        "a step: " + ", ".join(f"{name.replace('_', ' ')} {counters[name]:g}" for name in counted if name in counters)
    )
    if summary.graphs.ran:
        graphs, of_steps = summary.graphs, summary.graphs.ran / steps
        lines.append(f"graph nodes: {of_steps:g} a step ({graphs.nodes} different ones), {_per(graphs.ms, steps)}")
    return [*lines, *summary.notes]


def brief(summary: ProfileSummary) -> list[str]:
    """The overview, and the kernels that take most: what a run says of each of its reports."""
    names = kernel_names([kernel.name for kernel in summary.kernels])
    told = [f"{name} {units.percent(one.share)}" for name, one in zip(names, summary.kernels, strict=True)][:MOST_BRIEF]
    more = f"; {len(names) - len(told)} kernels more" if len(names) > len(told) else ""
    return [*overview(summary), *([f"most of its kernels' time: {', '.join(told)}{more}"] if told else [])]


def word_tables(summary: ProfileSummary) -> list[WordTable]:
    """Every table that has a row, in the order of reading."""
    made = [
        _kernels(summary),
        _ranges(summary),
        _gaps(summary),
        _idle(summary),
        _waits(summary),
        _calls(summary),
        _copies(summary),
        _streams(summary),
        _memory(summary),
        *map(_finding, summary.findings),
    ]
    return [_without_empty_columns(table) for table in made if table.rows]


def _without_empty_columns(table: WordTable) -> WordTable:
    """Without those, behind the first one, in which no row says anything."""
    said = [
        not number or any(row[number] not in ("", NONE) for row in table.rows) for number in range(len(table.rows[0]))
    ]
    rows = tuple(tuple(cell for cell, stays in zip(row, said, strict=True) if stays) for row in table.rows)
    headings = tuple(heading for heading, stays in zip(table.headings, said, strict=False) if stays)
    return WordTable(table.title, headings, rows, table.below)


def _table(title: str, headings: str, rows: Sequence[tuple[str, ...]], below: tuple[str, ...] = ()) -> WordTable:
    shown = tuple(rows[:MOST_ROWS])
    of = f", {len(shown)} of {len(rows)}" if len(rows) > len(shown) else ""
    return WordTable(f"{title}{of}", tuple(headings.split("|")), shown, below)


def _per(total_ms: float, steps: int) -> str:
    return units.milliseconds(total_ms / steps)


def _lag(value_ms: float | None) -> str:
    return NONE if value_ms is None else units.milliseconds(value_ms)


def _size(bytes_: float) -> str:
    factor, unit = (1e9, "GB") if bytes_ >= 1e9 else (1e6, "MB") if bytes_ >= 1e5 else (1e3, "kB")
    return f"{bytes_ / factor:.3g} {unit}"


def kernel_names(names: Sequence[str]) -> list[str]:
    """Short ones, without arguments, of which no two are alike where the names are not."""
    return shortened([_ARGUMENTS.sub("", name) for name in names])


def _kernels(summary: ProfileSummary) -> WordTable:
    names = kernel_names([kernel.name for kernel in summary.kernels])
    rows = [_kernel(kernel, name, summary.steps) for kernel, name in zip(summary.kernels, names, strict=True)]
    return _table("kernels", "kernel|time|share|count|mean|grid|block", rows)


def _kernel(kernel: Kernel, name: str, steps: int) -> tuple[str, ...]:
    more = f" (of {kernel.shapes})" if kernel.shapes > 1 else ""
    return (
        name,
        _per(kernel.ms, steps),
        units.percent(kernel.share),
        f"{kernel.count / steps:g}",
        units.milliseconds(kernel.mean_ms),
        "x".join(map(str, kernel.grid)) + more,
        "x".join(map(str, kernel.block)),
    )


def _ranges(summary: ProfileSummary) -> WordTable:
    rows = [_range(one, summary.steps) for one in summary.ranges]
    below = ("GPU: first to last activity launched inside; begins, ends: after the range does so on the host",)
    return _table("NVTX ranges on the GPU", "range|count|host|GPU|GPU busy|begins|ends", rows, below)


def _range(one: ProjectedRange, steps: int) -> tuple[str, ...]:
    return (
        one.name,
        f"{one.count / steps:g}",
        _per(one.host_ms, steps),
        _per(one.gpu_span_ms, steps),
        _per(one.gpu_busy_ms, steps),
        _lag(one.start_lag_ms),
        _lag(one.end_lag_ms),
    )


def _gaps(summary: ProfileSummary) -> WordTable:
    rows = [
        (
            gap.nvtx_range or NONE,
            units.milliseconds(gap.at_ms),
            units.milliseconds(gap.ms),
            f"{gap.call} {units.milliseconds(gap.call_ms)}" if gap.call else NONE,
            f"{gap.os_call} {units.milliseconds(gap.os_call_ms)}" if gap.os_call else NONE,
        )
        for gap in summary.gaps[:MOST_GAPS]
    ]
    return _table("longest times without GPU work", "host was in range|at|idle|in CUDA call|in OS call", rows)


def _idle(summary: ProfileSummary) -> WordTable:
    steps, whole = summary.steps, sum(one.ms for one in summary.idle_while)
    rows = [
        (one.call or "no CUDA call", _per(one.ms, steps), f"{one.gaps / steps:g}")
        for one in summary.idle_while
        if one.ms >= WORTH_A_ROW * whole
    ]
    return _table("GPU idle while the host was in", "call|time|gaps", rows)


def _waits(summary: ProfileSummary) -> WordTable:
    steps = summary.steps
    rows = [
        (
            wait.call,
            wait.nvtx_range or NONE,
            f"{wait.count / steps:g}",
            _per(wait.ms, steps),
            "" if wait.of_steps else "another than the steps'",
        )
        for wait in summary.waits
    ]
    return _table("calls that wait for the device", "call|in range|count|time|thread", rows)


def _calls(summary: ProfileSummary) -> WordTable:
    steps = summary.steps
    rows = [
        (call.name, _per(call.ms, steps), f"{call.count / steps:g}", units.milliseconds(call.longest_ms))
        for call in summary.calls
    ]
    return _table("CUDA calls", "call|time|count|longest", rows)


def _copies(summary: ProfileSummary) -> WordTable:
    steps = summary.steps
    rows = [
        (
            f"{one.direction}, {one.source} to {one.target}",
            f"{one.count / steps:g}",
            _size(one.bytes / steps),
            _per(one.ms, steps),
            NONE if one.gb_per_s is None else f"{one.gb_per_s:.3g} GB/s",
        )
        for one in summary.copies
    ]
    return _table("copies", "copy|count|size|time|rate", rows)


def _streams(summary: ProfileSummary) -> WordTable:
    steps = summary.steps
    rows = [
        (
            f"{one.stream} of GPU {one.device}",
            *(f"{count / steps:g}" for count in (one.kernels, one.copies, one.memsets)),
            _per(one.ms, steps),
        )
        for one in summary.streams
    ]
    return _table("streams", "stream|kernels|copies|memsets|time", rows)


def _memory(summary: ProfileSummary) -> WordTable:
    rows = [
        (
            one.kind,
            f"{one.allocations:,}",
            f"{one.frees:,}",
            *map(_size, (one.allocated_bytes, one.freed_bytes, one.peak_bytes)),
        )
        for one in summary.memory
    ]
    return _table("memory, of all steps", "kind|allocations|frees|allocated|freed|peak above the start", rows)


def _finding(finding: Finding) -> WordTable:
    """Its longest rows, without the columns that say where in the report they are."""
    titled = range(len(finding.headings))
    shown = [number for number in titled if finding.headings[number] not in ONLY_WHERE]
    rows = [tuple(row[number] for number in shown if number < len(row)) for row in finding.rows[:MOST_FOUND]]
    headings = tuple(finding.headings[number] for number in shown)
    if not shown or not rows:
        rows, headings = [("no table",)], ("rule",)
    more = (f"{finding.count - len(rows)} more",) if finding.count > len(rows) else ()
    return WordTable(f"nsys says: {finding.title}", headings, tuple(rows), (finding.advice, *more))
