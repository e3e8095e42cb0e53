"""The longest kernels of each side under Nsight Compute: how near they come to what the GPU can do.

It is the plain `ncu` and not nsight-python, which analyzes functions written for it, a kernel an annotation unless told
otherwise, in the process that calls them. A step here has hundreds of kernels, runs in a process of its own whose
environment is allow-listed, and has the ranges that nsys sees; Nsight Compute's window opens the report that is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpugate.codec import pretty, to_json, write_atomically
from gpugate.options import Profiling
from gpugate.profiling import nsight_tools
from gpugate.profiling.capture_index import REPORT_STEM, Capture
from gpugate.profiling.ncu_table import TIME, Kernel, NcuError, longest, markdown, read_kernels
from gpugate.profiling.nsight_tools import answer
from gpugate.profiling.self_start import ProfiledRun, start_profiled

REPORT, LIST, LIST_JSON = "kernels.ncu-rep", "kernels.md", "kernels.json"
# What the table needs and no more: a step has hundreds of kernels, and whole sections are 80 kB of each.
METRICS = (
    TIME,
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
)
OPTIONS = (
    "--clock-control=none",  # the machine is not ours alone
    "--profile-from-start=off",
    "--graph-profiling=node",
    "--nvtx",
    "--force-overwrite",
    "--import-sass=no",  # else the code of every library that a kernel comes from: 17 MB for 12 kernels of cuBLAS
    f"--metrics={','.join(METRICS)}",
)
AS_TABLE = ("--csv", "--page=raw", "--print-units=base")


def run_under_ncu(profiling: Profiling, arguments: Sequence[str], say: Callable[[str], None]) -> int:
    """Runs pytest under ncu, keeps its report and a table of the longest kernels; returns the exit status.

    Raises OptionError for a folder that cannot be written and EnvironmentUnfitError for an ncu that is not there.
    """
    path = nsight_tools.ncu()

    def command(folder: Path, environment: Mapping[str, str]) -> list[str]:
        return [path, *OPTIONS, f"--log-file={folder / 'log'}", f"--export={folder / REPORT_STEM}"]

    return start_profiled(profiling, arguments, command, lambda run: _kept(run, path, say), say)


def _kept(run: ProfiledRun, ncu: str, say: Callable[[str], None]) -> list[str]:
    found = run.folder / f"{REPORT_STEM}.ncu-rep"
    captures = [capture for capture in run.index.captures if capture.complete]
    if not captures:
        return []
    if not found.exists():
        return [_why_none(run.folder / "log")]
    folder = run.profiling.folder
    report = found.replace(folder / REPORT)
    try:
        kernels = read_kernels(answer([ncu, "--import", str(report), *AS_TABLE], run.environment))
    except NcuError as error:
        return [f"{report} is kept, but {error}"]
    table: list[tuple[Capture, list[Kernel]]] = [
        (capture, longest(kernels, capture, run.profiling.kernels)) for capture in captures
    ]
    write_atomically(folder / LIST, markdown(table))
    write_atomically(folder / LIST_JSON, pretty([to_json(kernel) for _, found in table for kernel in found]) + "\n")
    say(f"ncu: {sum(len(found) for _, found in table)} kernels in {folder / LIST}; under a profiler: not judged")
    empty = [f"{capture.case_id} {capture.label}" for capture, found in table if not found]
    return [f"ncu measured no kernel of {', '.join(empty)}: look at {report.name} in its window"] if empty else []


def _why_none(log: Path) -> str:
    said = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if "ERR_NVGPUCTRPERM" in said:
        return f"ncu may not read hardware counters (ERR_NVGPUCTRPERM): {nsight_tools.PERMISSION}"
    errors = [line.removeprefix("==ERROR== ") for line in said.splitlines() if line.startswith("==ERROR==")]
    return f"ncu made no report ({errors[0][:200] if errors else 'it said no error'}): run it by hand to see more"
