"""A job of ranks: this process is rank 0, and every other rank is a child process that repeats its calls.

The engine measures rank 0 as it measures any side: pairs, order, outputs, counters and faults need no second form. A
step is announced in one message to each other rank, which does the same step of its own side. The messages are read in
order, so that a step needs no barrier: rank 0 may be many steps ahead, as on a GPU, where its host enqueues.
The collectives of the step itself keep the ranks together; the reference, which has none, leaves them apart, so before
each timed block all ranks wait for each other. An announcement takes 10 us of rank 0 per other rank, in both sides of a
pair alike.

A process meets the others at a file in a fresh temporary folder. A rank that fails or ends is the end of the job: the
others are killed, and what rank 0 waits for is aborted, so that its error names the rank and the cause.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from datetime import timedelta
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import torch
import torch.distributed as dist

from gpugate.errors import RankError
from gpugate.faults.mutate import FaultyBuild
from gpugate.machine.children import CLOSING_S, Child, encode, kill_group
from gpugate.workload import RANKS, Build, Context, Side, nothing_to_join

TIMEOUT_S = 60.0  # to meet, and of a collective
WATCHDOG_S = 0.3  # longer than the 0.1 s from one look of NCCL's watchdog to the next
CAUSE_S = 4.0  # for the cause to arrive, once communication failed
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
# Abort communicators after a time-out or an error, and let this process live: it has the results of the night.
_NCCL = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "2"}


class RankJob:
    """The job of one case, from the start of its ranks to their end. `timeout_s` limits a collective and an answer."""

    def __init__(self, count: int, device: torch.device, timeout_s: float = TIMEOUT_S) -> None:
        self.count = count
        self._device, self._timeout_s = device, timeout_s
        self._stack = ExitStack()
        self._others: dict[int, Child] = {}  # by rank
        self._replies: dict[int, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._failure: str | None = None
        self._closing = False
        self._sides = 0

    def __enter__(self) -> RankJob:
        from pytest import MonkeyPatch  # noqa: PT013  # the other ranks need no pytest

        with ExitStack() as undo:
            undo.push(self.__exit__)
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="gpugate-ranks-")))
            file = str(folder / "rendezvous")
            shared = {"file": file, "timeout_s": self._timeout_s, "count": self.count}
            variables = self._stack.enter_context(MonkeyPatch.context())
            for name, value in {**_NCCL, **_of_rank(0, self.count)}.items():
                variables.setenv(name, value)
            for number in range(1, self.count):
                task = {**shared, "rank": number, "device": str(_device_of(number, self._device))}
                child = Child("gpugate.measurement.rank_server", task=task, environment=_of_rank(number, self.count))
                self._others[number] = self._stack.enter_context(child)
            for number in self._others:
                threading.Thread(target=self._watch, args=(number,), name="gpugate-ranks", daemon=True).start()
            # Each has imported torch, so that the time-out is that of the meeting alone.
            self.request_all("greet", max(TIMEOUT_S, self._timeout_s))
            self.announce("meet")
            with self.blame_ranks():
                join(file, 0, self.count, self._device, self._timeout_s)
            self._stack.callback(_leave)
            undo.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._closing = True
        if any(error):
            self._end_ranks()
        else:
            with suppress(RankError):
                self.announce("leave")
        self._stack.close()

    def announce(self, do: str, **arguments: object) -> None:
        """Makes every other rank do what this one is about to do. Raises RankError where a rank has ended."""
        self._check()
        line = encode({"do": do, **arguments})
        for child in self._others.values():
            with suppress(OSError):  # the end of the process is found by its watcher, with its cause
                child.messages.send_encoded(line)
        self._check()

    def build(self, build: Build, context: Context) -> Side:
        """Builds the side on every rank. Raises RankError for a build function that another process cannot import."""
        self._sides += 1
        number = self._sides
        self.announce(
            "build",
            side=number,
            **_describe(build),
            items=context.items,
            seed=context.seed,
            cache=str(context.cache_dir),
            settings=dict(context.settings),
        )
        with self.blame_ranks():
            return RankedSide(build(context), self, number)

    def align(self) -> None:
        """Lets every rank finish the steps of the block before, for which the next timed block would wait."""
        self.announce("align")
        with self.blame_ranks():
            await_all_ranks()

    def free_sent_memory(self) -> None:  # cuda only
        """Frees what collectives sent, where no one waited for them, as with a hook of DDP.

        PyTorch frees it at the next collective after its watchdog has seen the end, for which it looks every 0.1 s.
        """
        sleep(WATCHDOG_S)
        self.align()

    @contextmanager
    def watch(self) -> Iterator[list[Mapping[str, float]]]:
        """Inside, every other rank runs its profiler; afterwards the list has what each of them found."""
        self.announce("watch")
        found: list[Mapping[str, float]] = []
        yield found
        found += self.request_all("report", self._timeout_s)

    @contextmanager
    def blame_ranks(self) -> Iterator[None]:
        """Raises RankError, with the first cause, for an error of communication inside."""
        try:
            yield
        except RuntimeError as error:
            with self._changed:
                self._changed.wait_for(lambda: self._failure is not None, CAUSE_S)
            self._check(error)
            if "imed out" in str(error):
                late = f"a collective did not end within {self._timeout_s:g} s: a rank skipped it, or is that slow"
                raise RankError(late) from error
            raise
        except BaseException:  # Ctrl-C: the others wait in a collective that this rank left
            self._closing = True
            self._end_ranks()
            raise

    def request_all(self, do: str, timeout_s: float) -> list[dict[str, Any]]:
        """Announces a request that every rank answers; returns the replies by rank."""
        self._replies.clear()
        self.announce(do)

        def is_over() -> bool:
            return self._failure is not None or len(self._replies) == len(self._others)

        with self._changed:
            came = self._changed.wait_for(is_over, timeout_s)
        self._check()
        if not came:
            missing = " and ".join(f"rank {number}" for number in self._others if number not in self._replies)
            raise RankError(f"{missing} did not answer within {timeout_s:g} s: look at the load of this machine")
        return [self._replies[number] for number in self._others]

    def _check(self, error: BaseException | None = None) -> None:
        """Raises RankError, caused by `error`, where a rank has failed."""
        if self._failure is not None:
            raise RankError(self._failure) from error

    def _watch(self, number: int) -> None:
        """Takes the replies of a rank, in a thread of its own, until the job ends or the rank fails."""
        for reply in self._others[number].messages:
            if "error" in reply:
                self._fail(number, reply["error"])
                return
            with self._changed:
                self._replies[number] = reply
                self._changed.notify_all()
        self._fail(number)

    def _fail(self, number: int, problem: str | None = None) -> None:
        """Ends the job: the first cause is kept, the other ranks are killed, and rank 0 waits for nothing any more."""
        if self._closing:
            return
        end = f": {problem}" if problem else f" {self._others[number].await_end(CLOSING_S).cause}"
        failure = f"rank {number}{end}"
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()
        self._end_ranks()

    def _end_ranks(self) -> None:
        """Kills the other ranks, and aborts what rank 0 waits for."""
        for child in self._others.values():
            kill_group(child.process.pid)
        if self._device.type == "cuda":
            with suppress(Exception):  # cuda only
                dist.distributed_c10d._abort_process_group()  # else the kernel of a collective waits without end


class RankedSide(Side):
    """A side of rank 0 that announces its steps to the other ranks before it does them."""

    def __init__(self, side: Side, job: RankJob, number: int) -> None:
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


def count_ranks(device: torch.device) -> int:
    """Counts the ranks of a case that spans GPUs: one for each of 2, 4 or 8 visible GPUs, on a CPU two."""
    if device.type != "cuda":
        return RANKS[-1]
    return next(number for number in RANKS if number <= torch.cuda.device_count())  # cuda only


def _describe(build: Build) -> dict[str, Any]:
    """Describes a build function so that another process finds it: its module, its name and its keyword values."""
    fault = None
    if isinstance(build, FaultyBuild):
        fault, build = str(build.fault), build.build
    keywords: Mapping[str, Any] = {}
    function: Any = build
    if isinstance(build, partial):
        function, keywords = build.func, build.keywords
        if build.args:
            raise RankError(f"{build} has values without names: name them, other ranks build it from JSON")
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "?")
    if module is None or not name.isidentifier():
        raise RankError(f"other ranks cannot import {name}: make it a function of a module")
    return {"module": module, "name": name, "keywords": dict(keywords), "fault": fault}


def join(file: str, rank: int, count: int, device: torch.device, timeout_s: float) -> None:
    """Meets the other ranks at the file; all are there when it returns."""
    if device.type == "cuda":
        torch.cuda.set_device(device)  # cuda only
    dist.init_process_group(
        BACKENDS[device.type],
        init_method=f"file://{file}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if device.type == "cuda" else None,
    )
    await_all_ranks()  # NCCL connects at the first collective


def _leave() -> None:
    with suppress(Exception):  # an aborted group
        dist.destroy_process_group()


def _device_of(rank: int, first: torch.device) -> torch.device:
    """The device of a rank: rank 0 has the first, the others the remaining GPUs in order."""
    if first.type != "cuda":
        return first
    others = [index for index in range(torch.cuda.device_count()) if index != (first.index or 0)]  # cuda only
    return torch.device("cuda", others[rank - 1])  # cuda only


def _of_rank(rank: int, count: int) -> dict[str, str]:
    """The variables of torchrun. On a CPU the ranks share the cores."""
    threads = max(1, len(os.sched_getaffinity(0)) // count)
    shared = {} if rank == 0 else {"OMP_NUM_THREADS": str(threads)}
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), **shared}


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
