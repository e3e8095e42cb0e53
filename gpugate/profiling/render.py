"""A profile's summary for people: the same tables as Markdown and for a terminal. Times and counts are per step."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from gpugate import units
from gpugate.explaining.words import shorten_names
from gpugate.profiling.device_activity import Kernel
from gpugate.profiling.nsight_tools import RuleFinding
from gpugate.profiling.summary import ProfileSummary
from gpugate.report.table import Table, columns, plain

MOST_ROWS, MOST_GAPS, MOST_BRIEF = 15, 8, 3
WORTH_A_ROW = 0.01  # of the sum of a table's times
MOST_FOUND = 3
ONLY_WHERE = ("Row#", "Start (ns)", "PID", "TID", "Device ID", "Context ID", "Green Context ID")
NONE, OTHER_THREAD = "-", "another than the steps'"
_ARGUMENTS = re.compile(r"\((?!anonymous namespace\)|lambda)[^()]*(?:\([^()]*\)[^()]*)*\)(?: const)?$")


def markdown(summary: ProfileSummary) -> str:
    """The whole summary as GitHub Markdown, its headings from the second level on."""
    head = [
        f"## Profile of {plain(summary.report)}",
        "\n".join(f"- {plain(line)}" for line in overview(summary)),
    ]
    return "\n\n".join([*head, *(table.markdown() for table in word_tables(summary))]) + "\n"


def tables(summary: ProfileSummary, width: int) -> list[RenderableType]:
    """The whole summary as rich renderables, in the order of reading. Words come as `Text`, never as markup."""
    lines = [Padding(Text(line), (0, 0, 0, 2)) for line in overview(summary)]
    parts = (part for table in word_tables(summary) for part in table.rich(width))
    return [Text(f"profile of {summary.report}", style="bold"), *lines, *parts]


def overview(summary: ProfileSummary) -> list[str]:
    """The profiled steps, the GPU's active time, the counters of a step, and the notes on missing parts."""
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
    """The overview and the longest kernels, which a run prints for each of its reports."""
    names = kernel_names([kernel.name for kernel in summary.kernels])
    told = [f"{name} {units.percent(one.share)}" for name, one in zip(names, summary.kernels, strict=True)][:MOST_BRIEF]
    more = f"; {len(names) - len(told)} kernels more" if len(names) > len(told) else ""
    return [*overview(summary), *([f"most of its kernels' time: {', '.join(told)}{more}"] if told else [])]


def kernel_names(names: Sequence[str]) -> list[str]:
    """Short names without arguments; different names stay different."""
    return shorten_names([_ARGUMENTS.sub("", name) for name in names])


def word_tables(summary: ProfileSummary) -> list[Table]:
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
        (one.name, count(one.count), *map(per, (one.host_ms, one.gpu_span_ms, one.gpu_busy_ms)),
         *map(_lag, (one.start_lag_ms, one.end_lag_ms)))
        for one in summary.ranges
    ]  # fmt: skip
    gaps = [
        (one.nvtx_range or NONE, units.milliseconds(one.at_ms), units.milliseconds(one.ms),
         _call(one.call, one.call_ms), _call(one.os_call, one.os_call_ms))
        for one in summary.gaps[:MOST_GAPS]
    ]  # fmt: skip
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
        (f"{one.direction}, {one.source} to {one.target}", count(one.count), _size(one.bytes / steps), per(one.ms),
         NONE if one.gb_per_s is None else f"{one.gb_per_s:.3g} GB/s")
        for one in summary.copies
    ]  # fmt: skip
    streams = [
        (f"{one.stream} of GPU {one.device}", *map(count, (one.kernels, one.copies, one.memsets)), per(one.ms))
        for one in summary.streams
    ]
    memory = [
        (one.kind, f"{one.allocations:,}", f"{one.frees:,}",
         *map(_size, (one.allocated_bytes, one.freed_bytes, one.peak_bytes)))
        for one in summary.memory
    ]  # fmt: skip
    note = "GPU: first to last activity launched inside; begins, ends: after the range does so on the host"
    tables = [
        _table("kernels", "kernel|time|share|count|mean|grid|block", kernels),
        _table("NVTX ranges on the GPU", "range|count|host|GPU|GPU busy|begins|ends", ranges, note),
        _table("longest times without GPU work", "host was in range|at|idle|in CUDA call|in OS call", gaps),
        _table("GPU idle while the host was in", "call|time|gaps", idle),
        _table("calls that wait for the device", "call|in range|count|time|thread", waits),
        _table("CUDA calls", "call|time|count|longest", calls),
        _table("copies", "copy|count|size|time|rate", copies),
        _table("streams", "stream|kernels|copies|memsets|time", streams),
        _table("memory, of all steps", "kind|allocations|frees|allocated|freed|peak above the start", memory),
        *map(_finding, summary.findings),
    ]
    return [table for table in tables if table.rows]


def _table(title: str, headings: str, rows: Sequence[tuple[str, ...]], *notes: str) -> Table:
    """The first rows, without the columns behind the first one in which every row is empty."""
    found = columns(*headings.split("|"))
    shown = [number for number in range(len(found)) if not number or {row[number] for row in rows} - {"", NONE}]
    cells = tuple(tuple(row[number] for number in shown) for row in rows[:MOST_ROWS])
    of = f", {len(cells)} of {len(rows)}" if len(rows) > len(cells) else ""
    return Table(f"{title}{of}", tuple(found[number] for number in shown), cells, notes, gap=1)


def _shape(kernel: Kernel) -> tuple[str, str]:
    more = f" (of {kernel.shapes})" if kernel.shapes > 1 else ""
    return "x".join(map(str, kernel.grid)) + more, "x".join(map(str, kernel.block))


def _lag(value_ms: float | None) -> str:
    return NONE if value_ms is None else units.milliseconds(value_ms)


def _call(name: str, ms: float) -> str:
    return f"{name} {units.milliseconds(ms)}" if name else NONE


def _size(bytes_: float) -> str:
    factor, unit = (1e9, "GB") if bytes_ >= 1e9 else (1e6, "MB") if bytes_ >= 1e5 else (1e3, "kB")
    return f"{bytes_ / factor:.3g} {unit}"


def _finding(finding: RuleFinding) -> Table:
    """The longest rows of a finding, without the columns that locate them in the report."""
    shown = [number for number, heading in enumerate(finding.headings) if heading not in ONLY_WHERE]
    rows = [tuple(dict(enumerate(row)).get(number, "") for number in shown) for row in finding.rows[:MOST_FOUND]]
    more = (f"{finding.count - len(rows)} more",) if finding.count > len(rows) else ()
    headings = columns(*(finding.headings[number] for number in shown)) if shown and rows else columns("rule")
    cells = tuple(rows) if shown and rows else (("no table",),)
    return Table(f"nsys rule: {finding.title}", headings, cells, (finding.advice, *more), gap=1)
