"""A user's project in a temporary folder: one workload whose steps take milliseconds, and pytest run on it.

Steps pretend to sleep on a clock of their own, so that a busy machine decides no test. The project's conftest.py, which
fresh processes read too, sets that clock and shortens blocks, warm-up and yardsticks.
"""

import gc
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
import torch

from gpugate.catalogue import Catalogue, catalogue
from gpugate.judging import machine_state
from gpugate.machine.children import Child
from gpugate.machine.environment import describe, machine_name
from gpugate.measurement import host_counters, settings, yardsticks
from gpugate.session import measure_case
from tests.support import work_clock
from tests.support.patience import HANGS_S

# pytester forgets what a run in this process was the first to import: torch cannot be imported twice, and the other
# modules would cost each run a tenth of a second.
for _name in (
    "gpugate.measurement.run",
    "gpugate.plugin",
    "gpugate.session.night_report",
    "gpugate.report.pages.night",
    "gpugate.session.perf_run",
    "filelock",
    "pydantic.type_adapter",
    "zoneinfo",
):
    importlib.import_module(_name)
with torch.profiler.profile(acc_events=True):
    pass  # the first profiler imports torch's compiler

ROOT = Path(__file__).parents[2]
# A process that confirms an alarm takes seconds to import torch: only who is about it asks for more than one.
SHORT = ("--perf-budget=0.2", "-operf_processes=1")
# No run has a property test, whose plugin imports hypothesis; and no assertion of the engine needs rewriting.
ADDOPTS = "-p no:hypothesispytest --assert=plain"
CACHES = {
    ".pytest_cache",
    ".benchmarks",
    ".gpugate",
    ".gpugate-cache",
    ".gitignore",
    ".lock",
}  # of pytest, of pytest-benchmark, ours
CONFTEST = """
    from gpugate.judging import machine_state
    from gpugate.catalogue import register_module
    from gpugate.measurement import settings, yardsticks
    from tests.support import work_clock

    work_clock.install()
    settings.BLOCK_MS["cpu"], settings.WARM_UP_S["cpu"] = 4.0, 0.02
    yardsticks.PROBES, yardsticks.CPU_MATMUL, yardsticks.CPU_COPY_BYTES = 1, 64, 2**16
    machine_state.SICK_SHARE.clear()
    register_module("tiny")
"""
TINY = """
import time
from pathlib import Path

import torch

from gpugate.workload import Contract, Limit, Needs, Optimization, Side, Size, Workload
from tests.support.work_clock import clock


def inputs(context, index):
    return torch.randn(32, 32, generator=torch.Generator().manual_seed(context.seed + index))


def sleeping(milliseconds):
    # Another operator than the baseline's: what runs the same ones would have done nothing.
    def step(x):
        clock.sleep(milliseconds / 1e3)
        return x + x

    return Side(step)


def baseline(context):
    def step(x):
        clock.sleep(4 / 1e3)
        return 2 * x

    return Side(step)


{build}

OPTIMIZATIONS = ({optimizations},)
SIZES = {{"cpu": Size(items=32, flops=32.0**2, bytes=8.0 * 32**2), "cuda": Size(items=1, flops=1, bytes=1)}}
WORKLOADS = (Workload("tiny", baseline, inputs, SIZES, OPTIMIZATIONS, cold=False, settings={{"video": "a file"}}),)
"""
QUICK = """
def quick(context):
    return sleeping(float(Path(__file__).with_name("quick_ms").read_text()))
"""
PROMISE = 'Optimization("quick", quick, {"cpu": 0.01, "cuda": 0.01})'


@dataclass(frozen=True)
class Ended:
    """A pytest process that has ended: its exit status and everything that it printed."""

    status: int
    text: str


class TinyProject:
    """The folder, what is written into it, and pytest run there: in this process, or in one of its own."""

    def __init__(self, path: Path, pytester: pytest.Pytester | None = None) -> None:
        self.path = path
        self._pytester = pytester
        self.write("conftest.py", CONFTEST)
        self.write("perf_tests/test_promises.py", (ROOT / "perf_tests/test_promises.py").read_text(encoding="utf-8"))
        self.workload()
        self.quick_ms(1)

    def write(self, name: str, text: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    def workload(self, build: str = QUICK, optimizations: str = PROMISE) -> None:
        """tiny.py with these build functions and optimizations; by default one that promises next to nothing."""
        self.write("tiny.py", TINY.format(build=build, optimizations=optimizations))

    def quick_ms(self, milliseconds: float) -> None:
        """Sets the duration of an optimized step, against 4 ms of the baseline; the workload's source stays."""
        self.write("quick_ms", str(milliseconds))

    def run(self, *options: str) -> Ended:
        """pytest in this process, which saves importing torch."""
        assert self._pytester is not None
        clear_catalogue()
        result = self._pytester.runpytest_inprocess(*_arguments(self.path, options), no_reraise_ctrlc=True)
        return Ended(int(result.ret), f"{result.stdout.str()}\n{result.stderr.str()}")

    @contextmanager
    def start_on(self, terminal: int, *options: str) -> Iterator["subprocess.Popen[bytes]"]:
        """pytest in a process of its own whose output is a pseudo-terminal, until the end of the block."""
        command = [sys.executable, "-m", "pytest", *_arguments(self.path, options)]
        variables = {**os.environ, **environment(self.path)}
        with subprocess.Popen(command, cwd=self.path, env=variables, stdout=terminal, stderr=terminal) as process:
            try:
                yield process
            finally:
                process.kill()

    def begin(self, *options: str) -> Child:
        """pytest in a process of its own, as `run_apart` starts it, from the start to the end of a `with` block."""
        words = _arguments(self.path, options)
        return Child("pytest", words, environment=environment(self.path), folder=self.path)

    def run_apart(self, *options: str) -> Ended:
        """pytest in a process of its own, which begins with torch imported where the tests have warm children."""
        with self.begin(*options) as child:
            return await_end(child)

    def json(self, name: str = "run.json") -> dict[str, Any]:
        made: dict[str, Any] = json.loads((self.path / name).read_text(encoding="utf-8"))
        return made

    def files(self) -> dict[str, bytes]:
        """Every file outside the caches, by its path in the project."""
        paths = {path.relative_to(self.path): path for path in self.path.rglob("*") if path.is_file()}
        return {str(name): path.read_bytes() for name, path in paths.items() if not CACHES & {name.parts[0], name.name}}

    def take_baseline(self, other: "TinyProject") -> bytes:
        """Copies what another project has recorded, as if five processes had, and returns the bytes of the file."""
        shutil.copytree(other.baselines, self.baselines)
        self.pretend_five_processes()
        return self.baseline.read_bytes()

    def pretend_five_processes(self) -> None:
        """Repeats the recorded processes until they are as many as a gate asks for: recording five takes too long."""

        def repeat(document: dict[str, Any]) -> None:
            for entry in document["cases"].values():
                record = entry["record"]
                for of_process in ("processes", "started_at"):
                    record[of_process] = five(record[of_process])
                bills = record["bills"]
                bills["measured"] = five(bills["measured"])
                for side in ("reference", "optimized"):
                    bills[side] = {
                        name: {item: five(values) for item, values in items.items()}
                        for name, items in bills[side].items()
                    }

        def five(values: Any) -> Any:
            return list(islice(cycle(values), 5)) if isinstance(values, list) else values  # one of all processes

        self.edit_baseline(repeat)

    def edit_baseline(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Changes the JSON document of the recorded baseline, without its profiles."""
        document = json.loads(self.baseline.read_text(encoding="utf-8"))
        for entry in document["cases"].values():
            entry.pop("profile", None)
        change(document)
        self.baseline.write_text(json.dumps(document), encoding="utf-8")

    @property
    def baselines(self) -> Path:
        return self.path / "baselines" / machine_name(describe(torch.device("cpu")))

    @property
    def baseline(self) -> Path:
        return self.baselines / "tiny.json"

    def verdict(self, check: str, case: str = "tiny/quick/cpu") -> dict[str, Any]:
        """Returns a verdict of the JSON file."""
        return next(made for made in self.json()["cases"][case]["verdicts"] if made["check"] == check)

    def reasons(self, check: str, case: str = "tiny/quick/cpu") -> dict[str, dict[str, Any]]:
        """The facts of each reason of one verdict in the JSON file, by its code."""
        return {reason["code"]: reason["facts"] for reason in self.verdict(check, case)["reasons"]}

    def outcomes(self, case: str = "tiny/quick/cpu") -> dict[str, str]:
        """Returns the outcome of every check in the JSON file."""
        return {made["check"]: made["outcome"] for made in self.json()["cases"][case]["verdicts"]}


def _arguments(path: Path, options: Sequence[str]) -> list[str]:
    tests = [] if any((path / option).exists() for option in options) else ["perf_tests"]
    given = {option.partition("=")[0] for option in options}
    shortened = [word for word in SHORT if word.partition("=")[0] not in given]
    return ["-p", "gpugate.plugin", *tests, *shortened, *options]


def environment(path: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(path)]),
        "PYTHONDONTWRITEBYTECODE": "1",  # a file that is written twice in a second keeps its old bytecode
        "CUDA_VISIBLE_DEVICES": "",
        "COLUMNS": "140",
        "PYTEST_ADDOPTS": ADDOPTS,  # which pytester takes out of the environment
    }


def await_end(child: Child) -> Ended:
    """Waits for the end of a process; one that does not end is killed and fails the test."""
    found = child.await_end(HANGS_S)
    assert found.status is not None, found.output
    return Ended(found.status, found.output)


def recorded(path: Path) -> TinyProject:
    """A project with a baseline of two processes."""
    project = TinyProject(path)
    made = project.run_apart("--update-baselines", "-operf_processes=2", "--update-baselines=the first")
    assert made.status == 0, made.text
    project.write("said", made.text)
    return project


def clear_catalogue() -> None:
    """Empties the catalogue for the conftest.py files of another project."""
    vars(catalogue).update(vars(Catalogue()))


@contextmanager
def alone_in_the_catalogue() -> Iterator[None]:
    """The catalogue is empty inside, and afterwards as it was."""
    was = dict(vars(catalogue))
    clear_catalogue()
    try:
        yield
    finally:
        vars(catalogue).update(was)


def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the machine's GPUs from runs in this process."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


def _collect_new_garbage() -> None:
    """Collects garbage without the million objects that the tests have imported."""
    gc.collect()
    gc.freeze()


def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores afterwards the changes of the project's conftest.py in this process."""
    monkeypatch.setattr(measure_case, "collect_garbage", _collect_new_garbage)
    for module, name in work_clock.readers():
        monkeypatch.setattr(module, name, getattr(time, name))
    monkeypatch.setattr(work_clock.clock, "computes", True)
    for name in ("SHORTEST_S", "count_periods"):
        monkeypatch.setattr(host_counters, name, getattr(host_counters, name))
    for table in (settings.BLOCK_MS, settings.WARM_UP_S):
        monkeypatch.setitem(table, "cpu", table["cpu"])
    for name in ("PROBES", "CPU_MATMUL", "CPU_COPY_BYTES"):
        monkeypatch.setattr(yardsticks, name, getattr(yardsticks, name))
    monkeypatch.setattr(machine_state, "SICK_SHARE", dict(machine_state.SICK_SHARE))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


def check_no_traceback(text: str) -> None:
    """No frame of the engine is shown; a user's own file may be named."""
    assert "Traceback" not in text
    assert "INTERNALERROR" not in text
    assert re.findall(r"gpugate/[a-z_/]+\.py:?\d*", text) == []


def _state(pid: int) -> tuple[str, int]:
    """Reads the letter of the process's state, and the id of its parent; see proc_pid_stat(5)."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return "X", 0
    return words[0], int(words[1])


def running(pid: int) -> bool:
    """Returns True until the process ends; a process that only waits for its parent has ended."""
    return _state(pid)[0] not in "XZ"


def children(pid: int) -> list[int]:
    """Ids of the direct children that have not ended."""
    every = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [child for child in every if _state(child)[1] == pid and running(child)]
