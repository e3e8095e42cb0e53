"""The trends for a terminal, as a JSON document, and as a folder of files that a browser opens without a server.

The folder has a page, the document, a script and the libraries that draw. The document is a script there, since a page
of `file:` may read no other file.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from gpugate import units
from gpugate.commands.trends import FALSE_MARKS, MachineHistory, Trend
from gpugate.report.machine import describe_unfit
from gpugate.report.pages import rendering
from gpugate.report.pages.rendering import render
from gpugate.report.table import Column, Table
from gpugate.results.reason import BILL_WORDS
from gpugate.results.run import BILL_TIMES, UNKNOWN, CaseNight, Night, workload_of
from gpugate.results.verdict import Outcome, outcome_word
from gpugate.store.json_file import with_header, write_atomically
from gpugate.store.writable_folder import make_ignored

FORMAT = "gpugate-history"
# Nothing here reads the document. 8: the recorded speedup of each night in place of the best recorded one.
FORMAT_VERSION = 8
INDEX, DATA, SCRIPT = "index.html", "data.js", "trends.js"
LIBRARIES = "vega"
# The page runs the scripts of its folder alone, evaluates no text, and loads nothing else.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)
BLOCKS = "▁▂▃▄▅▆▇█"
NEW_LEVEL = "|"
FLATTEST = 0.02  # the share that a line of full height stands for at least: noise must not look like mountains
SPARK_COLUMNS = 42


def describe_machine(history: MachineHistory, width: int) -> Iterator[RenderableType]:
    """Yields the table of a machine, its level changes and its other events, for `width` columns."""
    nights = history.nights
    span = f"{night_name(nights[0])} to {night_name(nights[-1])}" if len(nights) > 1 else night_name(nights[0])
    branches = sorted({str(one.provenance.branch) for one in nights if one.provenance.branch is not None})
    if len(branches) > 1:  # a change of level may then be a change of branch
        span += f"; of {units.list_names(branches)}: --branch selects one"
    yield Text(f"{history.machine}: {_count_nights([history])}, {span}", style="bold")
    if history.trends:
        yield from _table(history.trends, width).rich(width)
    yield Text()
    marks = [(trend, mark) for trend in history.trends for mark in trend.marks]
    for trend, mark in sorted(marks, key=lambda pair: pair[1].night.started):
        yield Text(f"{night_name(mark.night)}: {trend.case_id}: {mark.words}", style="yellow", overflow="fold")
    unfit = describe_unfit([case_id for night in nights for case_id in night.unfit], "measurement")
    for line in filter(None, (*_events(history), unfit, *_limits(history))):
        yield Text(line, style="dim", overflow="fold")
    yield Text()


def _count_nights(histories: Sequence[MachineHistory]) -> str:
    """`22 nights`, each of them a gate, or `35 runs, 2 of them gates`."""
    gates = [night.is_gate for history in histories for night in history.nights]
    if all(gates):
        return units.number_of(len(gates), "night")
    return units.number_of(len(gates), "run") + (f", {sum(gates)} of them gates" if any(gates) else "")


def _table(trends: Sequence[Trend], width: int) -> Table:
    """The newest night of each case. The line of all nights is as long as a narrow window has room for it."""
    billed = [name for name in BILL_TIMES if any(trend.seen[-1].value(name) for trend in trends)]
    columns = (
        Column("workload", left=True),
        Column("optimization", left=True),
        Column("runs"),
        Column("per step"),
        *(Column(BILL_WORDS[name], rank=2) for name in billed),
        Column("speedup"),
        Column("interval", rank=1),
        Column("over nights", left=True),
        Column("recorded"),
        Column("last", left=True),
    )
    rows = [_cells(trend, min(SPARK_COLUMNS, width // 5), billed) for trend in trends]
    groups = list(dict.fromkeys(row[0] for row in rows))  # a case that was added later comes after other workloads'
    return Table("", columns, tuple(sorted(rows, key=lambda row: groups.index(row[0]))), grouped=True)


def _cells(trend: Trend, spark_columns: int, billed: Sequence[str]) -> tuple[str, ...]:
    """The line and the speedup are of the same quantity, the newest night's verdict stands last."""
    last, (workload, optimization, kind) = trend.seen[-1], trend.case_id.rsplit("/", 2)
    found = last.speedup
    return (
        f"{workload}/{kind}",
        optimization,
        str(len(trend.nights)),
        units.milliseconds(last.per_step_ms.median),
        *(units.milliseconds(ms) if (ms := last.value(name)) else "" for name in billed),
        units.ratio(found.median),
        units.interval(found.low, found.high),
        sparkline(trend, spark_columns),
        describe_recorded(last),
        "" if last.outcome is None else last.outcome.value,
    )


def describe_recorded(seen: CaseNight) -> str:
    """`11.50x -0.3 %`: the recorded speedup, and where the newest night stands against it."""
    recorded = seen.value("recorded_speedup")
    if recorded is None:
        return ""
    return f"{units.ratio(recorded)} {units.signed_percent(seen.speedup.median / recorded - 1)}"


def sparkline(trend: Trend, columns: int) -> str:
    """The newest speedups as one character each, of a height by their logarithm, with a line before every new level."""
    logs = [math.log(seen.speedup.median) for seen in trend.seen]
    middle = (min(logs) + max(logs)) / 2
    half = max((max(logs) - min(logs)) / 2, FLATTEST / 2)
    heights = [min(int((value - middle + half) / (2 * half) * len(BLOCKS)), len(BLOCKS) - 1) for value in logs]
    new = {mark.night.key for mark in trend.marks}
    drawn = [
        f"{NEW_LEVEL if night.key in new else ''}{BLOCKS[height]}"
        for night, height in zip(trend.nights, heights, strict=True)
    ]
    while sum(map(len, drawn)) > columns:
        drawn.pop(0)
    return "".join(drawn)


def night_name(night: Night) -> str:
    """`2026-02-10 03:17 1a2b3c4d5e6f`: on the clock of the machine that measured, and the commit where it is known."""
    version = "" if night.version == UNKNOWN else f" {night.version}"
    return f"{night.started:%Y-%m-%d %H:%M}{version}"


def _events(history: MachineHistory) -> Iterator[str]:
    """Yields other events of the nights: other software, an edited workload, a run that was cut off."""
    for night, differences in history.software_changed:
        yield f"{night_name(night)}: {'; '.join(differences)}"
    edited = {(workload_of(one.case_id), night_name(night)) for one in history.trends for night in one.source_changed}
    for workload, name in sorted(edited, key=lambda pair: pair[1]):
        yield f"{name}: the source of {workload} changed"
    for night in history.nights:
        if night.interrupted:
            measured = units.number_of(len(night.cases), "measured case")
            yield f"{night_name(night)}: {night.name} was cut off, after {measured}"


def _limits(history: MachineHistory) -> Iterator[str]:
    """Yields the series that are too short for a mark, and the reliability of the marks."""
    short = [trend for trend in history.trends if trend.measured < history.fewest_nights]
    if short:
        longest, of = max(trend.measured for trend in short), f"{len(short)} of {len(history.trends)}"
        need = f"{history.fewest_nights} nights, and the longest of these series has {longest}"
        yield f"level changes of {of} cases cannot be detected yet: they need {need}"
    if len(short) < len(history.trends):
        share = units.percent(FALSE_MARKS)
        yield f"nights that differ by chance alone ever mark at most {share} of such tables (docs/nightly.md)"


# --- the document -----------------------------------------------------------------------------------------------------


def write_document(histories: Sequence[MachineHistory], refused: Sequence[str] = ()) -> str:
    """One JSON document: machines, each with its nights and the series of every case."""
    body = {"machines": list(map(_describe_machine, histories)), "refused": list(refused)}
    return json.dumps(with_header(FORMAT, FORMAT_VERSION, body), separators=(",", ":")) + "\n"


def _describe_machine(history: MachineHistory) -> dict[str, Any]:
    changed = {night.key: list(differences) for night, differences in history.software_changed}
    numbers = {night.key: number for number, night in enumerate(history.nights)}
    return {
        "machine": history.machine,
        "nights": [
            {
                "name": night.name,
                "started_at": night.started.isoformat(timespec="minutes"),
                "version": night.version,
                "interrupted": night.interrupted,
                "changed": changed.get(night.key, []),
            }
            for night in history.nights
        ],
        "cases": {trend.case_id: _describe_trend(trend, numbers) for trend in history.trends},
    }


def _describe_trend(trend: Trend, numbers: dict[str, int]) -> dict[str, Any]:
    """The series of a case. `nights` are the numbers of its nights, `outcomes` those other than PASS."""
    at = [numbers[night.key] for night in trend.nights]
    series = ("speedup", "optimized_ms", "recorded_speedup", *BILL_TIMES)
    names = [name for name in series if any(one.value(name) for one in trend.seen)]
    others = {number: one.outcome for number, one in zip(at, trend.seen, strict=True) if one.outcome != Outcome.PASS}
    return {
        "nights": at,
        **{name: [one.metrics.get(name) for one in trend.seen] for name in names},
        "outcomes": {number: outcome and outcome.value for number, outcome in others.items()},
        "source_changed": [numbers[night.key] for night in trend.source_changed],
        "level_changes": [{"night": numbers[mark.night.key], "words": mark.words} for mark in trend.marks],
    }


# --- the page ---------------------------------------------------------------------------------------------------------


def write_site(folder: Path, histories: Sequence[MachineHistory]) -> Path:
    """Writes the files and returns the path of the page. Raises OSError where the folder cannot be written."""
    here = Path(rendering.__file__).parent
    histories = sorted(histories, key=lambda history: -len(history.nights))  # the busiest machine has the plainest line
    make_ignored(folder)
    (folder / LIBRARIES).mkdir(exist_ok=True)
    for path in sorted((here / LIBRARIES).iterdir()):
        shutil.copyfile(path, folder / LIBRARIES / path.name)
    shutil.copyfile(here / SCRIPT, folder / SCRIPT)
    write_atomically(folder / DATA, f"window.gpugateTrends = {write_document(histories).strip()};\n")
    write_atomically(folder / INDEX, site_page(histories))
    return folder / INDEX


def site_page(histories: Sequence[MachineHistory]) -> bytes:
    """The page without its data: the newest values and the level changes, which need no script."""
    sections = _sections(histories)
    nights = [night for history in histories for night in history.nights]
    return render(
        "trends.html",
        POLICY,
        machines=[history.machine for history in histories],
        sections=sections,
        changes=_level_changes(histories),
        enough_nights=any(one.measured >= history.fewest_nights for history in histories for one in history.trends),
        limits=[(history.machine, list(_limits(history))) for history in histories],
        nights=_count_nights(histories),
        billed={name: BILL_WORDS[name] for name in BILL_TIMES},
        first=night_name(min(nights, key=lambda night: night.started)),
        last=night_name(max(nights, key=lambda night: night.started)),
        scripts=[*(f"{LIBRARIES}/{name}.min.js" for name in ("vega", "vega-lite", "vega-embed")), DATA, SCRIPT],
    )


def _sections(histories: Sequence[MachineHistory]) -> list[tuple[str, list[tuple[str, ...]]]]:
    """Each case with a row of words for each machine: the outcome of the newest night, its name, the number of nights,
    time per step, speedup with its change since the night before and its interval, and recorded speedup."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for history in histories:
        for trend in history.trends:
            last, speedups = trend.seen[-1], [one.speedup.median for one in trend.seen[-2:]]
            row = (
                history.machine,
                outcome_word(last.outcome),
                night_name(trend.nights[-1]),
                str(len(trend.nights)),
                units.milliseconds(last.per_step_ms.median),
                units.ratio(last.speedup.median),
                units.signed_percent(speedups[-1] / speedups[0] - 1) if len(speedups) > 1 else "",
                units.interval(last.speedup.low, last.speedup.high),
                describe_recorded(last) or "none",
            )
            found.setdefault(trend.case_id, []).append(row)
    return sorted(found.items())


def _level_changes(histories: Sequence[MachineHistory]) -> list[tuple[str, str, str, str]]:
    """Night, case, machine and words of each level change, the newest first."""
    marks = [
        (mark, trend.case_id, history.machine)
        for history in histories
        for trend in history.trends
        for mark in trend.marks
    ]
    newest = sorted(marks, key=lambda found: found[0].night.started, reverse=True)
    return [(night_name(mark.night), case_id, machine, mark.words) for mark, case_id, machine in newest]
