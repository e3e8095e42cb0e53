"""A profile's summary for people: the same tables as Markdown and for a terminal. Times and counts are per step."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from gpugate import units
from gpugate.explaining.words import shorten_names
from gpugate.profiling.summary import ProfileSummary, Work
from gpugate.report.table import Table, columns, plain

MOST_ROWS, MOST_BRIEF = 15, 3
NONE = "-"
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
    counters, steps = summary.counters, summary.steps
    items = f" of {summary.items / steps:g} items" if summary.items else ""
    source = f"Nsight Systems {summary.product or 'of unknown version'}"
    lines = [
        f"{steps} steps{items} in {units.milliseconds(summary.span_ms)}, {summary.gpu or 'no GPU named'}; {source}"
    ]
    if counters["active_fraction"]:
        active, kernels, copies, overlap = (
            units.percent(counters[f"{name}_fraction"]) for name in ("active", "kernel", "copy", "overlap")
        )
        under = f", {overlap} of copies under kernels" if counters["copy_fraction"] else ""
        lines.append(
            f"GPU active {active} of the time from its first to its last activity (kernels {kernels}, copies "
            f"{copies}{under})"
        )
    counted = ("kernel_launches", "graph_launches", "kernels", "memsets", "synchronizing_calls", "streams")
    lines.append("a step: " + ", ".join(f"{name.replace('_', ' ')} {counters[name]:g}" for name in counted))
    return [*lines, *summary.notes]


def brief(summary: ProfileSummary) -> list[str]:
    """The overview and the longest kernels, which a run prints for each of its reports."""
    names = kernel_names([kernel.name for kernel in summary.kernels])
    longest = [f"{name} {share}" for name, share in zip(names, _shares(summary), strict=True)][:MOST_BRIEF]
    more = f"; {len(names) - len(longest)} kernels more" if len(names) > len(longest) else ""
    return [*overview(summary), *([f"most of its kernels' time: {', '.join(longest)}{more}"] if longest else [])]


def kernel_names(names: Sequence[str]) -> list[str]:
    """Short names without arguments; different names stay different."""
    return shorten_names([_ARGUMENTS.sub("", name) for name in names])


def _shares(summary: ProfileSummary) -> list[str]:
    """The share of each kernel of the time of all kernels."""
    total_ms = sum(kernel.ms for kernel in summary.kernels) or 1.0
    return [units.percent(kernel.ms / total_ms) for kernel in summary.kernels]


def word_tables(summary: ProfileSummary) -> list[Table]:
    """Every table that has a row, in the order of reading."""
    names, shares = kernel_names([kernel.name for kernel in summary.kernels]), _shares(summary)

    def per(total_ms: float) -> str:
        return units.milliseconds(total_ms / summary.steps)

    def count(work: Work) -> str:
        return f"{work.count / summary.steps:g}"

    kernels = [
        (name, per(one.ms), share, count(one), units.milliseconds(one.ms / one.count))
        for name, share, one in zip(names, shares, summary.kernels, strict=True)
    ]
    ranges = [(one.name, count(one), per(one.ms), per(one.gpu_ms)) for one in summary.ranges]
    idle = [
        (one.nvtx_range or NONE, units.milliseconds(one.at_ms), units.milliseconds(one.ms),
         _call(one.call, one.call_ms), _call(one.os_call, one.os_call_ms))
        for one in summary.idle
    ]  # fmt: skip
    waits, calls = (
        [(one.name, per(one.ms), count(one), units.milliseconds(one.longest_ms)) for one in works]
        for works in (summary.waits, summary.calls)
    )
    copies = [
        (one.name.removeprefix("Memcpy "), count(one), _size(one.bytes / summary.steps), per(one.ms),
         f"{one.bytes / one.ms / 1e6:.3g} GB/s" if one.ms else NONE)
        for one in summary.copies
    ]  # fmt: skip
    found = [
        _table("kernels", "kernel|time|share|count|mean", kernels),
        _table(
            "NVTX ranges", "range|count|host|GPU", ranges, "GPU: from the first to the last activity launched inside"
        ),
        _table("longest times without GPU work", "host was in range|at|idle|in CUDA call|in OS call", idle),
        _table("calls that wait for the device", "call|time|count|longest", waits),
        _table("CUDA calls", "call|time|count|longest", calls),
        _table("copies", "copy|count|size|time|rate", copies),
    ]
    return [table for table in found if table.rows]


def _table(title: str, headings: str, rows: Sequence[tuple[str, ...]], *notes: str) -> Table:
    """The first rows, with their number where there are more."""
    of = f", {MOST_ROWS} of {len(rows)}" if len(rows) > MOST_ROWS else ""
    return Table(f"{title}{of}", columns(*headings.split("|")), tuple(rows[:MOST_ROWS]), notes, gap=1)


def _call(name: str, ms: float) -> str:
    return f"{name} {units.milliseconds(ms)}" if name else NONE


def _size(bytes_: float) -> str:
    factor, unit = (1e9, "GB") if bytes_ >= 1e9 else (1e6, "MB") if bytes_ >= 1e5 else (1e3, "kB")
    return f"{bytes_ / factor:.3g} {unit}"
