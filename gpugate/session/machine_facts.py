"""The facts about this machine that `gpugate doctor` judges, measured in a process of their own.

A driver may hang, and a library may crash: only this process is lost then. It sends the facts, or one sentence about a
device that does not exist.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpugate.errors import OptionError
from gpugate.machine import children
from gpugate.machine.cores import find_usable_cores
from gpugate.machine.environment import Environment, describe
from gpugate.machine.nvml import foreign_processes, list_visible_gpus
from gpugate.measurement.record import Yardstick
from gpugate.store.codec import to_json

if TYPE_CHECKING:
    import torch

WARM_UP_S, LOADED_S = 0.5, 1.0  # an idle SM clock takes a while to rise
LOAD_MATMUL = 4096


@dataclass(frozen=True)
class Facts:
    """The machine as the child measured it. Empty on a CPU, and where NVML does not report it: `clock_mhz`,
    `throttled_by`, `foreign`."""

    environment: Environment
    load: float  # the cores that other processes kept busy meanwhile
    cores: int  # that this process may use
    driver_gpus: int  # the GPUs or MIG slices that the driver shows; torch may see fewer
    yardsticks: tuple[Yardstick, ...]  # two probes, one after the other
    quota_throttled: float | None = None  # the share of the periods of a quota of CPU time, meanwhile
    clock_mhz: tuple[int, ...] = ()  # of the SMs, sampled during one second of matmuls
    throttled_by: tuple[str, ...] = ()
    foreign: tuple[int, ...] = ()  # ids of other processes on the GPU


def measure(asked: str) -> Facts:
    """Measures the machine for a device `asked`, as `--device` takes it. Raises OptionError where it does not exist."""
    from gpugate.measurement.host_counters import OtherWork
    from gpugate.measurement.yardsticks import probe
    from gpugate.session.perf_session import choose_device

    device = choose_device(asked)
    environment, driver_gpus = describe(device), len(list_visible_gpus())
    with (work := OtherWork()).measure():
        loaded = _load_gpu(device) if device.type == "cuda" else {}
        yardsticks = probe(device), probe(device)
    load, cores = work.cores or 0.0, len(find_usable_cores())
    return Facts(environment, load, cores, driver_gpus, yardsticks, work.throttled, **loaded)


def _load_gpu(device: torch.device) -> dict[str, Any]:  # cuda only
    """Reads SM clocks and throttle reasons during a second of matmuls, and the ids of other processes on the GPU."""
    import torch

    from gpugate.measurement.device_timer import clock_reader

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
    return {
        "clock_mhz": tuple(reading.sm_clock_mhz for reading in readings if reading.sm_clock_mhz is not None),
        "throttled_by": tuple(sorted({reason for reading in readings for reason in reading.throttled_by})),
        "foreign": tuple(foreign_processes(device.index or 0)),
    }


if __name__ == "__main__":
    try:
        children.parent.send(to_json(measure(children.task)))
    except OptionError as problem:
        children.parent.send(str(problem))
    os._exit(0)  # a library may crash or hang while Python shuts down
