"""Profiles in pytest's session: the outer run that only starts a profiler, and the inner one that takes captures."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from gpugate.profiling import capture_index
from gpugate.profiling.capture_index import CaptureIndex
from gpugate.session.options import Options

if TYPE_CHECKING:
    from gpugate.session.perf_session import PerfSession
    from gpugate.workload import Case, Context


def outer_run(options: Options, arguments: Sequence[str | PathLike[str]]) -> int | None:
    """The exit status of pytest run again under the profiler; None where this run is the one that takes profiles.

    Raises OptionError for a folder that cannot be written, EnvironmentUnfitError for a profiler that cannot be used.
    """
    profiling = options.profiling
    if profiling is None or profiling.tool == "torch-trace" or capture_index.shared_folder() is not None:
        return None
    from gpugate.profiling.ncu_kernels import run_under_ncu
    from gpugate.profiling.nsys_reports import run_under_nsys

    run = run_under_nsys if profiling.tool == "nsys" else run_under_ncu
    return run(profiling, [fspath(argument) for argument in arguments], lambda line: print(line, flush=True))


class InnerRun:
    """The run that a profiler has started, from its configuration to its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._index = CaptureIndex()
        capture_index.tell_who_it_is(folder)

    def end(self, status: int) -> None:
        """Writes down how pytest ended."""
        self._index.status = status
        capture_index.write(self._folder, self._index)

    def begin(self, perf: PerfSession) -> None:
        """From now on cases are captured, not measured."""
        from gpugate.profiling.profiled_sides import CaptureRanges

        assert perf.options.profiling is not None  # noqa: S101
        ranges = CaptureRanges(self._folder, self._index, perf.options.profiling.tool, perf.options.fault)
        perf.capture = ranges.capture


def inner_run() -> InnerRun | None:
    """Of this process, where a profiled run is what it is."""
    folder = capture_index.shared_folder()
    return None if folder is None else InnerRun(folder)


def begin_profiles(perf: PerfSession, inner: InnerRun | None) -> None:
    """Makes the session take profiles and say that it judges nothing. Raises OptionError for a folder not writable."""
    profiling = perf.options.profiling
    assert profiling is not None  # noqa: S101
    perf.notes.add(f"--{profiling.tool}: under a profiler timings are not judged, and no baseline is written")
    if inner is not None:
        inner.begin(perf)
        return
    from gpugate.profiling.profiled_sides import TorchTraces

    traces = TorchTraces(profiling.folder, perf.options.fault)

    def capture(case: Case, context: Context) -> str:
        said = traces.capture(case, context)
        perf.notes.add(f"traces for Perfetto (ui.perfetto.dev) are in {profiling.folder}")
        return said

    perf.capture = capture
