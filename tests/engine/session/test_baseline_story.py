"""The life of a baseline: recorded by fresh processes, gated, improved, crept upon, and never written by accident."""

import re
from pathlib import Path
from typing import Any

import pytest

from gpugate.report.next_step import describe_threads
from gpugate.results.summary import history
from gpugate.results.verdict import Outcome
from gpugate.statistics.policy import DECIDING_PROCESSES
from gpugate.store import baseline
from gpugate.store.baseline import BaselineFile
from gpugate.store.version import git
from tests.support.tiny_project import PROMISE, QUICK, TinyProject, check_no_traceback

THROUGHPUT_TEST = "test_throughput_is_what_it_was[tiny/quick/cpu]"
RECORD = ("--update-baselines", "-operf_processes=1", "--perf-device=cpu")
AGAIN = f'{describe_threads("cpu")}pytest perf_tests -k "tiny/quick/cpu"'
GATE = ("--gate", "--perf-device=cpu", "--perf-json=run.json", "--perf-budget=0.4")


# A second process finds what the first one wrote.
DYING = """
from pathlib import Path

import pytest

def pytest_sessionstart(session):
    if Path("die").exists():
        pytest.exit("the last words", returncode=7)
"""


def loaded(project: TinyProject) -> BaselineFile:
    return baseline.load_all(project.baselines)["tiny"]


def kept_runs(project: TinyProject) -> Path:
    """The folder with the runs of the project's last recording."""
    (folder,) = (project.path / ".gpugate-cache").glob("recording-*")
    return folder


def spread_out(document: dict[str, Any]) -> None:
    """The recorded processes differ by so much that whatever is measured now lies within four times their cv."""
    for record in document["cases"]["quick/cpu"].values():
        for process, factor in zip(record["processes"], (0.9, 1.1, 0.9, 1.1, 1.0), strict=True):
            process["optimized_ms"] = [[factor * ms for ms in pairs] for pairs in process["optimized_ms"]]


def test_fresh_processes_record_and_say_what_they_wrote(recorded_project: TinyProject) -> None:
    entry = loaded(recorded_project).cases["quick/cpu"]
    assert set(loaded(recorded_project).cases) == {"quick/cpu"}
    assert len(entry.record.processes) == 2
    assert entry.record.reason == "the first"
    assert entry.record.environment.device_kind == "cpu"
    assert entry.record.source_hash
    assert entry.record.yardsticks
    assert all(instance.pairs for process in entry.record.processes for instance in process)
    assert [bills.optimized.counters["operators"] for bills in entry.record.bills if bills] == [1.0, 1.0]
    assert all("cpu_ms" in bills.reference.counters for bills in entry.record.bills if bills)
    said = (recorded_project.path / "said").read_text(encoding="utf-8")
    assert "recording: fresh process 2 of 2" in said
    assert "tiny/quick/cpu: recorded " in said
    assert " over 2 processes: a gate needs 3" in said
    assert f"written to {recorded_project.baselines}: read the difference and commit it" in said
    assert f"the runs stay in {kept_runs(recorded_project)} until the next recording; gpugate accept " in said
    assert "NO_BASELINE" not in said  # it is what a recording is for
    assert entry.profile is not None
    assert "aten::add" in entry.profile.kernels


def test_a_gate_passes_within_the_recorded_spread_and_explains_where_that_is_asked_for(
    tiny: TinyProject, recorded_project: TinyProject
) -> None:
    tiny.take_baseline(recorded_project)
    tiny.edit_baseline(spread_out)
    before = tiny.baseline.read_bytes()
    result = tiny.run(*GATE, "--explain")
    assert result.status == 0, result.text
    assert set(tiny.outcomes().values()) == {Outcome.PASS}
    assert "likely cause, against what was recorded: " in result.text
    assert re.search(r"^records: tiny/quick/cpu of 20\d\d-\d\d-\d\d \(the first\)$", result.text, re.MULTILINE)
    then = history(loaded(tiny).cases["quick/cpu"].record.processes)
    assert tiny.verdict("speedup")["numbers"]["recorded_speedup"] == pytest.approx(then.speedup)
    assert tiny.verdict("throughput")["numbers"]["recorded_ms"] == pytest.approx(then.optimized_ms)
    assert tiny.json()["cases"]["tiny/quick/cpu"]["remembered"]["current"]["bills"]["measured"] == [True] * 5
    assert "NO_BASELINE" not in result.text
    assert "record_differs" not in tiny.reasons("throughput")
    assert tiny.baseline.read_bytes() == before


def test_a_step_of_three_times_the_time_is_open_where_its_bill_holds_and_no_code_is_compared(
    tiny: TinyProject, recorded_project: TinyProject
) -> None:
    before = tiny.take_baseline(recorded_project)
    tiny.quick_ms(3)
    options = ["--perf-device=cpu", "--perf-json=run.json", "--perf-budget=0.5", "-rf"]
    result = tiny.run("--gate", f"-operf_processes={DECIDING_PROCESSES}", *options)
    assert result.status == 1
    assert f"FAILED perf_tests/test_promises.py::{THROUGHPUT_TEST}" in result.text
    assert "UNDECIDED throughput of tiny/quick/cpu: slower than recorded: " in result.text
    assert ", in the slower one of 2 processes" in result.text
    assert f"  next: {AGAIN} --gate --perf-budget 30" in result.text
    assert tiny.outcomes()["throughput"] == Outcome.UNDECIDED
    assert tiny.outcomes()["speedup"] == tiny.outcomes()["equivalence"] == Outcome.PASS
    confirming = tiny.json()["cases"]["tiny/quick/cpu"]["attempts"]
    assert [attempt["problem"] for attempt in confirming] == [None]
    assert "\nautopsy\n  tiny/quick/cpu\n      likely cause, against what was recorded: " in result.text
    check_no_traceback(result.text)
    assert tiny.baseline.read_bytes() == before
    by_hand = tiny.run(*options)
    assert by_hand.status == 0, "a run by hand fails on what is certain alone"
    assert tiny.outcomes()["throughput"] == Outcome.UNDECIDED


# Twice the CPU time of a step: a gain is one where the bill fell, too.
DEARER = (
    QUICK.replace("return sleeping", "side = sleeping")
    + """
    def step(x):
        clock.sleep(0)
        return side.step(x)

    return Side(step)
"""
)


def test_improve_record_and_be_caught_by_the_new_record(tiny: TinyProject) -> None:
    tiny.quick_ms(8)
    tiny.workload(DEARER)
    first = tiny.run(*RECORD, "--update-baselines=the first")
    assert first.status == 0, first.text
    assert "tiny/quick/cpu: recorded 0." in first.text
    tiny.pretend_five_processes()
    recorded = loaded(tiny)

    tiny.quick_ms(1)
    tiny.workload()
    improved = tiny.run(*GATE)
    assert improved.status == 0, improved.text
    assert tiny.outcomes()["throughput"] == Outcome.IMPROVED
    assert f'next: {AGAIN} --update-baselines="..."' in improved.text
    assert loaded(tiny) == recorded

    again = tiny.run(*RECORD, "--update-baselines=the second")
    assert again.status == 0, again.text
    assert re.search(r"tiny/quick/cpu: 0\.\d\dx -> [1-9]", again.text)
    assert loaded(tiny).cases["quick/cpu"].record.reason == "the second"


def test_of_several_cases_the_fit_ones_are_recorded_and_the_others_are_named(tiny: TinyProject) -> None:
    wrong = "def wrong(context):\n    return Side(lambda x: 3 * x)"
    tiny.workload(f"{QUICK}\n\n{wrong}\n", f'{PROMISE}, Optimization("wrong", wrong, {{"cpu": 0.01}})')
    assert git(tiny.path, "init", "-q") is not None
    result = tiny.run("--update-baselines", "-operf_processes=2", "--perf-device=cpu")
    assert result.status == 1
    assert result.text.count("recorded without a commit: no gate can compare with this code; commit") == 2
    assert set(loaded(tiny).cases) == {"quick/cpu"}
    assert len(loaded(tiny).cases["quick/cpu"].record.processes) == 2
    assert "ERROR: not recorded: tiny/wrong/cpu is WRONG in the check of equivalence" in result.text
    last = sorted(kept_runs(tiny).glob("*.json"))[-1]
    assert set(tiny.json(str(last))["cases"]) == {"tiny/quick/cpu"}, "a fresh process measures no case that is refused"


def test_a_fresh_process_that_dies_is_told_and_nothing_is_touched(
    tiny: TinyProject, recorded_project: TinyProject
) -> None:
    tiny.take_baseline(recorded_project)
    conftest = (tiny.path / "conftest.py").read_text(encoding="utf-8")
    tiny.write("conftest.py", conftest + DYING)
    tiny.workload(build='def quick(context):\n    Path("die").touch()\n    return sleeping(1)')
    before = tiny.files()
    result = tiny.run("--update-baselines", "-operf_processes=2", "--perf-device=cpu")
    assert result.status == 1
    assert "ERROR: a fresh process ended with status 7: " in result.text
    assert "the last words !" in result.text.partition("; nothing was written; its output ended with:")[2]
    check_no_traceback(result.text)
    assert {name: data for name, data in tiny.files().items() if name != "die"} == before
    assert f"the runs stay in {kept_runs(tiny)} until the next recording; they are too few for a record" in result.text
    assert [path.name for path in kept_runs(tiny).glob("*.json")] == ["run-1.json"]
