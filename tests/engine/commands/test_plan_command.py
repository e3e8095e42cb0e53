"""`gpugate plan`: the cases of stored runs on several GPUs."""

import argparse
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpugate.commands.cli import main
from gpugate.commands.plan import Planned, add_arguments, make_plan
from gpugate.results.case import CaseResult
from gpugate.store.database import open_store
from gpugate.store.nights import add_folder
from tests.support import stored_runs
from tests.support.stored_runs import MACHINE, case, night


def timed(name: str, wall_s: float, timer: str = "cuda events", **changed: Any) -> CaseResult:
    """A case that was measured for `wall_s` seconds, on the clock of the GPU where nothing else is given."""
    found = stored_runs.timed(name, 3.0, **changed)
    found.measurement = replace(found.measurement, wall_s=wall_s, timer=timer)
    return found


@pytest.fixture
def nights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two nights of a GPU; in the later one a case takes longer, another one is new, and one was not measured."""
    monkeypatch.setenv("COLUMNS", "140")
    folder = tmp_path / "nights"
    night(folder, 0, [timed("a", 60), timed("b", 120), timed("host", 600, timer="host clock")])
    night(folder, 1, [timed("a", 300), timed("c", 240), case("skipped", None, skipped="no")])
    return folder


def plan(*words: str) -> Planned:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return make_plan(parser.parse_args(words))


def test_the_plan_in_words(nights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(nights), "--gpus", "2"]) == 0
    said = capsys.readouterr().out
    assert [line for line in said.splitlines()[:6] if not line.startswith("-")] == [
        "GPU      time  cases",
        "1       5 min  tiny/a/cuda",
        "2       6 min  tiny/c/cuda",
        "               tiny/b/cuda",
        "alone  10 min  tiny/host/cuda",
    ]
    assert "4 cases of nvidia-h200, without the start of their processes\n" in said
    assert "side by side 6 min" in said
    alone = "cases that need the host or span GPUs run alone on it, 10 min: the night takes 16 min\n"
    assert alone in said


def test_the_store_gives_the_same_plan_and_says_what_it_knows_only_from_a_sick_machine(
    nights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/store.sqlite"
    with closing(open_store(url)) as store:
        add_folder(store, nights)
    assert plan("--store", url, "--gpus", "2") == plan(str(nights), "--gpus", "2")
    sick = {"environment_problem": "the machine gave 1 instead of 2"}
    night(nights, 2, [timed("a", 1000, **sick), timed("sick", 60, **sick)])
    assert main(["plan", str(nights), "--gpus", "2"]) == 0
    unfit = "1 case not counted, since the machine was not well (ENV_INVALID): tiny/sick/cuda\n"
    assert unfit in capsys.readouterr().out
    alone = night(tmp_path / "alone", 0, [timed("sick", 60, **sick)])
    assert main(["plan", str(alone), "--gpus", "2"]) == 2
    assert (
        "is selected (1 measurement not counted, since the machine was not well (ENV_INVALID): tiny/sick/cuda)"
        in capsys.readouterr().err
    )


def test_a_plan_without_durations_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = night(tmp_path, 0, [timed("a", 0), timed("b", 60)])
    assert main(["plan", str(path), "--gpus", "2"]) == 0
    said = " ".join(capsys.readouterr().out.split())  # on one line, however wide the terminal is
    assert "1 case without a known duration: each counts as the others' median" in said


def test_runs_of_another_machine_do_not_count(nights: Path) -> None:
    night(nights, 2, [timed("x", 1)], environment=replace(MACHINE, device_name="NVIDIA H100"))
    found = plan(str(nights), "--gpus", "1")
    assert (found.machine, [group.cases for group in found.plan.gpus[0]]) == ("nvidia-h100", [("tiny/x/cuda",)])
    unmeasured = [case("skipped", None, skipped="no")]
    night(nights, 3, unmeasured, environment=replace(MACHINE, device_name="NVIDIA A100"))
    assert plan(str(nights), "--gpus", "1").machine == "nvidia-h100"
