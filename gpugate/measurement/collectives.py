"""The collectives of a step that spans ranks: their number, bytes and order, and the rank for which others wait.

PyTorch's profiler counts them: each backend reports a collective, with the form of its input, from its start to its
end. The counts are those of rank 0. The bytes of a collective are those of the larger one of a rank's input and output:
the output of an all-gather, the input of a reduce-scatter. They do not depend on the number of ranks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import record_function

from gpugate.machine.torch_profiler import detach, profiled_events, run_profiler
from gpugate.measurement.device_timer import timer_for
from gpugate.measurement.ranks import RankJob
from gpugate.measurement.sides import BuiltSide, blame, synchronize
from gpugate.measurement.trace import COMMUNICATION, Event, length, union

COUNTED_STEPS, FLUSH_STEPS, ALONE = 5, 2, 10
FOUND = ("collectives", "all_reduces", "early_collectives", "collective_bytes", "communication_ms", "steps_ms")
STEP = "gpugate: step of all ranks"
_CALL = re.compile(r"c10d::(?!barrier|monitored_barrier)")
_TRANSFER = re.compile(r"(gloo|nccl):(?!barrier)")
_NODE = re.compile(r"autograd::engine::evaluate_function: (?!torch::autograd::AccumulateGrad)")
_BYTES = {"float": 4, "c10::BFloat16": 2, "c10::Half": 2, "int": 4, "Float": 4, "BFloat16": 2, "Half": 2, "Int": 4}


def count_collectives(side: BuiltSide, job: RankJob, inputs: Sequence[Any]) -> dict[str, float]:
    """Counts the collectives of a few steps, by the names of `counter_names`, all ranks under the profiler."""
    side.flags.apply()
    with blame(side.name, "having its collectives counted"):
        side.run_steps(inputs, FLUSH_STEPS)
        with job.watch() as others, watch_collectives(side.device, job.count) as own:
            for number in range(COUNTED_STEPS + 1):
                with whole_step(side.device):
                    side.side.step(inputs[number % len(inputs)])
        side.side.finish()
        synchronize(side.device)
    waits_ms = [own["communication_ms"], *(one["communication_ms"] for one in others)]
    lag_ms = max(waits_ms) - min(waits_ms)
    counted = {name: own[name] / COUNTED_STEPS for name in ("collectives", "collective_bytes", "early_collectives")}
    found = {"ranks": float(job.count), **counted, "rank_lag": lag_ms / max(own["steps_ms"], 1e-6)}
    if side.device.type != "cuda" or not own["collectives"] or own["all_reduces"] < own["collectives"]:
        return found
    byte_count = int(own["collective_bytes"] / own["collectives"])  # cuda only
    job.announce("all_reduce_alone", byte_count=byte_count)  # cuda only
    alone_ms = all_reduce_alone_ms(side.device, byte_count)  # cuda only
    # The rank for which the others wait shows how long a transfer takes without a wait.
    return {**found, "collective_bus_share": own["collectives"] * alone_ms / max(min(waits_ms), 1e-6)}  # cuda only


def all_reduce_alone_ms(device: torch.device, byte_count: int) -> float:
    """Measures an all-reduce by itself, the yardstick of this minute: the best of several, which all ranks run."""
    values, timer = torch.zeros(max(1, byte_count // 4), device=device), timer_for(device, "device")
    dist.all_reduce(values)
    return min(timer.time_ms(lambda: dist.all_reduce(values)) for _ in range(ALONE))


@contextmanager
def whole_step(device: torch.device) -> Iterator[None]:
    """Marks a step, with all that it enqueues, in the profile."""
    with record_function(STEP):
        yield
        synchronize(device)


@contextmanager
def watch_collectives(device: torch.device, ranks: int) -> Iterator[dict[str, float]]:
    """Runs the profiler inside; afterwards the dictionary has counts and times of all that ran."""
    found: dict[str, float] = {}
    with run_profiler(device, record_shapes=True) as profiler:
        yield found
        synchronize(device)
    found.update(read_collectives(profiled_events(profiler), ranks))
    detach(device)


def read_collectives(events: Sequence[Event], ranks: int) -> dict[str, float]:
    """Sums over all marked steps of a trace but the last: a transfer reports its end in a thread of its own, and after
    the last step perhaps too late for the profiler.

    `early_collectives` are called before the backward pass computes the last gradient of their step: when a collective
    runs depends on chance, and its place among the calls of a step does not.
    """
    # The marks of the host: a GPU has each mark a second time, in its own line of the trace.
    marks = (event for event in events if event.get("name") == STEP and event.get("cat") == "user_annotation")
    steps = sorted(marks, key=lambda event: float(event["ts"]))[:-1]
    found = dict.fromkeys(FOUND, 0.0)
    for step in steps:
        inside = [one for one in events if one.get("ph") == "X" and 0 <= one["ts"] - step["ts"] <= step["dur"]]
        calls = [one for one in inside if one.get("cat") == "cpu_op" and _CALL.match(one["name"])]
        transfers = [one for one in inside if one.get("cat") == "user_annotation" and _TRANSFER.match(one["name"])]
        # Kernels of NCCL are what runs; its ranges on the host end when the collective is enqueued.
        kernels = [one for one in inside if one.get("cat") == "kernel" and COMMUNICATION.search(one["name"])]
        last = max((one["ts"] for one in inside if _NODE.match(one["name"])), default=0.0)
        found["collectives"] += len(calls)
        found["all_reduces"] += sum("allreduce" in call["name"] for call in calls)
        found["early_collectives"] += sum(call["ts"] < last for call in calls)
        found["collective_bytes"] += _bytes_of_nccl(inside) or sum(_bytes(one, ranks) for one in transfers)
        found["communication_ms"] += length(union(kernels or transfers)) / 1e3
        found["steps_ms"] += step["dur"] / 1e3
    return found


def _bytes_of_nccl(events: Sequence[Event]) -> int:
    """The bytes of the messages of all collectives, by the events that NCCL's backend adds; 0 for another backend."""
    found = [event.get("args", {}) for event in events if event.get("name") == "record_param_comms"]
    return sum(
        max(int(one["In msg nelems"]), int(one.get("Out msg nelems", 0))) * _BYTES.get(one.get("dtype"), 0)
        for one in found
        if "In msg nelems" in one
    )


def _bytes(event: Event, ranks: int) -> int:
    """The bytes of the message of one collective of gloo, which reports its input alone."""
    arguments: Mapping[str, Any] = event.get("args", {})
    forms, kinds = arguments.get("Input Dims", []), arguments.get("Input type", [])
    own: int = sum(math.prod(form) * _BYTES[kind] for form, kind in zip(forms, kinds, strict=True) if kind in _BYTES)
    return own * ranks if "all_gather" in event["name"] else own
