"""Profiles in pytest's session: the outer run that only starts a profiler, and the inner one that takes captures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from os import PathLike, fspath
from typing import TYPE_CHECKING

import pytest

from gpugate.errors import OptionError
from gpugate.session.options import Options
from gpugate.session.selection import PERF_RUN, usage_errors
from gpugate.store.json_file import writing
from gpugate.store.writable_folder import make_ignored

if TYPE_CHECKING:
    from gpugate.profiling.export import CaptureIndex
    from gpugate.session.perf_session import PerfSession


def outer_run(options: Options, arguments: Sequence[str | PathLike[str]]) -> int | None:
    """The exit status of pytest run again under the profiler; None where this run is the one that takes profiles.

    Raises OptionError for a folder that cannot be written, ProfileError for a profiler that cannot be used.
    """
    profiling = options.profiling
    if profiling is None or profiling.tool == "torch-trace":
        return None
    from gpugate.profiling.export import FOLDER_VARIABLE
    from gpugate.profiling.nsight_reports import run_under_profiler

    if os.environ.get(FOLDER_VARIABLE):
        return None

    return run_under_profiler(profiling, [fspath(argument) for argument in arguments])


class ProfilePlugin:
    """The plugin of a session that takes profiles, under a profiler that started it or with PyTorch's own."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._index: CaptureIndex | None = None  # in a run that a profiler has started
        from gpugate.profiling.export import FOLDER_VARIABLE, CaptureIndex

        if os.environ.get(FOLDER_VARIABLE):
            self._index = CaptureIndex()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Makes the session that was opened take profiles in place of measurements."""
        run = session.config.pluginmanager.get_plugin(PERF_RUN)
        if run is not None and run.opened is not None:
            with usage_errors():
                self._begin(run.opened)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._index is not None:
            self._index.status = int(session.exitstatus)
            self._index.write()

    def _begin(self, perf: PerfSession) -> None:
        """Raises OptionError for a folder that cannot be written."""
        from gpugate.profiling.profiled_sides import capture_sides, trace_sides

        profiling, fault, index = self._options.profiling, self._options.fault, self._index
        assert profiling is not None  # noqa: S101
        tool, folder = profiling.tool, profiling.folder
        perf.notes.add(f"--{tool}: under a profiler timings are not judged, and no baseline is written")
        if index is not None:
            perf.capture = partial(capture_sides, fault=fault, tool=tool, index=index)
            return
        perf.notes.add(f"traces for Perfetto (ui.perfetto.dev) go to {folder}")
        perf.capture = partial(trace_sides, fault=fault, folder=folder)
        with writing(f"--{tool} {folder}", OptionError, "give another folder"):
            make_ignored(folder)
