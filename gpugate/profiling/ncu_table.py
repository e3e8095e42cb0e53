"""Reading what Nsight Compute prints as CSV: one row per launch, a column per metric, the units in the second line."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from gpugate.errors import GpugateError
from gpugate.profiling.capture_index import Capture

NAME, TIME = "Kernel Name", "gpu__time_duration.sum"
# By the field of Shares: what ncu calls it. Several pipes multiply matrices, by precision: the busiest one counts.
METRICS: Mapping[str, re.Pattern[str]] = {
    "compute": re.compile(r"sm__throughput\.avg\.pct_of_peak_sustained_elapsed"),
    "memory": re.compile(r"gpu__compute_memory_throughput\.avg\.pct_of_peak_sustained_elapsed"),
    "dram": re.compile(r"(gpu__)?dram__?throughput\.avg\.pct_of_peak_sustained_elapsed"),
    "occupancy": re.compile(r"sm__warps_active\.avg\.pct_of_peak_sustained_active"),
    "tensor": re.compile(r"sm__(inst_executed_)?pipe_tensor\w*\.avg\.pct_of_peak_sustained_(active|elapsed)"),
}


class NcuError(GpugateError):
    """What ncu printed cannot be read, or what is asked of it is too much."""


@dataclass(frozen=True)
class Shares:
    """Percentages of the GPU's peak; None where ncu has no number."""

    compute: float | None = None
    memory: float | None = None
    dram: float | None = None
    occupancy: float | None = None
    tensor: float | None = None


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel, alone on the GPU. `ranges` are the NVTX ranges that it ran in, as ncu spells them."""

    name: str
    time_ms: float
    grid: str
    block: str
    shares: Shares
    ranges: str

    @property
    def shape(self) -> tuple[str, str]:
        return self.grid, self.block


def read_launches(text: str) -> list[Launch]:
    """In the order in which they ran. Raises NcuError for what is no such table."""
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        said = next((line for line in lines if "ERROR" in line), lines[-1] if lines else "nothing")
        raise NcuError(f"ncu printed no table of kernels ({said.strip()[:200]}): run it by hand to see more")
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[start:]))))
    if rows and TIME not in rows[0]:
        raise NcuError(f"ncu printed no {TIME}: run a newer Nsight Compute")
    return [_launch(row) for row in rows if (row["ID"] or "").strip()]  # the row of units has no ID


def of_capture(launches: Sequence[Launch], capture: Capture) -> list[Launch]:
    """Those of the steps of one side of one case."""
    named = re.compile(rf"(?<![\w/-]){re.escape(capture.window)}(?![\w/-])")
    return [launch for launch in launches if named.search(launch.ranges)]


def _launch(row: Mapping[str, str]) -> Launch:
    shares = Shares(**{field.name: _largest(row, METRICS[field.name]) for field in fields(Shares)})
    ranges = " ".join(value for name, value in row.items() if name and "Range" in name and value)
    time_ms = (_number(row[TIME]) or 0.0) / 1e6  # nanoseconds, as --print-units=base has them
    return Launch(row[NAME], time_ms, _by(row.get("Grid Size")), _by(row.get("Block Size")), shares, ranges)


def _by(size: str | None) -> str:
    """`64x1x1` for `(64, 1, 1)`."""
    return "x".join(re.findall(r"\d+", size or ""))


def _largest(row: Mapping[str, str], pattern: re.Pattern[str]) -> float | None:
    values = [_number(value) for name, value in row.items() if name and pattern.fullmatch(name)]
    return max((value for value in values if value is not None), default=None)


def _number(text: str | None) -> float | None:
    """Numbers come with commas between thousands; `n/a` where there is none."""
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None
