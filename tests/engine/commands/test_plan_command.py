"""`gpugate plan`: the cases of stored runs on several GPUs."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpugate.commands.cli import main
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


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs the command, and returns its output."""

    def run(*words: str) -> str:
        assert main(["plan", *words]) == 0
        return capsys.readouterr().out

    return run


def test_the_plan_in_words(nights: Path, plan: Callable[..., str]) -> None:
    said = plan(str(nights), "--gpus", "2")
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
    nights: Path, tmp_path: Path, plan: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/store.sqlite"
    with open_store(url) as store:
        add_folder(store, nights)
    assert plan("--store", url, "--gpus", "2") == plan(str(nights), "--gpus", "2")
    sick = {"environment_problem": "the machine gave 1 instead of 2"}
    night(nights, 2, [timed("a", 1000, **sick), timed("sick", 60, **sick)])
    unfit = "1 case not counted, since the machine was not well (ENV_INVALID): tiny/sick/cuda\n"
    assert unfit in plan(str(nights), "--gpus", "2")
    alone = night(tmp_path / "alone", 0, [timed("sick", 60, **sick)])
    assert main(["plan", str(alone), "--gpus", "2"]) == 2
    assert (
        "is selected (1 measurement not counted, since the machine was not well (ENV_INVALID): tiny/sick/cuda)"
        in capsys.readouterr().err
    )


def test_a_case_without_a_duration_counts_as_the_median_of_the_others(tmp_path: Path, plan: Callable[..., str]) -> None:
    path = night(tmp_path, 0, [timed("a", 0), timed("b", 60), timed("c", 120), timed("d", 600)])
    said = plan(str(path), "--gpus", "4")
    assert "1 case without a known duration: each counts as the others' median" in " ".join(said.split())
    assert re.search("2 min +tiny/a/cuda", said)
    unknown = night(tmp_path, 1, [timed("a", 0), timed("b", 0)])
    assert re.search("1.0 s +tiny/a/cuda", plan(str(unknown), "--gpus", "2"))


def test_a_case_of_several_gpus_runs_alone(tmp_path: Path, plan: Callable[..., str]) -> None:
    spans = timed("spans", 60)
    assert spans.measurement is not None
    counters = {**spans.measurement.optimized_counters, "ranks": 2.0}
    spans.measurement = replace(spans.measurement, optimized_counters=counters)
    path = night(tmp_path, 0, [timed("a", 60), spans])
    assert re.search("alone +60 s +tiny/spans/cuda", plan(str(path), "--gpus", "1"))


def test_runs_of_another_machine_do_not_count(nights: Path, plan: Callable[..., str]) -> None:
    night(nights, 2, [timed("x", 1)], environment=replace(MACHINE, device_name="NVIDIA H100"))
    found = plan(str(nights), "--gpus", "1")
    assert re.search("1 +1.0 s +tiny/x/cuda", found)
    assert "1 case of nvidia-h100," in found
    unmeasured = [case("skipped", None, skipped="no")]
    night(nights, 3, unmeasured, environment=replace(MACHINE, device_name="NVIDIA A100"))
    assert "1 case of nvidia-h100," in plan(str(nights), "--gpus", "1")
