"""The steps of one report in words: tables of the host's and the device's work.

Times and counts are those of an average step. The counters are computed by the function of a counting pass, under its
names.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from rich.console import RenderableType
from rich.text import Text

from gpugate import units
from gpugate.measurement.trace import Event, counters, union
from gpugate.profiling.export import CapturedSteps
from gpugate.report.table import Table, columns
from gpugate.report.terminal import indent

MOST_ROWS, MOST_BRIEF, MOST_GAPS = 15, 3, 8
NONE = "-"
NO_KERNEL = "no kernel ran because of the steps: profile with --trace=cuda if some should have"
_ARGUMENTS = re.compile(r"\((?!anonymous namespace\)|lambda)[^()]*(?:\([^()]*\)[^()]*)*\)(?: const)?$")


def render(found: CapturedSteps, width: int) -> list[RenderableType]:
    """The whole summary as rich renderables, in the order of reading. Words come as `Text`, never as markup."""
    lines = [indent(line, 2) for line in overview(found)]
    parts = (part for table in list_tables(found) for part in table.rich(width))
    return [Text(f"profile of {found.report}", style="bold"), *lines, *parts]


def overview(found: CapturedSteps) -> list[str]:
    """The profiled steps, the GPU's active time, the counters of a step, and a note where no kernel ran."""
    counted, steps = counters(found.activity), len(found.steps)
    items = sum(step.items for step in found.steps)
    each = f" of {items / steps:g} items" if items else ""
    span = units.milliseconds((found.stop - found.start) / 1e3)
    source = f"Nsight Systems {found.product or 'of unknown version'}"
    lines = [f"{steps} steps{each} in {span}, {found.gpu or 'no GPU named'}; {source}"]
    if counted["active_fraction"]:
        active, kernels, copies, overlap = (
            units.percent(counted[f"{name}_fraction"]) for name in ("active", "kernel", "copy", "overlap")
        )
        under = f", {overlap} of copies under kernels" if counted["copy_fraction"] else ""
        lines.append(
            f"GPU active {active} of the time from its first to its last activity (kernels {kernels}, copies "
            f"{copies}{under})"
        )
    names = ("kernel_launches", "graph_launches", "kernels", "memsets", "synchronizing_calls", "streams")
    lines.append("a step: " + ", ".join(f"{name.replace('_', ' ')} {counted[name]:g}" for name in names))
    return lines if found.activity.kernels else [*lines, NO_KERNEL]


def brief(found: CapturedSteps) -> list[str]:
    """The overview and the longest kernels, which a run prints for each of its reports."""
    kernels = _name_kernels(found)
    longest = [f"{name} {share}" for name, share, _ in kernels[:MOST_BRIEF]]
    more = f"; {len(kernels) - len(longest)} kernels more" if len(kernels) > len(longest) else ""
    return [*overview(found), *([f"most of its kernels' time: {', '.join(longest)}{more}"] if longest else [])]


class _Work(NamedTuple):
    """All events of one name, so many by `number`. `ms` is the sum of their times, `bytes` that of copies."""

    name: str
    number: int
    ms: float
    longest_ms: float
    bytes: int


def _sum_by_name(events: Iterable[Event]) -> list[_Work]:
    """The events of each name together, the longest time first."""
    named: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        named[event["name"]].append(event)
    found = (
        _Work(name, len(alike), sum(times) / 1e3, max(times) / 1e3, sum(one["args"]["bytes"] for one in alike))
        for name, alike in named.items()
        for times in [[one["dur"] for one in alike]]
    )
    return sorted(found, key=lambda one: (-one.ms, -one.number))


def _name_kernels(found: CapturedSteps) -> list[tuple[str, str, _Work]]:
    """Each kernel with a short name without arguments, and its share of the time of all kernels; different names stay
    different."""
    kernels = _sum_by_name(found.activity.kernels)
    total_ms = sum(kernel.ms for kernel in kernels) or 1.0
    names = units.shorten_names([_ARGUMENTS.sub("", kernel.name) for kernel in kernels])
    return [(name, units.percent(one.ms / total_ms), one) for name, one in zip(names, kernels, strict=True)]


def list_tables(found: CapturedSteps) -> list[Table]:
    """Every table that has a row, in the order of reading."""
    steps, activity = len(found.steps), found.activity

    def per(total_ms: float) -> str:
        return units.milliseconds(total_ms / steps)

    def count(number: float) -> str:
        return f"{number / steps:g}"

    kernels = [
        (name, per(one.ms), share, count(one.number), units.milliseconds(one.ms / one.number))
        for name, share, one in _name_kernels(found)
    ]
    ranges = [(name, count(one), per(ms), per(gpu_ms)) for name, (one, ms, gpu_ms) in _sum_ranges(found).items()]
    waits, calls = (
        [(one.name, per(one.ms), count(one.number), units.milliseconds(one.longest_ms)) for one in _sum_by_name(events)]
        for events in ((_name_range(found, wait) for wait in activity.waits), activity.calls)
    )
    copies = [
        (one.name.removeprefix("Memcpy "), count(one.number), units.item("copied_bytes", one.bytes / steps),
         per(one.ms), f"{one.bytes / one.ms / 1e6:.3g} GB/s" if one.ms else NONE)
        for one in _sum_by_name(activity.copies)
    ]  # fmt: skip
    tables = [
        _table("kernels", "kernel|time|share|count|mean", kernels),
        _table(
            "NVTX ranges", "range|count|host|GPU", ranges, "GPU: from the first to the last activity launched inside"
        ),
        _table("longest times without GPU work", "host was in range|at|idle|in CUDA call", list(_list_gaps(found))),
        _table("calls that wait for the device", "call|time|count|longest", waits),
        _table("CUDA calls", "call|time|count|longest", calls),
        _table("copies", "copy|count|size|time|rate", copies),
    ]
    return [table for table in tables if table.rows]


def _table(title: str, headings: str, rows: Sequence[tuple[str, ...]], *notes: str) -> Table:
    """The first rows, with their number where there are more."""
    of = f", {MOST_ROWS} of {len(rows)}" if len(rows) > MOST_ROWS else ""
    return Table(f"{title}{of}", columns(*headings.split("|")), tuple(rows[:MOST_ROWS]), notes)


def _sum_ranges(found: CapturedSteps) -> dict[str, tuple[int, float, float]]:
    """The number of the ranges of each name, and the sums of their times in ms on the host and on the GPU, where a
    range lasts from the first to the last activity that was launched inside. The longest on the GPU comes first."""
    sums: dict[str, tuple[int, float, float]] = {}
    for one, gpu_us in found.project_ranges():
        number, ms, gpu_ms = sums.get(one.name, (0, 0.0, 0.0))
        sums[one.name] = number + 1, ms + (one.stop - one.start) / 1e3, gpu_ms + gpu_us / 1e3
    return dict(sorted(sums.items(), key=lambda item: (-item[1][2], -item[1][1])))


def _name_range(found: CapturedSteps, call: Event) -> Event:
    """The call under a name that ends with the range that it is in."""
    name = found.find_innermost(call["tid"], call["ts"])
    return {**call, "name": f"{call['name']} in {name}"} if name else call


def _list_gaps(found: CapturedSteps) -> Iterator[tuple[str, ...]]:
    """Yields the longest times between two activities of the device, and the place of the host meanwhile: the innermost
    range of the thread whose call ended the time, halfway through, and the CUDA call that took most of it there."""
    threads = {call["args"]["correlation"]: call["tid"] for call in found.activity.calls}
    ended_by = {event["ts"]: threads[event["args"]["correlation"]] for event in found.device}
    between = [(before[1], after[0]) for before, after in pairwise(union(found.device))]
    whole_ns = [(start, stop) for start, stop in between if round(stop - start, 3)]  # less is the error of a float
    for start, stop in sorted(whole_ns, key=lambda gap: gap[0] - gap[1])[:MOST_GAPS]:
        tid = ended_by[stop]
        name = found.find_innermost(tid, (start + stop) / 2) or NONE
        at, idle = (units.milliseconds(us / 1e3) for us in (start - found.start, stop - start))
        yield name, at, idle, _longest_call(start, stop, [one for one in found.activity.calls if one["tid"] == tid])


def _longest_call(start: float, stop: float, calls: Sequence[Mapping[str, float]]) -> str:
    """The name of the calls that took most of the time from `start` to `stop`, with their time in it."""
    inside: dict[str, float] = defaultdict(float)
    for call in calls:
        inside[str(call["name"])] += max(0.0, min(call["ts"] + call["dur"], stop) - max(call["ts"], start)) / 1e3
    name, ms = max(inside.items(), key=lambda item: item[1], default=("", 0.0))
    return f"{name} {units.milliseconds(ms)}" if ms else NONE
