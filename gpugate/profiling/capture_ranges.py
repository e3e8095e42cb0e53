"""Inside the profiled run: the ranges between cudaProfilerStart and -Stop, each one side of one case."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from gpugate.faults.fault import Fault
from gpugate.measurement.sides import synchronize
from gpugate.options import Tool
from gpugate.profiling import capture_index
from gpugate.profiling.artifact_names import NOT_IMPORTED, REPORT
from gpugate.profiling.capture_index import REPORT_STEM, Capture, CaptureIndex
from gpugate.profiling.nvtx_ranges import step_range, window_range
from gpugate.profiling.warm_steps import MOST_STEPS, Window, profile_sides
from gpugate.workload import Case, Context

KIND = "cuda"  # of device that the ranges belong to
REPORT_S, SETTLED_S, LOOK_S = 60.0, 0.2, 0.02


def start_profiler() -> None:  # cuda only
    torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStart())  # type: ignore[no-untyped-call]


def stop_profiler() -> None:  # cuda only
    torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStop())  # type: ignore[no-untyped-call]


class CaptureRanges:
    """Captures cases, one after another, and keeps the index of the shared folder up to date."""

    def __init__(self, folder: Path, index: CaptureIndex, tool: Tool, fault: Fault | None) -> None:
        self._folder, self._index, self._tool, self._fault = folder, index, tool, fault
        self._awaits_reports = tool == "nsys"

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
        before = self._reports()
        start_profiler()
        try:
            with window_range(f"{window.case_id} {window.label}", capture.number):
                yield
            synchronize(context.device)
            capture.complete = True
        finally:
            stop_profiler()
            if self._awaits_reports:
                capture.report = self._new_report(before)
            capture_index.write(self._folder, self._index)

    def _reports(self) -> dict[str, Path]:
        found = (path for ending in (REPORT, NOT_IMPORTED) for path in self._folder.glob(f"{REPORT_STEM}*{ending}"))
        return {path.name: path for path in found}

    def _new_report(self, before: dict[str, Path]) -> str | None:
        """Waits until nsys has written the report: a range that began earlier could be lost. None if it does not."""
        found = _within(REPORT_S, lambda: sorted(self._reports().keys() - before.keys()))
        if not found:
            self._awaits_reports = False  # this nsys writes them at the end, in the order of the ranges
            return None
        size = -1
        with suppress(FileNotFoundError):  # a .qdstrm goes when its report is there
            while size != (size := (self._folder / found[0]).stat().st_size):
                time.sleep(SETTLED_S)
        return found[0]


def _within(seconds: float, look: Callable[[], list[str]]) -> list[str]:
    deadline = time.monotonic() + seconds
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return found
