"""A history in words: a table of trends for each machine, its level changes below; and the same as JSON."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from gpugate import units
from gpugate.commands.history.level_changes import FALSE_MARKS
from gpugate.commands.history.trends import MachineHistory, Mark, Step, Trend
from gpugate.report.machine import describe_unfit
from gpugate.report.table import Column, Table
from gpugate.report.terminal import render_text
from gpugate.results.night import BILL_TIMES, UNKNOWN, CaseNight, Night
from gpugate.store.codec import to_json
from gpugate.store.json_file import pretty, with_header

FORMAT = "gpugate-history"
# History: 1: machines with their nights, the series of every case, and the nights on which its level changed.
#          2: a step names the test that found it; level changes have no p-value.
#          3: there is one test, so that a step names none. 4: the times of the bill, null where a night has none.
FORMAT_VERSION = 4
BLOCKS, ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "_.-~=+*#"
NEW_LEVEL = "|"
FLATTEST = 0.02  # the share that a line of full height stands for at least: noise must not look like mountains
SPARK_COLUMNS = 42
NARROWEST_SPARK = 12
OTHER_COLUMNS = 92  # beside the line: a name of 20, and every number but those of the bill
BILL_COLUMNS = 11  # of one of those


def text(histories: Sequence[MachineHistory], width: int, colour: bool) -> str:
    """All machines, for a stream of `width` columns; with `colour`, ANSI escapes."""
    return render_text((part for history in histories for part in _machine(history, width)), width, colour)


def _machine(history: MachineHistory, width: int) -> Iterator[RenderableType]:
    nights = history.nights
    span = f"{night_name(nights[0])} to {night_name(nights[-1])}" if len(nights) > 1 else night_name(nights[0])
    yield Text(f"{history.machine}: {units.number_of(len(nights), history.unit)}, {span}", style="bold")
    if history.trends:
        yield from _table(history.trends, width, history.unit).rich(width)
    yield Text()
    marks = [(trend, mark) for trend in history.trends for mark in trend.marks]
    for trend, mark in sorted(marks, key=lambda pair: pair[1].night.started):
        yield Text(f"{night_name(mark.night)}: {trend.case_id}: {describe_mark(mark)}", style="yellow", overflow="fold")
    unfit = describe_unfit([case_id for night in nights for case_id in night.unfit], "measurement")
    for line in filter(None, (*_events(history), unfit, *_limits(history))):
        yield Text(line, style="dim", overflow="fold")
    yield Text()


def _group(trend: Trend) -> str:
    return f"{trend.workload}/{trend.case_id.rpartition('/')[2]}"


def _columns(unit: str, billed: Sequence[str]) -> tuple[Column, ...]:
    return (
        Column("workload", left=True),
        Column("optimization", left=True),
        Column(f"{unit}s"),
        Column("per step"),
        *(Column(BILL_TIMES[name], rank=2) for name in billed),
        Column("speedup"),
        Column("interval", rank=1),
        Column(f"over {unit}s", left=True),
        Column("anchor"),
        Column("last", left=True),
    )


def _table(trends: Sequence[Trend], width: int, unit: str) -> Table:
    billed = [name for name in BILL_TIMES if any(trend.seen[-1].value(name) for trend in trends)]
    spark_columns = min(SPARK_COLUMNS, max(NARROWEST_SPARK, width - OTHER_COLUMNS - BILL_COLUMNS * len(billed)))
    groups = list(dict.fromkeys(map(_group, trends)))  # a case that was added later comes after other workloads'
    by_group = sorted(trends, key=lambda trend: groups.index(_group(trend)))
    rows = tuple(_cells(trend, spark_columns, billed) for trend in by_group)
    return Table("", _columns(unit, billed), rows, grouped=True)


def _cells(trend: Trend, spark_columns: int, billed: Sequence[str]) -> tuple[str, ...]:
    """The line and the speedup are of the same quantity, the newest night's verdict stands last."""
    last = trend.seen[-1]
    found = last.speedup
    return (
        _group(trend),
        trend.case_id.removeprefix(f"{trend.workload}/").rpartition("/")[0],
        str(len(trend.nights)),
        units.milliseconds(last.optimized_ms),
        *(units.milliseconds(ms) if (ms := last.value(name)) else "" for name in billed),
        units.ratio(found.median),
        units.interval(found.low, found.high),
        sparkline(trend, spark_columns, BLOCKS if _can_encode(BLOCKS) else ASCII_BLOCKS),
        describe_anchor(last),
        "" if last.outcome is None else last.outcome.value,
    )


def _can_encode(words: str) -> bool:
    try:
        words.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def describe_anchor(seen: CaseNight) -> str:
    """`11.50x -0.3 %`: the anchor, and where the newest night stands against it."""
    if seen.anchor_speedup is None:
        return ""
    return f"{units.ratio(seen.anchor_speedup)} {units.signed_percent(seen.speedup.median / seen.anchor_speedup - 1)}"


def sparkline(trend: Trend, columns: int, blocks: str = BLOCKS) -> str:
    """The newest speedups as one character each, of a height by their logarithm, with a line before every new level."""
    logs = [math.log(seen.speedup.median) for seen in trend.seen]
    middle = (min(logs) + max(logs)) / 2
    half = max((max(logs) - min(logs)) / 2, FLATTEST / 2)
    heights = [min(int((value - middle + half) / (2 * half) * len(blocks)), len(blocks) - 1) for value in logs]
    new = {mark.night.started for mark in trend.marks}
    drawn = [
        f"{NEW_LEVEL if night.started in new else ''}{blocks[height]}"
        for night, height in zip(trend.nights, heights, strict=True)
    ]
    while sum(map(len, drawn)) > columns:
        drawn.pop(0)
    return "".join(drawn)


def night_name(night: Night) -> str:
    """`2026-02-10 03:17 1a2b3c4d5e6f`: on the clock of the machine that measured, and the commit where it is known."""
    version = "" if night.version == UNKNOWN else f" {night.version}"
    return f"{night.started:%Y-%m-%d %H:%M}{version}"


def describe_mark(mark: Mark) -> str:
    """`level changed: speedup 3.00x -> 2.80x (-6.7 %); together with driver 580.1 -> 590.2`."""
    moved = [_describe_step("speedup", mark.speedup, units.ratio)] if mark.speedup else []
    moved += [_describe_step("per step", mark.optimized_ms, units.milliseconds)] if mark.optimized_ms else []
    causes = f"; together with {'; '.join(mark.together_with)}" if mark.together_with else ""
    return f"level changed: {', '.join(moved)}{causes}"


def _describe_step(name: str, step: Step, written: Callable[[float], str]) -> str:
    return f"{name} {written(step.before)} -> {written(step.after)} ({units.signed_percent(step.change)})"


def _events(history: MachineHistory) -> Iterator[str]:
    """Yields other events of the nights: other software, an edited workload, a run that was cut off."""
    for night, differences in history.software_changed:
        yield f"{night_name(night)}: {'; '.join(differences)}"
    edited = {(trend.workload, night_name(night)) for trend in history.trends for night in trend.source_changed}
    for workload, name in sorted(edited, key=lambda pair: pair[1]):
        yield f"{name}: the source of {workload} changed"
    for night in history.nights:
        if night.interrupted:
            measured = units.number_of(len(night.cases), "measured case")
            yield f"{night_name(night)}: {night.name} was cut off, after {measured}"


def _limits(history: MachineHistory) -> Iterator[str]:
    """Yields the reliability of the marks, and the series that are too short for a mark."""
    if not history.trends:
        yield "no case was measured, or none is selected"
        return
    lengths = Counter(trend.measured < history.fewest_nights for trend in history.trends)
    if lengths[True]:
        longest, all_cases = max(trend.measured for trend in history.trends), len(history.trends)
        of = f" of {lengths[True]} of {all_cases} cases" if lengths[False] else ""
        fewer = "; fewer where -k selects fewer cases" if all_cases > 1 else ""
        yield (
            f"level changes{of} cannot be detected yet: they need {history.fewest_nights} {history.unit}s, and "
            f"{'the longest series has' if all_cases > 1 else 'here are'} {longest}{fewer}"
        )
    if lengths[False]:
        share = units.percent(FALSE_MARKS)
        yield f"nights that differ by chance alone ever mark at most {share} of such tables (docs/nightly.md)"


def document(histories: Sequence[MachineHistory], refused: Sequence[str]) -> str:
    """One JSON document: machines, each with its nights and the series of every case."""
    body = {"machines": [_machine_as_json(history) for history in histories], "refused": list(refused)}
    return pretty(with_header(FORMAT, FORMAT_VERSION, body)) + "\n"


def _machine_as_json(history: MachineHistory) -> dict[str, Any]:
    changed = {night.key: list(differences) for night, differences in history.software_changed}
    return {
        "machine": history.machine,
        "level": history.level,
        "fewest_nights": history.fewest_nights,
        "nights": [
            {
                "name": night.name,
                "started_at": night.started.isoformat(),
                "interrupted": night.interrupted,
                "changed": changed.get(night.key, []),
            }
            for night in history.nights
        ],
        "cases": [_trend_as_json(trend) for trend in history.trends],
    }


def _trend_as_json(trend: Trend) -> dict[str, Any]:
    return {
        "case_id": trend.case_id,
        "workload": trend.workload,
        "anchor_speedup": trend.seen[-1].anchor_speedup,
        "nights": [night.name for night in trend.nights],
        "outcomes": [None if seen.outcome is None else seen.outcome.value for seen in trend.seen],
        "speedup": [seen.speedup.median for seen in trend.seen],
        "speedup_low": [seen.speedup.low for seen in trend.seen],
        "speedup_high": [seen.speedup.high for seen in trend.seen],
        "optimized_ms": [seen.optimized_ms for seen in trend.seen],
        "reference_ms": [seen.reference_ms for seen in trend.seen],
        **{name: [seen.value(name) for seen in trend.seen] for name in BILL_TIMES},
        "source_changed": [night.name for night in trend.source_changed],
        "level_changes": [_mark_as_json(mark) for mark in trend.marks],
    }


def _mark_as_json(mark: Mark) -> dict[str, Any]:
    return {
        "night": mark.night.name,
        "speedup": None if mark.speedup is None else to_json(mark.speedup),
        "optimized_ms": None if mark.optimized_ms is None else to_json(mark.optimized_ms),
        "together_with": list(mark.together_with),
    }
