"""PyTorch's profiler, as this engine runs it: its events, and its end without a cost for what is timed later."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from time import sleep
from typing import Any

import torch
from torch.autograd.profiler import profile

DETACH_CALLS, DETACH_PAUSE_S = 20, 0.005
# Once attached, CUPTI makes every later kernel launch of the process about 30 % dearer, unless this variable makes it
# detach when a profile ends. CUPTI detaches inside some later CUDA call, see `detach`.
os.environ.setdefault("TEARDOWN_CUPTI", "1")


def run_profiler(device: torch.device, record_shapes: bool = False) -> profile:
    """Makes PyTorch's profiler, which runs inside of its block, without its list of events: that takes 50 us of Python
    each. `torch.profiler.profile` adds a schedule to it and messages, and imports torch's compiler: 3 s of a session.
    """
    if device.type != "cuda":
        os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # else the profiler warns on stderr that there is no GPU
    return profile(use_kineto=True, use_device="cuda" if device.type == "cuda" else None, record_shapes=record_shapes)


def profiled_events(profiler: profile) -> list[dict[str, Any]]:
    """All events of a finished profile, as its trace has them."""
    with tempfile.TemporaryDirectory(prefix="gpugate-trace-") as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))  # type: ignore[no-untyped-call]
        content: dict[str, list[dict[str, Any]]] = json.loads(path.read_bytes())
    return content["traceEvents"]


def detach(device: torch.device) -> None:
    """Makes the CUDA calls in which CUPTI detaches, so that no timed block pays for it later."""
    if device.type == "cuda":
        for _ in range(DETACH_CALLS):  # cuda only
            torch.cuda.synchronize(device)
            sleep(DETACH_PAUSE_S)
