"""Counting in a second pass, under the profiler: exact and noise-free, and never mixed with timing."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from gpugate.measurement import trace
from gpugate.measurement.sides import BuiltSide, blamed_on, synchronize
from gpugate.measurement.trace import WINDOW, Activity, read_activity

FLUSH_STEPS = 2  # the profiler's own start-up and anything still in flight land here, outside the window


def count(side: BuiltSide, inputs: Sequence[Any], steps: int) -> Activity:
    """Runs `steps` steps of a warmed-up side under the profiler and returns what they did."""
    activities = [ProfilerActivity.CPU]
    if side.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)  # cuda only
    side.flags.apply()
    with blamed_on(side.name, "being counted"):
        synchronize(side.device)
        with profile(activities=activities, acc_events=True) as profiler:
            side.run_steps(inputs, FLUSH_STEPS)
            synchronize(side.device)
            with record_function(WINDOW):
                _steps_without_finish(side, inputs, steps)
            side.side.finish()
            synchronize(side.device)
    return read_activity(_events(profiler), steps)


def _steps_without_finish(side: BuiltSide, inputs: Sequence[Any], steps: int) -> None:
    """The final join of a pipeline is not part of a step: its synchronization would be counted as one."""
    for offset in range(steps):
        side.side.step(inputs[(side.next_input + offset) % len(inputs)])


def _events(profiler: profile) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="gpugate-trace-") as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        trace: dict[str, list[dict[str, Any]]] = json.loads(path.read_bytes())
    return trace["traceEvents"]


def of(side: BuiltSide, activity: Activity) -> dict[str, float]:  # cuda only
    """The counters per step of a counted CUDA side, with the peak device memory of building and first running it."""
    peak_bytes = {} if side.cost.peak_bytes is None else {"peak_bytes": float(side.cost.peak_bytes)}
    return {**trace.counters(activity), **peak_bytes}


def missing(device: torch.device) -> str | None:
    """Why kernels cannot be counted on this machine, or None."""
    if device.type != "cuda":
        return "kernels and copies are counted on CUDA only"
    if ProfilerActivity.CUDA in torch.profiler.supported_activities():  # type: ignore[no-untyped-call]  # cuda only
        return None
    return "this torch has no CUPTI: install a CUDA build of torch"  # cuda only
