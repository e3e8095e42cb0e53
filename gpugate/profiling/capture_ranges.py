"""Inside the profiled run: the ranges between cudaProfilerStart and -Stop, each one side of one case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from gpugate.faults.fault import Fault
from gpugate.measurement.sides import synchronize
from gpugate.profiling import capture_index
from gpugate.profiling.capture_index import Capture, CaptureIndex
from gpugate.profiling.nvtx_ranges import step_range, window_range
from gpugate.profiling.warm_steps import MOST_STEPS, Window, profile_sides
from gpugate.session.options import Tool
from gpugate.workload import Case, Context

KIND = "cuda"  # of device that the ranges belong to


def start_profiler() -> None:  # cuda only
    torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStart())  # type: ignore[no-untyped-call]


def stop_profiler() -> None:  # cuda only
    torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStop())  # type: ignore[no-untyped-call]


class CaptureRanges:
    """Captures cases, one after another, and keeps the index of the shared folder up to date."""

    def __init__(self, folder: Path, index: CaptureIndex, tool: Tool, fault: Fault | None) -> None:
        self._folder, self._index, self._tool, self._fault = folder, index, tool, fault

    def capture(self, case: Case, context: Context) -> str:
        """Captures both sides and returns, for the test's skip, why nothing is judged. Raises SideError."""
        if context.device.type != KIND:
            return f"--{self._tool} captures what a GPU does: run it on a machine with one, or try --torch-trace"
        steps = MOST_STEPS if self._tool == "nsys" else 1  # ncu runs every kernel many times over
        profile_sides(case, context, self._fault, lambda window: self._captured(window, context), step_range, steps)
        return f"captured under {self._tool}: timings are not judged"

    @contextmanager
    def _captured(self, window: Window, context: Context) -> Iterator[None]:
        capture = Capture(
            len(self._index.captures) + 1, window.case_id, window.label, window.side, window.steps, window.items
        )
        self._index.captures.append(capture)
        capture_index.write(self._folder, self._index)
        if self._tool == "ncu":  # cuda only: it saves all that a kernel could write, also what PyTorch only holds ready
            torch.cuda.empty_cache()
        start_profiler()
        try:
            with window_range(capture.window, capture.number):
                yield
            synchronize(context.device)
            capture.complete = True
        finally:
            stop_profiler()
            capture_index.write(self._folder, self._index)
