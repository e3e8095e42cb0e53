"""Batches prepared ahead by threads or by processes: in order, a bounded number, each in a buffer of a ring.

Processes come from a fork server that has imported torch and nothing else. A fork of the measuring process would copy
locks that threads of CUDA and of OpenMP may hold, and the ends of the other workers' pipes, so that those workers would
not notice its death; a fresh interpreter for every worker would import torch for seconds. Workers never touch CUDA. The
prepared batches lie in unnamed shared memory, which is freed with its last user in every case.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing.connection
import os
import signal
import struct
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.multiprocessing
from torch import Tensor

from workloads.host_preparation.sample_transforms import Preparation, Prepare

PREFETCHED = 2  # batches that each worker may have ready or under way
SECONDS_TO_END = 5.0
SECONDS_PER_BATCH = 60.0  # the first one waits for its worker to start, which imports torch
_SLOT = struct.Struct("<i")
_END = b""
_DONE = b""


def in_order(
    batches: Sequence[Tensor], slots: int, ask: Callable[[int, Tensor], None], take: Callable[[int], Tensor]
) -> Iterator[Tensor]:
    """Prepares at most `slots` batches ahead and yields them in order; each is valid until the next request."""
    asked = 0
    for taken in range(len(batches)):
        while asked < min(taken + slots, len(batches)):
            ask(asked, batches[asked])
            asked += 1
        yield take(taken)


@functools.cache
def warn_if_more_than_cores(workers: int, what: str) -> None:
    """Warns once for each number of workers above the number of cores; they are measured all the same."""
    cores = len(os.sched_getaffinity(0))
    if workers > cores:
        message = f"{workers} {what} share {cores} cores: they take turns, so expect no more than {cores} would do"
        warnings.warn(message, RuntimeWarning, stacklevel=2)


class WorkerThreads:
    """Threads of this process, one kernel thread each; transforms run at once where they release the GIL."""

    def __init__(self, count: int, preparation: Preparation, samples: Tensor, pinned: bool) -> None:
        self._prepare, self._samples = preparation.prepare, samples
        shape = (preparation.batch, *preparation.prepared_shape)
        self.buffers = [torch.empty(shape, pin_memory=pinned) for _ in range(PREFETCHED * count)]
        self._idents: set[int] = set()
        self._asked: deque[Future[Tensor]] = deque()
        self._threads = ThreadPoolExecutor(count, "preparing", torch.set_num_threads, (1,))

    def batches(self, numbers: Sequence[Tensor]) -> Iterator[Tensor]:
        """float32 [batch, channels, height, width] for each of `numbers`; raises the error of a transform."""
        return in_order(numbers, len(self.buffers), self._ask, self._take)

    def _ask(self, place: int, numbers: Tensor) -> None:
        self._asked.append(self._threads.submit(self._work, numbers, self.buffers[place % len(self.buffers)]))

    def _take(self, place: int) -> Tensor:
        return self._asked.popleft().result()

    def _work(self, numbers: Tensor, buffer: Tensor) -> Tensor:
        self._idents.add(threading.get_ident())
        self._prepare(self._samples, numbers, buffer)
        return buffer

    @property
    def busy_workers(self) -> int:
        """The number of threads that have prepared a batch."""
        return len(self._idents)

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)


class WorkerProcesses:
    """Processes that fill shared memory; one message each way per batch names its place there.

    `batches` raises RuntimeError when a worker fails, with its traceback, dies, with its signal or status, or prepares
    nothing for a minute.
    """

    def __init__(self, count: int, preparation: Preparation, samples: Tensor) -> None:
        shape = (preparation.batch, *preparation.prepared_shape)
        self._numbers = _shared(torch.empty(PREFETCHED * count, preparation.batch, dtype=torch.int64))
        self._prepared = _shared(torch.empty(PREFETCHED * count, *shape))
        self._busy: set[int] = set()
        self._pipes: list[Connection] = []
        self.processes: list[Any] = []
        shared = (preparation.prepare, _shared(samples), self._numbers, self._prepared)
        try:
            for _ in range(count):
                self._start(shared)
        except BaseException:
            self.close()
            raise

    def _start(self, shared: tuple[Prepare, Tensor, Tensor, Tensor]) -> None:
        context = torch.multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])  # it serves the first worker of this process, and all later ones
        ours, theirs = multiprocessing.Pipe()
        self._pipes.append(ours)
        process = context.Process(target=_work, args=(theirs, *shared), daemon=True)
        with theirs:
            process.start()
        self.processes.append(process)

    def batches(self, numbers: Sequence[Tensor]) -> Iterator[Tensor]:
        """float32 [batch, channels, height, width] for each of `numbers`, in shared memory."""
        return in_order(numbers, len(self._prepared), self._ask, self._take)

    def _ask(self, place: int, numbers: Tensor) -> None:
        slot, worker = place % len(self._prepared), place % len(self.processes)
        self._numbers[slot].copy_(numbers)
        try:
            self._pipes[worker].send_bytes(_SLOT.pack(slot))
        except OSError as error:
            raise self._dead(worker, place) from error

    def _take(self, place: int) -> Tensor:
        worker = place % len(self.processes)
        news = [self._pipes[worker], self.processes[worker].sentinel]
        if not multiprocessing.connection.wait(news, SECONDS_PER_BATCH):
            raise self._hung(worker, place)
        try:
            failure = self._pipes[worker].recv_bytes() if self._pipes[worker].poll() else None
        except (EOFError, OSError):
            failure = None
        if failure is None:
            raise self._dead(worker, place)
        if failure != _DONE:
            raise RuntimeError(f"{self._name(worker)} failed on batch {place}: {failure.decode()}")
        self._busy.add(worker)
        return self._prepared[place % len(self._prepared)]

    def _name(self, worker: int) -> str:
        return f"worker process {worker + 1} of {len(self.processes)}"

    def _hung(self, worker: int, place: int) -> RuntimeError:
        missed = f"did not prepare batch {place} within {SECONDS_PER_BATCH:g} s"
        return RuntimeError(f"{self._name(worker)} {missed}: look where the transform hangs, or use fewer workers")

    def _dead(self, worker: int, place: int) -> RuntimeError:
        self.processes[worker].join(SECONDS_TO_END)
        status = self.processes[worker].exitcode
        how = f"exit status {status}" if status is None or status >= 0 else signal.Signals(-status).name
        advice = "see the kernel's log whether memory ran out, or use fewer workers"
        return RuntimeError(f"{self._name(worker)} died of {how} before batch {place} was there: {advice}")

    @property
    def busy_workers(self) -> int:
        """The number of processes that have prepared a batch."""
        return len(self._busy)

    def close(self) -> None:
        """Ends and joins every worker, by force where it does not respond. May be called again."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError), pipe:
                pipe.send_bytes(_END)
        for process in self.processes:
            process.join(SECONDS_TO_END)
            if process.is_alive():
                process.kill()
                process.join()


def _shared(tensor: Tensor) -> Tensor:
    tensor.share_memory_()  # type: ignore[no-untyped-call]
    return tensor


def _work(pipe: Connection, prepare: Prepare, samples: Tensor, numbers: Tensor, prepared: Tensor) -> None:
    """The main function of a worker: it ends on the message to end, or when the other end of its pipe is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the main process ends the workers
    torch.set_num_threads(1)
    with pipe, contextlib.suppress(EOFError, OSError):
        while message := pipe.recv_bytes():
            (slot,) = _SLOT.unpack(message)
            pipe.send_bytes(_failure_of(prepare, samples, numbers[slot], prepared[slot]))


def _failure_of(prepare: Prepare, samples: Tensor, numbers: Tensor, prepared: Tensor) -> bytes:
    try:
        prepare(samples, numbers, prepared)
    except Exception as error:
        return f"{type(error).__name__}: {error}\n{traceback.format_exc()}".encode()
    return _DONE
