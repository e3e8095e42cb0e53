"""Equal code by today's rules, and more work by the bill alone: stored gates and recorded processes, judged again.

`python -m tools.bill_figures` writes `results/bill.md` from the archives below `results/` and the records in
`baselines/`, in some seconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain
from statistics import median, stdev
from typing import NamedTuple

from gpugate.judging.bill import CHOSEN_ANEW, compare_bill
from gpugate.judging.machine_state import MOSTLY, PROBE_RATIO
from gpugate.measurement.record import Measurement
from gpugate.report.table import Table, columns
from gpugate.results.bill import Bills, bills_of
from gpugate.results.case import CaseResult, Remembered
from gpugate.results.summary import History
from gpugate.results.verdict import GOOD, Outcome
from gpugate.session.decide_again import decide_again
from gpugate.statistics.policy import DECIDING_PROCESSES
from gpugate.store import run_file
from gpugate.store.json_file import write_atomically
from gpugate.units import percent
from tools.archive import RESULTS, list_files
from tools.machines import MACHINES, Machine
from tools.markdown_table import plain, write_markdown
from tools.simulated_nights import Drawn, load_entries
from tools.trust.duet_report import rate_interval

PAGE = RESULTS / "bill.md"
FOLDERS = ("night", "slow-host", "another-host")  # of stored runs of equal code
ONE_MACHINE = timedelta(hours=1)  # runs that began within it may be of one machine
RISES: Mapping[str, tuple[float, ...]] = {"kernel_ms": (0.0, 0.05, 0.1), "cpu_ms": (0.0, 0.05, 0.1, 0.25)}
TEXT = """# Equal code, and the bill alone

`python -m tools.bill_figures` writes this page from the stored runs in the archives and the records in `baselines/`.
Intervals are Clopper-Pearson's, two-sided 95 %; since the cases of one run share its machine, they are too narrow.

## Equal code, judged again by today's rules

A case-night is a case with a record in one stored run. Every run is of code as fast as that of the records. Duets count
where the run measured them.

{again}

- slow host: case-nights whose launches took more than {ratio:g} times the recorded time
- red: every outcome but PASS, IMPROVED and UNDECIDED

{red}

## More work, by the bill of one process alone

Each recorded process with a bill ({recorded}) is judged by the bills of the others of its record:
unchanged, and with more of one item. No wall time and no duet is judged, and a gate is red only after a second process.
GPU work is that of cases whose kernels take at least half of the step, CPU time that of all cases. Kernels that are
picked by their time, as TensorRT's are, may take {chosen} more where too few recorded processes have the same ones.

{alone}

{cpu_time}

Across loans: the first process of each case-night above whose record has a bill. The rules of the same kernels and of
CPU time beside the reference's were chosen on the processes above, and not on these or the next ones. That GPU work and
copies have the rule of CPU time, too, was decided with all tables of this page in sight: no data are left to test it.

{across}

Across machines without a record: the newest stored process of each case, judged by the newest older one of the same
sources on another machine, as if three processes had been recorded as that one was. A record of several machines allows
for what differs between them; one process cannot.

{pairs}

- caught: the item has grown; always: the cases all of whose processes are caught
"""


class CaseNight(NamedTuple):
    """A case of a stored run, decided again; `place` is the machine, the folder and the kind of the run."""

    place: str
    case: CaseResult


def read_nights(machine: Machine) -> Iterator[CaseNight]:
    for name in FOLDERS:
        for path in list_files(machine.results / name, "*.json"):
            run = decide_again(run_file.read(path))
            place = f"{machine.folder}/{name}" + ("" if run.gate else ", no gates")
            yield from (CaseNight(place, one) for one in run.cases.values() if one.measurement and one.remembered)


def is_red(case: CaseResult) -> bool:
    return case.worst not in GOOD | {Outcome.UNDECIDED, None}


def write_share(found: int, count: int) -> tuple[str, str]:
    """`3 of 115` and `0.54..7.4 %`."""
    low, high = rate_interval(found, count)
    return f"{found} of {count}", f"{100 * low:.2g}..{percent(high)}"


def list_again(nights: Sequence[CaseNight]) -> Iterator[tuple[str, ...]]:
    """A row for each kind of run of a machine, and one for all gates."""
    groups = {
        place: [one.case for one in nights if one.place == place] for place in dict.fromkeys(n.place for n in nights)
    }
    groups["all gates"] = [case for place, cases in groups.items() if "no gates" not in place for case in cases]
    for place, cases in groups.items():
        billed = sum(bool(one.remembered and one.remembered.current.bills) for one in cases)
        slow = sum((one.launch_slowdown or 0.0) > PROBE_RATIO for one in cases)
        red, undecided = sum(map(is_red, cases)), sum(one.worst is Outcome.UNDECIDED for one in cases)
        yield place, f"{slow}", f"{billed}", *write_share(red, len(cases)), *write_share(undecided, len(cases))


def list_red(nights: Sequence[CaseNight]) -> Iterator[str]:
    """A line for each reason for which cases are red."""
    found = [
        (one, next(each for each in one.case.verdicts if each.outcome is one.case.worst))
        for one in nights
        if is_red(one.case)
    ]
    lines = Counter(
        f"{one.place}: {one.case.case_id} is {verdict.outcome.value}: {verdict.reason}" for one, verdict in found
    )
    yield from (f"- {plain(line)} ({count} case-nights)" for line, count in lines.items())
    yield from () if lines else ("No case-night is red.",)


class Process(NamedTuple):
    """A process with a bill, and the record that judges it."""

    case_id: str
    found: Measurement
    record: Remembered

    @property
    def is_picked(self) -> bool:
        """True where libraries pick kernels by their time. Records of TensorRT are older than the counter of it."""
        return "tensorrt" in self.case_id or bool(self.found.optimized_counters.get("autotuned"))

    @property
    def has_kernels(self) -> bool:
        """True where kernels take at least half of the step."""
        return self.found.optimized_counters.get("kernel_ms", 0.0) >= MOSTLY * self.record.current.optimized_ms

    def find_grown(self, item: str = "", rise: float = 0.0) -> Collection[str]:
        """The items that have grown where the item is larger by a share."""
        counters = {**self.found.optimized_counters, "autotuned": float(self.is_picked)}
        counters |= {item: (1 + rise) * counters[item]} if item in counters else {}
        return compare_bill(replace(self.found, optimized_counters=counters), self.record).grown.keys()


def leave_one_out(machine: Machine) -> list[Process]:
    """Each recorded process that has a bill, with the record of the bills of the others."""
    found = []
    for case_id, entry in load_entries(machine).items():
        record = entry.record
        for index, bills in enumerate(record.bills):
            others = [one for place, one in enumerate(record.bills) if one is not None and place != index]
            if bills is not None and len(others) >= DECIDING_PROCESSES:
                then = replace(record.history, bills=tuple(others))
                remembered = Remembered(then, "exact", optimized_counters=find_most(others))
                found.append(Process(case_id, Drawn(record.processes[index], bills).measurement, remembered))
    return found


def find_most(bills: Sequence[Bills]) -> dict[str, float]:
    """The largest of each counter, as a record has it."""
    names = {name for one in bills for name in one.optimized.counters}
    return {name: max(one.optimized.counters.get(name, 0.0) for one in bills) for name in names}


def list_billed(nights: Sequence[CaseNight]) -> list[Process]:
    """The first process of each case-night whose record has a bill."""
    found = [
        (one.case.case_id, one.case.measurement, one.case.remembered) for one in nights if "no gates" not in one.place
    ]
    return [
        Process(case_id, measurement, record)
        for case_id, measurement, record in found
        if measurement is not None and record is not None and len(record.current.bills) >= DECIDING_PROCESSES
    ]


def list_pairs(machine: Machine) -> list[Process]:
    """The newest stored process of each case, judged by one of the same sources on another machine."""
    stored: dict[tuple[str, str], list[tuple[datetime, Measurement]]] = {}
    runs = map(run_file.read, list_files(machine.results / "runs", "catalogue*.json"))
    for run in sorted(runs, key=lambda run: run.started_at):
        for case_id, case in run.cases.items():
            if case.measurement is not None and bills_of(case.measurement) is not None:
                processes = stored.setdefault((case_id, run.source_hashes[case.workload]), [])
                processes.append((datetime.fromisoformat(run.started_at), case.measurement))
    found = dict[str, Process]()
    for (case_id, _), processes in stored.items():
        began, newest = processes[-1]
        elsewhere = [one for then, one in processes if began - then > ONE_MACHINE]
        if elsewhere:
            found[case_id] = Process(case_id, newest, record_of(elsewhere[-1]))
    return list(found.values())


def record_of(process: Measurement) -> Remembered:
    """A record of as many equal processes as a time is compared with."""
    reference_ms, optimized_ms = (
        median(times) for times in zip(*((pair.reference_ms, pair.optimized_ms) for pair in process.pairs), strict=True)
    )
    bills = (bills_of(process),) * DECIDING_PROCESSES
    speedup = reference_ms / optimized_ms
    then = History(speedup, None, reference_ms, optimized_ms, None, DECIDING_PROCESSES, bills=bills)
    return Remembered(then, "exact", optimized_counters=process.optimized_counters)


def list_caught(processes: Sequence[Process]) -> Iterator[tuple[str, ...]]:
    """The rows of the processes: unchanged, then with more of one item."""
    yield describe("unchanged, any item", [(one.case_id, bool(one.find_grown())) for one in processes])
    mostly_kernels = [one for one in processes if one.has_kernels]
    groups = (
        (
            "kernel_ms",
            "GPU work, kernels of the program's choice",
            [one for one in mostly_kernels if not one.is_picked],
        ),
        ("kernel_ms", "GPU work, kernels picked by their time", [one for one in mostly_kernels if one.is_picked]),
        ("cpu_ms", "CPU time", processes),
    )
    for item, name, group in groups:
        for rise in RISES[item]:
            judged = [(one.case_id, item in one.find_grown(item, rise)) for one in group]
            yield describe(f"{name}, +{percent(rise)}", judged)


def describe(what: str, judged: Sequence[tuple[str, bool]]) -> tuple[str, ...]:
    """The row of these processes, each with its case and True where it is caught."""
    cases = {case_id for case_id, _ in judged}
    always = cases - {case_id for case_id, is_caught in judged if not is_caught}
    return what, *write_share(sum(is_caught for _, is_caught in judged), len(judged)), f"{len(always)} of {len(cases)}"


def describe_cpu_time(processes: Sequence[Process]) -> str:
    """The processes whose CPU time is no evidence, those that have worker processes, and how much it varies."""
    spinning, workers = (
        sum(one.found.optimized_counters.get(name, 0.0) > 0 for one in processes)
        for name in ("spinning", "workers_cpu_ms")
    )
    by_case: dict[str, list[tuple[float, float]]] = {}
    for one in processes:
        ours, theirs = (side.get("cpu_ms") for side in (one.found.optimized_counters, one.found.reference_counters))
        if ours and theirs:
            by_case.setdefault(one.case_id, []).append((math.log(ours), math.log(ours / theirs)))
    own, beside = (
        median(stdev(logs[place] for logs in of_case) for of_case in by_case.values() if len(of_case) > 1)
        for place in (0, 1)
    )
    return (
        f"CPU time is not compared in {spinning} of {len(processes)} processes, whose threads wait in a loop; "
        f"{workers} have worker processes. Between the processes of a case it varies by {percent(own)}, and beside "
        f"the reference's by {percent(beside)}: medians of {len(by_case)} cases."
    )


AGAIN = columns("runs", "slow host", "with a bill", "red", "interval", "UNDECIDED", "interval")
ALONE = columns("", "processes caught", "interval", "cases always")


def write_page() -> str:
    nights = [one for machine in MACHINES for one in read_nights(machine)]
    by_machine = {machine.gpu: leave_one_out(machine) for machine in MACHINES}
    recorded = list(chain.from_iterable(by_machine.values()))
    pairs = list(chain.from_iterable(map(list_pairs, MACHINES)))
    return TEXT.format(
        again=write_markdown(Table("", AGAIN, tuple(list_again(nights)))),
        ratio=PROBE_RATIO,
        red="\n".join(list_red(nights)),
        recorded=", ".join(f"{len(some)} of an {gpu}" for gpu, some in by_machine.items()),
        chosen=percent(CHOSEN_ANEW),
        alone=write_markdown(Table("", ALONE, tuple(list_caught(recorded)))),
        cpu_time=describe_cpu_time(recorded),
        across=write_markdown(Table("", ALONE, tuple(list_caught(list_billed(nights))))),
        pairs=write_markdown(Table("", ALONE, tuple(list_caught(pairs)))),
    )


if __name__ == "__main__":
    write_atomically(PAGE, write_page())
