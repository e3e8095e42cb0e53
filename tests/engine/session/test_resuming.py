"""`--perf-resume`: a run that was cut off goes on from its finished cases, unless what they rest on has changed."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpugate.results.case import CaseResult
from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.verdict import Outcome, Verdict
from gpugate.session.opening import is_finished
from gpugate.workload import Size
from tests.conftest import case, measured
from tests.support.tiny_project import TinyProject, check_no_traceback

THREE = """
    Optimization("one", quick, {"cpu": 0.01}),
    Optimization("two", quick, {"cpu": 0.01}),
    Optimization("three", quick, {"cpu": 0.01})
"""
RESUME = ("--perf-device=cpu", "--perf-json=run.json", "--perf-resume")
OTHER_S = 123.0  # the time of a measurement, by which it is recognized


def cut_off(tiny: TinyProject, change: Callable[[dict[str, Any]], object] = lambda run: None) -> dict[str, Any]:
    """Makes run.json a run that was cut off before its last case; `change` edits it further."""
    run = tiny.json()
    run.update(interrupted=True, exit_status=None)
    for of_case in run["cases"].values():
        of_case["measurement"]["wall_s"] = OTHER_S
    del run["cases"]["tiny/three/cpu"]
    change(run)
    tiny.write("run.json", json.dumps(run))
    return run


@pytest.fixture(scope="module")
def measured_run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The run of three cases."""
    project = TinyProject(tmp_path_factory.mktemp("measured"))
    project.workload(optimizations=THREE)
    assert project.run_apart("--perf-device=cpu", "--perf-json=run.json").status == 0
    return (project.path / "run.json").read_text(encoding="utf-8")


@pytest.fixture
def stored(tiny: TinyProject, measured_run: str) -> TinyProject:
    tiny.workload(optimizations=THREE)
    tiny.write("run.json", measured_run)
    return tiny


def test_a_run_that_was_cut_off_measures_what_it_lacks(stored: TinyProject) -> None:
    before = cut_off(stored, lambda run: run.update(wall_s=1000.0))
    ended = stored.run(*RESUME)
    assert ended.status == 0, ended.text
    assert "12 passed" in ended.text
    run = stored.json()
    assert (run["interrupted"], run["exit_status"]) == (False, 0)
    assert {name: run[name] for name in ("started_at", "seed")} == {
        name: before[name] for name in ("started_at", "seed")
    }
    times = {name: of_case["measurement"]["wall_s"] for name, of_case in run["cases"].items()}
    assert times.pop("tiny/three/cpu") != OTHER_S
    assert times == {"tiny/one/cpu": OTHER_S, "tiny/two/cpu": OTHER_S}
    assert run["cases"]["tiny/one/cpu"]["verdicts"] == before["cases"]["tiny/one/cpu"]["verdicts"]
    assert len(run["yardsticks"]) > len(before["yardsticks"])
    assert 1000 < run["wall_s"] < 1000 + OTHER_S


def test_a_run_whose_resumed_session_ended_before_its_first_case_is_resumed_again(stored: TinyProject) -> None:
    cut_off(stored)
    mark = stored.write("run.json.outdated", "")
    ended = stored.run(*RESUME)
    assert ended.status == 0, ended.text
    assert stored.json()["cases"]["tiny/one/cpu"]["measurement"]["wall_s"] == OTHER_S
    assert not mark.exists()


def test_without_a_run_it_begins(tiny: TinyProject) -> None:
    ended = tiny.run(*RESUME)
    assert ended.status == 0, ended.text
    assert list(tiny.json()["cases"]) == ["tiny/quick/cpu"]


def test_a_run_that_was_not_cut_off_is_measured_anew(stored: TinyProject) -> None:
    cut_off(stored, lambda run: run.update(interrupted=False, exit_status=0))
    ended = stored.run(*RESUME, "-k", "one")
    assert ended.status == 0, ended.text
    (measured,) = stored.json()["cases"].values()
    assert measured["measurement"]["wall_s"] != OTHER_S


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        (
            lambda run: run["provenance"].update(commit="1a2b3c"),
            (),
            "run.json has the commit 1a2b3c, and this run has none: repeat the command as it was, or leave out",
        ),
        (
            lambda run: run["source_hashes"].update(tiny="0123456789abcdef"),
            (),
            "run.json the source of tiny changed: repeat the command as it was, or leave out",
        ),
        (
            lambda run: run["cases"]["tiny/one/cpu"]["verdicts"][0].update(outcome="WRONG"),
            (),
            "run.json has verdicts of tiny/one/cpu that its measurement does not give: repeat",
        ),
        (lambda run: None, ("--gate",), "run.json has the option --gate False, and this run has True"),
        (lambda run: None, ("-operf_seed=5",), ", and this run has 5"),
        (lambda run: None, ("-k", "one"), "run.json has finished tiny/two/cpu, which is not selected now"),
        (
            lambda run: run["environment"]["packages"].update(torch="1.0"),
            (),
            "run.json the software or the machine changed (torch 1.0 -> ",
        ),
    ],
)
def test_another_run_is_not_resumed(
    stored: TinyProject, change: Callable[[dict[str, Any]], object], options: tuple[str, ...], said: str
) -> None:
    cut_off(stored, change)
    before = (stored.path / "run.json").read_bytes()
    ended = stored.run(*RESUME, *options)
    assert ended.status == pytest.ExitCode.USAGE_ERROR
    assert said in ended.text
    check_no_traceback(ended.text)
    assert (stored.path / "run.json").read_bytes() == before


def test_other_baselines_are_not_those_of_the_finished_cases(tiny: TinyProject, recorded_project: TinyProject) -> None:
    tiny.take_baseline(recorded_project)
    assert tiny.run("--perf-device=cpu", "--perf-json=run.json").status == 0
    run = tiny.json()
    tiny.write("run.json", json.dumps({**run, "interrupted": True}))
    shutil.rmtree(tiny.baselines)
    ended = tiny.run(*RESUME)
    assert ended.status == pytest.ExitCode.USAGE_ERROR
    assert "run.json judged tiny/quick/cpu by a record of " in ended.text
    assert "x for 2 checks a night, and the baselines now have no record: repeat" in ended.text


def test_a_case_that_came_to_nothing_is_measured_again() -> None:
    size = Size(1, 1, 1)
    gone = Reason(ReasonCode.MACHINE_UNFIT, {"problem": "gone"})
    lost = Verdict("equivalence", "a/b/cuda", Outcome.ENV_INVALID, (gone,))
    cases = {
        "cut off": CaseResult("a/b/cuda", "a", "b", "baseline", size),
        "device lost": replace(measured(case("a/b/cuda", size), 2.0, 1.0, {}), verdicts=[lost]),
        "measured": measured(case("a/b/cuda", size), 2.0, 1.0, {}),
        "failed": CaseResult("a/b/cuda", "a", "b", "baseline", size, error="out of memory"),
        "skipped": CaseResult("a/b/cuda", "a", "b", "baseline", size, skipped="needs a GPU"),
    }
    finished = {name: is_finished(one) for name, one in cases.items()}
    assert finished == {"cut off": False, "device lost": False, "measured": True, "failed": True, "skipped": True}
