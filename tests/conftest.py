"""Shared by all tests: pytester, a cache, two machines, and two made-up sessions for the reports."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpugate.machine.environment import Environment
from gpugate.results.run import RunResult
from gpugate.store import run_file

if TYPE_CHECKING:
    from tests.support.tiny_project import TinyProject
    from tests.support.warm_python import WarmPython

pytest_plugins = ["pytester"]
# A shell starts its background jobs with Ctrl-C ignored, and nohup ignores SIGHUP; every child here would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# In a worker of pytest-xdist, the sessions that tests begin are none of its own: pytest-benchmark would be off in them.
# Below `git bisect run` or a hook, git's variables name this repository, which the `git init` of a test would change.
for _name in [name for name in os.environ if name.startswith(("PYTEST_XDIST_", "GIT_"))]:
    del os.environ[_name]
# Inductor asks a process of its own, which imports torch, about each vector instruction set of the CPU: 20 s a process.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
# Of a test's run nothing is remembered, unless the test is about the store.
os.environ["GPUGATE_STORE"] = "off"
# Where pytest sees a CI, its summary repeats whole messages; what the tests read is what a person at a terminal reads.
for _name in ("CI", "BUILD_NUMBER"):
    os.environ.pop(_name, None)

H200 = Environment(
    device_kind="cuda",
    device_name="NVIDIA H200",
    cpu_model="AMD EPYC 9654 96-Core Processor",
    cpu_count=16,
    python="3.12.3",
    packages={"torch": "2.11.0+cu130", "torchvision": "0.26.0", "gpugate": "0.1.0"},
    gpu_index=0,
    compute_capability="9.0",
    driver="580.65.06",
    cuda="13.0",
    cudnn="9.19.0",
)
TWO_CORES = Environment("cpu", "Intel Xeon 8481C", "Intel Xeon 8481C", 2, "3.11.7", {"torch": "2.11.0+cpu"})
GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def gpu_run() -> RunResult:
    """An H200 session with one of everything: PASS, IMPROVED, NO_BASELINE twice, REGRESSED, two skips, one error."""
    return run_file.read(GOLDEN / "gpu.json")


@pytest.fixture
def cpu_run() -> RunResult:
    """A session on two cores: no counters, and nothing judged in one of its two cases."""
    return run_file.read(GOLDEN / "cpu.json")


@pytest.fixture
def tiny(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, warm_children: None) -> Iterator[TinyProject]:
    """A user's project with one small workload. Runs in this process leave the catalogue as they found it."""
    from tests.support import tiny_project

    with tiny_project.alone_in_the_catalogue():
        tiny_project.without_gpu(monkeypatch)
        tiny_project.kept(monkeypatch)
        for name, value in tiny_project.environment(pytester.path).items():
            monkeypatch.setenv(name, value)
        yield tiny_project.TinyProject(pytester.path, pytester)


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of one module: what workloads make once, such as clips and fitted weights, stays for its next tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module", autouse=True)
def quick_to_collect() -> None:
    """Leaves what was imported out of every collection of garbage; the engine collects after every build."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def recorded_project(tmp_path_factory: pytest.TempPathFactory, warm_python: WarmPython) -> TinyProject:
    """A project whose baseline two fresh processes have recorded, once for all tests: copy from it, change nothing."""
    from tests.support import tiny_project

    with pytest.MonkeyPatch.context() as patch:
        warm_python.start_children(patch)
        return tiny_project.recorded(tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    from tests.support.warm_python import WarmPython

    warm = WarmPython()
    yield warm
    warm.close()


@pytest.fixture
def warm_children(warm_python: WarmPython, monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules that the engine runs in children begin with torch imported."""
    warm_python.start_children(monkeypatch)
