"""The file of --perf-json: complete, valid at any moment, and never half-written."""

import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from gpugate.results.case import CaseResult
from gpugate.results.run import RunResult
from gpugate.store import run_file
from gpugate.store.run_file import RunFileError
from tests.support.full_disk import files_up_to
from tests.support.stored_runs import STARTED, every_outcome, stored

PARENT = os.getpid()


@pytest.fixture
def run(tmp_path: Path) -> RunResult:
    """A run with a case for every outcome; its file is gone."""
    made = stored(tmp_path / "run.json", *every_outcome(), gate=True)
    (tmp_path / "run.json").unlink()
    return made


def named(run: RunResult, name: str) -> CaseResult:
    """The first case of the run under another name."""
    return replace(run.cases["tiny/pass/cuda"], case_id=f"tiny/{name}/cuda", optimization=name)


def empty(run: RunResult) -> RunResult:
    """The run before its first case."""
    return replace(run, cases={}, yardsticks=[], source_hashes={}, wall_s=0.0, interrupted=True)


def test_it_is_whole_after_every_case_and_at_the_end_everything_comes_back(tmp_path: Path, run: RunResult) -> None:
    path = tmp_path / "run.json"
    run_file.write(path, empty(run))
    assert run_file.read(path) == empty(run)
    growing = replace(run, cases={}, yardsticks=[], interrupted=True)
    for case_id, result in run.cases.items():
        growing.cases[case_id] = result
        run_file.append(path, result, run.yardsticks, run)
        growing.yardsticks += run.yardsticks
        assert run_file.read(path) == growing
    run_file.write(path, run)
    assert run_file.read(path) == run
    assert list(tmp_path.iterdir()) == [path]


def test_a_case_costs_the_same_bytes_however_many_came_before(tmp_path: Path, run: RunResult) -> None:
    path, lines = tmp_path / "run.json", tmp_path / "run.json.cases"
    run_file.write(path, empty(run))
    run_file.append(path, named(run, "case-000"), run.yardsticks, run)
    whole, sizes = path.stat(), [lines.stat().st_size]
    for number in range(1, 10):
        run_file.append(path, named(run, f"case-{number:03}"), run.yardsticks, run)
        sizes.append(lines.stat().st_size)
    assert len({after - before for before, after in pairwise(sizes)}) == 1
    now = path.stat()
    assert (now.st_ino, now.st_mtime_ns) == (whole.st_ino, whole.st_mtime_ns), "the whole file was not written again"
    assert len(run_file.read(path).cases) == 10


def test_a_line_whose_writer_was_killed_does_not_spoil_the_next_one(tmp_path: Path, run: RunResult) -> None:
    path, lines = tmp_path / "run.json", tmp_path / "run.json.cases"
    run_file.write(path, empty(run))
    first, second, third, *_ = run.cases.values()
    for each in (first, second):
        run_file.append(path, each, [], run)
    lines.write_bytes(lines.read_bytes()[:-10])
    assert list(run_file.read(path).cases.values()) == [first]
    run_file.append(path, third, [], run)
    assert list(run_file.read(path).cases.values()) == [first, third]


def test_several_processes_add_their_cases_to_one_run(tmp_path: Path, run: RunResult) -> None:
    path = tmp_path / "run.json"
    run_file.write(path, empty(run))
    children = [os.fork() for _ in range(4) if os.getpid() == PARENT]
    if os.getpid() != PARENT:
        status = 1
        try:
            for number in range(10):
                run_file.append(path, named(run, f"case-{os.getpid()}-{number}"), [], run)
            status = 0
        finally:
            os._exit(status)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
    assert len(run_file.read(path).cases) == 40


def test_a_full_disk_keeps_the_cases_before(tmp_path: Path, run: RunResult) -> None:
    path = tmp_path / "run.json"
    run_file.write(path, empty(run))
    first, second, *_ = run.cases.values()
    run_file.append(path, first, [], run)
    lines = path.with_name("run.json.cases")
    with files_up_to(lines.stat().st_size + 20), pytest.raises(RunFileError) as refused:
        run_file.append(path, second, [], run)
    assert str(refused.value) == f"{path} cannot be written (File too large): give another path"
    assert list(run_file.read(path).cases.values()) == [first]
    run_file.append(path, second, [], run)
    assert list(run_file.read(path).cases.values()) == [first, second]


def test_a_time_without_an_offset_is_named(tmp_path: Path, run: RunResult) -> None:
    path = tmp_path / "run.json"
    run_file.write(path, run)
    path.write_text(path.read_text().replace(f'"started_at": "{STARTED}"', '"started_at": "2030-01-02T03:04:05"'))
    with pytest.raises(RunFileError) as refused:
        run_file.read(path)
    assert str(refused.value) == (
        f"{path} cannot be used because started_at is '2030-01-02T03:04:05', not an ISO 8601 time with the UTC offset: "
        "give a file of --perf-json or a folder of --perf-report, or measure again"
    )
