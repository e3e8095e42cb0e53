"""The bar of a trust run: it counts what is written, and reads no file twice that has not changed."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from gpugate.commands.trust import progress_bar
from gpugate.commands.trust.plan import Plan
from gpugate.commands.trust.progress_bar import ProgressBar
from gpugate.commands.trust.trials_file import Conditions, TrialsFile, write
from gpugate.machine.environment import Environment
from tests.support.simulated_trials import Noise, trials

CPU = Environment("cpu", "a CPU", "a CPU", 2, "3.12.3")
ONE, OTHER = "toy/one/cpu", "toy/other/cpu"
OF_A_CASE = 40 + 6 * 8
TAKEN = {ONE: {"0.0": 5, "0.005": 1, "0.1": 1}, OTHER: {"0.0": 40}}


def plan(path: Path, **changes: object) -> Plan:
    return replace(Plan(str(path), 2, 8, 6.0, 40), **changes)  # type: ignore[arg-type]


def shown(now: Plan, written: list[int], width: int | None = 100) -> str:
    """What is on a terminal after the process has written so many trials, each time; None is no terminal."""
    stream = io.StringIO()
    with ProgressBar(Console(file=stream, force_terminal=width is not None, width=width)) as bar:
        bar.begins(now)
        bar.watch(now)
        for count in written:
            taken = trials(Noise(), [0.0], processes=1, repeats=count, case_id=ONE)
            own = tuple(replace(trial, process=2) for trial in taken)
            write(Path(now.output), TrialsFile(2, Conditions(CPU, 6.0, {}), (ONE,), {}, own))
            bar.watch(now)
            bar.watch(now)
    return stream.getvalue()


def test_the_bar_counts_trials_of_the_selected_cases(tmp_path: Path) -> None:
    assert f"3/{OF_A_CASE}" in shown(plan(tmp_path / "trials-002.json"), [0, 3])
    assert f"10/{OF_A_CASE}" in shown(plan(tmp_path / "trials-002.json", taken=TAKEN), [3])
    # A kind of which there are more than wanted adds to both numbers.
    more = {ONE: {"0.0": 50}}
    assert f"53/{OF_A_CASE + 10}" in shown(plan(tmp_path / "trials-002.json", taken=more), [3])


def test_the_bar_names_the_process_and_vanishes(tmp_path: Path) -> None:
    text = shown(plan(tmp_path / "trials-002.json"), [1])
    assert "process 2" in text
    assert text.endswith("\x1b[2K")


def test_a_file_is_read_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, parse = [], progress_bar.parse
    monkeypatch.setattr(progress_bar, "parse", lambda text: read.append(text) or parse(text))
    shown(plan(tmp_path / "trials-002.json"), [1, 2])
    assert len(read) == 2
    read.clear()
    text = shown(plan(tmp_path / "trials-003.json", taken=TAKEN), [1, 2], width=None)
    assert read == []
    assert text == "process 2: 47 trials so far\n"
