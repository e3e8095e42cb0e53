"""Measures a machine for its records within a limited time, and prints what is left.

`python -m tools.record_machine RUNS --gpus 4 --minutes 25` measures every CUDA case in fresh processes, a few cases in
each, with one process on each GPU at a time. The cases with the fewest processes come first: those of the records in
`baselines/` count, those of the runs in `results/`, and those in RUNS. So a call after a lost machine goes on where the
last one ended. The runs then become records by `gpugate accept RUNS --add`, or without `--add` where the sides changed.

A case that needs the host or several GPUs runs when no other case does. The estimates of time are the durations in
these runs; a case without one counts as UNKNOWN_S.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock

from gpugate.results.run import RunResult
from gpugate.session.selection import case_needs_host
from gpugate.store import run_file
from gpugate.store.baseline import Record
from gpugate.store.source_hash import source_hash
from gpugate.units import number_of
from gpugate.workload import Case
from tools.archive import list_files
from tools.machines import MACHINES, ROOT, Machine, list_cases
from tools.simulated_nights import load_entries

START_S = 25.0  # of a process: imports, the probes of the machine, the first use of the device
UNKNOWN_S = 20.0  # of a case without a duration
GROUP_S = 180.0  # of the cases of one process: a machine that is lost takes this much of each GPU with it at most
LOG_TAIL = 2000  # characters of the log of a process that measured nothing
GRACE_S = 20.0  # for an interrupted process to write its last case
TRIES = 2  # of a case that fails
MOST_IN_VAIN = 3  # processes in a row that measure nothing: the fault is not a case's, and the machine is not kept
TESTS = (
    "test_outputs_match_the_baseline",
    "test_speedup_is_what_was_promised",
    "test_throughput_is_what_it_was",
    "test_the_optimization_engaged",
)


@dataclass(frozen=True)
class PlannedCase:
    """A case of a night to plan.

    No other case may run on the host of a `needs_host` case. A case that spans several `gpus` runs when all are free.
    """

    case_id: str
    needs_host: bool = False
    gpus: int = 1

    @property
    def alone(self) -> bool:
        """True for a case that runs when no other one does."""
        return self.needs_host or self.gpus > 1


@dataclass
class Queue:
    """The cases that still lack processes, in the order in which they are measured. Threads share it."""

    wanted: int  # processes of each case
    cases: Sequence[PlannedCase]
    done: Counter[str]  # processes of this folder
    recorded: Mapping[str, int]
    known_s: dict[str, float]
    tried: Counter[str] = field(default_factory=Counter)
    running: set[str] = field(default_factory=set)
    in_vain: int = 0  # processes in a row that measured nothing
    lock: Lock = field(default_factory=Lock)

    def list_left(self) -> list[PlannedCase]:
        """The cases that lack processes: those with the fewest first, then the longest."""
        lacking = (
            case
            for case in self.cases
            if case.case_id not in self.running
            and self.done[case.case_id] < self.wanted
            and self.tried[case.case_id] - self.done[case.case_id] < TRIES
        )
        return sorted(lacking, key=lambda case: (self.processes(case), -self.seconds(case), case.case_id))

    def processes(self, case: PlannedCase) -> int:
        return self.done[case.case_id] + self.recorded.get(case.case_id, 0)

    def seconds(self, case: PlannedCase) -> float:
        return self.known_s.get(case.case_id, UNKNOWN_S)

    def take(self, alone: bool, left_s: float) -> list[PlannedCase]:
        """Takes the cases of the next process, of one part, that end within `left_s` seconds.

        It takes none while the other part has a case with fewer processes, where no case ends in time, and after
        MOST_IN_VAIN processes that measured nothing.
        """
        with self.lock:
            if self.in_vain >= MOST_IN_VAIN:
                return []
            room_s, taken = left_s - START_S, list[PlannedCase]()
            in_time = [case for case in self.list_left() if self.seconds(case) <= room_s]
            fewest = [case for case in in_time if self.processes(case) == self.processes(in_time[0])]
            for case in (case for case in fewest if case.alone == alone):
                if self.seconds(case) <= room_s and (not taken or case.gpus == taken[0].gpus):
                    taken.append(case)
                    room_s = min(GROUP_S, room_s) - self.seconds(case)  # the first case may be longer than a group
            self.running.update(case.case_id for case in taken)
            self.tried.update(case.case_id for case in taken)
            return taken

    def give_back(self, taken: Sequence[PlannedCase], measured_s: Mapping[str, float]) -> None:
        """Counts the cases that a process measured, with their seconds. The others may be tried again."""
        with self.lock:
            self.running.difference_update(case.case_id for case in taken)
            self.in_vain = 0 if measured_s else self.in_vain + 1
            self.done.update(measured_s.keys())
            self.known_s.update(measured_s)


Measure = Callable[[Sequence[PlannedCase], "int | None", float], Mapping[str, float]]


def measure_all(queue: Queue, gpus: int, ends_at: float, measure: Measure, clock: Callable[[], float]) -> None:
    """Measures until each case has its processes or the time is over.

    `measure` takes the cases of a process, the number of its GPU (None: all of them) and the time at which it must end,
    and returns the seconds of each measured case. The cases that run alone and those side by side take turns.
    """

    def empty(alone: bool, gpu: int) -> int:
        processes = 0
        while taken := queue.take(alone, ends_at - clock()):
            queue.give_back(taken, measure(taken, gpu if taken[0].gpus == 1 else None, ends_at))
            processes += 1
        return processes

    turns_in_vain, alone = 0, True
    while turns_in_vain < 2:
        lanes = 1 if alone else gpus
        with ThreadPoolExecutor(lanes) as pool:
            processes = sum(pool.map(partial(empty, alone), range(lanes)))
        turns_in_vain, alone = 0 if processes else turns_in_vain + 1, not alone


def run_process(
    folder: Path, cases: Sequence[PlannedCase], gpu: int | None, gpus: int, words: Sequence[str], ends_at: float
) -> Mapping[str, float]:
    """Measures the cases in a fresh process on one GPU, with that GPU's share of the cores, or on all GPUs."""
    began = time.monotonic()
    name = f"{time.time_ns():x}-{'all' if gpu is None else gpu}"
    path = folder / f"{name}.json"
    tests = [f"perf_tests/test_promises.py::{test}[{case.case_id}]" for case in cases for test in TESTS]
    cores = sorted(os.sched_getaffinity(0))
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process would compile all of torch anew, 10 s
    if gpu is not None:
        share = len(cores) // gpus
        cores = cores[gpu * share : (gpu + 1) * share]
        environment["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7").split(",")[gpu]
    pytest = (sys.executable, "-m", "pytest", *tests, "-q", "-p", "no:cacheprovider", "-o", "perf_processes=1")
    stored = ("--perf-json", str(path), "--perf-baselines", str(folder / "none"), *words)
    with (folder / f"{name}.log").open("wb") as log:
        pinned = ("taskset", "-c", ",".join(map(str, cores)), *pytest, *stored)
        child = subprocess.Popen(pinned, cwd=ROOT, env=environment, stdout=log, stderr=log)
        try:
            child.wait(max(0.0, ends_at - time.monotonic() - GRACE_S))
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGINT)
            try:
                child.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
    durations = _seconds_of(run_file.read(path)) if path.exists() else {}
    where = "all GPUs" if gpu is None else f"GPU {gpu}"
    took_s, left_s = time.monotonic() - began, ends_at - time.monotonic()
    if not durations:
        print((folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")[-LOG_TAIL:])
    print(f"{where}: {len(durations)} of {len(cases)} cases in {took_s:.0f} s, {left_s / 60:.0f} min left", flush=True)
    return durations


def _seconds_of(run: RunResult) -> dict[str, float]:
    """The seconds of each case that the run measured."""
    return {name: case.duration_s for name, case in run.cases.items() if case.measurement is not None}


def _find_records(cases: Iterable[Case], machine: Machine, hashes: Mapping[str, str]) -> dict[str, Record]:
    """The machine's record of each case, where the sources of its workload are still those that were recorded."""
    recorded = {case_id: entry.record for case_id, entry in load_entries(machine).items()}
    known = (case for case in cases if case.id in recorded)
    return {case.id: recorded[case.id] for case in known if recorded[case.id].source_hash == hashes[case.workload.name]}


def find_stored(cases: Sequence[Case], machine: Machine, hashes: Mapping[str, str]) -> list[dict[str, float]]:
    """The seconds of each case of the machine's stored runs, where the sources of its workload are still the same."""
    found = []
    for path in list_files(machine.results / "runs", "catalogue*.json"):
        run = run_file.read(path)
        seconds, sources = _seconds_of(run), run.source_hashes
        same = {case.id for case in cases if sources.get(case.workload.name) == hashes[case.workload.name]}
        found.append({case_id: seconds[case_id] for case_id in seconds.keys() & same})
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Returns 0 where every selected case has its processes, and 1 where some are left."""
    parser = argparse.ArgumentParser(prog="python -m tools.record_machine", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", metavar="RUNS", type=Path, help="the folder of this host's runs")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs of the host (default: 1)")
    parser.add_argument("--minutes", type=float, default=25.0, help="the time for all (default: 25)")
    parser.add_argument("--processes", type=int, default=3, help="processes of each case (default: 3)")
    parser.add_argument(
        "--machine", default="nvidia-h100-80gb-hbm3", help="its folder in baselines/ (default: an H100)"
    )
    parser.add_argument("--kind", choices=("cuda", "cpu"), default="cuda", help="of the cases (default: cuda)")
    parser.add_argument(
        "--cases", default="", help="only cases whose ids contain one of these words, with commas between"
    )
    known, further = parser.parse_known_args(words)  # further words go to pytest
    ends_at = time.monotonic() + 60 * known.minutes
    known.folder.mkdir(parents=True, exist_ok=True)
    parts = known.cases.split(",")
    cases = [case for case in list_cases(known.kind) if any(part in case.id for part in parts)]
    if not cases:
        listed = "pytest perf_tests --collect-only -q"
        parser.error(f"no {known.kind} case has an id that contains one of {known.cases!r}: `{listed}` lists them")
    machine = next((one for one in MACHINES if one.name == known.machine), Machine("", known.machine, ""))
    workloads = {case.workload.name: case.workload for case in cases}
    hashes = {name: source_hash(workload) for name, workload in workloads.items()}
    stored = find_stored(cases, machine, hashes)
    measured = [_seconds_of(run_file.read(path)) for path in sorted(known.folder.glob("*.json"))]
    done = Counter(itertools.chain.from_iterable(measured))
    known_s = {name: seconds for run in (*stored, *measured) for name, seconds in run.items()}
    records = _find_records(cases, machine, hashes)
    recorded = Counter({case_id: len(record.processes) for case_id, record in records.items()})
    recorded.update(itertools.chain.from_iterable(stored))
    cores = len(os.sched_getaffinity(0)) // known.gpus
    planned = [
        PlannedCase(case.id, case_needs_host(case, records.get(case.id), cores), case.optimization.needs.gpus)
        for case in cases
    ]
    fitting = [case for case in planned if case.gpus <= known.gpus]
    queue = Queue(known.processes, fitting, done, recorded, known_s)

    def measure(taken: Sequence[PlannedCase], gpu: int | None, until: float) -> Mapping[str, float]:
        return run_process(known.folder, taken, gpu, known.gpus, further, until)

    measure_all(queue, known.gpus, ends_at, measure, time.monotonic)
    return _print_left(queue)


def _print_left(queue: Queue) -> int:
    """Prints the cases that lack processes, with those that failed."""
    lacking = [case for case in queue.cases if queue.done[case.case_id] < queue.wanted]
    for case in sorted(lacking, key=lambda case: (queue.done[case.case_id], case.case_id)):
        failed = queue.tried[case.case_id] >= TRIES and queue.done[case.case_id] == 0
        words = ", not measured: its log says why" if failed else ""
        print(f"{queue.done[case.case_id]} of {queue.wanted} processes: {case.case_id}{words}")
    done = number_of(len(queue.cases) - len(lacking), "case")
    print(f"{done} of {len(queue.cases)} have {number_of(queue.wanted, 'process', 'processes')} each")
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
