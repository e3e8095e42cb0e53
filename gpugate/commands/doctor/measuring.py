"""The doctor's child: measures this machine, and sends the facts so far after each step.

A driver may hang, and a library may crash: only this process is lost then, and its last message has what is known.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpugate.errors import OptionError
from gpugate.machine import children
from gpugate.machine.environment import Environment, describe
from gpugate.machine.nvml import foreign_processes, gpu_count
from gpugate.store.codec import to_json

if TYPE_CHECKING:
    import torch

LONGEST_ERROR = 160  # characters
WARM_UP_S, LOADED_S = 0.5, 1.0  # an idle SM clock takes a while to rise
LOAD_MATMUL = 4096


@dataclass(frozen=True)
class Facts:
    """The machine as it was measured so far. Empty on a CPU, and where NVML does not report it: `clock_mhz`,
    `throttled_by`, `foreign`."""

    load: float  # the load average of the minute before
    cores: int  # of the whole machine, as `load` is
    environment: Environment | None = None
    driver_gpus: int = 0  # that the driver shows; torch may see fewer
    clock_mhz: tuple[int, ...] = ()  # of the SMs, sampled during one second of matmuls
    throttled_by: tuple[str, ...] = ()
    foreign: tuple[int, ...] = ()  # ids of other processes on the GPU
    yardsticks: tuple[Mapping[str, float], ...] = ()  # two probes, one after the other
    quota_throttled: float | None = None  # the share of the periods of a quota of CPU time, meanwhile
    kernels: int | None = None  # that torch's profiler saw
    refused: str | None = None  # the sentence about a device that does not exist
    error: str | None = None  # of the step after the last one that is known, in one line


def measure(asked: str) -> Iterator[Facts]:
    """Yields all facts so far after each step, for a device `asked` as `--device` takes it."""
    facts = Facts(os.getloadavg()[0], os.cpu_count() or 1)
    try:
        from gpugate.measurement.other_work import OtherWork
        from gpugate.measurement.yardsticks import probe
        from gpugate.session.opening import choose_device

        device = choose_device(asked)
        yield (facts := replace(facts, environment=describe(device), driver_gpus=gpu_count()))
        if device.type == "cuda":
            yield (facts := _load_gpu(device, facts))
        with (work := OtherWork()).measure():
            yardsticks = (probe(device, "before").values, probe(device, "after").values)
        yield (facts := replace(facts, yardsticks=yardsticks, quota_throttled=work.throttled))
        if device.type == "cuda":
            yield replace(facts, kernels=_count_kernels(device))
    except OptionError as error:
        yield replace(facts, refused=str(error))
    except Exception as error:
        yield replace(facts, error=f"{type(error).__name__}: {' '.join(str(error).split())}"[:LONGEST_ERROR])


def _load_gpu(device: torch.device, facts: Facts) -> Facts:  # cuda only
    """Adds SM clocks and throttle reasons during a second of matmuls, and the ids of other processes on the GPU."""
    import torch

    from gpugate.measurement.gpu_clock import clock_reader

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
    return replace(
        facts,
        clock_mhz=tuple(reading.sm_clock_mhz for reading in readings if reading.sm_clock_mhz is not None),
        throttled_by=tuple(sorted({reason for reading in readings for reason in reading.throttled_by})),
        foreign=tuple(foreign_processes(device.index or 0)),
    )


def _count_kernels(device: torch.device) -> int:  # cuda only
    """Counts the kernels of a few additions by the profiler that counts those of a gate."""
    import torch

    from gpugate.machine.torch_profiler import profiled_events, run_profiler
    from gpugate.measurement.counters import FLUSH_STEPS

    value = torch.ones(256, device=device)
    with run_profiler(device) as profiler:
        for _ in range(FLUSH_STEPS + 1):
            value.add_(1)
            torch.cuda.synchronize(device)
    return sum(event.get("cat") == "kernel" for event in profiled_events(profiler))


if __name__ == "__main__":
    for facts in measure(children.task):
        children.parent.send(to_json(facts))
    os._exit(0)  # a library may crash or hang while Python shuts down
