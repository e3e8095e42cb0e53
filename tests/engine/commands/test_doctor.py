"""`gpugate doctor`: its findings on a made-up H200, children that fail, and one real examination without a GPU."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpugate.commands import doctor
from gpugate.commands.cli import main
from gpugate.commands.doctor import Finding, list_findings
from gpugate.machine.children import Ended
from gpugate.machine.environment import machine_name
from gpugate.measurement.record import Yardstick
from gpugate.session.machine_facts import Facts
from gpugate.store import baseline
from gpugate.store.baseline import BaselineFile, Entry, Record
from gpugate.store.codec import to_json
from tests.conftest import H200, TWO_CORES
from tests.support.stored_runs import timed_build

YARDSTICKS = {"matmul_bf16_tflops": 788.0, "pinned_copy_gb_per_s": 55.0, "launch_latency_us": 2.1}
SLOW = {**YARDSTICKS, "matmul_bf16_tflops": 500.0}
LATE = {**YARDSTICKS, "launch_latency_us": 3.0}


def probe(*values: dict[str, float]) -> tuple[Yardstick, ...]:
    return tuple(map(Yardstick, values))


HEALTHY = Facts(H200, 0.5, 16, 1, probe(YARDSTICKS, YARDSTICKS), clock_mhz=(1965, 1980))
PROCESS = (timed_build(2.0, 1.0, 1),)
OTHER_DRIVER = replace(H200, driver="999.1")


def record(path: Path, **changes: Any) -> Path:
    """Writes one baseline below the folder `baselines`, by default of five processes on the healthy machine."""
    kept = {"source_hash": "0" * 16, "environment": H200, "processes": (PROCESS,) * 5, "yardsticks": YARDSTICKS}
    made = Record("2030-01-01T00:00:00+00:00", "first", **{**kept, **changes})
    folder = path / "baselines" / machine_name(made.environment)
    baseline.write(folder, BaselineFile("net", folder.name, {"fused/cuda": Entry(made)}))
    return folder / "net.json"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder with the baselines of a machine."""
    record(tmp_path)
    return tmp_path


def find(path: Path, name: str, facts: Facts = HEALTHY, asked: str = "auto") -> Finding:
    return {finding.name: finding for finding in list_findings(facts, asked, path / "baselines")}[name]


@pytest.mark.parametrize(
    ("changes", "name", "state", "words"),
    [
        ({"environment": replace(H200, cpu_quota=1.0)}, "machine", "ok", "16 cores, a quota of 1 core"),
        ({"foreign": (41, 42)}, "other processes", "bad", "process 41, 42 also uses the GPU"),
        ({"throttled_by": ("power brake",)}, "clocks", "bad", "slowed by power brake"),
        ({"clock_mhz": ()}, "clocks", "ok", "NVML reports no clock here"),
        ({"load": 8.1}, "load", "bad", "other processes keep 8.1 of 16 cores busy: end them"),
        ({"load": 8.0}, "load", "ok", "other processes keep 8.0 of 16 cores busy"),
        ({"quota_throttled": 0.77}, "yardsticks", "bad", "throttled in 77 % of the periods of a quota of CPU time: ra"),
        ({"yardsticks": probe(SLOW, SLOW)}, "yardsticks", "bad", "500 TFLOP/s instead of 788 TFLOP/s recorded: repeat"),
        ({"yardsticks": probe(SLOW, YARDSTICKS)}, "yardsticks", "ok", "788 TFLOP/s, pinned copy 55 GB/s; as recorded"),
        ({"yardsticks": probe(YARDSTICKS, LATE)}, "yardsticks", "ok", "as recorded"),
        ({"yardsticks": probe(LATE, LATE)}, "yardsticks", "bad", "slow host: launches take 1.4 times the recorded"),
    ],
)
def test_each_fact_is_one_finding_and_a_healthy_machine_is_ok_in_all_others(
    machine: Path, changes: dict[str, Any], name: str, state: str, words: str
) -> None:
    facts = replace(HEALTHY, **changes)
    found = find(machine, name, facts)
    assert (found.state, words in found.sentence) == (state, True), found.sentence
    others = {one.state for one in list_findings(facts, "auto", machine / "baselines") if one.name != name}
    assert others == {"ok"}


@pytest.mark.parametrize(
    ("probes", "state", "words"),
    [
        ((LATE, LATE), "ok", "steady, and none recorded"),
        ((SLOW, SLOW), "ok", "steady, and none recorded"),
        ((SLOW, YARDSTICKS), "bad", "500 TFLOP/s instead of 788 TFLOP/s a moment apart"),
    ],
)
def test_yardsticks_without_recorded_ones_are_compared_with_each_other(
    machine: Path, probes: tuple[dict[str, float], ...], state: str, words: str
) -> None:
    record(machine, environment=OTHER_DRIVER)
    found = find(machine, "yardsticks", replace(HEALTHY, yardsticks=probe(*probes)))
    assert (found.state, words in found.sentence) == (state, True), found.sentence


@pytest.mark.parametrize(
    ("change", "state", "words"),
    [
        (record, "ok", "1 case, recorded with the present software"),
        (lambda path: record(path).unlink(), "bad", "no record of this machine, and a gate fails without one: pytest"),
        (lambda path: record(path).write_text("{"), "bad", "net.json cannot be used because it is cut off"),
        (lambda path: record(path, processes=(PROCESS,)), "bad", "fewer than 3 processes (net/fused/cuda), and a gate"),
        (lambda path: record(path, environment=OTHER_DRIVER), "ok", "judged loosely: driver 999.1 -> 580.65"),
    ],
)
def test_baselines(machine: Path, change: Callable[[Path], Any], state: str, words: str) -> None:
    change(machine)
    found = find(machine, "baselines")
    assert (found.state, words in found.sentence) == (state, True), found.sentence


def test_a_cpu_is_recorded_by_the_threads_that_are_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    _, sentence = doctor.judge_baselines(tmp_path, TWO_CORES, {})
    assert f": OMP_NUM_THREADS=2 pytest perf_tests --perf-baselines {tmp_path} --update-baselines=" in sentence


@pytest.mark.parametrize(
    ("asked", "state", "words"),
    [("auto", "bad", "the driver shows 2 and torch 2.11.0+cpu none"), ("cpu", "absent", "the device is the CPU")],
)
def test_a_gpu_that_torch_cannot_use_is_bad_unless_the_cpu_was_asked_for(
    machine: Path, asked: str, state: str, words: str
) -> None:
    found = find(machine, "GPU", replace(HEALTHY, environment=TWO_CORES, driver_gpus=2), asked)
    assert (found.state, words in found.sentence) == (state, True), found.sentence


def answer_with(monkeypatch: pytest.MonkeyPatch, *messages: object, status: int | None = 0, output: str = "") -> None:
    """Puts a child in place of the doctor's, which sends the messages, and then ends."""
    ended = Ended(status, output, 5.0, messages=messages)
    monkeypatch.setattr(doctor, "children", SimpleNamespace(run_module=lambda module, task, timeout_s: ended))


@pytest.mark.parametrize(
    ("status", "words"), [(3, "ended with status 3: OSError: no disk: look"), (None, "did not end within 5 s: OSError")]
)
def test_a_child_that_fails_is_one_finding(monkeypatch: pytest.MonkeyPatch, status: int | None, words: str) -> None:
    answer_with(monkeypatch, status=status, output="Traceback\nOSError: no disk\n")
    (found,) = doctor.diagnose("auto", Path("baselines"))
    assert (found.name, found.state, words in found.sentence) == ("machine", "bad", True), found.sentence


def test_the_table_fits_80_columns_and_has_every_finding(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    answer_with(monkeypatch, to_json(replace(HEALTHY, throttled_by=("[Errno 5] is no markup",))))
    assert main(["doctor", "--baselines", str(machine / "baselines")]) == 1
    printed = capsys.readouterr().out
    lines, shown = printed.splitlines(), " ".join(printed.split())
    assert max(map(len, lines)) <= 80
    for finding in doctor.diagnose("auto", machine / "baselines"):
        assert f"{finding.name} {finding.state} {finding.sentence}" in shown
    assert lines[-1] == "a gate run here would not be trustworthy: clocks"


def test_status_0_is_a_gate_run_that_would_be_trustworthy(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer_with(monkeypatch, to_json(HEALTHY))
    assert main(["doctor", "--baselines", str(machine / "baselines")]) == 0
    assert capsys.readouterr().out.endswith("\na gate run here would be trustworthy\n")


@pytest.mark.usefixtures("warm_children")
def test_this_machine_is_examined_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a folder without baselines, which passes no gate."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"TMPDIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"}.items():
        monkeypatch.setenv(name, value)
    assert main(["doctor"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "GPU absent no GPU: CPU variants only" in shown
    assert "baselines bad " in shown
    assert "matmul" in shown.partition("yardsticks ")[2]
    assert " cores busy compiler " in shown or " cores busy: end them compiler " in shown
    assert "clocks" not in shown
    assert list(tmp_path.iterdir()) == [], "something was left behind"
    assert main(["doctor", "--device", "cuda:99"]) == 2
    assert capsys.readouterr().err.startswith("gpugate doctor: there is no device 'cuda:99', torch sees no GPU: ")
