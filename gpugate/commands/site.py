"""`gpugate site DIR`: the trends of the store as a folder of files that a browser opens without a server.

The folder has a page, its data, its script and the libraries that draw. The data is a script, since a page of `file:`
may read no other file. Numbers are short: a year of nights of 89 cases with all files has less than 2 MB.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from gpugate import units
from gpugate.commands.history.command import add_selection, select_nights
from gpugate.commands.history.render import describe_anchor, describe_mark, night_name
from gpugate.commands.history.trends import MachineHistory, Trend, build_histories
from gpugate.errors import GpugateError
from gpugate.report.pages import rendering
from gpugate.report.pages.rendering import render
from gpugate.results.night import BILL_TIMES, CaseNight, Night
from gpugate.results.verdict import outcome_word
from gpugate.session.options import whole_number
from gpugate.store.json_file import write_atomically

DEFAULT_LAST = 365  # a year
INDEX, DATA, SCRIPT = "index.html", "data.js", "trends.js"
LIBRARIES = "vega"
# The page runs the scripts of its folder alone, evaluates no text, and loads nothing else.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)
DIGITS = 6  # significant ones of a value
FINE_PARTS = 100_000  # of the middle of a series, in which its values are written
PARTS = 10_000  # of a value, in which its interval is written
WIDEST = 99_999  # of such parts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 written, 2 no night can be used, an option is wrong, or SITE cannot be written"
    parser.add_argument("site", metavar="SITE", type=Path, help="the folder to write: open its index.html")
    add_selection(parser, DEFAULT_LAST)


def run(arguments: argparse.Namespace) -> int:
    """Writes the site, and names on stderr each night that cannot be used. Raises HistoryError where none can."""
    last = whole_number("--last", arguments.last, DEFAULT_LAST)
    nights, refused = select_nights(arguments)
    for sentence in refused:
        print(f"gpugate site: {sentence}", file=sys.stderr)
    histories = build_histories(nights, last, arguments.by)
    print(f"{write_site(arguments.site, histories)}: open it in a browser")
    return 0


class SiteError(GpugateError):
    """The folder of a site cannot be written."""


def write_site(folder: Path, histories: Sequence[MachineHistory]) -> Path:
    """Writes the files and returns the path of the page. Raises SiteError where the folder cannot be written."""
    here = Path(rendering.__file__).parent
    histories = sorted(histories, key=lambda history: -len(history.nights))  # the busiest machine has the plainest line
    try:
        (folder / LIBRARIES).mkdir(parents=True, exist_ok=True)
        for path in sorted((here / LIBRARIES).iterdir()):
            shutil.copyfile(path, folder / LIBRARIES / path.name)
        shutil.copyfile(here / SCRIPT, folder / SCRIPT)
        write_atomically(
            folder / DATA, f"window.gpugateTrends = {json.dumps(document(histories), separators=(',', ':'))};\n"
        )
        write_atomically(folder / INDEX, site_page(histories))
    except OSError as error:
        problem = error.strerror or str(error)
        raise SiteError(f"{folder} cannot be written ({problem}): give a folder that can be") from error
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
        nights=len(nights),
        billed=BILL_TIMES,
        unit=histories[0].unit if histories else "night",
        first=night_name(min(nights, key=lambda night: night.started)) if nights else "",
        last=night_name(max(nights, key=lambda night: night.started)) if nights else "",
        scripts=[*(f"{LIBRARIES}/{name}.min.js" for name in ("vega", "vega-lite", "vega-embed")), DATA, SCRIPT],
    )


def _sections(histories: Sequence[MachineHistory]) -> list[tuple[str, list[tuple[str, ...]]]]:
    """Each case with its newest values, a row of words for each machine."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for history in histories:
        for trend in history.trends:
            found.setdefault(trend.case_id, []).append((history.machine, *_newest(trend)))
    return sorted(found.items())


def _newest(trend: Trend) -> tuple[str, ...]:
    """The newest night, the number of nights, time per step, speedup with interval, anchor and outcome."""
    last = trend.seen[-1]
    return (
        night_name(trend.nights[-1]),
        str(len(trend.nights)),
        units.milliseconds(last.optimized_ms),
        units.ratio(last.speedup.median),
        units.interval(last.speedup.low, last.speedup.high),
        describe_anchor(last) or "none",
        outcome_word(last.outcome),
    )


def _level_changes(histories: Sequence[MachineHistory]) -> list[tuple[str, str, str, str]]:
    """Night, case, machine and words of each level change, the newest first."""
    marks = [
        (mark, trend.case_id, history.machine)
        for history in histories
        for trend in history.trends
        for mark in trend.marks
    ]
    newest = sorted(marks, key=lambda found: found[0].night.started, reverse=True)
    return [(night_name(mark.night), case_id, machine, describe_mark(mark)) for mark, case_id, machine in newest]


def document(histories: Sequence[MachineHistory]) -> dict[str, Any]:
    """The data of the charts: by machine its nights, and the series of each case; see trends.js for how it is read."""
    return {"fineParts": FINE_PARTS, "parts": PARTS, "machines": [_machine(history) for history in histories]}


def _machine(history: MachineHistory) -> dict[str, Any]:
    changed = {night.key: "; ".join(differences) for night, differences in history.software_changed}
    numbers = {night.key: number for number, night in enumerate(history.nights)}
    return {
        "name": history.machine,
        "nights": [_night(night, changed) for night in history.nights],
        "cases": {trend.case_id: _series(trend, numbers) for trend in history.trends},
    }


def _night(night: Night, changed: dict[str, str]) -> list[Any]:
    """The start on the machine's clock, in minutes; the version of the code; the changes of the software, if any."""
    clock = night.started.replace(tzinfo=None)
    return [clock.isoformat(timespec="minutes"), night.version, *([changed[night.key]] if night.key in changed else [])]


def _series(trend: Trend, numbers: dict[str, int]) -> dict[str, Any]:
    """`at`: the numbers of the nights, where they are not all. An interval is two distances in parts of its value."""
    at = [numbers[night.key] for night in trend.nights]
    return {
        **({} if at == list(range(len(numbers))) else {"at": at}),
        "speedup": _values(trend.seen, "speedup"),
        "ms": _values(trend.seen, "optimized_ms"),
        **{name: _values(trend.seen, name) for name in BILL_TIMES if any(case.value(name) for case in trend.seen)},
        "anchor": _anchor_steps(trend.seen, at),
        "marks": [[numbers[mark.night.key], describe_mark(mark)] for mark in trend.marks],
        "edited": [numbers[night.key] for night in trend.source_changed],
    }


def _values(seen: Sequence[CaseNight], name: str) -> list[Any]:
    """The middle of the series, and three lists: the distance of each median from the middle, and of both ends from
    their median; null for a night without a value."""
    found = [case.estimate(name) if case.value(name) else None for case in seen]
    middle = float(f"{median(one.median for one in found if one is not None):.{DIGITS}g}")
    return [
        middle,
        [one and round(FINE_PARTS * (one.median / middle - 1)) for one in found],
        [one and min(WIDEST, round(PARTS * (1 - one.low / one.median))) for one in found],
        [one and min(WIDEST, round(PARTS * (one.high / one.median - 1))) for one in found],
    ]


def _anchor_steps(seen: Sequence[CaseNight], at: Sequence[int]) -> list[list[float | None]]:
    """The nights on which the anchor became another one, each with the anchor from then on."""
    steps: list[list[float | None]] = []
    for number, case in zip(at, seen, strict=True):
        anchor = case.anchor_speedup
        value = None if anchor is None else float(f"{anchor:.{DIGITS}g}")
        if not steps or steps[-1][1] != value:
            steps.append([number, value])
    return steps
