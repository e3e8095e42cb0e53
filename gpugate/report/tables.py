"""The tables of a run: its measured cases, in full and for one screen, its ladders, its sweeps, and its bills.

A bill is what a step of each side costs, beside the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import NamedTuple

from gpugate import units
from gpugate.judging.machine_state import list_rates
from gpugate.measurement.record import OTHERS, Measurement
from gpugate.report.table import Column, Table, columns
from gpugate.results.bill import Bills, bills_of, median_kernels_ms
from gpugate.results.case import CaseResult, summarize_decider
from gpugate.results.reason import BILL_WORDS
from gpugate.results.run import RunResult
from gpugate.results.series import Ladder, Sweep, SweepPoint, ladders, sweeps
from gpugate.results.summary import Summary
from gpugate.results.verdict import NOT_JUDGED, SEVERITY, Outcome, Verdict, outcome_word
from gpugate.statistics.intervals import Estimate
from gpugate.workload import BASELINE
from gpugate.workload.counter_names import COMPILER_COUNTERS

UNDETECTABLE = "none"
ROUNDING = 0.01  # by which the ratio of two times of three digits may miss the speedup that is shown
ALIKE = 0.03  # however wide the interval is: by more they contradict each other
ITEMS: Mapping[str, str] = {
    **BILL_WORDS,
    "workers_cpu_ms": "CPU time of workers",
    "kernels": "kernels",
    "kernel_launches": "launches",
    "graph_launches": "graph launches",
    "synchronizing_calls": "synchronizing calls",
    "operators": "operators",
    "minor_faults": "page faults",
    "voluntary_switches": "switches to wait",
}
NOT_RECORDED = "not recorded"
SLOWEST = 3  # kernels of a case, by the longer one of today's and the recorded time
SPINS = "*"
NOTES: Mapping[str, str] = {
    NOT_RECORDED: f"{NOT_RECORDED}: the record has no bill of this item; --update-baselines records one",
    SPINS: f"{SPINS} threads of this side may wait in a loop, which looks like work: its CPU time is not compared",
}


class Row(NamedTuple):
    """One measured case: its cells by the keys of `_columns`."""

    case: CaseResult
    cells: Mapping[str, str]


def checks_by_outcome(verdicts: Iterable[Verdict]) -> dict[str, str]:
    """`speedup, throughput` by the outcome that these checks have, the most severe outcome first."""
    named: dict[Outcome, list[str]] = {}
    for one in sorted(verdicts, key=lambda one: SEVERITY.index(one.outcome)):
        named.setdefault(one.outcome, []).append(one.check)
    return {outcome.value: ", ".join(checks) for outcome, checks in named.items()}


def verdict_words(case: CaseResult) -> str:
    """`REGRESSED throughput`: the worst outcome and the checks that it is of. An outcome of all checks names none, and
    NO_BASELINE is of both times."""
    checks = checks_by_outcome(case.verdicts)
    if not checks:
        return NOT_JUDGED
    outcome, named = next(iter(checks.items()))
    return f"{outcome} {named}" if len(checks) > 1 and outcome != Outcome.NO_BASELINE else outcome


def rows(run: RunResult) -> list[Row]:
    """The rows of all measured cases, those of one workload next to each other."""
    found = [
        Row(case, _cells(case, case.measurement, decided))
        for case in run.cases.values()
        if case.measurement and (decided := summarize_decider(case))
    ]
    groups = list(dict.fromkeys(row.cells["group"] for row in found))
    return sorted(found, key=lambda row: groups.index(row.cells["group"]))


def results_table(run: RunResult) -> Table:
    """All figures: a row for each measured case. A column in which no row has a value is left out."""
    found = rows(run)
    columns, notes = _columns(found), tuple(filter(None, (_describe_compiled(row.case) for row in found)))
    cells = tuple(tuple(row.cells[key] for key in columns) for row in found)
    return Table("", tuple(columns.values()), cells, notes, grouped=True).drop_empty()


def _columns(found: Sequence[Row]) -> dict[str, Column]:
    """The columns by the keys of a row's cells."""
    unbounded = any(row.cells["detectable"] == UNDETECTABLE for row in found)
    none = f"; {UNDETECTABLE}: the record varies so much that only a promise is a sure bound" if unbounded else ""
    mde = f"MDE: minimum detectable effect, the smallest slowdown that a gate catches 95 times in 100{none}"
    paired = "speedup: reference time over optimized time, from pairs; each end of the interval holds at 99 %"
    share = "ceiling: achieved FLOP/s over this machine's matmul, or bytes/s over its copy (copy), the larger share"
    start_up = "start-up: building the optimized side, and its first step: compilation, workers, buffers"
    return {
        "group": Column("workload", left=True),
        "optimization": Column("optimization", left=True),
        "reference": Column("reference", rank=6),
        "optimized": Column("optimized"),
        "items": Column("items", rank=5),
        "speedup": Column("speedup", note=paired),
        "interval": Column("interval", rank=7),
        "detectable": Column("MDE", note=mde),
        "verdict": Column("verdict", left=True),
        "of_ceiling": Column("ceiling", rank=2, note=share),
        "compiling": Column("start-up", rank=1, note=start_up),
    }


def _describe_compiled(case: CaseResult) -> str:
    """`net/fast/cuda: torch.compile: compiled graphs 2, graph breaks 1`; empty where nothing was compiled."""
    counters = case.measurement.optimized_counters if case.measurement is not None else {}
    counts = [f"{name.replace('_', ' ')} {counters[name]:g}" for name in COMPILER_COUNTERS if counters.get(name)]
    return f"{case.case_id}: torch.compile: {', '.join(counts)}" if counts else ""


def _cells(case: CaseResult, measurement: Measurement, summary: Summary) -> Mapping[str, str]:
    versus = "" if case.compared_with == BASELINE else f"\n  vs {case.compared_with}"
    return {
        "group": f"{case.workload}/{case.device_kind}, {units.number_of(case.size.items, 'item')} per step",
        "optimization": f"{case.optimization}{versus}",
        "reference": units.milliseconds(summary.reference_ms.median) if _agree(summary) else "",
        "optimized": units.milliseconds(summary.optimized_ms.median),
        "items": units.items_per_second(case.size.items_per_second(summary.optimized_ms.median)),
        "speedup": units.ratio(summary.speedup.median),
        "interval": units.interval(summary.speedup.low, summary.speedup.high),
        "detectable": _detectable(case),
        "verdict": verdict_words(case),
        "of_ceiling": _share(case, measurement, summary),
        "compiling": f"{measurement.optimized_cost.compile_s:.1f} s",
    }


def _agree(summary: Summary) -> bool:
    """True where the times of a row give its speedup, within rounding and interval: the times are medians over all
    blocks of a side, and the speedup is the median over pairs."""
    ratio, speedup = summary.reference_ms.median / summary.optimized_ms.median, summary.speedup
    low, high = max(speedup.low, (1 - ALIKE) * speedup.median), min(speedup.high, (1 + ALIKE) * speedup.median)
    return (1 - ROUNDING) * low <= ratio <= (1 + ROUNDING) * high


def _detectable(case: CaseResult) -> str:
    if case.remembered is None or not case.verdicts:
        return ""
    found = case.detectable_slowdown
    return UNDETECTABLE if found is None else units.percent(found)


def _share(case: CaseResult, measurement: Measurement, summary: Summary) -> str:
    """`40 %` of the matmul or `62 % copy`: the larger share that a step has of a ceiling; empty where none is known."""
    rates = list_rates(measurement, case.size, summary.optimized_ms.median)
    shares = [(rate / measurement.ceilings[name], name) for name, rate in rates if rate > 0]
    share, name = max(shares, default=(0.0, ""))
    return f"{units.percent(share)}{'' if 'matmul' in name else ' copy'}" if name else ""


def overview_table(run: RunResult) -> Table:
    """The figures for one screen: a row for each case with times; the first row of a workload has its name."""
    found = rows(run)
    totals = {
        f"{ladder.workload}/{rung.name}/{ladder.device_kind}": units.ratio(rung.total.median)
        for ladder in ladders(run.cases)
        for rung in ladder.rungs
        if rung.total is not None
    }
    cells = tuple(
        (
            name,
            " -> ".join(filter(None, (row.cells["reference"].removesuffix(" ms"), row.cells["optimized"]))),
            row.cells["speedup"],
            row.cells["interval"],
            totals.get(row.case.case_id, ""),
            row.cells["detectable"],
            outcome_word(row.case.worst),
        )
        for name, row in zip(_names([row.case for row in found]), found, strict=True)
    )
    headings = (
        Column("case", left=True),
        Column("time per step"),
        Column("speedup"),
        Column("interval", rank=1),
        Column("ladder", note="ladder: the product of the gains up to this rung"),
        Column("MDE", note="MDE: the smallest slowdown that a gate catches 95 times in 100", rank=2),
        Column("verdict", left=True),
    )
    return Table("", headings, cells).drop_empty()


def _names(cases: Sequence[CaseResult]) -> Iterator[str]:
    """`net/fast`, and below it `   /faster`: blanks in place of a workload that the row above names."""
    kinds = {case.device_kind for case in cases}
    for workload, group in groupby(cases, key=lambda case: case.workload):
        for number, case in enumerate(group):
            kind = f"/{case.device_kind}" if len(kinds) > 1 else ""
            yield f"{workload if number == 0 else ' ' * len(workload)}/{case.optimization}{kind}"


def series_tables(run: RunResult) -> list[Table]:
    """Every ladder, then every sweep; not one of which every point was skipped, since the report lists those."""
    tried = (sweep for sweep in sweeps(run.cases) if any(point.speedup is not None for point in sweep.points))
    return [*map(ladder_table, ladders(run.cases)), *map(sweep_table, tried)]


def ladder_table(ladder: Ladder) -> Table:
    return Table(
        title=f"ladder of {ladder.workload}/{ladder.device_kind}",
        columns=columns("rung", "items", "gain", "interval", "over the bottom", "interval"),
        rows=tuple(
            (rung.name, units.items_per_second(rung.items_per_s), *_estimate(rung.gain), *_estimate(rung.total))
            for rung in ladder.rungs
        ),
        notes=tuple(f"{rung.name}: {rung.why}" for rung in ladder.rungs if rung.why),
    )


def _estimate(estimate: Estimate | None) -> tuple[str, str]:
    if estimate is None:
        return "", ""
    return units.ratio(estimate.median), units.interval(estimate.low, estimate.high)


def sweep_table(sweep: Sweep) -> Table:
    """Raises ValueError for a sweep of which no point was measured."""
    knee = "no knee: too few points" if sweep.knee is None else f"knee: {sweep.knee}"
    recorded = "" if sweep.recorded_knee is None else f", recorded: {sweep.recorded_knee}"
    return Table(
        title=f"sweep of {sweep.id}",
        columns=columns(sweep.parameter, "items", "speedup, of the best"),
        rows=tuple(_point(point, sweep) for point in sweep.points),
        notes=(f"{knee}{recorded}; the smallest value within 3 % of the best, by speedups, which are from pairs",),
    )


def _point(point: SweepPoint, sweep: Sweep) -> tuple[str, ...]:
    if point.speedup is None or point.items_per_s is None:
        return str(point.value), "", point.problem or ""
    return (
        str(point.value),
        units.items_per_second(point.items_per_s),
        units.percent(point.speedup / sweep.best_speedup),
    )


def bill_table(run: RunResult) -> Table:
    """A row for each item that either side of a case has, by case; the record's value is of the optimized side."""
    rows = [row for case in run.cases.values() for row in _bill_rows(case)]
    cells = [cell for row in rows for cell in row]
    notes = [words for mark, words in NOTES.items() if any(cell.endswith(mark) for cell in cells)]
    notes += [
        f"{case.case_id}: no CPU time, because {case.measurement.cpu_missing}"
        for case in run.cases.values()
        if case.measurement is not None and case.measurement.cpu_missing
    ]
    return Table(
        "", columns("case", "item of a step", "reference", "optimized", "recorded"), tuple(rows), tuple(notes), True
    )


def _bill_rows(case: CaseResult) -> Iterator[tuple[str, ...]]:
    bills = bills_of(case.measurement) if case.measurement is not None else None
    if bills is None:
        return
    sides = [bills.reference.counters, bills.optimized.counters]
    for name, words in ITEMS.items():
        if any(side.get(name) for side in sides):
            yield case.case_id, words, *(_cell(side, name) for side in sides), _recorded(case, bills, name)
    yield from _kernel_rows(case, bills)


def _kernel_rows(case: CaseResult, bills: Bills) -> Iterator[tuple[str, ...]]:
    """The slowest kernels of the optimized side, today or in the record, whose time is the median of its processes."""
    processes = case.remembered.current.bills if case.remembered is not None else ()
    now, recorded = bills.optimized.kernels_ms, median_kernels_ms([one for one in processes if one is not None])
    times = bills.reference.kernels_ms, now, recorded
    longest = {name: max(now.get(name, 0.0), recorded.get(name, 0.0)) for name in {**now, **recorded}}
    slowest = sorted(longest.keys() - {OTHERS}, key=lambda name: (-longest[name], name))[:SLOWEST]
    for name, words in zip(slowest, units.shorten_names(slowest), strict=True):
        yield case.case_id, words, *(units.milliseconds(one[name]) if one.get(name) else "" for one in times)


def _cell(side: Mapping[str, float], name: str) -> str:
    mark = SPINS if name == "cpu_ms" and side.get("spinning") else ""
    return f"{units.item(name, side[name])}{mark}" if name in side else ""


def _recorded(case: CaseResult, bills: Bills, name: str) -> str:
    """The median over the recorded processes; empty without a record, and for an item that this machine lacks."""
    if case.remembered is None or name not in bills.optimized.counters:
        return ""
    recorded = [one.optimized.counters for one in case.remembered.current.bills if one is not None]
    known = [counters[name] for counters in recorded if name in counters]
    return units.item(name, median(known)) if known else NOT_RECORDED
