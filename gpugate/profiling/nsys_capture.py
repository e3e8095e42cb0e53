"""One Nsight Systems report per test parameter and side, and what each of them says."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpugate.profiling import nsight_tools
from gpugate.profiling.apart import command_apart
from gpugate.profiling.capture_index import REPORT_STEM
from gpugate.profiling.environment_allow_list import allowed
from gpugate.profiling.nsight_tools import Nsys
from gpugate.profiling.nsys_reports import keep_reports
from gpugate.profiling.self_start import start_profiled
from gpugate.session.options import Profiling

# Without CPU sampling: with it, a program of ten kernels made a report of 2 GB. A graph's kernels one by one, as the
# counting pass has them. Ranges become reports when all of them have ended, in their order.
OPTIONS = (
    "--trace=cuda,nvtx,osrt",
    "--sample=none",
    "--cpuctxsw=none",
    "--cuda-graph-trace=node",
    "--cuda-memory-usage=true",
    "--capture-range=cudaProfilerApi",
    "--capture-range-end=repeat",
    "--force-overwrite=true",
)


def run_under_nsys(profiling: Profiling, arguments: Sequence[str], say: Callable[[str], None]) -> int:
    """Runs pytest under nsys, keeps its reports in the folder and says what they are; returns the exit status.

    Raises OptionError for a folder that cannot be written and EnvironmentUnfitError for an nsys that cannot be used.
    """
    found = nsight_tools.nsys(allowed(os.environ))  # before there is a folder
    tool: list[Nsys] = []

    def command(folder: Path, environment: Mapping[str, str]) -> list[str]:
        nsys = replace(found, environment=environment)
        tool.append(nsys)
        output = f"--output={folder / REPORT_STEM}"
        return command_apart([nsys.path, "profile", *OPTIONS, *nsys.leaner, output, *profiling.nsys_words])

    return start_profiled(profiling, arguments, command, lambda run: keep_reports(run, tool[0], say), say)
