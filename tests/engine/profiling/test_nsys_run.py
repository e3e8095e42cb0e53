"""`pytest --nsys` from outside: it starts itself once under a stand-in for nsys, and leaves reports alone behind."""

import gzip
import importlib.util
import json
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.cuda import profiler

from gpugate.profiling import export, nsight_reports, profiled_sides
from gpugate.profiling.export import CaptureIndex, read_index
from gpugate.profiling.nsight_reports import isolating_words
from gpugate.store.codec import from_json
from tests.support.fake_nsys import INDEX, NVTX, RANGES, FakeNsys
from tests.support.tiny_project import CONFTEST, TinyProject, check_no_traceback

# pytester forgets what a run in this process was the first to import: what is patched here must stay what runs.
for _name in ("nsight_reports", "session", "profiled_sides"):
    importlib.import_module(f"gpugate.profiling.{_name}")

SECRET = "hunter2-of-a-ci-job"
REPORTS = [f"tiny+quick+cpu.{label}.nsys-rep" for label in ("optimized", "reference")]


@pytest.fixture
def nsys(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> FakeNsys:
    made = FakeNsys(tmp_path_factory.mktemp("nsys"))
    monkeypatch.setenv("PATH", f"{made.folder}:{os.environ['PATH']}")
    return made


@pytest.fixture
def profiled(tiny: TinyProject, nsys: FakeNsys, monkeypatch: pytest.MonkeyPatch) -> TinyProject:
    """The tiny project, whose CPU cases are captured as those of a GPU are."""
    tiny.write("conftest.py", CONFTEST + RANGES)
    monkeypatch.setitem(sys.modules, "nvtx", loaded(tiny.write("nvtx.py", NVTX)))
    monkeypatch.chdir(tiny.path)
    return tiny


def loaded(path: Path) -> types.ModuleType:
    """The module that the file is."""
    spec = importlib.util.spec_from_file_location("nvtx", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def artifacts(tiny: TinyProject, name: str = "gpugate-nsys") -> list[str]:
    return sorted(path.name for path in (tiny.path / name).iterdir() if path.name != ".gitignore")


@pytest.fixture
def neighbour() -> Iterator[None]:
    """A process with a secret, which is none of ours: what a CI job runs us in."""
    program, pipe = "print(flush=True); input()", subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, env={"CI_JOB_TOKEN": SECRET})
    assert process.stdout is not None
    process.stdout.readline()  # a program that has only just begun shows nothing yet
    try:
        readable = SECRET.encode() in Path(f"/proc/{process.pid}/environ").read_bytes()
    except OSError:
        readable = False
    if readable:
        yield
    process.communicate(b"\n")
    if not readable:
        pytest.skip("this machine shows nobody another process's environment")


def test_one_report_per_side_and_no_secret_in_anything(
    profiled: TinyProject,
    nsys: FakeNsys,
    neighbour: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    isolated = isolating_words() is not None  # else this machine allows neither to give up capabilities nor a namespace
    nsys.mode("curious" if isolated else "good")
    monkeypatch.setenv("CI_JOB_TOKEN", SECRET)
    result = profiled.run("-k", "quick", "--perf-device=cpu", "--nsys=found here")
    said = capfd.readouterr().out + result.text
    assert result.status == 0, said
    assert "--nsys: under a profiler timings are not judged, and no baseline is written" in said
    assert "nsys: 2 reports in" in said
    check_no_traceback(said)
    assert [name for name in artifacts(profiled, "found here") if name.endswith(".nsys-rep")] == REPORTS
    assert artifacts(profiled, "found here") == sorted(
        [f"tiny+quick+cpu.{label}.{ending}" for label in ("optimized", "reference")
           for ending in ("nsys-rep", "sqlite", "summary.md")]
    )  # fmt: skip
    every = {path: path.read_bytes() for path in (profiled.path / "found here").iterdir()}
    seen, *others = json.loads(every[profiled.path / "found here" / REPORTS[0]])
    assert json.loads(seen)["environment"]["PATH"] == os.environ["PATH"]  # so that a secret in it would be seen
    assert any("GPUGATE_PROFILED_IN" in environment for environment in others) == isolated, "it looked, at its own"
    assert "4 steps of 4 items" in every[profiled.path / "found here/tiny+quick+cpu.reference.summary.md"].decode()
    assert [path for path, content in every.items() if SECRET.encode() in content] == []
    words = json.loads((nsys.folder / "words").read_text())
    assert {"--capture-range-end=repeat", "--discard-environment=true"} <= set(words)
    assert "--resolve-symbols=false" not in words  # this one does not know it
    (last,) = (number for number, word in enumerate(words) if word.startswith("--output="))
    assert words[last + 1 :][:3] == [sys.executable, "-m", "pytest"]
    ranges = (profiled.path / "ranges.txt").read_text().splitlines()
    assert ranges[0] == "started|tiny/quick/cpu reference|1"
    assert ranges.count("push|gpugate|step|32") == 8
    assert not (profiled.path / "baselines").exists()
    written = json.loads((nsys.folder / "index-of-the-run.json").read_text())
    assert from_json(CaptureIndex, written) == INDEX


def test_an_nsys_that_fails_after_all_tests_passed_is_told(
    profiled: TinyProject, nsys: FakeNsys, capfd: pytest.CaptureFixture[str]
) -> None:
    nsys.run_nothing()
    nsys.mode("fails")
    result = profiled.run("-k", "quick", "--perf-device=cpu", "--nsys")
    assert result.status == 3
    said = capfd.readouterr().out + result.text
    assert "ERROR: nsys ended with status 3, after all tests had passed" in said


def test_a_run_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    (tmp_path / "found/.capturing-1").mkdir(parents=True)
    with nsight_reports.hold_folder(tmp_path / "found", "--nsys") as folder:
        assert [*(tmp_path / "found").glob(".capturing-*")] == [folder]
    assert not folder.exists()


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the outer run shares with this one."""
    folder = tmp_path_factory.mktemp("shared")
    monkeypatch.setenv("GPUGATE_PROFILED_IN", str(folder))
    return folder


@pytest.fixture
def captured(profiled: TinyProject, shared: Path, monkeypatch: pytest.MonkeyPatch) -> TinyProject:
    """The project whose inner run is in this process; no profiler makes a report of its ranges."""
    monkeypatch.setattr(profiled_sides, "KIND", profiled_sides.KIND)
    for name in ("start", "stop"):
        monkeypatch.setattr(profiler, name, getattr(profiler, name))
    return profiled


def test_a_side_that_fails_fails_its_test_and_x_ends_the_run(captured: TinyProject, shared: Path) -> None:
    late = 'def late(context):\n    raise RuntimeError("no such engine")\n'
    captured.workload(late, 'Optimization("late", late, {"cpu": 0.01})')
    result = captured.run("--perf-device=cpu", "-x", "--nsys")
    assert result.status == pytest.ExitCode.TESTS_FAILED
    assert "late failed while being built: RuntimeError: no such engine" in result.text
    index = read_index(shared)
    assert index.status == 1
    assert [(each.label, each.complete) for each in index.captures] == [("reference", True)]


def test_a_capture_that_is_cut_off_is_not_taken_for_whole(captured: TinyProject, shared: Path) -> None:
    started = f"Path({str(shared / 'range-started')!r})"
    cut = f"def cut(context):\n    def step(x):\n        if {started}.exists():\n            raise KeyboardInterrupt\n"
    captured.workload(cut + "        return x + x\n    return Side(step)\n", 'Optimization("cut", cut, {"cpu": 0.01})')
    assert captured.run("--perf-device=cpu", "--nsys").status == pytest.ExitCode.INTERRUPTED
    index = read_index(shared)
    assert [(each.label, each.complete) for each in index.captures] == [("reference", True), ("optimized", False)]
    assert index.status == pytest.ExitCode.INTERRUPTED
    assert not (shared / "range-started").exists()  # the profiler was stopped


def test_a_machine_without_nsys_is_one_sentence(
    profiled: TinyProject, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(export, "find_tool", lambda tool: None)
    result = profiled.run("--nsys")
    assert result.status == pytest.ExitCode.USAGE_ERROR
    said = capfd.readouterr().err + result.text
    words = "no nsys was found: install it, put it on PATH, or try pytest --torch-trace"
    assert words in " ".join(said.split())
    check_no_traceback(said)
    assert not (profiled.path / "gpugate-nsys").exists()


def test_on_a_cpu_alone_a_capture_skips_with_its_reason(tiny: TinyProject, shared: Path) -> None:
    result = tiny.run("--nsys", "-rs")
    assert result.status == 0
    assert "--nsys captures what a GPU does: run it on a machine with one, or try --torch-trace" in result.text
    assert read_index(shared) == CaptureIndex(status=0)


def test_torch_traces_are_for_perfetto_and_judge_nothing(tiny: TinyProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI_JOB_TOKEN", SECRET)
    monkeypatch.chdir(tiny.path)
    result = tiny.run("--perf-device=cpu", "--torch-trace=traces", "-rs")
    assert result.status == 0, result.text
    assert "--torch-trace: under a profiler timings are not judged, and no baseline is written" in result.text
    assert "traces for Perfetto (ui.perfetto.dev) go to" in result.text
    traces = [f"tiny+quick+cpu.{label}.trace.json.gz" for label in ("optimized", "reference")]
    assert artifacts(tiny, "traces") == traces
    for trace, operator in zip(traces, ("aten::add", "aten::mul"), strict=True):
        text = gzip.decompress((tiny.path / "traces" / trace).read_bytes())
        names = [event.get("name") for event in json.loads(text)["traceEvents"]]
        assert names.count("step of 32 items") == names.count(operator) == 4
        assert SECRET.encode() not in text
