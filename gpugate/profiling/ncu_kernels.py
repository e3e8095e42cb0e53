"""The longest kernels of each side under Nsight Compute: how near they come to what the GPU can do.

It is the plain `ncu` and not nsight-python, which analyzes functions written for it, a kernel an annotation unless told
otherwise, in the process that calls them. A step here has hundreds of kernels, runs in a process of its own whose
environment is allow-listed, and has the ranges that nsys sees; Nsight Compute's window opens the report that is kept.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gpugate import units
from gpugate.errors import GpugateError
from gpugate.profiling import nsight_tools
from gpugate.profiling.capture_index import REPORT_STEM, Capture, SideLabel
from gpugate.profiling.nsight_tools import answer
from gpugate.profiling.profiled_run import ProfiledRun, start_profiled
from gpugate.profiling.render import kernel_names
from gpugate.report.table import Table, columns
from gpugate.session.options import Profiling
from gpugate.store.codec import to_json
from gpugate.store.json_file import pretty, write_atomically

NAME, TIME = "Kernel Name", "gpu__time_duration.sum"
# ncu's names of the metrics by ours. These and no more: whole sections are 80 kB of each kernel.
METRICS: Mapping[str, str] = {
    "compute": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "memory": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
REPORT, LIST, LIST_JSON = "kernels.ncu-rep", "kernels.md", "kernels.json"
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
COUNTERS = (f"--metrics={','.join((TIME, *METRICS.values()))}",)
AS_TABLE = ("--csv", "--page=raw", "--print-units=base")
SYMBOLS, NAMES = "--print-kernel-base=mangled", "--print-kernel-base=demangled"
LONGEST_EXPRESSION = 100_000  # characters; Linux takes arguments of up to 128 KiB
BUSY = 60.0  # percent of a peak: below it ncu's own rules speak of latency
COLUMNS = columns(
    "kernel", "share", "a step", "launches", "longest", "bound by", "compute", "memory", "DRAM", "tensor cores",
    "occupancy", "grid", "block",
)  # fmt: skip
BELOW = """\
share: of the time of all kernels of a step, each alone on the GPU, caches as the one before left them. All from
"bound by" on is of one of the longest launches, in percent of the GPU's peak, caches emptied before it; clocks as they
were. bound by: what is busiest, where that is 60 % or more; latency: nothing is, too little is under way at once.
"""


class NcuError(GpugateError):
    """The output of ncu cannot be read, or the names of kernels are too many for its command line."""


Shares = Mapping[str, float | None]  # percentages of the GPU's peak by the names of METRICS; None without a number


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel, alone on the GPU. `ranges` are the NVTX ranges that it ran in, as ncu spells them."""

    name: str
    time_ms: float
    grid: str
    block: str
    shares: Shares
    ranges: str


def read_launches(text: str) -> list[Launch]:
    """Launches in the order in which they ran. Raises NcuError for output without a table of kernels."""
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        problem = next((line for line in lines if "ERROR" in line), lines[-1] if lines else "nothing")
        raise NcuError(f"ncu printed no table of kernels ({problem.strip()[:200]}): run it by hand to see more")
    rows = list(csv.DictReader(lines[start:]))
    if rows and TIME not in rows[0]:
        raise NcuError(f"ncu printed no {TIME}: run a newer Nsight Compute")
    return [_launch(row) for row in rows if (row["ID"] or "").strip()]  # the row of units has no ID


def of_capture(launches: Sequence[Launch], capture: Capture) -> list[Launch]:
    """The launches in the steps of one side of one case."""
    named = re.compile(rf"(?<![\w/-]){re.escape(capture.window)}(?![\w/-])")
    return [launch for launch in launches if named.search(launch.ranges)]


def _launch(row: Mapping[str, str]) -> Launch:
    shares = {name: _number(row.get(metric)) for name, metric in METRICS.items()}
    ranges = " ".join(value for name, value in row.items() if name and "Range" in name and value)
    time_ms = (_number(row[TIME]) or 0.0) / 1e6  # nanoseconds, as --print-units=base has them
    return Launch(row[NAME], time_ms, _by(row.get("Grid Size")), _by(row.get("Block Size")), shares, ranges)


def _by(size: str | None) -> str:
    """`64x1x1` for `(64, 1, 1)`."""
    return "x".join(re.findall(r"\d+", size or ""))


def _number(text: str | None) -> float | None:
    """Numbers come with commas between thousands; `n/a` where there is none."""
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


@dataclass(frozen=True)
class CountedKernel:
    """All launches of one kernel in a step. `grid` and `block` are those of its longest launch, `shares` are of
    a launch of its shape; None where the second run had none."""

    case_id: str
    label: SideLabel
    name: str
    symbol: str  # the name as the linker has it
    launches: int
    step_ms: float
    share: float
    longest_ms: float
    grid: str
    block: str
    shares: Shares | None = None


def longest_kernels(
    launches: Sequence[Launch], names: Mapping[str, str], capture: Capture, count: int
) -> list[CountedKernel]:
    """The `count` kernels that take most of a step of one side. `names` spells out the symbols that launches have."""
    by_symbol: dict[str, list[Launch]] = defaultdict(list)
    for launch in of_capture(launches, capture):
        by_symbol[launch.name].append(launch)
    step_ms = {symbol: sum(launch.time_ms for launch in its) for symbol, its in by_symbol.items()}
    whole_ms = sum(step_ms.values()) or 1.0
    found = []
    for symbol in sorted(step_ms, key=step_ms.__getitem__, reverse=True)[:count]:
        its, ms = by_symbol[symbol], step_ms[symbol]
        longest = max(its, key=lambda launch: launch.time_ms)
        known = (capture.case_id, capture.label, names[symbol], symbol, len(its), ms, ms / whole_ms)
        found.append(CountedKernel(*known, longest.time_ms, longest.grid, longest.block))
    return found


def filters(kernels: Sequence[CountedKernel]) -> list[str]:
    """Arguments with which ncu looks at all launches of these kernels and at no others.

    It could also be told how many launches of a shape to look at, and then it was seen to look at none. Raises NcuError
    for more names than an argument can hold.
    """
    symbols = {kernel.symbol for kernel in kernels}
    # Symbols are words but for a few signs: a dot stands for those, whatever they mean in ncu's kind of expression.
    expression = "|".join(re.sub(r"\W", ".", symbol, flags=re.ASCII) for symbol in sorted(symbols))
    if len(expression) > LONGEST_EXPRESSION:
        raise NcuError(f"{len(symbols)} names of kernels are too much for one ncu: choose fewer tests with -k")
    return ["--kernel-name-base=mangled", f"--kernel-name=regex:^({expression})$"]


def add_shares(kernels: Sequence[CountedKernel], launches: Sequence[Launch], capture: Capture) -> list[CountedKernel]:
    """The kernels of one capture with the counters of their longest launches, whose names are symbols here too."""
    in_order = sorted(of_capture(launches, capture), key=lambda launch: launch.time_ms)
    shares = {(launch.name, launch.grid, launch.block): launch.shares for launch in in_order}  # the longest one stays
    return [replace(kernel, shares=shares.get((kernel.symbol, kernel.grid, kernel.block))) for kernel in kernels]


def markdown(table: Sequence[tuple[Capture, Sequence[CountedKernel]]]) -> str:
    """A table per side, the kernel that takes most of a step first."""
    blocks = ["# The longest kernels of a step"]
    for capture, kernels in table:
        rows = map(_row, kernels, kernel_names([kernel.name for kernel in kernels]))
        title = f"{capture.case_id}, {capture.label}: {capture.side}"
        blocks.append(Table(title, COLUMNS, tuple(rows)).markdown())
    return "\n\n".join([*blocks, BELOW])


def bound_by(shares: Shares) -> str:
    """The limit of a kernel, as far as the busiest part of the GPU shows it; empty where it is not known."""
    compute, memory = shares.get("compute"), shares.get("memory")
    if compute is None or memory is None:
        return ""
    if max(compute, memory) < BUSY:
        return "latency"
    if compute >= memory:
        return "tensor cores" if (shares.get("tensor") or 0.0) >= BUSY else "compute"
    return "DRAM" if (shares.get("dram") or 0.0) >= BUSY else "caches"


def _row(kernel: CountedKernel, name: str) -> tuple[str, ...]:
    shares = kernel.shares or {}
    percent = (shares.get(metric) for metric in METRICS)  # in the order of COLUMNS
    return (
        name,
        *(units.percent(kernel.share), units.milliseconds(kernel.step_ms), str(kernel.launches)),
        *(units.milliseconds(kernel.longest_ms), bound_by(shares)),
        *("" if share is None else f"{share:.0f} %" for share in percent),
        *(kernel.grid, kernel.block),
    )


def run_under_ncu(profiling: Profiling, arguments: Sequence[str], print_line: Callable[[str], None]) -> int:
    """Runs pytest under ncu twice, for the times of all kernels and for the counters of the longest; keeps the report
    of the latter and a table, and returns the exit status.

    Raises OptionError for a folder that cannot be written and EnvironmentUnfitError for an ncu that is not there.
    """
    ncu = nsight_tools.require("ncu")
    timed: list[tuple[Capture, list[CountedKernel]]] = []
    print_line("ncu, first run: how long every kernel of a step takes")
    command = partial(_command, ncu, TIMES)
    status = start_profiled(profiling, arguments, command, partial(_choose, ncu, timed), print_line)
    kernels = [kernel for _, its in timed for kernel in its]
    if not kernels:
        return status
    print_line(f"ncu, second run: what keeps {len(kernels)} of them from being faster")
    command = partial(_command, ncu, (*COUNTERS, *filters(kernels)))
    return start_profiled(profiling, arguments, command, partial(_keep, ncu, timed, print_line), print_line) or status


def _command(ncu: str, options: Sequence[str], folder: Path) -> list[str]:
    return [ncu, *OPTIONS, *options, f"--log-file={folder / 'log'}", f"--export={folder / REPORT_STEM}"]


def _choose(ncu: str, timed: list[tuple[Capture, list[CountedKernel]]], run: ProfiledRun) -> list[str]:
    """Adds the longest kernels of every complete capture to `timed`; returns the problems."""
    captures = [capture for capture in run.index.captures if capture.complete]
    if not captures:
        return []
    try:
        launches, spelled = (_launches(ncu, run, names) for names in (SYMBOLS, NAMES))
        names = {launch.name: same.name for launch, same in zip(launches, spelled, strict=True)}
        found = [(each, longest_kernels(launches, names, each, run.profiling.kernels)) for each in captures]
        filters([kernel for _, kernels in found for kernel in kernels])  # refuses too many
    except NcuError as error:
        return [str(error)]
    timed.extend(found)
    return [] if any(kernels for _, kernels in found) else ["ncu saw no kernel in any step: run it by hand to see more"]


def _keep(
    ncu: str,
    timed: Sequence[tuple[Capture, Sequence[CountedKernel]]],
    print_line: Callable[[str], None],
    run: ProfiledRun,
) -> list[str]:
    """Keeps the report and the tables of the second run; returns the problems."""
    problems, launches, folder = [], [], run.profiling.folder
    try:
        launches = _launches(ncu, run, SYMBOLS)
    except NcuError as error:
        problems.append(str(error))
    with suppress(FileNotFoundError):
        _report(run).replace(folder / REPORT)
    table = [(capture, add_shares(kernels, launches, capture)) for capture, kernels in timed]
    every = [kernel for _, kernels in table for kernel in kernels]
    write_atomically(folder / LIST, markdown(table))
    write_atomically(folder / LIST_JSON, pretty([to_json(kernel) for kernel in every]) + "\n")
    print_line(f"ncu: {len(every)} kernels in {folder / LIST}; under a profiler: not judged")
    empty = ", ".join(capture.window for capture, kernels in table if not any(kernel.shares for kernel in kernels))
    if empty and not problems:
        problems.append(f"ncu counted none of the longest kernels of {empty}: look at {REPORT} in its window")
    return problems


def _report(run: ProfiledRun) -> Path:
    return run.folder / f"{REPORT_STEM}.ncu-rep"


def _launches(ncu: str, run: ProfiledRun, names: str) -> list[Launch]:
    """The launches in the report of a run. Raises NcuError for a run without a report, with what ncu said of it."""
    if _report(run).exists():
        return read_launches(answer([ncu, "--import", str(_report(run)), *AS_TABLE, names], run.environment))
    log = run.folder / "log"
    output = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if "ERR_NVGPUCTRPERM" in output:
        raise NcuError(f"ncu may not read hardware counters (ERR_NVGPUCTRPERM): {nsight_tools.PERMISSION}")
    of_kind = (line for kind in ("ERROR", "WARNING") for line in output.splitlines() if kind in line[:12])
    first = next((line.partition("== ")[2][:200] for line in of_kind), "it said no error")
    raise NcuError(f"ncu made no report ({first}): run it by hand to see more")
