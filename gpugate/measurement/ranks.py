"""A side whose every step is a step of all ranks of a job, and the number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import fields
from typing import Any, Protocol

import torch
import torch.distributed as dist

from gpugate.errors import RankError
from gpugate.workload import RANKS, Side, nothing_to_join


def count_ranks(device: torch.device) -> int:
    """Counts the ranks of a case that spans GPUs: one for each of 2, 4 or 8 visible GPUs, on a CPU two."""
    if device.type != "cuda":
        return RANKS[-1]
    return next(number for number in RANKS if number <= torch.cuda.device_count())  # cuda only


class Job(Protocol):
    """The other ranks of a job, and what the engine makes them do."""

    count: int

    def announce(self, do: str, **arguments: object) -> None:
        """Makes every other rank do the same as this one is about to do. Raises RankError where a rank has ended."""

    def blame_ranks(self) -> AbstractContextManager[None]:
        """Raises RankError, with the first cause, for an error of communication inside."""

    def watch(self) -> AbstractContextManager[list[Mapping[str, float]]]:
        """Inside, every other rank runs its profiler; afterwards the list has what each of them found."""


class RankedSide(Side):
    """A side of rank 0 that announces its steps to the other ranks before it does them."""

    def __init__(self, side: Side, job: Job, number: int) -> None:
        self._side, self.job, self._number, self._closed = side, job, number, False
        kept = {each.name: getattr(side, each.name) for each in fields(side)}
        joins = {} if side.finish is nothing_to_join else {"finish": self._finish}
        super().__init__(**{**kept, **joins, "close": self._close})

    @property
    def step(self) -> Callable[[Any], Any]:
        """Read once at the beginning of a block, as faults want it."""
        step, job, number = self._side.step, self.job, self._number

        def step_together(inputs: Any) -> Any:
            job.announce("step", side=number, inputs=_numbers(inputs))
            with job.blame_ranks():
                return step(inputs)

        return step_together

    @step.setter
    def step(self, step: Callable[[Any], Any]) -> None:
        self._side.step = step

    def align(self) -> None:
        """Lets every rank finish the steps of the block before, for which the next timed block would wait."""
        self.job.announce("align")
        with self.job.blame_ranks():
            await_all_ranks()

    def _finish(self) -> None:
        self.job.announce("finish", side=self._number)
        with self.job.blame_ranks():
            self._side.finish()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._side.close()
            with suppress(RankError):  # the job has ended: the error that ended it is on its way
                self.job.announce("close", side=self._number)


def await_all_ranks() -> None:
    """Returns when the steps of all ranks are done, on the host and on the device."""
    on_gpu = dist.get_backend() == "nccl"
    dist.all_reduce(torch.zeros(1, device="cuda" if on_gpu else "cpu"))
    if on_gpu:
        torch.cuda.synchronize()  # cuda only


def _numbers(inputs: Any) -> Sequence[Any]:
    if not isinstance(inputs, torch.Tensor) or inputs.dtype != torch.int64 or inputs.is_cuda:
        raise TypeError("a case that spans GPUs takes an int64 tensor on the host as its input: return one")
    numbers: Sequence[Any] = inputs.tolist()
    return numbers
