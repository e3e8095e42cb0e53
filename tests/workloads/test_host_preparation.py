"""Prepared batches by threads and by processes: the same as by one thread, in order; and workers that die."""

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from gpugate.workload import Context, Side
from tests.support.code_in_child import start_code
from tests.support.patience import HANGS_S, wait_until
from workloads.host_preparation import preparing, size
from workloads.host_preparation.preparing import (
    CHEAP,
    EXPENSIVE,
    Preparation,
    WorkerProcesses,
    processes,
    sample_numbers,
    samples_of,
)

FEW = {"cheap": replace(CHEAP, samples=50), "expensive": replace(EXPENSIVE, samples=10, batch=2)}


def context_of(preparation: Preparation, batches: int = 6) -> Context:
    return Context(torch.device("cpu"), items=batches * preparation.batch, seed=3, cache_dir=Path())


def shared_memory() -> list[str]:
    """Names of shared memory that this process has left, and its mappings of some that has no name any more."""
    named = [each.name for each in Path("/dev", "shm").glob(f"*_{os.getpid()}_*")]
    mappings = Path("/proc/self/maps").read_text().splitlines()
    return named + [line for line in mappings if f"torch_{os.getpid()}_" in line]


def is_alive(pid: int) -> bool:
    """A process that has ended but was not waited for yet is dead too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(autouse=True)
def workers_may_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "SECONDS_TO_END", HANGS_S)


@pytest.fixture
def pool() -> Iterator[WorkerProcesses]:
    """Two workers on the cheap transform."""
    made = WorkerProcesses(2, FEW["cheap"], samples_of(FEW["cheap"], 3))
    yield made
    made.close()
    assert not any(is_alive(process.pid) for process in made.processes)


@pytest.fixture
def build() -> Iterator[Callable[..., Side]]:
    built: list[Side] = []

    def build_and_remember(make: Callable[[Context], Side], context: Context) -> Side:
        built.append(make(context))
        return built[-1]

    yield build_and_remember
    for side in built:
        side.close()


def numbers_of(preparation: Preparation, batches: int) -> list[torch.Tensor]:
    return list(sample_numbers(preparation, context_of(preparation, batches), 0).split(preparation.batch))


def test_the_stated_bytes_are_those_read_and_written() -> None:
    samples, shape = samples_of(FEW["expensive"], 3), (FEW["expensive"].batch, *EXPENSIVE.prepared_shape)
    prepared = torch.empty(shape)
    stated = size(FEW["expensive"], batches=5)
    assert stated.items == 10
    assert stated.bytes == 10 * samples[0].nbytes + 5 * prepared.nbytes


def died_of(pool: WorkerProcesses, how: int, after: int) -> str:
    """Returns the error that is raised when the first worker gets a signal after `taken` batches."""
    batches = pool.batches(numbers_of(FEW["cheap"], 40))
    for _ in range(after):
        next(batches)
    os.kill(pool.processes[0].pid, how)
    with pytest.raises(RuntimeError) as raised:
        list(batches)
    return str(raised.value)


@pytest.mark.parametrize("after", [0, 5])
def test_a_killed_worker_ends_the_step_with_its_signal(pool: WorkerProcesses, after: int) -> None:
    started = time.monotonic()
    said = died_of(pool, signal.SIGKILL, after)
    assert "worker process 1 of 2 died of SIGKILL before batch" in said
    assert "use fewer workers" in said
    assert "\n" not in said
    assert time.monotonic() - started < HANGS_S, "it does not wait for what never comes"


def test_shared_memory_goes_with_its_last_user_even_after_a_kill() -> None:
    gc.collect()
    before = shared_memory()
    pool = WorkerProcesses(2, FEW["cheap"], samples_of(FEW["cheap"], 3))
    assert len(shared_memory()) > len(before), "it is shared memory indeed"
    assert [each for each in shared_memory() if "/" not in each] == [], "without a name"
    died_of(pool, signal.SIGKILL, 1)
    pool.close()
    del pool
    gc.collect()
    assert shared_memory() == before


def test_an_error_in_a_worker_process_comes_with_its_traceback(pool: WorkerProcesses) -> None:
    with pytest.raises(RuntimeError, match="worker process 1 of 2 failed on batch 0: IndexError") as raised:
        list(pool.batches([torch.full((32,), 50)] * 3))
    assert "preparing.py" in str(raised.value)


ORPHANS = """
import time
from gpugate.machine import children
from workloads.host_preparation.preparing import CHEAP, WorkerProcesses, samples_of

pool = WorkerProcesses(2, CHEAP, samples_of(CHEAP, 3))
children.parent.send([process.pid for process in pool.processes])
time.sleep(3600)
"""


@pytest.mark.usefixtures("warm_children")
def test_no_worker_outlives_a_killed_main_process() -> None:
    with start_code(ORPHANS) as main:
        workers = next(iter(main.messages))
        assert len(workers) == 2
        assert all(map(is_alive, workers))
        main.process.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, workers)))


@pytest.mark.parametrize(("batches", "engaged"), [(1, "only 1 of 2 workers prepared anything"), (2, None)])
def test_idle_workers_are_no_speedup_to_be_proud_of(build, batches: int, engaged: str | None) -> None:
    context = context_of(FEW["cheap"], batches)
    side = build(partial(processes, FEW["cheap"], 2), context)
    side.step(sample_numbers(FEW["cheap"], context, 0))
    assert side.engaged() == engaged
