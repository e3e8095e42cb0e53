"""Which kernels of a step take longest, what ncu is told so that it looks at no others, and the table of them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from gpugate import units
from gpugate.profiling.capture_index import Capture, SideLabel
from gpugate.profiling.ncu_table import Launch, NcuError, Shares, of_capture
from gpugate.profiling.render import cell, kernel_names
from gpugate.report.markdown import plain, table_row

LONGEST_EXPRESSION = 100_000  # characters; Linux takes arguments of up to 128 KiB
BUSY = 60.0  # percent of a peak: below it ncu's own rules speak of latency
HEADINGS = (
    "kernel", "share", "a step", "launches", "longest", "bound by", "compute", "memory", "DRAM", "tensor cores",
    "occupancy", "grid", "block",
)  # fmt: skip
SHOWN = ("compute", "memory", "dram", "tensor", "occupancy")  # fields of Shares, in the order of HEADINGS
BELOW = """\
share: of the time of all kernels of a step, each alone on the GPU, caches as the one before left them. All from
"bound by" on is of one of the longest launches, in percent of the GPU's peak, caches emptied before it; clocks as they
were. bound by: what is busiest, where that is 60 % or more; latency: nothing is, too little is under way at once.
"""


@dataclass(frozen=True)
class Kernel:
    """All launches of one kernel in a step. `grid` and `block` are those of its longest launch, `shares` what ncu
    counted of one like it; None where that did not come again when it counted."""

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

    def shown_by(self, launch: Launch) -> bool:
        return (launch.name, *launch.shape) == (self.symbol, self.grid, self.block)


def longest_kernels(launches: Sequence[Launch], names: Mapping[str, str], capture: Capture, count: int) -> list[Kernel]:
    """The `count` kernels that take most of a step of one side. `names` spells out the symbols that launches have."""
    by_symbol: dict[str, list[Launch]] = defaultdict(list)
    for launch in of_capture(launches, capture):
        by_symbol[launch.name].append(launch)
    of_symbol = {symbol: sum(launch.time_ms for launch in its) for symbol, its in by_symbol.items()}
    whole_ms = sum(of_symbol.values())
    found = []
    for symbol in sorted(of_symbol, key=of_symbol.__getitem__, reverse=True)[:count]:
        its, step_ms = by_symbol[symbol], of_symbol[symbol]
        longest = max(its, key=lambda launch: launch.time_ms)
        share = step_ms / whole_ms if whole_ms else 0.0
        known = (capture.case_id, capture.label, names[symbol], symbol, len(its), step_ms, share)
        found.append(Kernel(*known, longest.time_ms, *longest.shape))
    return found


def filters(kernels: Sequence[Kernel]) -> list[str]:
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


def counted(kernels: Sequence[Kernel], launches: Sequence[Launch], capture: Capture) -> list[Kernel]:
    """The kernels of one capture with what ncu counted of their longest launches, whose names are symbols here too."""
    seen = of_capture(launches, capture)
    return [replace(kernel, shares=_shares(kernel, seen)) for kernel in kernels]


def markdown(table: Sequence[tuple[Capture, Sequence[Kernel]]]) -> str:
    """A table per side, the kernel that takes most of a step first."""
    blocks = ["# The longest kernels of a step\n"]
    for capture, kernels in table:
        blocks.append(f"## {plain(capture.case_id)}, {capture.label}: {plain(capture.side)}\n")
        rows = map(_row, kernels, kernel_names([kernel.name for kernel in kernels]))
        blocks.append("\n".join([table_row(HEADINGS), "|---|" + "---:|" * (len(HEADINGS) - 1), *rows]))
        blocks.append("")
    return "\n".join([*blocks, BELOW])


def bound_by(shares: Shares) -> str:
    """What keeps a kernel from being faster, as far as that is seen from how busy the parts of the GPU are."""
    busiest = max(shares.compute or 0.0, shares.memory or 0.0)
    if shares.compute is None or shares.memory is None:
        return ""
    if busiest < BUSY:
        return "latency"
    if shares.compute == busiest:
        return "tensor cores" if (shares.tensor or 0.0) >= BUSY else "compute"
    return "DRAM" if (shares.dram or 0.0) >= BUSY else "caches"


def _shares(kernel: Kernel, seen: Sequence[Launch]) -> Shares | None:
    its = [launch for launch in seen if kernel.shown_by(launch)]
    return max(its, key=lambda launch: launch.time_ms).shares if its else None


def _row(kernel: Kernel, name: str) -> str:
    counts = [units.percent(kernel.share), units.milliseconds(kernel.step_ms), str(kernel.launches)]
    shares = kernel.shares or Shares()
    percent = {field.name: getattr(shares, field.name) for field in fields(Shares)}
    told = ["" if percent[name] is None else f"{percent[name]:.0f} %" for name in SHOWN]
    longest = [units.milliseconds(kernel.longest_ms), bound_by(shares)]
    return table_row([cell(name), *counts, *longest, *told, kernel.grid, kernel.block])
