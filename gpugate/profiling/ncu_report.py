"""One step of each side under Nsight Compute, whose report is kept for its own window. gpugate reads nothing from it.

It is the plain `ncu` and not nsight-python, which analyzes functions written for it, a kernel an annotation unless told
otherwise, in the process that calls them. A step here has hundreds of kernels, runs in a process of its own whose
environment is allow-listed, and has the ranges that nsys sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gpugate.profiling import nsight_tools
from gpugate.profiling.capture_index import REPORT_STEM
from gpugate.profiling.profiled_run import ProfiledRun, start_profiled
from gpugate.session.options import Profiling

REPORT = "kernels.ncu-rep"
OPTIONS = (
    "--clock-control=none",  # the machine is not ours alone
    "--profile-from-start=off",
    "--graph-profiling=node",
    "--nvtx",
    "--force-overwrite",
    "--import-sass=no",  # else the code of every library that a kernel comes from: 17 MB for 12 kernels of cuBLAS
)


def run_under_ncu(profiling: Profiling, arguments: Sequence[str], print_line: Callable[[str], None]) -> int:
    """Runs pytest under ncu, keeps its report, and returns the exit status.

    Raises OptionError for a folder that cannot be written and EnvironmentUnfitError for an ncu that is not there.
    """
    ncu = nsight_tools.require("ncu")

    def command(folder: Path) -> list[str]:
        files = f"--log-file={folder / 'log'}", f"--export={folder / REPORT_STEM}"
        return [ncu, *OPTIONS, f"--launch-count={profiling.kernels}", *files]

    return start_profiled(profiling, arguments, command, lambda run: _keep(run, print_line), print_line)


def _keep(run: ProfiledRun, print_line: Callable[[str], None]) -> list[str]:
    """Keeps the report of a run that captured a side; returns the reason where ncu made none."""
    if not any(capture.complete for capture in run.index.captures):
        return []
    report, kept = run.folder / f"{REPORT_STEM}.ncu-rep", run.profiling.folder / REPORT
    if report.exists():
        report.replace(kept)
        print_line(f"ncu: open {kept} in Nsight Compute; under a profiler: not judged")
        return []
    log = run.folder / "log"
    output = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if "ERR_NVGPUCTRPERM" in output:
        return [f"ncu may not read hardware counters (ERR_NVGPUCTRPERM): {nsight_tools.PERMISSION}"]
    of_kind = (line for kind in ("ERROR", "WARNING") for line in output.splitlines() if kind in line[:12])
    first = next((line.partition("== ")[2][:200] for line in of_kind), "it said no error")
    return [f"ncu made no report ({first}): run it by hand to see more"]
