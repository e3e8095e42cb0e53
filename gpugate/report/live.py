"""The live line while a measurement runs. It draws between blocks only: no thread refreshes it while a block runs."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from gpugate import units
from gpugate.measurement.progress import Progress
from gpugate.report.visible_text import show_controls

SECONDS_BETWEEN_DRAWINGS = 0.1


class LiveLine:
    """One line that is redrawn in place, and gone afterwards; silent where `console` is not a terminal.

    `console` must write to the real terminal, not to a captured stream. `make_room` is called before the first
    drawing, and only if there is one: pass `terminalreporter.ensure_newline`, or the line that pytest is writing is
    overwritten. `describe_session` gives the end of the line, and `clock` seconds.
    """

    def __init__(
        self,
        console: Console,
        make_room: Callable[[], object] = object,
        describe_session: Callable[[], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # rich calls a log a terminal where FORCE_COLOR is set; a log cannot redraw a line.
        self.shown = console.is_terminal and not console.is_dumb_terminal and console.file.isatty()
        self._live = Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._make_room = make_room
        self._describe_session = describe_session
        self._clock = clock
        self._drawn_at = 0.0
        self._stage: tuple[object, ...] = ()

    def close(self) -> None:
        self._live.stop()

    def update(self, progress: Progress) -> None:
        """Draws a new stage at once, and anything else at most ten times a second."""
        if not self.shown:
            return
        now, stage = self._clock(), _stage(progress)
        if stage == self._stage and now - self._drawn_at < SECONDS_BETWEEN_DRAWINGS:
            return
        self._stage, self._drawn_at = stage, now
        if not self._live.is_started:
            self._make_room()
            self._live.start()
        self._live.update(line(progress, self._describe_session()), refresh=True)


def line(progress: Progress, session: str = "") -> Text:
    """`<case id>  measuring baseline  build 2  37 pairs  4.41x 4.38..4.44 (+-0.7 %)  12 s left  case 3 of 19`."""
    doing = f"{progress.doing} {progress.side}".rstrip()
    parts = [(progress.case_id, "bold"), (doing, "")]
    if progress.build:
        parts.append((f"build {progress.build}", "dim"))
    if progress.pairs:
        parts.append((units.number_of(progress.pairs, "pair"), ""))
    if found := progress.speedup:
        interval = f"{units.interval(found.low, found.high)} (+-{units.percent(found.half_width)})"
        parts.append((f"{units.ratio(found.median)} {interval}", "cyan"))
    if progress.seconds_left is not None:
        parts.append((f"{max(0.0, progress.seconds_left):.0f} s left", "dim"))
    parts += [(session, "dim")] if session else []
    return Text("  ", overflow="fold").join(Text(show_controls(words), style=style) for words, style in parts)


def _stage(progress: Progress) -> tuple[object, ...]:
    """The stage, whose change is shown at once. Sides alternate with every block, so they are no stage of measuring."""
    side = "" if progress.doing == "measuring" else progress.side
    return (progress.case_id, progress.doing, progress.build, side)
