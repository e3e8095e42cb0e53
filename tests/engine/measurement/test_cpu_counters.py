"""CPU time per step: of this process and its workers, on made-up clocks; and what makes it say nothing."""

import subprocess
import sys

import pytest
import torch

from gpugate.measurement import host_counters
from gpugate.measurement.host_counters import BEGAN, LOST, NO_BLOCK, CpuCounters

CLOCKS = {"process_time_ns": "own", "thread_time_ns": "stepping"}


class Machine:
    """CPU times in nanoseconds; a worker that has ended has none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.own = self.stepping = 10_000_000
        self.workers = {7: 900_000_000, 8: 900_000_000}
        for name, of in CLOCKS.items():
            monkeypatch.setattr(host_counters, name, lambda of=of: getattr(self, of))
        monkeypatch.setattr(host_counters, "cpu_time_ns", self.cpu_time_ns)

    def cpu_time_ns(self, worker: int) -> int:
        if worker not in self.workers:
            raise ProcessLookupError
        return self.workers[worker]

    def run_block(self, found: CpuCounters, own_ms: float, stepping_ms: float, wall_ms: float, workers=()) -> None:
        """Ten steps."""
        found.begin(workers)
        self.own += round(1e6 * own_ms)
        self.stepping += round(1e6 * stepping_ms)
        for worker in workers:
            self.workers[worker] += 5_000_000
        found.end(10, wall_ms / 10)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize(
    ("workers", "times_ms"), [((), {"cpu_ms": 0.3}), ((7, 8), {"cpu_ms": 1.3, "workers_cpu_ms": 1.0})]
)
def test_the_cpu_time_of_a_step_is_that_of_the_process_and_its_workers(machine: Machine, workers, times_ms) -> None:
    found = CpuCounters()
    for own_ms in (2.0, 4.0):
        machine.run_block(found, own_ms, own_ms, 20.0, workers)
        machine.own += 10**9  # between blocks
    counted = found.per_step()
    assert {name: value for name, value in counted.items() if name.endswith("cpu_ms")} == pytest.approx(times_ms)
    assert found.problem is None


@pytest.mark.parametrize(
    ("on_gpu", "threads", "own_ms", "stepping_ms", "spins"),
    [
        (False, 1, 10.0, 10.0, False),  # one thread that computes
        (False, 2, 10.0, 10.0, False),
        (False, 2, 20.0, 10.0, True),
        (False, 2, 5.0, 2.5, True),  # on cores that other programs keep busy
        (False, 2, 10.0, 1.0, False),  # a pipeline with threads of its own
        (False, 16, 150.0, 10.0, True),
        (False, 16, 40.0, 10.0, False),
        (True, 16, 10.0, 9.9, True),  # the stepping thread waits for the GPU in a loop
        (True, 16, 30.0, 5.0, False),
    ],
)
def test_threads_spin_where_the_process_runs_as_often_as_it_has_threads(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, on_gpu, threads, own_ms, stepping_ms, spins
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    found = CpuCounters()
    machine.run_block(found, own_ms, stepping_ms, 10.0)
    assert found.per_step(on_gpu)["spinning"] == spins


def without_cpu_time(found: CpuCounters, problem: str) -> bool:
    counted = found.per_step()
    return found.problem == problem and "minor_faults" in counted and not {"cpu_ms", "spinning"} & counted.keys()


def test_a_worker_that_ends_in_a_block_leaves_the_cpu_time_unmeasured(machine: Machine) -> None:
    found = CpuCounters()
    found.begin((7, 8))
    del machine.workers[8]
    found.end(10, 1.0)
    assert without_cpu_time(found, LOST)
    machine.run_block(found, 1.0, 1.0, 10.0, (7,))
    found.lose(BEGAN)
    assert without_cpu_time(found, LOST), "the first reason is kept"
    machine.run_block(another := CpuCounters(), 1.0, 1.0, 10.0)
    assert another.problem is None
    another.begin()
    subprocess.run([sys.executable, "-c", ""], check=True)
    another.end(1, 1.0)
    assert without_cpu_time(another, LOST), "a child lived in this block alone"
    assert (CpuCounters().problem, CpuCounters().per_step()) == (NO_BLOCK, {})
