"""The tables of a run: its measured cases, in full and for one screen, its ladders, its sweeps, and its bills.

A bill is what a step of each side costs, beside the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import median

from gpugate import units
from gpugate.measurement.derived import list_rates
from gpugate.measurement.record import OTHERS, Measurement
from gpugate.report.table import Column, Table, columns
from gpugate.results.bill import Bills, bills_of, median_kernels_ms
from gpugate.results.case import CaseResult, summarize_decider
from gpugate.results.reason import BILL_WORDS
from gpugate.results.run import RunResult
from gpugate.results.series import Ladder, Sweep, ladders, sweeps
from gpugate.results.summary import Summary
from gpugate.results.verdict import Outcome, Verdict, order_verdicts, outcome_word
from gpugate.statistics.intervals import Estimate
from gpugate.workload import BASELINE
from gpugate.workload.counter_names import COMPILER_COUNTERS

UNDETECTABLE = "none"
ROUNDING = 0.01  # by which the ratio of two times of three digits may miss the speedup that is shown
ALIKE = 0.03  # however wide the interval is: by more they contradict each other
COLUMNS = (
    Column("case", left=True),
    Column("reference", left=True, rank=4),
    Column("a step", rank=3),
    Column("time per step"),
    Column("items", rank=3),
    Column("speedup"),
    Column("interval", rank=5),
    Column("ladder", note="ladder: the product of the gains up to this rung"),
    Column("MDE", note="MDE: the smallest slowdown that a gate catches 95 times in 100 by the wall time alone", rank=6),
    Column("ceiling", rank=2, note="ceiling: FLOP/s over this machine's matmul, or bytes/s over its copy (copy)"),
    Column("start-up", rank=1, note="start-up: building the optimized side, and its first step"),
    Column("verdict", left=True),
)
DETAILS = ("reference", "a step", "items", "ceiling", "start-up")  # that one screen has no place for
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
    **{name: f"{name.replace('_', ' ')} of a build" for name in COMPILER_COUNTERS},
}
NOT_RECORDED = "not recorded"
SLOWEST = 3  # kernels of a case, by the longer one of today's and the recorded time
SPINS = "*"
NOTES: Mapping[str, str] = {
    NOT_RECORDED: f"{NOT_RECORDED}: the record has no bill of this item; --update-baselines records one",
    SPINS: f"{SPINS} threads of this side may wait in a loop, which looks like work: its CPU time is not compared",
}


def checks_by_outcome(verdicts: Iterable[Verdict]) -> dict[str, str]:
    """`speedup, throughput` by the outcome that these checks have, the most severe outcome first."""
    named: dict[Outcome, list[str]] = {}
    for one in order_verdicts(verdicts):
        named.setdefault(one.outcome, []).append(one.check)
    return {outcome.value: ", ".join(checks) for outcome, checks in named.items()}


def results_table(run: RunResult) -> Table:
    """All figures: a row for each case with times, those of one workload next to each other. A column in which no row
    has a value is left out."""
    found = [
        (case, case.measurement, decided)
        for case in run.cases.values()
        if case.measurement and (decided := summarize_decider(case))
    ]
    workloads = list(dict.fromkeys(case.workload for case, *_ in found))
    found.sort(key=lambda one: workloads.index(one[0].workload))
    kinds = {case.device_kind for case, *_ in found}
    totals = {
        f"{ladder.workload}/{rung.name}/{ladder.device_kind}": units.ratio(rung.total.median)
        for ladder in ladders(run.cases)
        for rung in ladder.rungs
        if rung.total is not None
    }
    rows = tuple(
        (
            case.case_id if len(kinds) > 1 else case.case_id.removesuffix(f"/{case.device_kind}"),
            "" if case.compared_with == BASELINE else case.compared_with,
            units.number_of(case.size.items, "item"),
            _step_times(summary),
            units.items_per_second(case.size.items_per_second(summary.optimized_ms.median)),
            units.ratio(summary.speedup.median),
            units.interval(summary.speedup.low, summary.speedup.high),
            totals.get(case.case_id, ""),
            _detectable(case),
            _share(case, measurement, summary),
            f"{measurement.optimized_cost.compile_s:.1f} s",
            outcome_word(case.worst),
        )
        for case, measurement, summary in found
    )
    return Table("", COLUMNS, rows).drop_empty()


def overview_table(run: RunResult) -> Table:
    """The figures for one screen."""
    return results_table(run).drop(*DETAILS)


def _step_times(summary: Summary) -> str:
    """`30.00 -> 10.00 ms`, or the time of the optimized side alone."""
    reference, optimized = map(units.milliseconds, (summary.reference_ms.median, summary.optimized_ms.median))
    return f"{reference.removesuffix(' ms')} -> {optimized}" if _agree(summary) else optimized


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


def series_tables(run: RunResult) -> list[Table]:
    """Every ladder, then every sweep; not one of which every point was skipped, since the report lists those."""
    tried = (sweep for sweep in sweeps(run.cases) if sweep.measured)
    return [*map(ladder_table, ladders(run.cases)), *map(sweep_table, tried)]


def ladder_table(ladder: Ladder) -> Table:
    return Table(
        title=f"ladder of {ladder.workload}/{ladder.device_kind}",
        columns=columns("rung", "items", "gain", "interval", "over the bottom", "interval"),
        rows=tuple(
            (rung.name, units.items_per_second(rung.items_per_s), *_estimate(rung.gain), *_estimate(rung.total))
            for rung in ladder.rungs
        ),
    )


def _estimate(estimate: Estimate | None) -> tuple[str, str]:
    if estimate is None:
        return "", ""
    return units.ratio(estimate.median), units.interval(estimate.low, estimate.high)


def sweep_table(sweep: Sweep) -> Table:
    knee = "no knee: too few points" if sweep.knee is None else f"knee: {sweep.knee}"
    recorded = "" if sweep.recorded_knee is None else f", recorded: {sweep.recorded_knee}"
    return Table(
        title=f"sweep of {sweep.id}",
        columns=columns(sweep.parameter, "items", "speedup, of the best"),
        rows=tuple((str(value), *_point(sweep, value)) for value in sweep.points),
        notes=(f"{knee}{recorded}; the smallest value within 3 % of the best, by speedups, which are from pairs",),
    )


def _point(sweep: Sweep, value: int) -> tuple[str, str]:
    if value in sweep.problems:
        return "", sweep.problems[value]
    per_s = sweep.points[value].size.items_per_second(sweep.measured[value].optimized_ms.median)
    return units.items_per_second(per_s), units.percent(sweep.speedups[value] / max(sweep.speedups.values()))


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
