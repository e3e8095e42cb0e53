"""Descriptions of made-up machines: NVML is a stand-in, /proc/cpuinfo a file of the test."""

import importlib.metadata
import os
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpugate.machine import cores, environment
from gpugate.machine.environment import Environment, Match, Missing, compare, machine_name, missing_needs
from gpugate.machine.nvml import foreign_processes, list_visible_gpus, read_near_cores
from gpugate.workload import Engine, Needs

H200 = Environment(
    device_kind="cuda",
    device_name="NVIDIA H200",
    cpu_model="AMD EPYC 9654",
    cpu_count=16,
    python="3.12.3",
    packages={"torch": "2.11.0", "numpy": "2.4.0"},
    gpu_index=0,
    compute_capability="9.0",
    driver="580.1",
    cuda="13.0",
    mig=False,
    ecc=True,
    power_limit_w=700.0,
)
CPU = Environment("cpu", "AMD EPYC", "AMD EPYC", 2, "3.12.3")


class FakeNvml:
    """Answers like pynvml; what is not listed raises NVMLError, as on a machine that does not tell."""

    class NVMLError(Exception):
        pass

    def __init__(self, uuids: list[str], **answers: Any) -> None:
        self.uuids = uuids
        self.answers = answers
        self.open = 0
        self.asked: list[object] = []  # handles, in turn

    def nvmlInit(self) -> None:  # noqa: N802
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        if index >= len(self.uuids):
            raise self.NVMLError("Invalid Argument")
        return self.uuids[index]

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return handle

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid not in self.uuids:
            raise self.NVMLError("Not Found")
        return uuid

    def __getattr__(self, name: str) -> Any:
        def query(*handle: object) -> Any:
            self.asked += handle
            if name not in self.answers:
                raise self.NVMLError("Not Supported")
            return self.answers[name]

        return query


@pytest.fixture
def use_nvml(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(uuids: list[str], **answers: Any) -> FakeNvml:
        nvml = FakeNvml(uuids, **answers)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)  # type: ignore[arg-type]
        properties = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, L2_cache_size=60 * 2**20, uuid="b")
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
        return nvml

    return use


def test_this_cpu_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    here = environment.describe(torch.device("cpu"), [Needs(packages=("typing_extensions", "no_such_a"))])
    assert here.device_kind == "cpu"
    assert here.device_name == here.cpu_model != ""
    assert here.cpu_count == len(os.sched_getaffinity(0))
    assert here.packages["torch"] == torch.__version__.partition("+")[0]
    assert here.packages["typing-extensions"] == importlib.metadata.version("typing_extensions")
    assert not {"cvcuda", "no-such-a"} & here.packages.keys()
    assert (here.gpu_index, here.driver, here.cuda, here.mig) == (None, None, None, None)
    assert compare(here, environment.describe(torch.device("cpu"))) == Match("exact")


# A list has a number for each level of nesting; what is no number is for nobody.
@pytest.mark.parametrize(
    ("threads", "count", "quota"),
    [("1,2", 1, None), (" 3", 3, 1.5), ("64", 4, 1.5), ("0", 4, 1.5), ("", 4, 1.5), ("many", 4, 1.5)],
)
def test_a_cpu_with_fewer_threads_is_a_smaller_one_with_a_quota_below_them(
    threads: str, count: int, quota: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(4))
    monkeypatch.setattr(cores, "_read_quotas", lambda: {Path("job"): 1.5})
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    here = environment.describe(torch.device("cpu"))
    assert (here.cpu_count, here.cpu_quota) == (count, quota)


def test_a_gpu_is_found_by_its_uuid_and_described(use_nvml: Any) -> None:
    nvml = use_nvml(
        ["GPU-a", "GPU-b"],
        nvmlSystemGetDriverVersion="580.1",
        nvmlDeviceGetMigMode=[0, 1],
        nvmlDeviceGetEccMode=[1, 0],
        nvmlDeviceGetEnforcedPowerLimit=700_000,
    )
    here = environment.describe(torch.device("cuda", 0))
    assert (here.device_kind, here.device_name, here.gpu_index) == ("cuda", "NVIDIA H200", 0)
    assert (here.compute_capability, here.l2_bytes) == ("9.0", 60 * 2**20)
    assert (here.driver, here.mig, here.ecc, here.power_limit_w) == ("580.1", False, True, 700.0)
    assert set(nvml.asked) == {"GPU-b"}
    assert nvml.open == 0


def test_a_gpu_that_tells_nothing_has_none_not_false(use_nvml: Any) -> None:
    use_nvml([])
    here = environment.describe(torch.device("cuda", 0))
    assert (here.driver, here.mig, here.ecc, here.power_limit_w) == (None, None, None, None)


@pytest.mark.parametrize(
    ("machine", "classes"),
    [
        (H200, ("nvidia-h200", "sm_90", "cuda")),
        (replace(H200, device_name="NVIDIA H100 80GB HBM3"), ("nvidia-h100-80gb-hbm3", "sm_90", "cuda")),
        (replace(H200, mig=True), ("nvidia-h200-mig", "sm_90", "cuda")),
        (CPU, ("cpu",)),
    ],
)
def test_a_gpu_is_of_its_product_its_architecture_and_cuda(machine: Environment, classes: tuple[str, ...]) -> None:
    assert machine.device_classes == classes


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        (H200, "nvidia-h200"),
        (replace(H200, mig=None), "nvidia-h200"),
        (replace(H200, mig=True), "nvidia-h200-mig"),
        (replace(H200, mig=True, device_name="NVIDIA H200 MIG 1g.18gb"), "nvidia-h200-mig-1g-18gb"),
        (CPU, "cpu-amd-epyc-2-cores"),
        (replace(CPU, cpu_model="Intel(R) Xeon(R) CPU @ 2.20GHz"), "cpu-intel-xeon-cpu-2-20ghz-2-cores"),
        (replace(CPU, cpu_model="../.. / "), "cpu-unknown-2-cores"),
        (replace(H200, device_name="../.git\0hooks\\x"), "git-hooks-x"),
        (replace(H200, device_name=300 * "n"), 200 * "n"),
        (replace(CPU, cpu_quota=0.5), "cpu-amd-epyc-0-5-of-2-cores"),
        (replace(H200, cpu_quota=0.5), "nvidia-h200"),
    ],
)
def test_the_machine_is_a_safe_folder_name(machine: Environment, name: str) -> None:
    assert machine_name(machine) == name


@pytest.mark.parametrize(
    ("machine", "change", "match"),
    [
        (H200, {}, Match("exact")),
        (H200, {"gpu_index": 3}, Match("exact")),
        (H200, {"driver": "590.2"}, Match("same device", ("driver 580.1 -> 590.2",))),
        (H200, {"ecc": None}, Match("same device", ("ecc True -> unknown",))),
        (H200, {"cpu_count": 8}, Match("same device", ("cpu count 16 -> 8",))),
        (H200, {"cpu_quota": 0.5}, Match("same device", ("cpu quota none -> 0.5",))),
        (H200, {"packages": {"torch": "2.12.0", "triton": "3.6"}}, Match("same device", ("torch 2.11.0 -> 2.12.0",))),
        (H200, {"packages": {"torch": "2.11.0", "triton": "3.6"}}, Match("exact")),
        (H200, {"mig": True}, Match("foreign", ("mig False -> True",))),
        (H200, {"device_name": "NVIDIA H100"}, Match("foreign", ("device name NVIDIA H200 -> NVIDIA H100",))),
        (CPU, {"cpu_count": 4}, Match("foreign", ("cpu count 2 -> 4",))),
        (CPU, {"cpu_quota": 0.5}, Match("foreign", ("cpu quota none -> 0.5",))),
        (CPU, {"python": "3.13.0"}, Match("same device", ("python 3.12.3 -> 3.13.0",))),
    ],
)
def test_two_environments_compare(machine: Environment, change: dict[str, Any], match: Match) -> None:
    assert compare(machine, replace(machine, **change)) == match


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["GPU-a0", "GPU-bb", "GPU-bc"]),
        ("", []),
        ("-1", []),
        ("2, 0", ["2", "0"]),
        ("0,7,1", ["0"]),
        ("1,1", ["1"]),
        ("GPU-a,2", ["GPU-a0", "2"]),
        ("GPU-bb,none,1", ["GPU-bb"]),
        ("0,GPU-a,1", ["0"]),
        ("GPU-bc,GPU-b,0", ["GPU-bc"]),
        ("MIG-1,MIG-2,MIG-1", ["MIG-1", "MIG-2"]),
    ],
)
def test_each_gpu_that_cuda_would_show_has_a_name_for_a_process_of_its_own(
    use_nvml: Any, monkeypatch: pytest.MonkeyPatch, visible: str | None, names: list[str]
) -> None:
    use_nvml(["GPU-a0", "GPU-bb", "GPU-bc"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert list_visible_gpus() == names


def test_the_cores_near_a_gpu_come_from_its_mask(use_nvml: Any) -> None:
    use_nvml(["GPU-a", "GPU-b"], nvmlDeviceGetCpuAffinity=[0b1010, 1])
    assert read_near_cores("GPU-b") == read_near_cores("1") == {1, 3, 64}
    assert read_near_cores("GPU-c") == frozenset()


def test_no_driver_means_no_gpu(use_nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = use_nvml(["GPU-b"], nvmlDeviceGetComputeRunningProcesses=[SimpleNamespace(pid=1)])

    def fail() -> None:
        raise nvml.NVMLError("Driver Not Loaded")

    monkeypatch.setattr(nvml, "nvmlInit", fail)
    assert list_visible_gpus() == []
    assert foreign_processes(0) == []


UNSEEN = 4_194_305  # above the largest process id of Linux, so nobody here has it


@pytest.mark.parametrize(
    ("listed", "foreign"),
    [
        ([], []),
        ([os.getpid()], []),
        ([os.getpid(), os.getppid()], [os.getppid()]),
        ([os.getpid(), 0], [0]),
        ([os.getpid(), UNSEEN], [UNSEEN]),
        ([0], []),
        ([UNSEEN], []),
        ([UNSEEN, UNSEEN + 1], [UNSEEN + 1]),
        ([os.getppid()], [os.getppid()]),
        ([os.getppid(), 0], [os.getppid()]),
    ],
)
def test_at_most_one_unknown_process_is_this_one(use_nvml: Any, listed: list[int], foreign: list[int]) -> None:
    use_nvml(["GPU-b"], nvmlDeviceGetComputeRunningProcesses=[SimpleNamespace(pid=pid) for pid in listed])
    assert foreign_processes(0) == foreign


@pytest.fixture
def cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nmodel name\t: EPYC\nflags\t\t: fpu avx2 avx512f\n")
    monkeypatch.setattr(environment, "CPUINFO", path)
    monkeypatch.delenv("CXX", raising=False)


@pytest.mark.usefixtures("cpuinfo")
@pytest.mark.parametrize(
    ("needs", "machine", "missing"),
    [
        (Needs(), H200, None),
        (Needs(packages=("torch", "json"), compute_capability=(9, 0), cpu_flags=("amx_tile",)), H200, None),
        (Needs(cpu_flags=("avx2", "avx512f"), compute_capability=(9, 0)), CPU, None),
        (
            Needs(packages=("no_such_a", "no_such_b"), install="pip install a-and-b"),
            CPU,
            Missing(("no_such_a", "no_such_b"), "needs the package no_such_a: pip install a-and-b"),
        ),
        (
            Needs(packages=("json.no.such",)),
            CPU,
            Missing(("json.no.such",), "needs the package json.no.such: install json.no.such"),
        ),
        (
            Needs(compute_capability=(10, 0)),
            H200,
            Missing(
                ("compute-capability",),
                "needs compute capability 10.0 and this GPU has 9.0: run it on a newer GPU",
            ),
        ),
        (
            Needs(cpu_flags=("avx2", "amx_tile")),
            CPU,
            Missing(
                ("amx_tile",), "needs the CPU flag amx_tile, which this CPU does not have: run it on one that has it"
            ),
        ),
    ],
)
def test_the_first_thing_that_is_missing_is_named(needs: Needs, machine: Environment, missing: Missing | None) -> None:
    assert missing_needs(needs, machine) == missing


def test_gpus_are_counted_for_a_case_that_spans_them(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = Needs(gpus=2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    missing = Missing(("gpus",), "needs 2 GPUs and torch sees 1: run it on a machine with more")
    assert missing_needs(needs, H200) == missing
    assert missing_needs(needs, CPU) is None
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert missing_needs(needs, H200) is None


def test_an_engine_is_looked_for_on_a_gpu_once_all_else_is_there() -> None:
    asked: list[int] = []

    def why_not(gpu: int) -> str | None:
        asked.append(gpu)
        return f"GPU {gpu} has no video encoder: take another GPU" if gpu else None

    needs = Needs(packages=("json",), engine=Engine("nvenc", why_not))
    assert missing_needs(needs, replace(H200, gpu_index=0)) is None
    missing = Missing(("nvenc",), "GPU 3 has no video encoder: take another GPU")
    assert missing_needs(needs, replace(H200, gpu_index=3)) == missing
    assert missing_needs(needs, CPU) is None
    assert missing_needs(replace(needs, packages=("no_such_a",)), H200) == Missing(
        ("no_such_a",), "needs the package no_such_a: install no_such_a"
    )
    assert asked == [0, 3]


@pytest.mark.usefixtures("cpuinfo")
def test_a_compiler_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = Needs(cpp_compiler=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing_needs(needs, CPU) == Missing(("c++",), "needs a C++ compiler: install g++")
    (tmp_path / "clang++").touch(mode=0o755)
    assert missing_needs(needs, CPU) is None
    monkeypatch.setenv("CXX", "clang++ -O2")
    assert missing_needs(needs, CPU) is None
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    without_headers = Missing(("c++",), "needs a C++ compiler: Python.h is missing: install python3-dev")
    assert missing_needs(needs, CPU) == without_headers
    monkeypatch.setenv("CXX", "icpx")
    missing = missing_needs(needs, CPU)
    assert missing is not None
    assert missing.reason == "needs a C++ compiler: CXX names 'icpx', which is not there, so correct or unset it"


def test_torch_tensorrt_without_tensorrt_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "torch_tensorrt.py").touch()
    (tmp_path / "tensorrt").mkdir()  # what an uninstalled package leaves behind imports as a namespace
    needs = Needs(packages=("torch_tensorrt",), install="pip install 'gpugate[torch-tensorrt]'")
    missing = missing_needs(needs, H200)
    assert missing == Missing(("tensorrt",), "needs the package tensorrt: pip install 'gpugate[torch-tensorrt]'")
    (tmp_path / "tensorrt" / "__init__.py").touch()
    assert missing_needs(needs, H200) is None
    assert not {"torch_tensorrt", "tensorrt"} & set(sys.modules)


@pytest.mark.parametrize(
    ("names", "allowed", "enough"),
    [
        (("tensorrt",), {"tensorrt"}, True),
        (("torch_tensorrt",), {"tensorrt"}, True),
        (("torch_tensorrt",), {"cvcuda"}, False),
        (("tensorrt",), set(), False),
        (("c++", "torch_tensorrt"), {"c++"}, False),
        (("c++", "torch_tensorrt"), {"c++", "torch_tensorrt", "cuda"}, True),
    ],
)
def test_everything_that_is_missing_must_be_allowed(names: tuple[str, ...], allowed: set[str], enough: bool) -> None:
    assert Missing(names, "").allowed_by(allowed) is enough
