"""Reading what Nsight Compute prints as CSV: one row per kernel, a column per metric, the units in the second line."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpugate.errors import GpugateError
from gpugate.profiling.capture_index import Capture
from gpugate.profiling.render import cell, kernel_names
from gpugate.report.markdown import plain, table_row
from gpugate.units import milliseconds

NAME, TIME = "Kernel Name", "gpu__time_duration.sum"
# By the field of Kernel: what ncu calls it. Several pipes multiply matrices, by precision: the busiest one counts.
PERCENTAGES: Mapping[str, re.Pattern[str]] = {
    "compute_percent": re.compile(r"sm__throughput\.avg\.pct_of_peak_sustained_elapsed"),
    "memory_percent": re.compile(r"gpu__compute_memory_throughput\.avg\.pct_of_peak_sustained_elapsed"),
    "dram_percent": re.compile(r"(gpu__)?dram__?throughput\.avg\.pct_of_peak_sustained_elapsed"),
    "occupancy_percent": re.compile(r"sm__warps_active\.avg\.pct_of_peak_sustained_active"),
    "tensor_percent": re.compile(r"sm__(inst_executed_)?pipe_tensor\w*\.avg\.pct_of_peak_sustained_(active|elapsed)"),
}
HEADINGS = ("kernel", "time", "compute", "memory", "DRAM", "occupancy", "tensor cores", "grid", "block")


class NcuError(GpugateError):
    """What ncu printed cannot be read."""


@dataclass(frozen=True)
class Kernel:
    """One kernel of a step, alone on the GPU. Percentages are of the GPU's peak; None where ncu has no number."""

    name: str
    time_ms: float
    grid: str
    block: str
    compute_percent: float | None
    memory_percent: float | None
    dram_percent: float | None
    occupancy_percent: float | None
    tensor_percent: float | None
    ranges: str  # the NVTX ranges that it ran in, as ncu spells them


def read_kernels(text: str) -> list[Kernel]:
    """In the order in which they ran. Raises NcuError for what is no such table."""
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        said = next((line for line in lines if "ERROR" in line), lines[-1] if lines else "nothing")
        raise NcuError(f"ncu printed no table of kernels ({said.strip()[:200]}): run it by hand to see more")
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[start:]))))
    if rows and TIME not in rows[0]:
        raise NcuError(f"ncu printed no {TIME}: run a newer Nsight Compute")
    return [_kernel(row) for row in rows if (row["ID"] or "").strip()]  # the row of units has no ID


def longest(kernels: Sequence[Kernel], capture: Capture, count: int) -> list[Kernel]:
    """The `count` longest of one capture."""
    named = re.compile(rf"(?<![\w/-]){re.escape(f'{capture.case_id} {capture.label}')}(?![\w/-])")
    mine = [kernel for kernel in kernels if named.search(kernel.ranges)]
    return sorted(mine, key=lambda kernel: kernel.time_ms, reverse=True)[:count]


def markdown(table: Sequence[tuple[Capture, Sequence[Kernel]]]) -> str:
    """A table per side, the longest kernel first."""
    blocks = ["# The longest kernels of a step, each alone on the GPU\n"]
    for capture, kernels in table:
        blocks.append(f"## {plain(capture.case_id)}, {capture.label}: {plain(capture.side)}\n")
        rows = map(_row, kernels, kernel_names([kernel.name for kernel in kernels]))
        blocks.append("\n".join([table_row(HEADINGS), "|---|" + "---:|" * (len(HEADINGS) - 1), *rows]))
        blocks.append("")
    return "\n".join(blocks) + "\nShares are of the GPU's peak; clocks were as they were.\n"


def _kernel(row: Mapping[str, str]) -> Kernel:
    shares = {field: _largest(row, pattern) for field, pattern in PERCENTAGES.items()}
    ranges = " ".join(value for name, value in row.items() if name and "Range" in name and value)
    time_ms = (_number(row[TIME]) or 0.0) / 1e6  # nanoseconds, as --print-units=base has them
    return Kernel(row[NAME], time_ms, row.get("Grid Size", ""), row.get("Block Size", ""), ranges=ranges, **shares)


def _largest(row: Mapping[str, str], pattern: re.Pattern[str]) -> float | None:
    values = [_number(value) for name, value in row.items() if name and pattern.fullmatch(name)]
    return max((value for value in values if value is not None), default=None)


def _number(text: str | None) -> float | None:
    """Numbers come with commas between thousands; `n/a` where there is none."""
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def _row(kernel: Kernel, name: str) -> str:
    shares = (getattr(kernel, field) for field in PERCENTAGES)
    percent = ["" if share is None else f"{share:.0f} %" for share in shares]
    return table_row([cell(name), milliseconds(kernel.time_ms), *percent, kernel.grid, kernel.block])
