"""The ranks of a job do the same steps, and none outlives a failure of another."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpugate.errors import RankError
from gpugate.measurement.ranks import RankedSide, RankJob
from gpugate.workload import Context, Side
from tests.support import rank_sides
from tests.support.patience import wait_until
from tests.support.tiny_project import running

pytestmark = pytest.mark.usefixtures("warm_children")
CPU = torch.device("cpu")
CONTEXT = Context(CPU, items=1, seed=0, cache_dir=Path())


@contextmanager
def failing_with(words: str) -> Iterator[None]:
    with pytest.raises(RankError) as caught:
        yield
    assert words in str(caught.value)


def process_ids(job: RankJob) -> list[int]:
    return [child.process.pid for child in job._others.values()]


def test_every_rank_does_each_step_of_a_side_that_each_of_them_built() -> None:
    with RankJob(3, CPU) as job:
        side = job.build(partial(rank_sides.adding, factor=10), CONTEXT)
        other = job.build(rank_sides.adding, CONTEXT)
        assert [side.step(torch.tensor([number])).item() for number in (1, 2)] == [60, 120]
        assert other.step(torch.tensor([1])).item() == 6
        side.close()
        assert other.step(torch.tensor([2])).item() == 12
        assert (os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"]) == ("0", "3", "0")
        assert job.build(rank_sides.counting_collectors, CONTEXT).step(torch.tensor([1])).item() == 0
        ids = process_ids(job)
    assert "WORLD_SIZE" not in os.environ
    assert not any(map(running, ids))


@pytest.mark.parametrize(
    ("how", "words"), [("killed", "rank 1 was killed by SIGKILL"), ("failed", "rank 1: ValueError: no luck")]
)
def test_a_rank_that_ends_ends_all_with_its_own_error(how: str, words: str) -> None:
    with RankJob(3, CPU) as job:
        side = job.build(partial(rank_sides.ending, how=how), CONTEXT)
        with failing_with(words):
            side.step(torch.tensor([1]))
        wait_until(lambda: not any(map(running, process_ids(job))))
        with failing_with(words):
            job.build(rank_sides.failing_build, CONTEXT)
        closed: list[int] = []
        side._side.close = lambda: closed.append(1)  # type: ignore[attr-defined]
        side.close()
        assert closed == [1], "closing keeps the error"


def test_a_step_that_is_interrupted_ends_the_ranks_that_wait_for_it() -> None:
    with RankJob(2, CPU) as job:
        side = job.build(partial(rank_sides.ending, how="interrupted"), CONTEXT)
        with pytest.raises(KeyboardInterrupt):
            side.step(torch.tensor([1]))
        assert job._others[1].process.wait() == -signal.SIGKILL


def test_an_error_between_steps_ends_ranks_that_wait_in_a_collective() -> None:
    job = RankJob(2, CPU).__enter__()
    child = job._others[1].process
    job.build(partial(rank_sides.ending, how="interrupted"), CONTEXT)
    job.announce("step", side=1, inputs=[1])
    job.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert child.wait() == -signal.SIGKILL


def test_a_rank_that_skips_a_collective_is_found_at_the_time_limit() -> None:
    with RankJob(2, CPU, timeout_s=3) as job:
        side = job.build(partial(rank_sides.ending, how="skipped"), CONTEXT)
        with failing_with("a collective did not end within 3 s: a rank skipped it, or is that slow"):
            side.step(torch.tensor([1]))


def test_a_rank_that_does_not_answer_is_named() -> None:
    with RankJob(2, CPU, timeout_s=3) as job:
        job.announce("build", side=1, module=rank_sides.__name__, name="idle_for_ever", keywords={}, fault=None,
                     items=1, seed=0, cache="", settings={})  # fmt: skip
        with failing_with("rank 1 did not answer within 3 s"), job.watch():
            pass
        ids = process_ids(job)
    assert not any(map(running, ids))


def local(context: Context) -> Side:
    return Side(lambda inputs: inputs)


def test_a_build_that_no_other_process_finds_is_refused() -> None:
    job = RankJob(2, CPU)
    with failing_with("<lambda>: make it a function of a module"):
        job.build(lambda context: local(context), CONTEXT)
    with failing_with("has values without names: name them"):
        job.build(partial(local, CONTEXT), CONTEXT)


def test_a_step_takes_whole_numbers_on_the_host() -> None:
    job: Any = SimpleNamespace(announce=lambda do, **arguments: None)
    with pytest.raises(TypeError, match="takes an int64 tensor on the host"):
        RankedSide(Side(lambda inputs: inputs), job, 1).step(torch.ones(1))
