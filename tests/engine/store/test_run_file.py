"""The file of --perf-json: complete, valid at any moment, and never half-written."""

import json
import math
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from gpugate.machine.environment import Environment
from gpugate.measurement.record import Difference, Measurement, Pair, SideCost, TimedBuild, Yardstick
from gpugate.results.case import CaseResult
from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.run import RunResult
from gpugate.results.summary import summarize
from gpugate.results.verdict import NextStep, Outcome, Verdict
from gpugate.store import run_file
from gpugate.store.run_file import RunFileError
from gpugate.workload import Size
from tests.support.full_disk import files_up_to

PARENT = os.getpid()
SIZE = Size(items=64, flops=1e9, bytes=1e6)


def case(name: str) -> CaseResult:
    return CaseResult(f"net/{name}/cpu", "net", name, "baseline", SIZE)


HELD = (Reason(ReasonCode.PROMISE_KEPT, {"value": 2.0, "processes": 1}),)
WRONG = (Reason(ReasonCode.OUTPUTS_DIFFER, {"when": "timed steps", "found": math.inf, "limit": 1e-3}),)


def measured(name: str) -> CaseResult:
    pairs = tuple(Pair(2.0 + 0.01 * i, 1.0, i % 2 == 0) for i in range(8))
    measurement = Measurement(
        case_id=f"net/{name}/cpu",
        instances=(TimedBuild(True, pairs[:4]), TimedBuild(False, pairs[4:], discarded=1)),
        stopped_because="narrow",
        differences=(Difference(math.inf, math.inf, None, "timed steps", problem="the output holds NaN"),),
        reference_cost=SideCost(0.5, 0.1),
        optimized_cost=SideCost(12.0, 1.0, peak_bytes=10**10),
        reference_counters={"kernels": 6.0},
    )
    verdicts = [
        Verdict(
            "speedup",
            f"net/{name}/cpu",
            Outcome.PASS,
            HELD,
            None,
            {"speedup": 2.0, "speedup_low": 1.9, "speedup_high": 2.1, "old": None},
        ),
        Verdict("equivalence", f"net/{name}/cpu", Outcome.WRONG, WRONG, NextStep.REPEAT, {"relative_l2": math.inf}),
    ]
    return replace(case(name), measurement=measurement, summary=summarize(measurement), verdicts=verdicts)


@pytest.fixture
def run() -> RunResult:
    environment = Environment("cpu", "EPYC", "EPYC", 2, "3.12.3", {"torch": "2.11.0"})
    cases = [
        measured("tf32"),
        replace(case("tensorrt"), skipped="needs the package tensorrt: pip install tensorrt"),
        replace(case("broken"), error="optimized failed while building: ValueError: no"),
    ]
    return RunResult(
        environment=environment,
        started_at="2030-01-02T03:04:05+00:00",
        seed=7,
        gate=True,
        cases={case.case_id: case for case in cases},
        yardsticks=[Yardstick({"matmul_gflops": 150.5}, "before")],
        source_hashes={"net": "0123456789abcdef"},
        wall_s=12.5,
    )


def test_everything_comes_back(tmp_path: Path, run: RunResult) -> None:
    path = tmp_path / "run.json"
    begun(path, run)
    run_file.write(path, run)
    assert run_file.read(path) == run
    assert list(tmp_path.iterdir()) == [path]


def empty(run: RunResult) -> RunResult:
    """The run before its first case."""
    return replace(run, cases={}, yardsticks=[], source_hashes={}, wall_s=0.0, interrupted=True)


def begun(path: Path, run: RunResult) -> RunResult:
    """The run as `--perf-json` has it when a process is killed after its last case; the probe is of the last one."""
    run_file.write(path, empty(run))
    *before, last = run.cases.values()
    for case in before:
        run_file.append(path, case, [], run)
    run_file.append(path, last, run.yardsticks, run)
    return replace(run, interrupted=True)


def test_it_is_whole_after_every_case(tmp_path: Path, run: RunResult) -> None:
    path = tmp_path / "run.json"
    run_file.write(path, empty(run))
    assert run_file.read(path) == empty(run)
    growing = replace(run, cases={}, yardsticks=[], interrupted=True)
    for case_id, result in run.cases.items():
        growing.cases[case_id] = result
        run_file.append(path, result, [], run)
        assert run_file.read(path) == growing


def test_a_case_costs_the_same_bytes_however_many_came_before(tmp_path: Path, run: RunResult) -> None:
    path, lines = tmp_path / "run.json", tmp_path / "run.json.cases"
    run_file.write(path, empty(run))
    run_file.append(path, measured("case-000"), run.yardsticks, run)
    whole, sizes = path.stat(), [lines.stat().st_size]
    for number in range(1, 10):
        run_file.append(path, measured(f"case-{number:03}"), run.yardsticks, run)
        sizes.append(lines.stat().st_size)
    assert len({after - before for before, after in pairwise(sizes)}) == 1
    now = path.stat()
    assert (now.st_ino, now.st_mtime_ns) == (whole.st_ino, whole.st_mtime_ns), "the whole file was not written again"
    assert len(run_file.read(path).cases) == 10


def test_a_line_whose_writer_was_killed_does_not_spoil_the_next_one(tmp_path: Path, run: RunResult) -> None:
    path, lines = tmp_path / "run.json", tmp_path / "run.json.cases"
    run_file.write(path, empty(run))
    first, second, third = run.cases.values()
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
                run_file.append(path, measured(f"case-{os.getpid()}-{number}"), [], run)
            status = 0
        finally:
            os._exit(status)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
    assert len(run_file.read(path).cases) == 40


def test_the_lines_of_another_session_are_not_its_cases(tmp_path: Path, run: RunResult) -> None:
    path, lines = tmp_path / "run.json", tmp_path / "run.json.cases"
    begun(path, run)
    earlier = lines.read_bytes()
    later = replace(run, seed=8)
    run_file.write(path, empty(later))
    lines.write_bytes(earlier)
    assert run_file.read(path).cases == {}


@pytest.mark.parametrize("line", [b"[1]", b"{", b'{"cases": [], "source_hashes": {}}', b"\xff"])
def test_a_damaged_line_is_named(tmp_path: Path, run: RunResult, line: bytes) -> None:
    path, lines = tmp_path / "run.json", tmp_path / "run.json.cases"
    begun(path, run)
    lines.write_bytes(lines.read_bytes() + line + b"\n")
    with pytest.raises(RunFileError) as refused:
        run_file.read(path)
    assert str(refused.value).startswith(f"{path} cannot be ")
    assert str(refused.value).endswith("give a file that --perf-json wrote, or measure again")


def test_a_full_disk_keeps_the_cases_before(tmp_path: Path, run: RunResult) -> None:
    path = tmp_path / "run.json"
    run_file.write(path, empty(run))
    first, second, _ = run.cases.values()
    run_file.append(path, first, [], run)
    lines = path.with_name("run.json.cases")
    with files_up_to(lines.stat().st_size + 20), pytest.raises(RunFileError) as refused:
        run_file.append(path, second, [], run)
    assert str(refused.value) == f"{path} cannot be written (File too large): give --perf-json another path"
    assert list(run_file.read(path).cases.values()) == [first]
    run_file.append(path, second, [], run)
    assert list(run_file.read(path).cases.values()) == [first, second]


def test_a_run_of_the_format_before_is_read(tmp_path: Path, run: RunResult) -> None:
    path = tmp_path / "run.json"
    run_file.write(path, run)
    document = json.loads(path.read_text(encoding="utf-8"))
    document["cases"]["net/tf32/cpu"]["summary"]["pair_spread"] = 0.1
    path.write_text(json.dumps({**document, "format_version": 14}), encoding="utf-8")
    assert run_file.read(path) == run


DAMAGE = {
    ('"started_at": "2030-01-02T03:04:05+00:00"', '"started_at": "2030-01-02T03:04:05"'): (
        "cannot be used because started_at is '2030-01-02T03:04:05', not an ISO 8601 time with the UTC offset: "
        "give a file that --perf-json wrote, or measure again"
    ),
    ('"format": "gpugate-run"', '"format": "gpugate-profiles"'): (
        "cannot be used because its field 'format' is not 'gpugate-run': "
        "give a file that --perf-json wrote, or measure again"
    ),
}


@pytest.mark.parametrize(("damage", "sentence"), DAMAGE.items())
def test_a_damaged_file_is_named(tmp_path: Path, run: RunResult, damage: tuple[str, str], sentence: str) -> None:
    path = tmp_path / "run.json"
    run_file.write(path, run)
    path.write_text(path.read_text().replace(*damage))
    with pytest.raises(RunFileError) as refused:
        run_file.read(path)
    assert str(refused.value) == f"{path} {sentence}"
