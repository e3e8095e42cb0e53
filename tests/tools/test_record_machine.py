"""The tool that measures a machine for its records within a limited time."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.stored_runs import case, measured, stored
from tools.machines import Machine, list_cases
from tools.record_machine import (
    GROUP_S,
    MOST_IN_VAIN,
    START_S,
    TRIES,
    PlannedCase,
    Queue,
    find_stored,
    main,
    measure_all,
)

SIDE_BY_SIDE = [PlannedCase(f"w/{number}/cuda") for number in range(12)]
ALONE = [
    PlannedCase("host/a/cuda", needs_host=True),
    PlannedCase("ranks/b/cuda", gpus=2),
]


def make_queue(cases: Sequence[PlannedCase], recorded: Mapping[str, int] | None = None, wanted: int = 2) -> Queue:
    return Queue(wanted, cases, Counter(), recorded or {}, {case.case_id: 50.0 for case in cases})


def test_the_cases_with_the_fewest_processes_come_first_and_end_in_time() -> None:
    names = [case.case_id for case in SIDE_BY_SIDE]
    queue = make_queue(SIDE_BY_SIDE, {name: 4 for name in names if name not in names[5:8]})
    assert [taken.case_id for taken in queue.take(False, START_S + 120)] == names[5:7]
    assert next(case.case_id for case in queue.take(False, START_S + 10_000)) == names[7]
    assert sum(queue.seconds(case) for case in queue.take(False, START_S + 10_000)) <= GROUP_S
    assert queue.take(False, START_S + 49) == []


@pytest.mark.parametrize("recorded_more", [SIDE_BY_SIDE, ALONE])
def test_each_case_gets_its_processes_and_those_that_run_alone_do(recorded_more: Sequence[PlannedCase]) -> None:
    queue = make_queue([*SIDE_BY_SIDE, *ALONE], {case.case_id: 3 for case in recorded_more})
    lock, now, active = threading.Lock(), [0.0], list[str]()
    begun = list[tuple[bool, int | None]]()

    def measure(cases: Sequence[PlannedCase], gpu: int | None, ends_at: float) -> Mapping[str, float]:
        with lock:
            begun.append((cases[0].alone, gpu))
            active.extend(case.case_id for case in cases)
            assert len(active) == len(cases) or not any(case.alone for case in cases)
            assert (gpu is None) == (cases[0].gpus == 2)
            now[0] += 1
        with lock:
            for case in cases:
                active.remove(case.case_id)
        return {case.case_id: 60.0 for case in cases}

    measure_all(queue, 2, 10_000.0, measure, lambda: now[0])
    assert queue.done == Counter({case.case_id: 2 for case in queue.cases})
    parts = [alone for alone, _ in begun]
    assert parts == sorted(parts, reverse=recorded_more is SIDE_BY_SIDE)


def test_no_case_gets_a_second_process_before_each_one_in_time_has_a_first() -> None:
    queue = make_queue([*SIDE_BY_SIDE, *ALONE])
    queue.known_s[SIDE_BY_SIDE[0].case_id] = 200_000.0
    done = list[tuple[int, str]]()

    def measure(cases: Sequence[PlannedCase], gpu: int | None, ends_at: float) -> Mapping[str, float]:
        done.extend((queue.processes(case), case.case_id) for case in cases)
        return {case.case_id: 60.0 for case in cases}

    measure_all(queue, 1, 100_000.0, measure, lambda: 0.0)
    assert [before for before, _ in done] == [0] * 13 + [1] * 13
    assert SIDE_BY_SIDE[0].case_id not in {name for _, name in done}


def test_a_case_that_is_never_measured_is_tried_twice() -> None:
    queue = make_queue(SIDE_BY_SIDE[:1])
    tried = list[int]()

    def measure(cases: Sequence[PlannedCase], gpu: int | None, ends_at: float) -> Mapping[str, float]:
        tried.append(len(cases))
        return {}

    measure_all(queue, 2, 1000.0, measure, lambda: 0.0)
    assert tried == [1] * TRIES


def test_processes_that_measure_nothing_end_the_call() -> None:
    """A fault of the machine or of the project would else use up all of the time."""
    queue = make_queue([replace(case, gpus=1) for case in SIDE_BY_SIDE])
    queue.known_s = dict.fromkeys(queue.known_s, GROUP_S)  # each in a process of its own
    tried = list[str]()

    def measure(cases: Sequence[PlannedCase], gpu: int | None, ends_at: float) -> Mapping[str, float]:
        tried.extend(case.case_id for case in cases)
        return {cases[0].case_id: 1.0} if len(tried) == 2 else {}

    measure_all(queue, 1, 100_000.0, measure, lambda: 0.0)
    assert len(tried) == 2 + MOST_IN_VAIN


MEASURED = "two-layer-net/inductor/cpu"
MEASURE = """#!{python}
import pathlib, shutil, sys

words = dict(zip(sys.argv, sys.argv[1:]))
tests = [word for word in sys.argv if "::" in word]
assert all(word.endswith("[two-layer-net/inductor/cpu]") for word in tests) and len(tests) == 4
assert words["-o"] == "perf_processes=1" and words["--perf-budget"] == "1"
shutil.copy("{run}", words["--perf-json"])
"""


def test_a_call_goes_on_where_the_last_one_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, python, runs = tmp_path / "run.json", tmp_path / "python", tmp_path / "runs"
    result = case("inductor", kind="cpu", measurement=measured(MEASURED, 3.0))
    stored(run, replace(result, case_id=MEASURED, workload="two-layer-net"))
    python.write_text(MEASURE.format(python=sys.executable, run=run), encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    words = [str(runs), "--kind", "cpu", "--machine", "none", "--cases", "two-layer-net/inductor", "--perf-budget", "1"]
    with pytest.raises(SystemExit):
        main([*words, "--cases", "nothing"])
    assert "no cpu case has an id that contains one of 'nothing'" in capsys.readouterr().err
    assert main([*words, "--processes", "1"]) == 0
    assert "1 case of 1 have 1 process each" in capsys.readouterr().out
    assert main([*words, "--processes", "2", "--minutes", "0.1"]) == 1
    assert "1 of 2 processes: two-layer-net/inductor/cpu\n" in capsys.readouterr().out
    assert len(list(runs.glob("*.json"))) == 1
    assert main([*words, "--processes", "2"]) == 0
    assert len(list(runs.glob("*.json"))) == 2


def test_a_stored_run_counts_where_the_sources_of_its_workload_are_the_same(tmp_path: Path) -> None:
    result = case("inductor", kind="cpu", measurement=measured(MEASURED, 3.0, wall_s=7.0))
    result = replace(result, case_id=MEASURED, workload="two-layer-net")
    (tmp_path / "runs").mkdir()
    stored(tmp_path / "runs" / "catalogue.json", result, source_hashes={"two-layer-net": "same"})
    cases, machine = list_cases("cpu"), Machine("", "none", str(tmp_path))
    hashes = dict.fromkeys((one.workload.name for one in cases), "same")
    assert find_stored(cases, machine, hashes) == [{MEASURED: 7.0}]
    assert find_stored(cases, machine, {**hashes, "two-layer-net": "another"}) == [{}]
