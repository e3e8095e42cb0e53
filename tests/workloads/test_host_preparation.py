"""Prepared batches by threads and by processes: the same as by one thread, in order; and workers that die."""

import gc
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from gpugate.catalogue import Catalogue
from gpugate.workload import Context, Side
from tests.support.patience import HANGS_S, stop, wait_until
from workloads.host_preparation import WORKLOADS, size, worker_pools
from workloads.host_preparation.preparing_sides import (
    checksums,
    one_thread,
    processes,
    sample_numbers,
    samples_of,
    threads,
)
from workloads.host_preparation.sample_transforms import CHEAP, EXPENSIVE, Preparation
from workloads.host_preparation.worker_pools import WorkerProcesses, WorkerThreads, in_order, warn_if_more_than_cores

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
    monkeypatch.setattr(worker_pools, "SECONDS_TO_END", HANGS_S)
    monkeypatch.setattr(worker_pools, "SECONDS_PER_BATCH", 2 * HANGS_S)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    kernel_threads = torch.get_num_threads()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* share . core", category=RuntimeWarning)
        yield
    torch.set_num_threads(kernel_threads)


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


def test_the_catalogue_takes_both() -> None:
    catalogue = Catalogue()
    for workload in WORKLOADS:
        catalogue.register(workload)
    catalogue.load()
    names = [case.id for case in catalogue.cases() if case.device_kind == "cuda"]
    variants = ("threads-4", "processes-2", "processes-4")
    assert names == [f"host-preparation-{kind}/{name}/cuda" for kind in ("cheap", "expensive") for name in variants]


def test_what_loses_is_declared_as_a_loss_and_says_why() -> None:
    cheap, expensive = WORKLOADS
    for optimization in cheap.optimizations:
        assert all(speedup < 1 for speedup in optimization.min_speedup.values())
        assert "no gain to be had" in optimization.why
    for optimization in expensive.optimizations:
        assert all((speedup >= 1) == (kind != "cpu") for kind, speedup in optimization.min_speedup.items())
        assert "two cores that others use too promise no gain" in optimization.why


def test_the_stated_bytes_are_those_read_and_written() -> None:
    samples, shape = samples_of(FEW["expensive"], 3), (FEW["expensive"].batch, *EXPENSIVE.prepared_shape)
    prepared = torch.empty(shape)
    stated = size(FEW["expensive"], batches=5)
    assert stated.items == 10
    assert stated.bytes == 10 * samples[0].nbytes + 5 * prepared.nbytes


@pytest.mark.parametrize("preparation", FEW.values(), ids=FEW)
def test_samples_are_seeded_and_no_two_are_alike(preparation: Preparation) -> None:
    samples = samples_of(preparation, 3)
    assert samples.shape == (preparation.samples, *preparation.sample_shape)
    assert torch.equal(samples, samples_of(preparation, 3))
    assert not torch.equal(samples, samples_of(preparation, 4))
    assert len({each.numpy().tobytes() for each in samples}) == preparation.samples
    assert samples.float().std() > 20


@pytest.mark.parametrize("preparation", FEW.values(), ids=FEW)
def test_a_prepared_batch_is_normalized_and_depends_on_its_samples_alone(preparation: Preparation) -> None:
    samples = samples_of(preparation, 3)
    untouched = samples.clone()
    first, again = (torch.empty(preparation.batch, *preparation.prepared_shape) for _ in range(2))
    preparation.prepare(samples, torch.arange(preparation.batch), first)
    preparation.prepare(samples, torch.arange(preparation.batch).flip(0), again)
    assert torch.equal(first, again.flip(0))
    assert torch.isfinite(first).all()
    assert 0.2 < first.std() < 3
    assert torch.equal(samples, untouched)


def test_checksums_tell_samples_apart_and_notice_damage() -> None:
    prepared = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    sums = checksums(prepared)
    assert sums.shape == (4,)
    assert len(set(sums.tolist())) == 4
    damaged = prepared.clone()
    damaged[2, 0, 5, 5] = 2.0
    assert (checksums(damaged) - sums).ne(0).tolist() == [False, False, True, False]


def straight(preparation: Preparation, numbers: torch.Tensor) -> torch.Tensor:
    """The checksums of these samples, prepared as one batch."""
    prepared = torch.empty(len(numbers), *preparation.prepared_shape)
    preparation.prepare(samples_of(preparation, 3), numbers, prepared)
    return checksums(prepared)


@pytest.mark.parametrize("make", [threads, processes])
@pytest.mark.parametrize("preparation", FEW.values(), ids=FEW)
def test_workers_prepare_what_one_thread_does_in_the_same_order(build, preparation: Preparation, make) -> None:
    context = context_of(preparation)
    reference = build(partial(one_thread, preparation), context)
    side = build(partial(make, preparation, 2), context)
    for index in range(3):
        numbers = sample_numbers(preparation, context, index)
        expected, output = reference.step(numbers), side.step(numbers)
        side.finish()
        assert output.shape == (context.items,)
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-7)
        torch.testing.assert_close(expected, straight(preparation, numbers), rtol=0, atol=1e-7)
        assert len(set(output.tolist())) == len(set(numbers.tolist()))
    side.cached_step()


def test_at_most_the_ring_is_asked_for_ahead_and_everything_is_taken_in_order() -> None:
    asked, ahead, taken = [], [], []

    def ask(place: int, numbers: torch.Tensor) -> None:
        asked.append((place, int(numbers)))
        ahead.append(len(asked) - len(taken))

    def take(place: int) -> torch.Tensor:
        assert place < len(asked), "asked for before it is taken"
        return torch.tensor(place)

    for place in in_order([torch.tensor(10 * number) for number in range(9)], 4, ask, take):
        taken.append(int(place))
    assert taken == list(range(9))
    assert asked == [(number, 10 * number) for number in range(9)]
    assert max(ahead) == 4


def test_a_batch_lasts_until_the_next_one_is_wanted(pool: WorkerProcesses) -> None:
    for batch in pool.batches(numbers_of(FEW["cheap"], 12)):
        before = batch.clone()
        time.sleep(0.005)  # time enough for a worker to spoil it
        assert torch.equal(batch, before)


def died_of(pool: WorkerProcesses, how: int, after: int) -> str:
    """Returns the error that is raised when the first worker gets a signal after `taken` batches."""
    batches = pool.batches(numbers_of(FEW["cheap"], 40))
    for _ in range(after):
        next(batches)
    os.kill(pool.processes[0].pid, how)
    with pytest.raises(RuntimeError) as raised:
        list(batches)
    return str(raised.value)


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_killed_worker_ends_the_step_with_its_signal(pool: WorkerProcesses, after: int) -> None:
    started = time.monotonic()
    said = died_of(pool, signal.SIGKILL, after)
    assert "worker process 1 of 2 died of SIGKILL before batch" in said
    assert "use fewer workers" in said
    assert "\n" not in said
    assert time.monotonic() - started < HANGS_S, "it does not wait for what never comes"


def two_workers_at_work(build, monkeypatch: pytest.MonkeyPatch) -> tuple[WorkerProcesses, Callable[[], object]]:
    """The pool of a side that has taken a step, and what takes another one."""
    pools: list[WorkerProcesses] = []

    def remembered(*arguments) -> WorkerProcesses:
        pools.append(WorkerProcesses(*arguments))
        return pools[-1]

    monkeypatch.setattr("workloads.host_preparation.preparing_sides.WorkerProcesses", remembered)
    context = context_of(FEW["cheap"])
    step = partial(build(partial(processes, FEW["cheap"], 2), context).step, sample_numbers(FEW["cheap"], context, 0))
    step()
    return pools[0], step


def test_a_killed_worker_takes_the_others_of_its_side_along(build, monkeypatch) -> None:
    pool, step = two_workers_at_work(build, monkeypatch)
    workers = [process.pid for process in pool.processes]
    assert all(map(is_alive, workers))
    os.kill(workers[-1], signal.SIGKILL)
    with pytest.raises(RuntimeError, match="died of SIGKILL"):
        step()
    assert not any(map(is_alive, workers))


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
    assert "sample_transforms.py" in str(raised.value)


def test_an_error_in_a_thread_is_raised_as_it_is() -> None:
    pool = WorkerThreads(2, FEW["cheap"], samples_of(FEW["cheap"], 3), pinned=False)
    with pytest.raises(IndexError):
        list(pool.batches([torch.full((32,), 50)] * 3))
    pool.close()


def test_a_worker_that_hangs_ends_the_step_in_one_sentence_and_all_workers(build, monkeypatch) -> None:
    pool, step = two_workers_at_work(build, monkeypatch)
    wait = multiprocessing.connection.wait

    def wait_for_the_first(news: list[object], seconds: float | None = None) -> list[object]:
        return wait(news, HANGS_S if pool._pipes[0] in news else seconds)

    monkeypatch.setattr(multiprocessing.connection, "wait", wait_for_the_first)
    monkeypatch.setattr(worker_pools, "SECONDS_PER_BATCH", 0.2)
    monkeypatch.setattr(worker_pools, "SECONDS_TO_END", 0.2)
    stop(pool.processes[1].pid)
    rescue = threading.Timer(HANGS_S, pool.processes[1].kill)  # else this test would hang too
    rescue.daemon = True
    rescue.start()
    with pytest.raises(RuntimeError) as raised:
        step()
    rescue.cancel()
    assert str(raised.value).startswith("worker process 2 of 2 did not prepare batch 1 within 0.2 s: look where")
    assert "\n" not in str(raised.value)
    assert not any(is_alive(process.pid) for process in pool.processes)


def test_a_worker_that_does_not_listen_is_ended_by_force(pool: WorkerProcesses, monkeypatch) -> None:
    first = pool.processes[0]
    monkeypatch.setattr(first, "join", lambda seconds=None, join=first.join: join(HANGS_S))
    monkeypatch.setattr(worker_pools, "SECONDS_TO_END", 0.2)
    stop(pool.processes[1].pid)
    pool.close()
    assert [process.exitcode for process in pool.processes] == [0, -signal.SIGKILL]
    pool.close()


def test_workers_end_when_they_are_told_and_ignore_ctrl_c(pool: WorkerProcesses) -> None:
    list(pool.batches(numbers_of(FEW["cheap"], 2)))
    for process in pool.processes:
        os.kill(process.pid, signal.SIGINT)
    assert len(list(pool.batches(numbers_of(FEW["cheap"], 4)))) == 4
    pool.close()
    assert [process.exitcode for process in pool.processes] == [0, 0]


ORPHANS = """
import time
from workloads.host_preparation.preparing_sides import samples_of
from workloads.host_preparation.sample_transforms import CHEAP
from workloads.host_preparation.worker_pools import WorkerProcesses

if __name__ == "__main__":
    pool = WorkerProcesses(2, CHEAP, samples_of(CHEAP, 3))
    print(*(process.pid for process in pool.processes), flush=True)
    time.sleep(3600)
"""


def test_no_worker_outlives_a_killed_main_process(tmp_path: Path) -> None:
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS)
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment) as main:
        workers = [int(pid) for pid in main.stdout.readline().split()]
        assert len(workers) == 2
        assert all(map(is_alive, workers))
        main.kill()
    wait_until(lambda: not any(map(is_alive, workers)))


def test_more_workers_than_cores_are_warned_of_once() -> None:
    warn_if_more_than_cores.cache_clear()
    with pytest.warns(RuntimeWarning, match=rf"10000 worker processes share {len(os.sched_getaffinity(0))} cores"):
        warn_if_more_than_cores(10000, "worker processes")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_more_than_cores(10000, "worker processes")
        warn_if_more_than_cores(1, "worker processes")


@pytest.mark.parametrize(("batches", "engaged"), [(1, "only 1 of 2 processes prepared anything"), (2, None)])
def test_idle_workers_are_no_speedup_to_be_proud_of(build, batches: int, engaged: str | None) -> None:
    context = context_of(FEW["cheap"], batches)
    side = build(partial(processes, FEW["cheap"], 2), context)
    side.step(sample_numbers(FEW["cheap"], context, 0))
    assert side.engaged() == engaged


@pytest.mark.parametrize(("batches", "engaged"), [(1, "only 1 of 2 threads prepared anything"), (2, None)])
def test_threads_take_what_comes_so_two_at_work_are_enough(build, batches: int, engaged: str | None) -> None:
    meeting = threading.Barrier(batches)

    def meet(samples: torch.Tensor, numbers: torch.Tensor, prepared: torch.Tensor) -> None:
        meeting.wait(HANGS_S)  # else one thread may prepare everything before the other wakes up
        CHEAP.prepare(samples, numbers, prepared)

    context = context_of(FEW["cheap"], batches)
    side = build(partial(threads, replace(FEW["cheap"], prepare=meet), 2), context)
    side.step(sample_numbers(FEW["cheap"], context, 0))
    assert side.engaged() == engaged
