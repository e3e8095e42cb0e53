"""Targets and promises for each GPU beside what was recorded and what single runs measured.

`python -m tools.promises` writes promises.md of each machine below results/. Its single runs are in runs/ beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from gpugate import units
from gpugate.errors import GpugateError
from gpugate.measurement.derived import with_derived
from gpugate.measurement.record import Measurement, Process
from gpugate.report.table import Column, Table
from gpugate.results.case import CaseResult, summarize_decider
from gpugate.results.summary import group_by_night, select_counted, summarize_process
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
class Target:
    """A speedup, or a counter, that the project set out to reach, and the larger one that it hoped for."""

    at_least: float
    goal: float | None = None

    def __str__(self) -> str:
        return f"{self.at_least:g}" + (f" ({self.goal:g})" if self.goal is not None else "")


# Over PyTorch's defaults. Speedups over strict FP32 stand on the page that tools.inference_table writes.
SPEEDUP_TARGETS: Mapping[str, Target] = {
    "resnet50-inference/tensorrt-fp16/cuda": Target(4.5),
    "resnet50-inference-batch1/cuda-graph/cuda": Target(2.5),
    "resnet50-inference-batch1/cudnn-fused/cuda": Target(3, 6),
    "two-layer-net/all/cuda": Target(3, 5),
    "resnet18-training/whole-ladder/cuda": Target(15, 20),
    "streaming-compute/pipelined/cuda": Target(4, 4.8),
    "video/end-to-end/optimized-x264/cuda": Target(7),
    "video/decode/nvdec-sessions/cuda": Target(3, 5),
    "video/decode-hevc/nvdec-sessions/cuda": Target(3, 5),
    "video/preprocess/torch-gpu/cuda": Target(10, 30),
    "video/composite/torch-gpu/cuda": Target(10, 30),
    "llm-decode/int8/cuda": Target(1.6),
    "llm-decode/fp8/cuda": Target(1.5),
}
RATE_TARGETS: Mapping[str, Target] = {  # items per second
    "resnet50-inference-batch1/cudnn-fused/cuda": Target(3333),
    "resnet50-inference-batch1/split-k/cuda": Target(3333),
    "resnet18-training/whole-ladder/cuda": Target(20_000, 24_000),
    "driving/best/cuda": Target(400, 600),
}
OUTDATED = "the sides changed since: this is of the code of its hour"
BUS_SHARE = "streaming-copy/pipelined/cuda"
CACHED_STEP = "cached_step_ms"  # whose target is a gain: the time of the reference over that of the optimized side
COUNTER_TARGETS: Mapping[tuple[str, str], Target] = {
    ("resnet18-training/amp-fp16/cuda", CACHED_STEP): Target(1.3),
    ("resnet18-training/compile/cuda", CACHED_STEP): Target(1.5),
    ("driving/prefetcher/cuda", "data_path_efficiency"): Target(0.9, 0.97),
    ("streaming-compute/pipelined/cuda", "active_fraction"): Target(0.95, 0.97),
    (BUS_SHARE, "bus_share"): Target(0.85, 0.95),
    ("video/end-to-end/optimized-x264/cuda", "whole_run_speedup"): Target(13.4),
    ("video/end-to-end/optimized-nvjpeg/cuda", "active_fraction"): Target(0.8, 0.95),
    ("video/end-to-end/optimized-nvjpeg/cuda", "whole_run_speedup"): Target(13.4, 25),
    ("llm-decode/fused-gemv/cuda", "copy_share"): Target(0.7),
    ("llm-decode/int8/cuda", "copy_share"): Target(0.55),
}


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

    @property
    def target(self) -> Target | None:
        return SPEEDUP_TARGETS.get(self.case.id)

    def is_below(self, measured: float) -> bool:
        """True where the promise is below SHARE of a measured speedup, or below its target."""
        return self.promise / measured < SHARE or (self.target is not None and self.promise < self.target.at_least)


@dataclass(frozen=True)
class RecordedCase(PromisedCase):
    """A case and its records on the machine."""

    entry: Entry

    @property
    def share(self) -> float:
        """The promise as a share of the recorded speedup."""
        return self.promise / self.entry.current.history.speedup

    @property
    def items_per_s(self) -> Spread:
        """Items per second of the optimized side of the current record."""
        pairs = [[pair for build in process for pair in build.pairs] for process in _counted(self.entry.current)]
        optimized = (statistics.median(pair.optimized_ms for pair in process) for process in pairs)
        return Spread.of([self.case.size.items_per_second(ms) for ms in optimized])

    @property
    def is_outdated(self) -> bool:
        """True where the sides changed after the record, so that the promise is not held to it."""
        return is_outdated(self.case, self.entry.current.recorded_at)

    @property
    def is_low(self) -> bool:
        return self.is_below(self.entry.current.history.speedup) and not self.is_outdated

    @property
    def reason(self) -> str:
        """The reason of a low promise, after the variation between processes; empty where none is given."""
        why, cv = self.case.optimization.min_speedup_why, self.entry.current.history.speedup_cv
        few = len(self.entry.current.processes) < 2
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
    """A case without a record of the machine, and its speedups in the machine's stored runs.

    `lowest` is the smallest of the medians of the machines that have such runs.
    """

    runs: tuple[StoredSpeedup, ...]
    lowest: float

    @property
    def share(self) -> float:
        """The promise as a share of the lowest median."""
        return self.promise / self.lowest

    @property
    def is_outdated(self) -> bool:
        """True where the sides changed after the last run."""
        return is_outdated(self.case, self.newest.started_at)

    @property
    def is_low(self) -> bool:
        return self.is_below(self.lowest) and not self.is_outdated

    @property
    def newest(self) -> StoredSpeedup:
        return max(self.runs, key=lambda run: run.started_at)

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
    """Loads each case that is recorded on a machine, by its id, in the order of the catalogue."""
    entries = load_entries(machine)
    recorded = (case for case in list_cases("cuda") if case.id in entries)
    return {case.id: RecordedCase(machine, case, entries[case.id]) for case in recorded}


def load_run_cases(machine: Machine) -> dict[str, RunCase]:
    """Loads each case that a stored run of a machine measured and that is not recorded there, by its id."""
    found = {one: _load_speedups(one) for one in MACHINES}
    cases = (case for case in list_cases("cuda") if case.id in found[machine])
    return {case.id: RunCase(machine, case, tuple(found[machine][case.id]), _lowest(case, found)) for case in cases}


def load_other_cases(machine: Machine) -> list[PromisedCase]:
    """Loads each CUDA case that has neither a record nor a stored run of a machine."""
    known = {*load_cases(machine), *load_run_cases(machine)}
    return [PromisedCase(machine, case) for case in list_cases("cuda") if case.id not in known]


def _lowest(case: Case, found: Mapping[Machine, Mapping[str, Sequence[StoredSpeedup]]]) -> float:
    ran = [runs[case.id] for runs in found.values() if case.id in runs]
    return min(statistics.median(one.speedup.median for one in runs) for runs in ran)


@cache
def _load_speedups(machine: Machine) -> dict[str, list[StoredSpeedup]]:
    """Loads the speedups of each case without a record of today's sides, by its id, over the reference of today.

    Where the sides changed, runs after it count alone, if there are any. Runs that are printed only are no data.
    """
    entries, found = load_entries(machine), dict[str, list[StoredSpeedup]]()
    cases = {case.id: case for case in list_cases("cuda") if not _is_recorded(case, entries)}
    folder = machine.results / RUNS
    for path in list_files(folder, "*.json"):
        if json.loads(path.read_text(encoding="utf-8"))["format"] != run_file.FILE.format:  # such as a comparison
            continue
        run = run_file.read(path)
        for case_id, result in run.cases.items():
            case, decided = cases.get(case_id), summarize_decider(result)
            if case is not None and decided is not None and result.compared_with == case.reference_name:
                one = StoredSpeedup(run.started_at, decided.speedup, result)
                found.setdefault(case_id, []).append(one)
    newer = {one: [run for run in runs if not is_outdated(cases[one], run.started_at)] for one, runs in found.items()}
    return {one: newer[one] or runs for one, runs in found.items() if newer[one] or one not in entries}


def _is_recorded(case: Case, entries: Mapping[str, Entry]) -> bool:
    """True where the case has a record that its sides did not change after."""
    return case.id in entries and not is_outdated(case, entries[case.id].current.recorded_at)


def read_counter(result: CaseResult, name: str) -> float | None:
    """A counter of the optimized side, of CACHED_STEP the gain; None where it was not counted."""
    if result.measurement is None:
        return None
    return _find_counter(with_derived(result.measurement, result.size, {}), name)


def _find_counter(counted: Measurement | Record, name: str) -> float | None:
    found = counted.optimized_counters.get(name)
    return counted.reference_counters[name] / found if name == CACHED_STEP and found else found


def write_promises(machine: Machine, cases: Mapping[str, RecordedCase]) -> str:
    """Writes the page of targets, promises, records and stored runs of a machine, in Markdown."""
    run_cases = load_run_cases(machine)
    held: list[RecordedCase | RunCase] = [*cases.values(), *run_cases.values()]
    compared = [one for one in held if not one.is_outdated]
    waiting = {one.case.id for one in held} - {one.case.id for one in compared}
    kept = sum(one.share >= SHARE for one in compared)
    folder = machine.baselines.relative_to(ROOT).as_posix()
    page = f"""# Targets and promises for an {machine.gpu}

`python -m tools.promises` writes this page from the promises of `workloads/`, the current records of `{folder}/`,
and the stored runs. A promise is the smallest speedup that a gate accepts from this GPU; it was chosen from these
records and stored runs, and from those of the other GPU where they are newer. The record is the median of
the counted processes, and in brackets their range. Targets without a record or
a stored run of this GPU are not listed.

- A speedup is over the reference in the column "against". `baseline` is the unoptimized side: eager PyTorch with
  PyTorch's own defaults, or the library of the host that the workload names.
- {kept} of {len(compared)} promises are at least {SHARE:g} of the record or, where
  there is none, of the lower stored run. Each other one of these has its reason. {len(waiting)} further
  promises wait for a record or a run: the sides changed since.
- A target is to be reached; in brackets is the larger figure that was hoped for. **Bold**: below the target.

## Speedups

{write_markdown(_speedups(cases))}

## Stored runs of sides without a record

The speedup of one run has its interval, and that of several runs is their median with the range. Each run is one
process of the code of its hour. The promise is compared with the lower median of the machines that have such runs.

{write_markdown(_speedups_of_runs(run_cases))}

## Neither a record nor a stored run of this GPU

{write_markdown(_other_cases(load_other_cases(machine)))}

## Items per second with a target

{write_markdown(_rates_with_target(cases, run_cases))}
"""
    if any(case_id in cases or case_id in run_cases for case_id, _ in COUNTER_TARGETS):
        page += f"""
## Counters with a target

The record is the largest value of its processes; the newest stored run is one process. The target of
`{CACHED_STEP}` is a gain, as a speedup is.{_describe_bus(cases)}

{write_markdown(_counters(cases, run_cases))}
"""
    return page


def _describe_bus(cases: Mapping[str, RecordedCase]) -> str:
    if BUS_SHARE not in cases:
        return ""
    return " A gate asks for less of the bus than the target: [streams beside others](../lessons.md#streams)."


def _speedups(cases: Mapping[str, RecordedCase]) -> Table:
    columns = (
        *(Column("case", left=True), Column("against", left=True), Column("target"), Column("promise")),
        Column("record"),
        *(Column("promise / record"), Column("reason of a low promise", left=True)),
    )
    return Table("", columns, tuple(map(_speedup_row, cases.values())))


def _speedup_row(one: RecordedCase) -> tuple[str, ...]:
    recorded = speedups(one.entry.current)
    return (
        one.name,
        f"`{one.case.reference_name}`",
        f"{one.target or ''}",
        _bold_below(one.target, one.promise),
        _bold_below(one.target, recorded.median, recorded.as_speedup()),
        f"{one.share:.2f}",
        OUTDATED if one.is_outdated else one.reason if one.is_low else "",
    )


def _spread(found: Estimate) -> Spread:
    return Spread(found.median, found.low, found.high)


def _speedups_of_runs(cases: Mapping[str, RunCase]) -> Table:
    columns = (
        *(Column("case", left=True), Column("against", left=True), Column("target"), Column("promise")),
        *(Column("speedup"), Column("runs", left=True)),
        *(Column("promise / lower run"), Column("reason of a low promise", left=True)),
    )
    rows = (
        (
            *(one.name, f"`{one.case.reference_name}`", f"{one.target or ''}", _bold_below(one.target, one.promise)),
            _bold_below(one.target, one.spread.median, one.spread.as_speedup()),
            ", ".join(run.started_at[:10] for run in one.runs),
            *(f"{one.share:.2f}", OUTDATED if one.is_outdated else one.reason if one.is_low else ""),
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


def _rates_with_target(cases: Mapping[str, RecordedCase], run_cases: Mapping[str, RunCase]) -> Table:
    columns = (Column("case", left=True), Column("target"), Column("record"), Column("newest run"))
    rows = []
    for case_id, target in RATE_TARGETS.items():
        one = cases.get(case_id) or run_cases.get(case_id)
        if one is None:
            continue
        recorded = cases[case_id].items_per_s if case_id in cases else None
        newest = summarize_decider(run_cases[case_id].newest.result) if case_id in run_cases else None
        ran = one.case.size.items_per_second(newest.optimized_ms.median) if newest else None
        rows.append(
            (
                *(one.name, f"{target}"),
                "" if recorded is None else _bold_below(target, recorded.median, recorded.as_rate()),
                "" if ran is None else _bold_below(target, ran, f"{ran:,.0f}"),
            )
        )
    return Table("", columns, tuple(rows))


def _counters(cases: Mapping[str, RecordedCase], run_cases: Mapping[str, RunCase]) -> Table:
    columns = (Column("case", left=True), Column("counter", left=True), Column("target"), Column("promise"))
    rows = []
    for (case_id, counter), target in COUNTER_TARGETS.items():
        recorded, ran = cases.get(case_id), run_cases.get(case_id)
        one = recorded or ran
        if one is None:
            continue
        values = (
            _find_counter(recorded.entry.current, counter) if recorded else None,
            read_counter(ran.newest.result, counter) if ran else None,
        )
        rows.append(
            (
                *(one.name, f"`{counter}`", f"{target}", _bold_below(target, _promise_counter(one, counter))),
                *("" if value is None else _bold_below(target, value, f"{value:.3g}") for value in values),
            )
        )
    return Table("", (*columns, Column("record"), Column("newest run")), tuple(rows))


def _promise_counter(one: PromisedCase, counter: str) -> float:
    """The bound of the case's limit on a counter, of CACHED_STEP on the gain; 0 where it has none."""
    contract = for_device_class(one.case.optimization.contract, one.machine.device_classes)
    for limit in contract.limits if contract else ():
        if limit.counter == counter:
            return 1 / limit.at_most_of_reference if limit.at_most_of_reference else limit.at_least or 0
    return 0


def _bold_below(target: Target | None, value: float, words: str | None = None) -> str:
    """`words`, by default the value itself; bold where the value is below the target."""
    shown = f"{value:g}" if words is None else words
    return Markdown(f"**{shown}**") if target and value < target.at_least else shown


def speedups(record: Record) -> Spread:
    """Computes the speedups of the counted processes."""
    return Spread.of([summarize_process(process).speedup.median for process in _counted(record)])


def _counted(record: Record) -> list[Process]:
    summaries = [summarize_process(process) for process in record.processes]
    return [record.processes[index] for index in select_counted(summaries, group_by_night(record.started_at))]


def main(words: Sequence[str] | None = None) -> None:
    """Writes the pages of promises, from the records and the stored runs."""
    argparse.ArgumentParser(prog="python -m tools.promises", description=main.__doc__).parse_args(words)
    for machine in MACHINES:
        promises = write_promises(machine, load_cases(machine))
        (machine.results / "promises.md").write_text(promises, encoding="utf-8")


if __name__ == "__main__":
    main()
