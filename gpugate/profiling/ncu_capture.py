"""The longest kernels of each side under Nsight Compute: how near they come to what the GPU can do.

It is the plain `ncu` and not nsight-python, which analyzes functions written for it, a kernel an annotation unless told
otherwise, in the process that calls them. A step here has hundreds of kernels, runs in a process of its own whose
environment is allow-listed, and has the ranges that nsys sees; Nsight Compute's window opens the report that is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpugate.profiling import nsight_tools
from gpugate.profiling.capture_index import REPORT_STEM, Capture
from gpugate.profiling.ncu_longest import Kernel, counted, filters, longest_kernels, markdown
from gpugate.profiling.ncu_table import TIME, Launch, NcuError, read_launches
from gpugate.profiling.nsight_tools import answer
from gpugate.profiling.self_start import ProfiledRun, start_profiled
from gpugate.session.options import Profiling
from gpugate.store.codec import pretty, to_json, write_atomically

REPORT, LIST, LIST_JSON = "kernels.ncu-rep", "kernels.md", "kernels.json"
# What the table needs and no more: whole sections are 80 kB of each kernel.
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
)
# All these metrics take several runs of a kernel, with all that it may write saved before the first one and put back
# before every other: 520 launches did not end within 110 s. The time alone takes one run, and nothing is saved.
TIMES = (f"--metrics={TIME}", "--cache-control=none")
COUNTERS = (f"--metrics={','.join(METRICS)}",)
AS_TABLE = ("--csv", "--page=raw", "--print-units=base")
SYMBOLS, NAMES = "--print-kernel-base=mangled", "--print-kernel-base=demangled"


@dataclass(frozen=True)
class Timed:
    """What was captured of each side, and the kernels that are worth more than their time."""

    captures: Sequence[Capture]
    kernels: Sequence[Kernel]

    def of(self, capture: Capture) -> list[Kernel]:
        return [one for one in self.kernels if (one.case_id, one.label) == (capture.case_id, capture.label)]


def run_under_ncu(profiling: Profiling, arguments: Sequence[str], say: Callable[[str], None]) -> int:
    """Runs pytest under ncu twice, for the times of all kernels and for the counters of the longest; keeps the report
    of the latter and a table, and returns the exit status.

    Raises OptionError for a folder that cannot be written and EnvironmentUnfitError for an ncu that is not there.
    """
    path = nsight_tools.ncu()
    found: list[tuple[Timed, list[str]]] = []
    say("ncu, first run: how long every kernel of a step takes")
    tell_times = partial(_timed, ncu=path, found=found)
    status = start_profiled(profiling, arguments, partial(_command, path, TIMES), tell_times, say)
    if not found:
        return status
    timed, chosen = found[0]
    say(f"ncu, second run: what keeps {len(timed.kernels)} of them from being faster")
    tell = partial(_kept, ncu=path, timed=timed, say=say)
    options = (*COUNTERS, *chosen)
    return start_profiled(profiling, arguments, partial(_command, path, options), tell, say) or status


def _command(ncu: str, options: Sequence[str], folder: Path, environment: Mapping[str, str]) -> list[str]:
    return [ncu, *OPTIONS, *options, f"--log-file={folder / 'log'}", f"--export={folder / REPORT_STEM}"]


def _timed(run: ProfiledRun, ncu: str, found: list[tuple[Timed, list[str]]]) -> list[str]:
    captures = [capture for capture in run.index.captures if capture.complete]
    if not captures:
        return []
    report = _report(run)
    if not report.exists():
        return [_why_none(run.folder / "log")]
    try:
        launches, spelled = (_launches(ncu, report, run, names) for names in (SYMBOLS, NAMES))
        names = {launch.name: same.name for launch, same in zip(launches, spelled, strict=True)}
        count = run.profiling.kernels
        kernels = [one for each in captures for one in longest_kernels(launches, names, each, count)]
        if not kernels:
            return ["ncu saw no kernel in any step: run it by hand to see more"]
        found.append((Timed(captures, kernels), filters(kernels)))
    except NcuError as error:
        return [str(error)]
    return []


def _kept(run: ProfiledRun, ncu: str, timed: Timed, say: Callable[[str], None]) -> list[str]:
    problems, launches, folder = [], [], run.profiling.folder
    if _report(run).exists():
        report = _report(run).replace(folder / REPORT)
        try:
            launches = _launches(ncu, report, run, SYMBOLS)
        except NcuError as error:
            problems.append(f"{report} is kept, but {error}")
    else:
        problems.append(_why_none(run.folder / "log"))
    table = [(capture, counted(timed.of(capture), launches, capture)) for capture in timed.captures]
    every = [kernel for _, kernels in table for kernel in kernels]
    write_atomically(folder / LIST, markdown(table))
    write_atomically(folder / LIST_JSON, pretty([to_json(kernel) for kernel in every]) + "\n")
    say(f"ncu: {len(every)} kernels in {folder / LIST}; under a profiler: not judged")
    empty = [capture.window for capture, kernels in table if not any(kernel.shares for kernel in kernels)]
    if empty and not problems:
        problems.append(
            f"ncu counted none of the longest kernels of {', '.join(empty)}: look at {REPORT} in its window"
        )
    return problems


def _report(run: ProfiledRun) -> Path:
    return run.folder / f"{REPORT_STEM}.ncu-rep"


def _launches(ncu: str, report: Path, run: ProfiledRun, names: str) -> list[Launch]:
    return read_launches(answer([ncu, "--import", str(report), *AS_TABLE, names], run.environment))


def _why_none(log: Path) -> str:
    said = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if "ERR_NVGPUCTRPERM" in said:
        return f"ncu may not read hardware counters (ERR_NVGPUCTRPERM): {nsight_tools.PERMISSION}"
    told = [
        line.partition("== ")[2] for kind in ("ERROR", "WARNING") for line in said.splitlines() if kind in line[:12]
    ]
    return f"ncu made no report ({told[0][:200] if told else 'it said no error'}): run it by hand to see more"
