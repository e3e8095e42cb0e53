"""PyTorch's profiler, as this engine runs it: its events, and its end without a cost for what is timed later."""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import sleep
from typing import Any

import torch
from torch.autograd.profiler import profile as cpu_profile
from torch.profiler import ProfilerActivity, profile

DETACH_CALLS, DETACH_PAUSE_S = 20, 0.005
# Once attached, CUPTI makes every later kernel launch of the process about 30 % dearer, unless this variable makes it
# detach when a profile ends. CUPTI detaches inside some later CUDA call, see `detach`.
os.environ.setdefault("TEARDOWN_CUPTI", "1")


@contextmanager
def run_profiler(device: torch.device, record_shapes: bool = False) -> Iterator[profile | cpu_profile]:
    """Runs PyTorch's profiler, without messages and without its list of events, which takes 50 us of Python each."""
    if device.type != "cuda":
        os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # else the profiler warns on stderr that there is no GPU
    if device.type != "cuda" and not record_shapes:
        # `torch.profiler.profile` adds a schedule to this profiler, and imports torch's compiler: 3 s of a session.
        with cpu_profile(use_kineto=True) as profiler:
            yield profiler
        return
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    with ExitStack() as stack:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*clears events at the end of each cycle")
            profiler = stack.enter_context(profile(activities=activities, record_shapes=record_shapes))
        yield profiler


def profiled_events(profiler: profile | cpu_profile) -> list[dict[str, Any]]:
    """All events of a finished profile, as its trace has them."""
    with tempfile.TemporaryDirectory(prefix="gpugate-trace-") as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        content: dict[str, list[dict[str, Any]]] = json.loads(path.read_bytes())
    return content["traceEvents"]


def detach(device: torch.device) -> None:
    """Makes the CUDA calls in which CUPTI detaches, so that no timed block pays for it later."""
    if device.type == "cuda":
        for _ in range(DETACH_CALLS):  # cuda only
            torch.cuda.synchronize(device)
            sleep(DETACH_PAUSE_S)
