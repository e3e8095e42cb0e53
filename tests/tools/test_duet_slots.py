"""The lines of a list are trials: slots take them in turns, and keep those that end."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tools.duet_slots import Slots

COUNT = "import sys; from pathlib import Path; Path(sys.argv[1], 'duets-0a.json').write_text('a trial')"


def run_in_place_of_trust(program: str, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """Replaces the command of each trial by a program whose argument is the folder, and notes the commands."""
    commands: list[Sequence[str]] = []
    run = Slots._run

    def run_program(slots: Slots, command: Sequence[str], copy: Path, environment: dict[str, str]) -> str | None:
        commands.append(command)
        if len(commands) == 3:
            slots._end_s = 0
        return run(slots, [sys.executable, "-c", program, command[-1]], copy, environment)

    monkeypatch.setattr(Slots, "_run", run_program)
    return commands


def test_lines_take_turns_and_trials_are_kept_in_the_folder_of_their_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = run_in_place_of_trust(COUNT, monkeypatch)
    Slots(["quiet -k 'a or b'", "busy -k c"], tmp_path, time.monotonic() + 60).work(tmp_path, (4, 5), {})
    assert [command[:3] for command in commands] == [["taskset", "-c", "4,5"]] * 3
    assert [command[command.index("-k") + 1] for command in commands] == ["a or b", "c", "a or b"]
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.json")} == {
        "quiet/duets-0a.json",
        "busy/duets-0a.json",
    }


def test_a_line_that_fails_is_not_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = run_in_place_of_trust("import sys; sys.exit('no such case')", monkeypatch)
    Slots(["quiet -k a"], tmp_path, time.monotonic() + 60).work(tmp_path, (0,), {})
    assert len(commands) == 1
    assert "ended with status 1: no such case" in capsys.readouterr().out
