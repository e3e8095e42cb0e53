"""`gpugate accept RUNS`: records of stored runs, of all cases or of named ones, all of them or none."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpugate.commands.cli import main
from gpugate.measurement.record import StepProfile, Yardstick
from gpugate.results.case import CaseResult, Confirmation
from gpugate.results.run import Provenance
from gpugate.store import baseline
from tests.support.stored_runs import COUNTED, MACHINE, case, measured, stored

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
    return main(["accept", "runs", "--processes", "2", "--reason", "first night", *more])


def test_each_workload_is_recorded_from_the_runs_that_have_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert record() == 0
    said = capsys.readouterr().out
    files = baseline.load_all(Path("baselines/nvidia-h200"))
    assert sorted(files) == ["net", "ring"]
    current = {name: next(iter(file.cases.values())).record for name, file in files.items()}
    assert {name: one.started_at for name, one in current.items()} == {
        "net": tuple(HOURS[:2]),
        "ring": tuple(HOURS[2:4]),
    }
    assert {one.reason for one in current.values()} == {"first night"}
    assert all(one.environment == MACHINE for one in current.values())
    profile = files["ring"].cases["pinned/cuda"].profile
    assert profile is not None
    assert profile.kernel_ms == 3.03  # of the newest process
    assert said.splitlines()[-1].startswith("written to baselines/nvidia-h200")


WRITTEN = "written to baselines/nvidia-h200"


@pytest.mark.parametrize(
    ("drift", "steps"),
    [
        (0.01, [f"{WRITTEN}: read the difference and commit it"]),
        (
            1.0,
            [
                WRITTEN,
                "miss a slowdown of 25 % by the wall time: net/fused/cuda; record them again on a quieter machine: "
                'pytest perf_tests -k "net/fused/cuda" --update-baselines="..."',
            ],
        ),
    ],
)
def test_a_record_that_misses_a_large_slowdown_is_to_be_recorded_again(
    here: Path, capsys: pytest.CaptureFixture[str], drift: float, steps: list[str]
) -> None:
    Path("varied").mkdir()
    for number, hour in enumerate(HOURS[:5]):
        one = of("net", "fused", 3.0 * (1 + drift * (number % 2)))
        stored(Path(f"varied/run-{number}.json"), one, started_at=hour)
    assert main(["accept", "varied"]) == 0
    assert capsys.readouterr().out.splitlines()[-len(steps) :] == steps


def test_a_case_that_no_run_measured_is_answered_with_those_that_they_measured(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, similar in (("nonsense", "net/fused/cuda, ring/pinned/cuda"), ("net/fusd/cuda", "net/fused/cuda")):
        assert record("--case", name) == 2
        step = f"give a case that it measured, {similar}"
        assert capsys.readouterr().err == f"gpugate accept: runs has no case {name}: {step}\n"


def test_each_case_that_is_refused_has_a_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accept", "runs", "--processes", "3"]) == 2
    net, ring = capsys.readouterr().err.splitlines()
    assert net.startswith("gpugate accept: net/fused/cuda was measured by 2 of the 3 processes")
    assert ring.startswith("ring/pinned/cuda was measured by 2 of the 3 processes")
    assert record("--reason", "...") == 2
    assert capsys.readouterr().err.startswith('gpugate accept: --reason="..." is a placeholder: write the reason of')


def test_the_finished_cases_of_an_interrupted_run_count(here: Path) -> None:
    stored(Path("runs/run-9.json"), of("net", "fused", 3.0), started_at=HOURS[5], interrupted=True)
    assert record() == 0
    assert len(baseline.load_all(Path("baselines/nvidia-h200"))["net"].cases["fused/cuda"].record.processes) == 3


def test_a_case_of_a_gate_is_accepted_with_its_confirmations(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert record() == 0
    then = baseline.load_all(Path("baselines/nvidia-h200"))
    slower = replace(of("net", "fused", 2.8), attempts=[Confirmation(of("net", "fused", 2.81).measurement)])
    Path("night").mkdir()
    skipped = replace(of("net", "graph", 1.0), measurement=None, skipped="needs two GPUs")
    stored(Path("night/run-1.json"), slower, of("ring", "pinned", 2.9), skipped, started_at=HOURS[5])
    stored(Path("night/run-2.json"), of("ring", "pinned", 2.9), environment=replace(MACHINE, driver="590.2"))
    assert main(["accept", "night", "--case", "net/gone/cuda", "--processes", "2"]) == 2
    wanted = ["accept", "night", "--case", "net/fused/cuda", "--processes", "2", "--reason", "exact sums"]
    assert main(wanted) == 0
    assert main([*wanted, "--case", "net/graph/cuda"]) == 2
    assert "not recorded: every run skipped net/graph/cuda: needs two GPUs" in capsys.readouterr().err
    now = baseline.load_all(Path("baselines/nvidia-h200"))
    entry = now["net"].cases["fused/cuda"]
    assert (len(entry.record.processes), entry.record.reason) == (2, "exact sums")
    assert entry.record.history.speedup == pytest.approx(2.8, rel=0.01)
    assert now["ring"] == then["ring"]


def twice(runs: Path) -> str:
    (runs / "run-4.json").write_bytes((runs / "run-1.json").read_bytes())
    return "run-4.json is the run of runs/run-1.json once more: remove one of them"


def mutated(runs: Path) -> str:
    stored(runs / "run-1.json", of("net", "fused", 3.0), started_at=HOURS[1], mutated="slow:5")
    return "run-1.json was mutated by slow:5, so it is no night: measure again without --perf-mutate"


def of_own_inputs(runs: Path) -> str:
    command = "pytest perf_tests --perf-baselines=own '--perf-set=video=my own.mp4"  # a quote that an edit left open
    stored(runs / "run-1.json", of("net", "fused", 3.0), started_at=HOURS[1], command=command)
    return f"{command!r} measured inputs of your own: record them in another folder by --baselines DIR"


@pytest.mark.parametrize("spoil", [twice, mutated, of_own_inputs])
def test_runs_that_are_no_record_write_nothing(here: Path, capsys: pytest.CaptureFixture[str], spoil) -> None:
    reason = spoil(Path("runs"))
    assert record() == 2
    said = capsys.readouterr().err
    assert reason in said
    assert said.startswith("gpugate accept: ")
    assert said.count("\n") == 1
    assert not list(here.glob("baselines/**/*.json"))


def next_night(number: int, speedup: float, **changed: object) -> None:
    """Another folder's only run, of `net` alone."""
    path = Path(f"night-{number}/run.json")
    path.parent.mkdir(exist_ok=True)
    started_at = {"started_at": f"2030-01-{number:02}T00:00:00+00:00"}
    counters = {**COUNTED, "kernel_launches": 1.0 + number, "kernels": 1.0}
    found = of("net", "fused", speedup)
    assert found.measurement is not None
    found = replace(found, measurement=replace(found.measurement, optimized_counters=counters))
    stored(path, found, **{**started_at, **changed})


def add(number: int) -> int:
    return main(["accept", f"night-{number}", "--processes", "3", "--reason", f"night {number}", "--add"])


def test_runs_of_another_night_are_added_to_what_is_recorded(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert record() == 0
    folder = Path("baselines/nvidia-h200")
    before = baseline.load_all(folder)
    next_night(5, 3.2, yardsticks=[Yardstick({"matmul_bf16_tflops": 700.0})])
    capsys.readouterr()
    assert add(5) == 0
    assert "net/fused/cuda: 3.01x -> 3.01x, 3.00..3.20 over 3 processes on 2 days" in capsys.readouterr().out
    after = baseline.load_all(folder)
    then, now = before["net"].cases["fused/cuda"], after["net"].cases["fused/cuda"]
    assert after["ring"] == before["ring"]
    assert now.record.processes[:2] == then.record.processes
    assert now.record.started_at == (*HOURS[:2], "2030-01-05T00:00:00+00:00")
    assert now.record.recorded_at == "2030-01-05T00:00:00+00:00"
    assert now.record.reason == "night 5"
    assert now.record.optimized_counters["kernel_launches"] == 6.0, "the largest of all processes"
    assert now.record.optimized_counters["kernels"] == then.record.optimized_counters["kernels"]
    assert now.record.yardsticks["matmul_bf16_tflops"] == 788.0, "the median of three processes"
    next_night(1, 3.1, provenance=Provenance(commit="older"))
    assert add(1) == 0
    latest = baseline.load_all(folder)["net"].cases["fused/cuda"]
    newest = now.record.recorded_at, now.record.provenance, now.profile
    assert (latest.record.recorded_at, latest.record.provenance, latest.profile) == newest


def test_the_runs_of_a_folder_of_nights_are_recorded(here: Path) -> None:
    for number in (5, 6):
        next_night(number, 3.0 + number / 100)
    Path("night-5").rename("runs/night-5")
    Path("night-6").rename("runs/night-6")
    assert record() == 0
    current = baseline.load_all(Path("baselines/nvidia-h200"))["net"].cases["fused/cuda"].record
    assert len(current.processes) == 4


def once_more(here: Path) -> str:
    assert add(5) == 0
    return "the run of 2030-01-05T00:00:00+00:00 is in the baseline of net/fused/cuda already: take it away"


def another_driver(here: Path) -> str:
    next_night(5, 3.2, environment=replace(MACHINE, driver="999.9"))
    return "net/fused/cuda was recorded under other conditions (driver "


@pytest.mark.parametrize("spoil", [once_more, another_driver])
def test_what_cannot_be_one_record_leaves_it_as_it_was(here: Path, capsys: pytest.CaptureFixture[str], spoil) -> None:
    assert record() == 0
    next_night(5, 3.2)
    reason = spoil(here)
    before = baseline.load_all(Path("baselines/nvidia-h200"))
    capsys.readouterr()
    assert add(5) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 1
    assert baseline.load_all(Path("baselines/nvidia-h200")) == before


# --- deleting the record of one case ----------------------------------------------------------------------------------


def test_a_record_is_deleted_and_a_file_that_holds_no_other_goes_too(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, hour in enumerate(HOURS[4:]):
        stored(Path(f"runs/more-{number}.json"), of("net", "plain", 2 + number / 100), started_at=hour)
    assert record() == 0
    folder = Path("baselines/nvidia-h200")
    capsys.readouterr()
    assert main(["accept", "--delete", "net/fused/cuda"]) == 0
    assert capsys.readouterr().out == f"net/fused/cuda: deleted from {folder}/net.json; commit the difference\n"
    assert list(baseline.load_all(folder)["net"].cases) == ["plain/cuda"]
    assert main(["accept", "--delete", "net/plain/cuda", "--baselines", "baselines"]) == 0
    assert [path.name for path in Path("baselines").rglob("*.json")] == ["ring.json"]


@pytest.mark.parametrize("case_id", ["net/gone/cuda", "../nvidia-h200/net/fused/cuda", ""])
def test_a_case_that_is_not_recorded_cannot_be_deleted(
    here: Path, capsys: pytest.CaptureFixture[str], case_id: str
) -> None:
    assert record() == 0
    before = sorted((path, path.read_bytes()) for path in Path("baselines").rglob("*.json"))
    capsys.readouterr()
    assert main(["accept", "--delete", case_id]) == 2
    assert capsys.readouterr().err.startswith(f"gpugate accept: {case_id!r} is recorded nowhere in baselines: ")
    for more in (["runs"], ["--case", "net/fused/cuda"]):
        assert main(["accept", "--delete", "net/fused/cuda", *more]) == 2
    assert main(["accept"]) == 2
    assert sorted((path, path.read_bytes()) for path in Path("baselines").rglob("*.json")) == before
