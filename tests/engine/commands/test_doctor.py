"""The doctor's findings: every probe and every end of its child, on a made-up machine."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpugate.commands.doctor import examination, packages, tools
from gpugate.commands.doctor.child import Described
from gpugate.commands.doctor.finding import Group, Probe, ProbeState
from gpugate.machine.environment import Missing
from gpugate.machine.processes import list_children
from gpugate.profiling import nsight_tools
from gpugate.session.child_process import program_command
from gpugate.session.run_child import Ended, run_child
from tests.conftest import H200, TWO_CORES
from tests.support.doctor_cases import (
    GAUGE,
    PROCESS,
    YARDSTICKS,
    Hospital,
    Says,
    ends,
    fails,
    healthy,
    leaves,
    says,
)
from tests.support.patience import wait_until

SLOW = {**YARDSTICKS, "matmul_bf16_tflops": 500.0}
LATE = {**YARDSTICKS, "launch_latency_us": 3.0}
FORBIDDEN = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters\n"


@pytest.fixture
def hospital(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hospital:
    return healthy(tmp_path, monkeypatch)


def test_a_healthy_machine_is_ok_in_every_respect(hospital: Hospital) -> None:
    found = hospital.diagnosis()
    assert [finding.name for finding in found.findings if finding.state is not ProbeState.OK] == []
    assert found.bad == []
    assert found.environment == H200
    assert list(dict.fromkeys(finding.group for finding in found.findings)) == list(Group)


@pytest.mark.parametrize(
    ("child", "end", "name", "state", "words"),
    [
        ("package", ends(-11), "av", "absent", "it was killed by SIGSEGV"),
        ("package", ends(None), "av", "absent", "it did not end within 60 s"),
        ("package", fails("ImportError: no libnvinfer"), "tensorrt", "absent", "no libnvinfer"),
        ("package", says(""), "nvtx", "ok", "it can be imported"),
        ("nsys", leaves("report.qdstrm", output="libdw.so.1: cannot open"), "nsys", "absent", "apt install libdw1"),
        ("nsys", leaves("report.qdstrm"), "nsys", "absent", "its importer failed"),
        ("nsys", leaves("report.qdstrm", "report.nsys-rep"), "nsys", "ok", "makes reports"),
        ("nsys", ends(1, "no such option"), "nsys", "absent", "ended with status 1 (no such option)"),
        ("nsys", ends(None), "nsys", "absent", "did not end within 60 s"),
        ("ncu", ends(0, FORBIDDEN), "ncu", "absent", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("ncu", ends(1, "==ERROR== LibraryNotLoaded\nbye"), "ncu", "absent", "(LibraryNotLoaded)"),
        ("ncu", ends(0, "sm__cycles_elapsed.max (!) nan"), "ncu", "absent", "read no hardware counter"),
        ("ncu", ends(None), "ncu", "absent", "did not end within 60 s"),
        ("cupti", says(0), "CUPTI", "bad", "sees no kernel"),
        ("cupti", ends(-6), "CUPTI", "bad", "it was killed by SIGABRT"),
        ("gauge", says(replace(GAUGE, foreign=(41, 42))), "other processes", "bad", "process 41, 42 also uses the GPU"),
        ("gauge", says(replace(GAUGE, throttled_by=("power brake",))), "clocks", "bad", "slowed by power brake"),
        ("gauge", says(replace(GAUGE, clock_mhz=())), "clocks", "ok", "NVML reports no clock here"),
        ("gauge", says(replace(GAUGE, clock_mhz=(1980, 1980))), "clocks", "ok", "SM 1980 MHz during"),
        ("gauge", ends(None), "yardsticks", "bad", "nothing could be measured (it did not end within 60 s)"),
        ("machine", fails("ModuleNotFoundError: torch"), "machine", "bad", "(ModuleNotFoundError: torch)"),
        ("machine", ends(None), "machine", "bad", "it did not end within 60 s"),
    ],
)
def test_each_child_that_fails_is_one_finding_with_its_sentence(
    hospital: Hospital, child: str, end: Says, name: str, state: str, words: str
) -> None:
    hospital.script[child] = end
    found = hospital.finding(name)
    assert (found.state.value, words in found.sentence) == (state, True), found.sentence
    bad = hospital.diagnosis().bad
    assert bad == ([name] if state == "bad" else [])


@pytest.mark.parametrize(
    ("recorded", "probes", "state", "words"),
    [
        (True, (SLOW, SLOW), "bad", "matmul bf16 500 TFLOP/s instead of 788 TFLOP/s recorded: repeat"),
        (True, (SLOW, YARDSTICKS), "ok", "788 TFLOP/s, pinned copy 55 GB/s; as recorded"),
        (True, (YARDSTICKS, {**YARDSTICKS, "launch_latency_us": 99.0}), "ok", "as recorded"),
        (True, (LATE, LATE), "bad", "slow host: launches take 1.4 times the recorded time"),
        (False, (LATE, LATE), "ok", "steady, and none recorded"),
        (False, (SLOW, SLOW), "ok", "steady, and none recorded"),
        (False, (SLOW, YARDSTICKS), "bad", "500 TFLOP/s instead of 788 TFLOP/s a moment apart"),
    ],
)
def test_yardsticks_against_recorded_ones_else_against_each_other(
    hospital: Hospital, recorded: bool, probes: tuple[dict[str, float], ...], state: str, words: str
) -> None:
    if not recorded:
        hospital.record(environment=replace(H200, driver="999.1"))
    hospital.script["gauge"] = says(replace(GAUGE, yardsticks=probes))
    found = hospital.finding("yardsticks")
    assert (found.state.value, words in found.sentence) == (state, True), found.sentence


def test_a_quota_that_throttles_makes_yardsticks_worthless(hospital: Hospital) -> None:
    hospital.script["machine"] = says(Described(replace(H200, cpu_quota=1.0), 1))
    hospital.script["gauge"] = says(replace(GAUGE, throttled=0.77))
    found = hospital.finding("yardsticks")
    assert found.state is ProbeState.BAD
    assert found.sentence.startswith("throttled in 77 % of the periods of a quota of CPU time: raise it")
    assert hospital.finding("machine").sentence.endswith("16 cores, a quota of 1 core")


def knows(hospital: Hospital, answer: Says) -> None:
    """A child's answer about the workloads that pytest would know."""
    hospital.script["workloads"] = answer


def put_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()


@pytest.mark.parametrize(
    ("change", "state", "words"),
    [
        (lambda hospital: None, "ok", "1 case of 1 workload, recorded with the present software"),
        (
            lambda h: h.record().unlink(),
            "bad",
            "has none for this machine, and a gate fails without: pytest perf_tests",
        ),
        (lambda h: h.record().unlink(), "bad", "/baselines --update-baselines --perf-reason"),
        (lambda h: put_a_file(h.path / "baselines"), "bad", "/baselines is no folder: give the folder of baselines"),
        (lambda h: h.record().write_text("{"), "bad", "net.json cannot be used because it is cut off"),
        (lambda h: h.record(processes=(PROCESS,)), "bad", "fewer than 5 processes"),
        (lambda h: h.record(environment=replace(H200, driver="999.1")), "ok", "judged loosely: driver 999.1 -> 580.65"),
        (lambda h: knows(h, says(["other"])), "bad", "net.json is for the unknown workload 'net': restore the workl"),
        (lambda h: knows(h, says(["other", "net"])), "ok", "recorded with the present software"),
        (lambda h: knows(h, says([])), "ok", "recorded with the present software"),  # in a folder without workloads
        (lambda h: knows(h, fails("CatalogueError: no")), "ok", "could not be found out (CatalogueError: no)"),
    ],
)
def test_baselines(hospital: Hospital, change: Callable[[Hospital], Any], state: str, words: str) -> None:
    change(hospital)
    found = hospital.finding("baselines")
    assert (found.state.value, words in found.sentence) == (state, True), found.sentence


@pytest.mark.parametrize(("average", "state"), [(8.0, "ok"), (8.1, "bad")])
def test_a_busy_machine(hospital: Hospital, monkeypatch: pytest.MonkeyPatch, average: float, state: str) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (average, 0.0, 0.0))
    found = hospital.finding("load")
    assert (found.state.value, f"load average {average:.1f}" in found.sentence) == (state, True)


@pytest.mark.parametrize(("shown", "words"), [(0, "no GPU"), (1, "not looked at: the device is the CPU")])
def test_without_a_gpu_only_the_cpu_is_judged(hospital: Hospital, shown: int, words: str) -> None:
    hospital.script["machine"] = says(Described(TWO_CORES, shown))
    found = hospital.diagnosis("cpu").findings
    names = ("GPU", "ncu", "CUPTI", "other processes", "clocks")
    told = [finding for finding in found if finding.name in names]
    assert [finding.state for finding in told] == [ProbeState.ABSENT] * len(names)
    assert all(finding.sentence.startswith(words) for finding in told)
    assert [finding.name for finding in found if finding.state is ProbeState.BAD] == ["baselines"]


def test_a_gpu_that_torch_cannot_use_is_bad_unless_the_cpu_was_asked_for(hospital: Hospital) -> None:
    hospital.script["machine"] = says(Described(TWO_CORES, 2))
    found = hospital.finding("GPU")
    assert (found.state, "the driver shows 2 and torch 2.11.0+cpu none" in found.sentence) == (ProbeState.BAD, True)


@pytest.mark.parametrize(
    ("visible", "index", "passed_on"), [(None, None, None), (None, 2, "2"), ("4, GPU-abc", 1, "GPU-abc"), ("7", 0, "7")]
)
def test_children_see_the_chosen_gpu_alone(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, index: int | None, passed_on: str | None
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert examination._visible(index) == passed_on


def test_a_package_that_is_not_installed_is_not_asked(hospital: Hospital, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "missing_needs", lambda needs, environment: Missing(needs.packages, ""))
    hospital.script.pop("package")
    found = {finding.name: finding for finding in hospital.diagnosis().findings}
    assert found["av"].sentence == "av not installed: pip install av"
    assert {found[name].state for name in ("av", "tensorrt")} == {ProbeState.ABSENT}


def test_tools_that_are_nowhere_and_tools_beside_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(nsight_tools.PLACES, "nsys", (f"{tmp_path}/*/nsys",))
    assert tools.find_tool("nsys") is None
    for version in ("2025.1", "2025.3"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "nsys").touch(mode=0o755)
    assert tools.find_tool("nsys") == f"{tmp_path}/2025.3/nsys"
    (tmp_path / "nsys").touch(mode=0o755)
    assert tools.find_tool("nsys") == f"{tmp_path}/nsys"


@pytest.mark.parametrize(("vital", "state"), [(True, ProbeState.BAD), (False, ProbeState.ABSENT)])
def test_a_probe_of_ours_that_fails_is_a_finding(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch, vital: bool, state: ProbeState
) -> None:
    def fail(machine: object) -> Any:
        raise ZeroDivisionError("by 0")

    monkeypatch.setattr(packages, "PROBES", (Probe(Group.PACKAGES, "av", fail, vital=vital),))
    found = hospital.finding("av")
    assert (found.state, found.sentence[:51]) == (state, "it could not be looked at (ZeroDivisionError: by 0)")


def test_an_interruption_kills_the_children(hospital: Hospital) -> None:
    def sleep(folder: Path) -> Ended:
        return run_child(program_command(["sleep", "600"]))

    def interrupt(folder: Path) -> Ended:
        wait_until(list_children)
        raise KeyboardInterrupt

    hospital.script.update(nsys=interrupt, ncu=sleep)
    with pytest.raises(KeyboardInterrupt):
        hospital.diagnosis()
    wait_until(lambda: not list_children())
