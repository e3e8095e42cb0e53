"""`gpugate record DIR`: baselines from stored runs, each of a process of its own, all of them or none."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpugate import baseline, profiles_file
from gpugate.cli import main
from gpugate.measurement.step_profile import StepProfile
from gpugate.result import CaseResult
from tests.stored_runs import MACHINE, case, measured, stored

HOURS = [f"2030-01-02T0{hour}:00:00+00:00" for hour in range(6)]


def of(workload: str, name: str, speedup: float) -> CaseResult:
    case_id = f"{workload}/{name}/cuda"
    found = measured(case_id, speedup, optimized_profile=StepProfile(kernel_ms=speedup))
    return replace(case(name), case_id=case_id, workload=workload, measurement=found, remembered=None)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two processes that measured `net`, and two others that measured `ring`."""
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    for number, hour in enumerate(HOURS[:4]):
        workload, name = ("net", "fused") if number < 2 else ("ring", "pinned")
        stored(Path(f"runs/run-{number}.json"), of(workload, name, 3 + number / 100), started_at=hour)
    return tmp_path


def record(*more: str) -> int:
    return main(["record", "runs", "--processes", "2", "--reason", "first night", *more])


def test_each_workload_is_recorded_from_the_runs_that_have_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert record() == 0
    said = capsys.readouterr().out
    files = baseline.load_all(Path("baselines/nvidia-h200"))
    assert sorted(files) == ["net", "ring"]
    current = {name: next(iter(file.cases.values())).current for name, file in files.items()}
    assert {name: one.started_at for name, one in current.items()} == {
        "net": tuple(HOURS[:2]),
        "ring": tuple(HOURS[2:4]),
    }
    assert {one.reason for one in current.values()} == {"first night"}
    assert all(one.environment == MACHINE for one in current.values())
    profiles = profiles_file.load(Path("baselines/profiles/nvidia-h200/ring.json"))
    assert profiles.cases["pinned/cuda"].kernel_ms == 3.03
    assert said.splitlines()[-1].startswith("written to baselines/nvidia-h200")


def test_an_interrupted_run_does_not_count_and_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(Path("runs/run-9.json"), of("net", "fused", 1.0), started_at=HOURS[5], interrupted=True)
    assert record() == 0
    assert "runs/run-9.json was interrupted and does not count" in capsys.readouterr().out
    assert len(baseline.load_all(Path("baselines/nvidia-h200"))["net"].cases["fused/cuda"].current.processes) == 2


def too_few(runs: Path) -> str:
    (runs / "run-3.json").unlink()
    return "ring/pinned/cuda was measured by 1 of the 2 processes"


def twice(runs: Path) -> str:
    (runs / "run-4.json").write_bytes((runs / "run-1.json").read_bytes())
    return "run-4.json is the run of runs/run-1.json once more: remove one of them"


def mutated(runs: Path) -> str:
    stored(runs / "run-1.json", of("net", "fused", 3.0), started_at=HOURS[1], mutated="slow:5")
    return "run-1.json was mutated by slow:5, which no baseline may hold"


def elsewhere(runs: Path) -> str:
    other = replace(MACHINE, driver="999.9")
    stored(runs / "run-1.json", of("net", "fused", 3.0), started_at=HOURS[1], environment=other)
    return "the runs' environments differ"


def another_gpu(runs: Path) -> str:
    other = replace(MACHINE, device_name="NVIDIA A100-SXM4-80GB")
    stored(runs / "run-4.json", of("alone", "fused", 3.0), started_at=HOURS[4], environment=other)
    return "the runs' environments differ ("


def nothing(runs: Path) -> str:
    for path in runs.iterdir():
        path.unlink()
    return "runs holds no run: write some there with --perf-json"


def all_interrupted(runs: Path) -> str:
    for path in list(runs.iterdir())[1:]:
        path.unlink()
    (left,) = runs.iterdir()
    stored(left, of("net", "fused", 3.0), interrupted=True)
    return "every run of runs was interrupted: measure again"


@pytest.mark.parametrize("spoil", [too_few, twice, mutated, elsewhere, another_gpu, nothing, all_interrupted])
def test_runs_that_are_no_record_write_nothing(here: Path, capsys: pytest.CaptureFixture[str], spoil) -> None:
    reason = spoil(Path("runs"))
    assert record() == 2
    said = capsys.readouterr().err
    assert reason in said
    assert said.startswith("gpugate record: ")
    assert said.count("\n") == 1
    assert not list(here.glob("baselines/**/*.json"))


def test_as_many_processes_as_there_can_be(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "runs", "--processes", "0"]) == 2
    assert "--processes" in capsys.readouterr().err
