"""The bills of all cases as one table of words: what a step of each side costs, beside the record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median

from gpugate import units
from gpugate.report.table import Table, columns
from gpugate.results.bill import Bills, bills_of
from gpugate.results.case import CaseResult
from gpugate.results.run import RunResult

ITEMS: Mapping[str, str] = {
    "kernel_ms": "kernels, time",
    "host_to_device_ms": "copies to the device, time",
    "device_to_host_ms": "copies to the host, time",
    "device_to_device_ms": "copies within the device, time",
    "cpu_ms": "CPU time",
    "workers_cpu_ms": "CPU time of workers",
    "kernels": "kernels",
    "kernel_launches": "launches",
    "graph_launches": "graph launches",
    "synchronizing_calls": "synchronizing calls",
    "operators": "operators",
    "minor_faults": "page faults",
    "voluntary_switches": "switches to wait",
    "peak_bytes": "device memory",
}
NOT_RECORDED = "not recorded"
SPINS = "*"
NOTES: Mapping[str, str] = {
    NOT_RECORDED: f"{NOT_RECORDED}: the record has no bill of this item; --update-baselines records one",
    SPINS: f"{SPINS} threads of this side may wait in a loop, which looks like work: its CPU time is not compared",
}


def bill_table(run: RunResult) -> Table:
    """A row for each item that either side of a case has, by case; the record's value is of the optimized side."""
    rows = [row for case in run.cases.values() for row in _rows(case)]
    cells = [cell for row in rows for cell in row]
    notes = [words for mark, words in NOTES.items() if any(cell.endswith(mark) for cell in cells)]
    notes += [f"{case.case_id}: no CPU time, because {why}" for case in run.cases.values() if (why := _missing(case))]
    return Table(
        "", columns("case", "item of a step", "reference", "optimized", "recorded"), tuple(rows), tuple(notes), True
    )


def _missing(case: CaseResult) -> str | None:
    return case.measurement.cpu_missing if case.measurement is not None else None


def _rows(case: CaseResult) -> Iterator[tuple[str, ...]]:
    bills = bills_of(case.measurement) if case.measurement is not None else None
    if bills is None:
        return
    sides = [bills.reference.counters, bills.optimized.counters]
    for name, words in ITEMS.items():
        if any(side.get(name) for side in sides):
            yield case.case_id, words, *(_cell(side, name) for side in sides), _recorded(case, bills, name)


def _cell(side: Mapping[str, float], name: str) -> str:
    mark = SPINS if name == "cpu_ms" and side.get("spinning") else ""
    return f"{_value(name, side[name])}{mark}" if name in side else ""


def _recorded(case: CaseResult, bills: Bills, name: str) -> str:
    """The median over the recorded processes; empty without a record, and for an item that this machine lacks."""
    if case.remembered is None or name not in bills.optimized.counters:
        return ""
    recorded = [one.optimized.counters for one in case.remembered.current.bills if one is not None]
    known = [counters[name] for counters in recorded if name in counters]
    return _value(name, median(known)) if known else NOT_RECORDED


def _value(name: str, value: float) -> str:
    if name.endswith("_ms"):
        return units.milliseconds(value)
    return f"{value / 1e6:.4g} MB" if name.endswith("_bytes") else f"{value:.4g}"
