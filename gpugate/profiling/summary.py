"""A profile in numbers: the work of the host and the device in the steps of one report.

Counts and times are of all steps together. `counters` are of an average step, by the function and with the names of a
counting pass. Markdown and the terminal show the same tables, whose times and counts are per step.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from gpugate import units
from gpugate.explaining.state import shorten_names
from gpugate.measurement.trace import Event, counters, union
from gpugate.profiling.export import CapturedSteps, read_export
from gpugate.report.table import Table, columns, plain
from gpugate.report.terminal import indent

MOST_GAPS = 8
NO_KERNEL = "no kernel ran because of the steps: profile with --trace=cuda if some should have"


@dataclass(frozen=True)
class Work:
    """All events of one name: their number, the sum of their times and the longest time; `bytes` are those of copies.

    `gpu_ms` of NVTX ranges is the time from the first to the last activity that was launched inside.
    """

    name: str
    count: int
    ms: float
    longest_ms: float
    bytes: int = 0
    gpu_ms: float = 0.0


@dataclass(frozen=True)
class IdleTime:
    """A time without work of the device, `at_ms` after the steps began, and the place of the host meanwhile.

    `nvtx_range` is the innermost range of the thread that ended it, halfway through; `call` (CUDA) and `os_call` are
    the calls in which the thread spent most of it. Each is "" where there was none.
    """

    at_ms: float
    ms: float
    nvtx_range: str
    call: str
    call_ms: float
    os_call: str
    os_call_ms: float


@dataclass(frozen=True)
class ProfileSummary:
    """Everything that is kept of a report. `items` is the sum of the steps' payloads, 0 where they have none."""

    report: str  # the file's name
    product: str  # the version of Nsight Systems that exported it
    gpu: str
    steps: int
    items: int
    span_ms: float  # from the start of the first step to the end of the last, on the host
    counters: Mapping[str, float]
    kernels: tuple[Work, ...]
    ranges: tuple[Work, ...]
    idle: tuple[IdleTime, ...]
    waits: tuple[Work, ...]  # calls of the steps' threads, by the range that they are in
    calls: tuple[Work, ...]
    copies: tuple[Work, ...]
    notes: tuple[str, ...]


def summarize(sqlite: Path, steps: int | None = None, window: str | None = None) -> ProfileSummary:
    """Summarizes an export. `steps` and `window` are as in `read_export`; raises ProfileError as it does."""
    found = read_export(sqlite, steps, window)
    activity, ranges = found.activity, found.project_ranges()
    waits = ({**wait, "name": _in_range(found, wait)} for wait in activity.waits)
    return ProfileSummary(
        report=sqlite.name,
        product=found.product,
        gpu=found.gpu,
        steps=len(found.steps),
        items=sum(step.items for step in found.steps),
        span_ms=(found.stop - found.start) / 1e3,
        counters={**counters(activity), "enqueue_ms": _enqueue_ms(found)},
        kernels=_by_name(map(_work, activity.kernels)),
        ranges=_by_name(Work(one.name, 1, (one.stop - one.start) / 1e3, 0.0, gpu_ms=us / 1e3) for one, us in ranges),
        idle=tuple(_idle_times(found)),
        waits=_by_name(map(_work, waits)),
        calls=_by_name(map(_work, activity.calls)),
        copies=_by_name(map(_work, activity.copies)),
        notes=() if activity.kernels else (NO_KERNEL,),
    )


def _work(event: Event) -> Work:
    ms = event["dur"] / 1e3
    return Work(event["name"], 1, ms, ms, event["args"]["bytes"])


def _by_name(works: Iterable[Work]) -> tuple[Work, ...]:
    """The work of each name together, the longest first."""
    named: dict[str, list[Work]] = defaultdict(list)
    for work in works:
        named[work.name].append(work)
    found = [
        Work(
            name, len(alike), sum(one.ms for one in alike), max(one.longest_ms for one in alike),
            sum(one.bytes for one in alike), sum(one.gpu_ms for one in alike),
        )
        for name, alike in named.items()
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda one: (-one.gpu_ms, -one.ms, -one.count)))


def _in_range(found: CapturedSteps, call: Event) -> str:
    name = found.find_innermost(call["tid"], call["ts"])
    return f"{call['name']} in {name}" if name else str(call["name"])


def _idle_times(found: CapturedSteps) -> Iterator[IdleTime]:
    """The longest times between two activities of the device, and where the thread was whose call ended them."""
    calls = {call["args"]["correlation"]: call["tid"] for call in found.activity.calls}
    threads = {event["ts"]: calls[event["args"]["correlation"]] for event in found.device}
    between = [(before[1], after[0]) for before, after in pairwise(union(found.device))]
    whole_ns = [(start, stop) for start, stop in between if round(stop - start, 3)]  # less is the error of a float
    for start, stop in sorted(whole_ns, key=lambda gap: gap[0] - gap[1])[:MOST_GAPS]:
        tid = threads[stop]
        sources = (found.activity.calls, found.os_calls)
        inside = (_longest_inside(start, stop, [one for one in events if one["tid"] == tid]) for events in sources)
        (call, call_ms), (os_call, os_call_ms) = inside
        name = found.find_innermost(tid, (start + stop) / 2)
        at_ms, ms = (start - found.start) / 1e3, (stop - start) / 1e3
        yield IdleTime(at_ms, ms, name, call, call_ms, os_call, os_call_ms)


def _longest_inside(start: float, stop: float, events: Iterable[Event]) -> tuple[str, float]:
    """The name of the calls that took most of the time from `start` to `stop`, and their time in it in ms."""
    inside: dict[str, float] = defaultdict(float)
    for event in events:
        us = min(event["ts"] + event["dur"], stop) - max(event["ts"], start)
        if us > 0:
            inside[event["name"]] += us / 1e3
    return max(inside.items(), key=lambda item: item[1], default=("", 0.0))


def _enqueue_ms(found: CapturedSteps) -> float:
    """The host's time in a step without its waits for the device."""
    waited = (wait["dur"] for wait in found.activity.waits if found.find_innermost(wait["tid"], wait["ts"]))
    us = sum(step.stop - step.start for step in found.steps) - sum(waited)
    return max(0.0, float(us)) / 1e3 / len(found.steps)


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
    lines = [indent(line, 2) for line in overview(summary)]
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
