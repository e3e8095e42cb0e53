"""Promises for each GPU beside what was recorded and what single runs measured.

`python -m tools.promises` writes promises.md of each machine below results/. Its single runs are in runs/ beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from gpugate import units
from gpugate.errors import GpugateError
from gpugate.judging.rules import decide
from gpugate.report.table import Column, Table
from gpugate.results.case import CaseResult, Confirmation, summarize_decider
from gpugate.results.run import Mode, RunResult
from gpugate.results.summary import summarize_process
from gpugate.results.verdict import GOOD
from gpugate.statistics.intervals import Estimate
from gpugate.store import run_file
from gpugate.store.baseline import Entry, Record
from gpugate.workload import Case, for_device_class
from tools.archive import list_files
from tools.machines import H200, MACHINES, ROOT, Machine, is_outdated, list_cases
from tools.markdown_table import Markdown, write_markdown
from tools.simulated_nights import load_entries

RUNS = "runs"  # the folder of a machine's single runs
SHARE = 0.8  # of the recorded speedup, or of the lower stored run: a promise below it needs a reason


@dataclass(frozen=True)
class Spread:
    """The median of the counted processes of a record, and their range."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        return Spread(statistics.median(values), min(values), max(values))

    def as_speedup(self) -> str:
        return f"{units.ratio(self.median)} ({units.interval(self.low, self.high)})"

    def as_rate(self) -> str:
        return f"{self.median:,.0f} ({self.low:,.0f}..{self.high:,.0f})"


@dataclass(frozen=True)
class PromisedCase:
    """A case of the catalogue on a machine."""

    machine: Machine
    case: Case

    @property
    def promise(self) -> float:
        """The smallest speedup on the machine. Raises GpugateError where nothing is promised."""
        promise = for_device_class(self.case.optimization.min_speedup, self.machine.device_classes)
        if promise is None:
            raise GpugateError(f"{self.case.id} promises nothing on an {self.machine.gpu}: promise a speedup")
        return promise

    @property
    def name(self) -> str:
        """The case in a cell of a table."""
        return f"`{self.case.id.removesuffix('/cuda')}`"


@dataclass(frozen=True)
class RecordedCase(PromisedCase):
    """A case and its records on the machine."""

    entry: Entry

    @property
    def share(self) -> float:
        """The promise as a share of the recorded speedup."""
        return self.promise / self.entry.record.history.speedup

    @property
    def items_per_s(self) -> Spread:
        """Items per second of the optimized side of the record."""
        pairs = [[pair for build in process for pair in build.pairs] for process in self.entry.record.processes]
        optimized = (statistics.median(pair.optimized_ms for pair in process) for process in pairs)
        return Spread.of([self.case.size.items_per_second(ms) for ms in optimized])

    @property
    def reason(self) -> str:
        """The reason of a low promise, after the variation between processes; empty where none is given."""
        why, cv = self.case.optimization.min_speedup_why, self.entry.record.history.speedup_cv
        few = len(self.entry.record.processes) < 2
        varied = "one process alone is recorded" if few else f"processes differ by {units.percent(cv or 0.0)}"
        return f"{varied}: {why}" if why else ""


@dataclass(frozen=True)
class StoredSpeedup:
    """The speedup of a case in a stored run."""

    started_at: str
    speedup: Estimate
    result: CaseResult


@dataclass(frozen=True)
class RunCase(PromisedCase):
    """A case without a record of today's sides on the machine, and its speedups in the machine's stored runs.

    `lowest` is the smallest of the medians of the machines that have such runs.
    """

    runs: tuple[StoredSpeedup, ...]
    lowest: float

    @property
    def share(self) -> float:
        """The promise as a share of the lowest median."""
        return self.promise / self.lowest

    @property
    def reason(self) -> str:
        """The reason of a low promise; empty where none is given."""
        return self.case.optimization.min_speedup_why

    @property
    def spread(self) -> Spread:
        """The median of several runs with their range, or of one run with its interval."""
        found = [run.speedup for run in self.runs]
        return Spread.of([one.median for one in found]) if len(found) > 1 else _spread(found[0])


def load_cases(machine: Machine = H200) -> dict[str, RecordedCase]:
    """Loads each case whose sides are those that a machine recorded, by its id, in the order of the catalogue."""
    entries = load_entries(machine)
    recorded = (case for case in list_cases("cuda") if _is_recorded(case, entries))
    return {case.id: RecordedCase(machine, case, entries[case.id]) for case in recorded}


def load_run_cases(machine: Machine) -> dict[str, RunCase]:
    """Loads each case whose sides a stored run of a machine measured and no record of it has, by its id."""
    found = {one: _load_speedups(one) for one in MACHINES}
    cases = (case for case in list_cases("cuda") if case.id in found[machine])
    return {case.id: RunCase(machine, case, tuple(found[machine][case.id]), _lowest(case, found)) for case in cases}


def load_other_cases(machine: Machine) -> list[PromisedCase]:
    """Loads each CUDA case whose sides neither a record nor a stored run of a machine has."""
    known = {*load_cases(machine), *load_run_cases(machine)}
    return [PromisedCase(machine, case) for case in list_cases("cuda") if case.id not in known]


def _lowest(case: Case, found: Mapping[Machine, Mapping[str, Sequence[StoredSpeedup]]]) -> float:
    ran = [runs[case.id] for runs in found.values() if case.id in runs]
    return min(statistics.median(one.speedup.median for one in runs) for runs in ran)


@cache
def load_runs(machine: Machine) -> tuple[RunResult, ...]:
    """Loads the stored runs of a machine in the order of their files. A file of another format is none, such as a
    comparison."""
    paths = list_files(machine.results / RUNS, "*.json")
    formats = ((path, json.loads(path.read_text(encoding="utf-8"))["format"]) for path in paths)
    return tuple(run_file.read(path) for path, name in formats if name == run_file.FILE.format)


@cache
def _load_speedups(machine: Machine) -> dict[str, list[StoredSpeedup]]:
    """Loads the speedups of each case without a record of today's sides, by its id, over the reference of today.

    Runs before a change of the sides do not count, and runs that are printed only are no data.
    """
    entries, found = load_entries(machine), dict[str, list[StoredSpeedup]]()
    cases = {case.id: case for case in list_cases("cuda") if not _is_recorded(case, entries)}
    for run in load_runs(machine):
        for case_id, result in run.cases.items():
            case, decided = cases.get(case_id), summarize_decider(result)
            if case is None or decided is None or is_outdated(case, run.started_at):
                continue
            if result.compared_with == case.reference_name:
                one = StoredSpeedup(run.started_at, decided.speedup, result)
                found.setdefault(case_id, []).append(one)
    return found


def _is_recorded(case: Case, entries: Mapping[str, Entry]) -> bool:
    """True where the case has a record that its sides did not change after."""
    return case.id in entries and not is_outdated(case, entries[case.id].record.recorded_at)


def write_promises(machine: Machine, cases: Mapping[str, RecordedCase]) -> str:
    """Writes the page of promises, records and stored runs of a machine, in Markdown."""
    run_cases = load_run_cases(machine)
    held: list[RecordedCase | RunCase] = [*cases.values(), *run_cases.values()]
    folder = machine.baselines.relative_to(ROOT).as_posix()
    return f"""# Promises for an {machine.gpu}

`python -m tools.promises` writes this page from the promises of `workloads/`, the current records of `{folder}/`,
and the stored runs. A promise is the smallest speedup that a gate accepts from this GPU; it was chosen from these
records and stored runs, and from those of the other GPU where they are newer. The record is the median of
the counted processes, and in brackets their range. What the project set out to reach stands on the page of
[figures](figures.md#targets).

- A speedup is over the reference in the column "against". `baseline` is the unoptimized side: eager PyTorch with
  PyTorch's own defaults, or what the workload names: a library of the host, compiled code, a graph, a kernel.
- {sum(not is_low(one) for one in held)} of {len(held)} promises are at least {SHARE:g} of the record or, where
  there is none, of the lower stored run. Each other one of these has its reason.
- By the rules of a gate, {sum(map(is_kept, run_cases.values()))} of the {len(run_cases)} cases without a record keep
  their promise by their stored processes: one process decides where its interval does, else the middle one.

## Records

{write_markdown(_speedups(cases))}

## Stored runs of sides without a record

The speedup of one run has its interval, and that of several runs is their median with the range. Each run is one
process of the code of its hour. The promise is compared with the lower median of the machines that have such runs.

{write_markdown(_speedups_of_runs(run_cases))}

## Neither a record nor a stored run of these sides on this GPU

An A100, H100 and H200 have no NVENC. Torch-TensorRT follows torch, and needs a TensorRT that was not at hand.

{write_markdown(_other_cases(load_other_cases(machine)))}
"""


def _speedups(cases: Mapping[str, RecordedCase]) -> Table:
    columns = (
        *(Column("case", left=True), Column("against", left=True), Column("promise")),
        Column("record"),
        *(Column("promise / record"), Column("reason of a low promise", left=True)),
    )
    return Table("", columns, tuple(map(_speedup_row, cases.values())))


def _speedup_row(one: RecordedCase) -> tuple[str, ...]:
    recorded = speedups(one.entry.record)
    return (
        one.name,
        f"`{one.case.reference_name}`",
        f"{one.promise:g}",
        recorded.as_speedup(),
        f"{one.share:.2f}",
        one.reason if is_low(one) else "",
    )


def _spread(found: Estimate) -> Spread:
    return Spread(found.median, found.low, found.high)


def _speedups_of_runs(cases: Mapping[str, RunCase]) -> Table:
    columns = (
        *(Column("case", left=True), Column("against", left=True), Column("promise")),
        *(Column("speedup"), Column("runs", left=True)),
        *(Column("promise / lower run"), Column("reason of a low promise", left=True)),
    )
    rows = (
        (
            *(one.name, f"`{one.case.reference_name}`", f"{one.promise:g}", one.spread.as_speedup()),
            ", ".join(run.started_at[:10] for run in one.runs),
            *(f"{one.share:.2f}", one.reason if is_low(one) else ""),
        )
        for one in cases.values()
    )
    return Table("", columns, tuple(rows))


def _other_cases(cases: Sequence[PromisedCase]) -> Table:
    """A row for each workload and each reason why the machine has nothing of it."""
    optimizations: dict[tuple[str, str], list[str]] = {}
    for one in cases:
        name = f"`{one.case.optimization.name}` {one.promise:g}"
        optimizations.setdefault((one.case.workload.name, find_elsewhere(one)), []).append(name)
    columns = (Column("workload", left=True), Column("optimizations, each with its promise", left=True))
    rows = ((f"`{name}`", ", ".join(found), where) for (name, where), found in optimizations.items())
    return Table("", (*columns, Column("measured", left=True)), tuple(rows))


def find_elsewhere(one: PromisedCase) -> str:
    """The places where a case is recorded or was measured."""
    others = [other for other in MACHINES if other is not one.machine]
    places = [f"recorded on an {other.gpu}" for other in others if one.case.id in load_entries(other)]
    places += [f"measured on an {other.gpu}" for other in others if one.case.id in load_run_cases(other)]
    return ", ".join(places) if places else Markdown("**never run**")


def is_low(one: RecordedCase | RunCase) -> bool:
    """True where the promise is below SHARE of what was measured, so that it needs a reason."""
    return one.share < SHARE


def is_kept(one: RunCase) -> bool:
    """True where the gate's rules find the promise kept by all stored processes of the case."""
    first, *others = (run.result for run in one.runs)
    further = [Confirmation(other.measurement) for other in others]
    promise = one.machine.promise(one.case, one.runs[-1].started_at)
    verdicts = decide(replace(first, promise=promise, attempts=further), Mode.DEVELOPER)
    return all(verdict.outcome in GOOD for verdict in verdicts if verdict.check == "speedup")


def speedups(record: Record) -> Spread:
    """Computes the speedups of the recorded processes."""
    return Spread.of([summarize_process(process).speedup.median for process in record.processes])


def main(words: Sequence[str] | None = None) -> None:
    """Writes the pages of promises, from the records and the stored runs."""
    argparse.ArgumentParser(prog="python -m tools.promises", description=main.__doc__).parse_args(words)
    for machine in MACHINES:
        promises = write_promises(machine, load_cases(machine))
        (machine.results / "promises.md").write_text(promises, encoding="utf-8")


if __name__ == "__main__":
    main()
