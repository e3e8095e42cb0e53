"""The live line: what it says, how often, and where it says nothing."""

import io
import re
from contextlib import closing
from dataclasses import replace

import pytest
from rich.console import Console

from gpugate.measurement.progress import Progress
from gpugate.report.live import LiveLine, line
from gpugate.statistics.intervals import Estimate

MEASURING = Progress("net/cuda-graph/cuda", "measuring", "baseline", 2, 37, Estimate(4.41, 4.38, 4.44), 12.3)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Seconds, by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def on_a_terminal(columns: int = 200) -> Console:
    return Console(file=Terminal(), force_terminal=True, width=columns, _environ={"TERM": "xterm"})


def drawn(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_line_says_case_side_build_pairs_speedup_and_seconds_left() -> None:
    expected = "net/cuda-graph/cuda  measuring baseline  build 2  37 pairs  4.41x 4.38..4.44 (+-0.68 %)  12 s left"
    assert line(MEASURING).plain == expected
    assert line(MEASURING, "case 3 of 19").plain == f"{expected}  case 3 of 19"


def test_a_terminal_sees_the_line_and_is_left_clean() -> None:
    console = on_a_terminal()
    with closing(LiveLine(console)) as live:
        live.update(MEASURING)
    assert "37 pairs" in drawn(console)
    assert drawn(console).endswith("\x1b[2K")
    assert drawn(console).count("\x1b[?25l") == drawn(console).count("\x1b[?25h") == 1


@pytest.mark.parametrize(
    "console",
    [
        Console(file=io.StringIO(), width=200),
        Console(file=io.StringIO(), width=200, _environ={"FORCE_COLOR": "1", "TERM": "xterm"}),
        Console(file=Terminal(), width=200, force_terminal=True, _environ={"TERM": "dumb"}),
    ],
    ids=["a file", "a log with FORCE_COLOR", "a dumb terminal"],
)
def test_anything_but_a_terminal_sees_nothing(console: Console) -> None:
    asked: list[bool] = []
    with closing(LiveLine(console, make_room=lambda: asked.append(True))) as live:
        live.update(MEASURING)
    assert drawn(console) == ""
    assert asked == []


def test_it_draws_at_most_ten_times_a_second_and_a_new_stage_at_once() -> None:
    console, clock = on_a_terminal(), Clock()
    with closing(LiveLine(console, clock=clock)) as live:
        for pairs in range(1, 101):
            live.update(replace(MEASURING, pairs=pairs, side=("baseline", "cuda-graph")[pairs % 2]))
            clock.now += 0.01
        assert 9 <= len(re.findall(r"\d+ pairs?", drawn(console))) <= 11
        live.update(replace(MEASURING, doing="building", side="cuda-graph"))
        live.update(replace(MEASURING, case_id="another/one/cuda"))
    assert "building cuda-graph" in drawn(console)
    assert "another/one/cuda" in drawn(console)
