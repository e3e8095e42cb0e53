"""Prepared batches by threads and by processes beyond the contract of all workloads: idle threads, workers that die."""

import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpugate.workload import Context, Side
from workloads.host_preparation import CHEAP, EXPENSIVE, Preparation, processes, sample_numbers, samples_of, threads

FEW = replace(CHEAP, samples=50)


def context_of(preparation: Preparation, batches: int = 6) -> Context:
    return Context(torch.device("cpu"), items=batches * preparation.batch, seed=3, cache_dir=Path())


def test_the_stated_bytes_are_those_read_and_written() -> None:
    assert EXPENSIVE.size.items == 64
    one_sample = samples_of(replace(EXPENSIVE, samples=1), 3)
    assert EXPENSIVE.size.bytes == 64 * one_sample.nbytes + 16 * EXPENSIVE.new_batch().nbytes


def steps(side: Side, context: Context, count: int) -> None:
    for index in range(count):
        side.step(sample_numbers(FEW, context, index))


def test_a_killed_worker_ends_the_step_and_no_worker_is_left() -> None:
    context = context_of(FEW)
    side = processes(FEW, 2, context)
    steps(side, context, 1)
    worker, _ = multiprocessing.active_children()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=f"DataLoader worker.*{worker.pid}"):
        steps(side, context, 10)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(("batches", "engaged"), [(1, "only 1 of 2 threads prepared anything"), (40, None)])
def test_idle_threads_are_no_speedup_to_be_proud_of(batches: int, engaged: str | None) -> None:
    context = context_of(EXPENSIVE, batches)
    side = threads(EXPENSIVE, 2, context)
    side.step(sample_numbers(EXPENSIVE, context, 0))
    assert side.engaged() == engaged
    side.close()
