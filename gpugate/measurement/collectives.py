"""The collectives of a step that spans ranks: their number, bytes and order, and the rank for which others wait.

PyTorch's profiler counts them: each backend reports a collective, with the form of its input, from its start to its
end. The counts are those of rank 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import record_function

from gpugate.measurement.counters import profiled_events, run_profiler
from gpugate.measurement.ranks import Job
from gpugate.measurement.sides import BuiltSide, blame, synchronize
from gpugate.measurement.trace import Event, length, union

COUNTED_STEPS, FLUSH_STEPS = 5, 2
STEP = "gpugate: step of all ranks"
_COLLECTIVE = re.compile(r"(gloo|nccl):(?!barrier)")
_NODE = re.compile(r"autograd::engine::evaluate_function: (?!torch::autograd::AccumulateGrad)")
_BYTES = {"float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "int": 4}


def count_collectives(side: BuiltSide, job: Job, inputs: Sequence[Any]) -> dict[str, float]:
    """Counts the collectives of a few steps, by the names of gpugate.counter_names. Nothing is timed.

    Raises SideError where steps differ in the number of their collectives.
    """
    side.flags.apply()
    with blame(side.name, "having its collectives counted"):
        side.run_steps(inputs, FLUSH_STEPS)
        with job.watch() as others, watch_collectives(side.device) as own:
            for number in range(COUNTED_STEPS):
                with record_function(STEP):
                    side.side.step(inputs[number % len(inputs)])
                synchronize(side.device)
        side.side.finish()
        synchronize(side.device)
    waits_ms = [own["communication_ms"], *(one["communication_ms"] for one in others)]
    lag_ms = max(waits_ms) - min(waits_ms)
    counted = {name: own[name] / COUNTED_STEPS for name in ("collectives", "collective_bytes", "early_collectives")}
    return {"ranks": float(job.count), **counted, "rank_lag": lag_ms / max(own["steps_ms"], 1e-6)}


@contextmanager
def watch_collectives(device: torch.device) -> Iterator[dict[str, float]]:
    """Runs the profiler inside; afterwards the dictionary has counts and times of all that ran."""
    found: dict[str, float] = {}
    with run_profiler(device, record_shapes=True) as profiler:
        yield found
        synchronize(device)
    found.update(read_collectives(profiled_events(profiler)))


def read_collectives(events: Sequence[Event]) -> dict[str, float]:
    """Sums over a whole trace. `early_collectives` began before the last gradient of their step was computed."""
    ranges = [event for event in events if event.get("cat") == "user_annotation" and event.get("ph") == "X"]
    found = [event for event in ranges if _COLLECTIVE.match(event["name"])]
    steps = [event for event in ranges if event["name"] == STEP]
    nodes = [event["ts"] for event in events if _NODE.match(str(event.get("name", "")))]
    # Kernels of NCCL are what runs; its ranges on the host end when the collective is enqueued.
    kernels = [event for event in events if event.get("cat") == "kernel" and "nccl" in event["name"].lower()]
    early = 0
    for step in steps:
        last = max((ts for ts in nodes if step["ts"] <= ts <= step["ts"] + step["dur"]), default=0.0)
        early += sum(step["ts"] <= event["ts"] < last for event in found)
    return {
        "collectives": float(len(found)),
        "collective_bytes": float(sum(map(_bytes, found))),
        "early_collectives": float(early),
        "communication_ms": length(union(kernels or found)) / 1e3,
        "steps_ms": length(union(steps)) / 1e3,
    }


def _bytes(event: Event) -> int:
    """The bytes of the input of one collective on this rank."""
    arguments: Mapping[str, Any] = event.get("args", {})
    forms, kinds = arguments.get("Input Dims", []), arguments.get("Input type", [])
    return sum(_numel(form) * _BYTES[kind] for form, kind in zip(forms, kinds, strict=True) if kind in _BYTES)


def _numel(form: Sequence[int]) -> int:
    total = 1
    for size in form:
        total *= size
    return total
