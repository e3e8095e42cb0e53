"""The page of `gpugate compare --html`: the duets of two versions, with an interval and the lines of change each."""

from __future__ import annotations

from dataclasses import dataclass

from gpugate.commands.compare.report import (
    Comparison,
    counter_changes,
    other_notes,
    summary,
    write_bill_change,
    write_change,
    write_interval,
)
from gpugate.report.machine import facts
from gpugate.report.pages.rendering import render
from gpugate.report.pages.shapes import Scale, Strip, reach_of
from gpugate.results.duet import Duet, DuetOutcome
from gpugate.results.night import BILL_TIMES
from gpugate.statistics.sequential import ALTERNATIVE
from gpugate.units import percent

# The outcomes that need a reader first.
ORDER = (DuetOutcome.SLOWER, DuetOutcome.UNDECIDED, DuetOutcome.FASTER, DuetOutcome.SAME)


@dataclass(frozen=True)
class DuetRow:
    """A case: its outcome, the change of its time per step, and what else differs between both versions."""

    case_id: str
    outcome: str
    strip: Strip
    change: str
    interval: str
    detectable: str
    outputs: str
    start_up: str
    processes: int
    counters: tuple[str, ...]


def compare_page(compared: Comparison) -> bytes:
    """The page: slower cases first, then undecided ones."""
    duets = sorted(compared.duets, key=lambda duet: (ORDER.index(duet.outcome), -abs(duet.ratio.median - 1)))
    rows = [_row(duet) for duet in duets]
    return render(
        "compare.html",
        base=compared.base,
        head=compared.head,
        summary=summary(compared.duets),
        alike=percent(ALTERNATIVE),
        machine=facts(compared.taken[0].environment) if compared.taken else [],
        rows=rows,
        scale=Scale(reach_of([row.strip for row in rows], 0.95, most=0.5), of_roots=True),
        notes=list(other_notes(compared)),
        problems=dict(compared.problems),
    )


def _row(duet: Duet) -> DuetRow:
    ratio = duet.ratio
    bill = [f"{words} {change}" for name, words in BILL_TIMES.items() if (change := write_bill_change(duet, name))]
    words = f"time per step against the base: {write_change(ratio.median)} ({write_interval(ratio)})"
    return DuetRow(
        case_id=duet.case_id,
        outcome=duet.outcome.value,
        strip=Strip(
            ratio.median - 1, ratio.low - 1, ratio.high - 1, ALTERNATIVE, duet.detectable, words, less_is_better=True
        ),
        change=write_change(ratio.median),
        interval=write_interval(ratio),
        detectable=percent(duet.detectable),
        outputs=f"{duet.relative_l2:.1e}" if duet.relative_l2 else "equal",
        start_up=f"{duet.base.cost.compile_s:.1f} s → {duet.head.cost.compile_s:.1f} s",
        processes=len(duet.processes),
        counters=(*bill, *counter_changes(duet)),
    )
