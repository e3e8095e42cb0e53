"""The questions that children of the doctor answer, one function each. The doctor's own process runs none of them.

A driver may hang, and a library may crash or spoil the CUDA context: only the child is lost then. Answers and errors go
to standard output as one line of JSON. Modules are imported where they are used.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpugate.commands.doctor.children import ANSWER
from gpugate.errors import OptionError
from gpugate.machine.environment import Environment, describe
from gpugate.machine.nvml import foreign_processes, gpu_count
from gpugate.store.codec import to_json

if TYPE_CHECKING:
    import torch

LONGEST_ERROR = 160  # characters
WARM_UP_S, LOADED_S = 0.5, 1.0  # an idle SM clock takes a while to rise
LOAD_MATMUL = 4096
JUST_ENDED_S = 0.5  # after its end, a process may stay in NVML's list for a moment
# A kernel that does nothing. The driver compiles it for the GPU at hand.
PTX = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry gpugate_nothing()\n{\n ret;\n}\n\0"


@dataclass(frozen=True)
class Described:
    """The machine, and the number of GPUs that the driver shows; torch may see fewer."""

    environment: Environment
    driver_gpus: int


@dataclass(frozen=True)
class Gauge:
    """The machine under load. The first three fields are empty on a CPU, or where NVML does not report them."""

    clock_mhz: tuple[int, ...]  # of the SMs, sampled during one second of matmuls
    throttled_by: tuple[str, ...]
    foreign: tuple[int, ...]  # ids of other processes on the GPU
    yardsticks: tuple[Mapping[str, float], ...]  # two probes, one after the other
    throttled: float | None = None  # meanwhile, by a quota of CPU time: a share of its periods


def machine(asked: str) -> Described:
    """Describes the machine for a device `asked`, as `--device` takes it. Raises OptionError for a device that does not
    exist."""
    from gpugate.session.opening import choose_device

    return Described(describe(choose_device(asked)), gpu_count())


def gauge(kind: str) -> Gauge:
    """Measures the machine under load. `kind` is 'cpu', or 'cuda' for the only GPU that this process sees."""
    import torch

    from gpugate.measurement.other_work import OtherWork
    from gpugate.measurement.yardsticks import probe

    device = torch.device("cpu") if kind == "cpu" else torch.device("cuda", 0)
    clock_mhz, throttled_by, foreign = ([], (), ()) if kind == "cpu" else _gpu_under_load(device)
    with (work := OtherWork()).measure():
        probes = (probe(device, "before").values, probe(device, "after").values)
    return Gauge(tuple(clock_mhz), tuple(throttled_by), tuple(foreign), probes, work.throttled)


def workloads(folder: str) -> list[str]:
    """Returns the names of the workloads that pytest finds in the folder, or in its `perf_tests`; no test is collected.

    Raises CatalogueError for a workload that cannot be measured, and RuntimeError where pytest ends earlier.
    """
    import pytest

    from gpugate.commands.doctor.known_workloads import KnownWorkloads

    words = ["-p", "gpugate.plugin", "-p", "no:cacheprovider", "-q"]
    if find_spec("pytest_benchmark"):  # the plugin would create a folder for its storage
        words += ["--benchmark-storage", f"file://{Path.cwd()}"]
    os.chdir(folder)
    sys.dont_write_bytecode = True
    known = KnownWorkloads()
    status = pytest.main([*(["perf_tests"] if Path("perf_tests").is_dir() else []), *words], plugins=[known])
    return known.names(status)


def package(name: str) -> str:
    """Imports the package and returns its version, or an empty text where the package has none."""
    module = import_module(name)
    version = getattr(module, "__version__", None)
    if version is not None:
        return str(version)
    distributions = importlib.metadata.packages_distributions().get(name, [])
    return importlib.metadata.version(distributions[0]) if distributions else ""


def cupti() -> int:  # cuda only
    """Counts the kernels that torch's profiler records for one addition on the GPU. It profiles twice, as the engine
    does."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    value = torch.ones(256, device="cuda")
    for _ in range(2):
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
            value.add_(1)
            torch.cuda.synchronize()
        kernels = sum(bool(event.device_type.name == "CUDA") for event in profiler.events())
        if kernels:
            return kernels
    return 0


def kernel() -> str:  # cuda only
    """Launches an empty kernel by the driver's own API: the program stays short enough for a profiler."""
    cuda = ctypes.CDLL("libcuda.so.1")
    device = ctypes.c_int()
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    none = ctypes.c_void_p()
    shape = [ctypes.c_uint(size) for size in (1, 1, 1, 32, 1, 1, 0)]  # grid, block, shared bytes
    calls: list[tuple[str, list[Any]]] = [
        ("cuInit", [0]),
        ("cuDeviceGet", [ctypes.byref(device), 0]),
        ("cuDevicePrimaryCtxRetain", [ctypes.byref(context), device]),
        ("cuCtxSetCurrent", [context]),
        ("cuModuleLoadData", [ctypes.byref(module), ctypes.c_char_p(PTX)]),
        ("cuModuleGetFunction", [ctypes.byref(function), module, b"gpugate_nothing"]),
        ("cuLaunchKernel", [function, *shape, none, none, none]),
        ("cuCtxSynchronize", []),
    ]
    for name, arguments in calls:
        status = getattr(cuda, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} returned CUDA error {status}")
    return "launched"


def _gpu_under_load(device: torch.device) -> tuple[list[int], list[str], list[int]]:  # cuda only
    """Reads SM clocks and throttle reasons during a second of matmuls, and the ids of other processes on the GPU."""
    import torch

    from gpugate.measurement.gpu_clock import clock_reader

    torch.cuda.set_device(device)
    left, right = torch.randn(2, LOAD_MATMUL, LOAD_MATMUL, device=device, dtype=torch.bfloat16)
    read, readings = clock_reader(device), []
    began = time.perf_counter()
    while (elapsed := time.perf_counter() - began) < WARM_UP_S + LOADED_S:
        for _ in range(20):
            torch.mm(left, right)
        reading = read()  # while the matmuls run
        torch.cuda.synchronize(device)
        if elapsed >= WARM_UP_S:
            readings.append(reading)
    clocks = [reading.sm_clock_mhz for reading in readings if reading.sm_clock_mhz is not None]
    foreign = foreign_processes(0)
    if foreign:
        time.sleep(JUST_ENDED_S)
        foreign = foreign_processes(0)
    return clocks, sorted({reason for reading in readings for reason in reading.throttled_by}), foreign


QUESTIONS: Mapping[str, Callable[..., Any]] = {
    function.__name__: function for function in (machine, gauge, workloads, package, cupti, kernel)
}


def main(words: Sequence[str]) -> None:
    """Prints the answer and ends at once, so that no library can crash or hang the child while Python shuts down."""
    print(f"\n{ANSWER}{json.dumps(answer(*words))}", flush=True)
    sys.stderr.flush()
    os._exit(0)


def answer(question: str, *arguments: str) -> dict[str, Any]:
    """Returns `value` with the question's result, `refused` for an invalid option, or `error` in one line."""
    try:
        return {"value": to_json(QUESTIONS[question](*arguments))}
    except OptionError as error:
        return {"refused": str(error)}
    except BaseException as error:  # also SystemExit of a package that is imported
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:LONGEST_ERROR]}
