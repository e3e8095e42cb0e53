"""Preparation of batches on the host by one thread, by several, or by worker processes: transforms, sides and workers.

Batches are prepared ahead in order, a bounded number, each in a buffer of a ring.

Worker processes come from a fork server that has imported torch and nothing else. A fork of the measuring process would
copy locks that threads of CUDA and of OpenMP may hold, and the ends of the other workers' pipes, so that those workers
would not notice its death; a fresh interpreter for every worker would import torch for seconds. Workers never touch
CUDA. The prepared batches lie in unnamed shared memory, which is freed with its last user in every case.
"""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.multiprocessing
import torch.nn.functional as F
from torch import Tensor

from gpugate.workload import Context, Side
from workloads.parts.random_inputs import host_generator

Prepare = Callable[[Tensor, Tensor, Tensor], None]
Batches = Callable[[Sequence[Tensor]], Iterator[Tensor]]
PREFETCHED = 2  # batches that each worker may have ready or under way
SECONDS_TO_END = 5.0
END = DONE = b""  # messages to and from a worker
MEAN, STD = 0.4 * 255, 0.25 * 255
CHANNELS, BLUR, BLURS = 3, 7, 2
# Of linear RGB to a luminance and two colour differences, ITU-R BT.601.
TO_YCC = ((0.299, 0.587, 0.114), (-0.169, -0.331, 0.5), (0.5, -0.419, -0.081))


@dataclass(frozen=True)
class Preparation:
    """A transform and the shapes it goes between, [channels, height, width] of one sample; `batch` samples at once.

    `prepare(samples, numbers, prepared)` prepares one batch on the calling thread: it reads `samples`, uint8 [samples,
    channels, height, width], at `numbers`, int64 [batch], and fills `prepared`, float32 [batch, channels, height,
    width]. `flops` counts one sample's multiplications and additions, roughly: bytes and calls dominate the cost.
    """

    prepare: Prepare
    sample_shape: tuple[int, int, int]
    prepared_shape: tuple[int, int, int]
    samples: int
    batch: int
    flops: float


def normalize(samples: Tensor, numbers: Tensor, prepared: Tensor) -> None:
    """Subtracts a mean and divides by a standard deviation: a few microseconds a batch."""
    prepared.copy_(samples[numbers]).sub_(MEAN).div_(STD)


def blur_resize_recolour(samples: Tensor, numbers: Tensor, prepared: Tensor) -> None:
    """Blurs, resizes with antialiasing, changes the colour space and normalizes, one picture after another."""
    line = torch.exp(-(torch.arange(BLUR) - BLUR // 2).square() / 8.0)
    kernel = (line[:, None] * line / line.sum() ** 2).expand(CHANNELS, 1, BLUR, BLUR).contiguous()
    to_ycc = torch.tensor(TO_YCC)[:, :, None, None]
    for row, number in zip(prepared, numbers.tolist(), strict=True):
        picture = samples[number].float()[None]  # [1, 3, height, width]
        for _ in range(BLURS):
            picture = F.conv2d(picture, kernel, padding=BLUR // 2, groups=CHANNELS)
        smaller = F.interpolate(picture, row.shape[1:], mode="bilinear", antialias=True)
        row.copy_((to_ycc * smaller).sum(1)).sub_(MEAN).div_(STD)  # [3, height, width]


CHEAP = Preparation(normalize, (1, 28, 28), (1, 28, 28), samples=2048, batch=32, flops=2.0 * 28 * 28)
EXPENSIVE = Preparation(
    blur_resize_recolour,
    (CHANNELS, 96, 96),
    (CHANNELS, 64, 64),
    samples=256,
    batch=4,
    flops=2.0 * CHANNELS * (BLURS * BLUR**2 * 96**2 + 16 * 64**2),
)


def samples_of(preparation: Preparation, seed: int) -> Tensor:
    """uint8 [samples, channels, height, width]: smooth pictures with a little noise, each different."""
    random = torch.Generator().manual_seed(seed)
    channels, height, width = preparation.sample_shape
    coarse = torch.rand(preparation.samples, channels, 4, 4, generator=random)
    smooth = F.interpolate(coarse, (height, width), mode="bilinear")
    noise = torch.rand(preparation.samples, channels, height, width, generator=random)
    return ((0.9 * smooth + 0.1 * noise) * 255).to(torch.uint8)


def sample_numbers(preparation: Preparation, context: Context, index: int) -> Tensor:
    """Input set `index`: int64 [items] on the host."""
    return torch.randint(preparation.samples, (context.items,), generator=host_generator(context, index))


def checksums(prepared: Tensor) -> Tensor:
    """float64 [batch]: the sum of a sample's 64-bit words modulo 2^64, as a share of 2^64.

    Another sample has another checksum; a last bit that is rounded differently changes it by less than 1e-9.
    """
    return prepared.view(torch.int64).flatten(1).sum(1).double() / 2.0**64


def _side(
    preparation: Preparation,
    context: Context,
    batches: Batches,
    engaged: Callable[[], str | None],
    close: Callable[[], None],
) -> Side:
    """Takes prepared batches in order, one by one, to the device. An error ends all workers before it is raised."""
    device = context.device
    place = torch.empty(preparation.batch, *preparation.prepared_shape, device=device)

    def on_device(prepared: Tensor) -> Tensor:
        return prepared if device.type == "cpu" else place.copy_(prepared)  # over when it returns

    def step(numbers: Tensor) -> Tensor:
        asked: Sequence[Tensor] = numbers.split(preparation.batch)  # type: ignore[no-untyped-call]
        try:
            return torch.cat([checksums(on_device(each)) for each in batches(asked)])
        except BaseException:
            close()
            raise

    resident = torch.zeros_like(place).normal_(generator=torch.Generator(device).manual_seed(context.seed))

    def cached_step() -> None:
        for _ in range(context.items // preparation.batch):
            checksums(resident)

    return Side(step, engaged=engaged, close=close, cached_step=cached_step)


def one_thread(preparation: Preparation, context: Context) -> Side:
    """The side that prepares a batch, uses it, and prepares the next."""
    torch.set_num_threads(1)
    samples = samples_of(preparation, context.seed)
    shape = (preparation.batch, *preparation.prepared_shape)
    prepared = torch.empty(shape, pin_memory=context.device.type == "cuda")

    def batches(numbers: Sequence[Tensor]) -> Iterator[Tensor]:
        for each in numbers:
            preparation.prepare(samples, each, prepared)
            yield prepared

    return _side(preparation, context, batches, lambda: None, lambda: None)


def threads(preparation: Preparation, count: int, context: Context) -> Side:
    torch.set_num_threads(1)
    samples = samples_of(preparation, context.seed)
    pool = WorkerThreads(count, preparation, samples, pinned=context.device.type == "cuda")
    # Threads share one queue: if they are fast enough, one of them may never get a batch.
    return _side(preparation, context, pool.batches, lambda: _idle(len(pool.busy), min(2, count), count), pool.close)


def processes(preparation: Preparation, count: int, context: Context) -> Side:
    """The side of worker processes; batches are copied to the device from shared memory, not page-locked."""
    torch.set_num_threads(1)
    pool = WorkerProcesses(count, preparation, samples_of(preparation, context.seed))
    return _side(preparation, context, pool.batches, lambda: _idle(len(pool.busy), count, count), pool.close)


def _idle(busy: int, enough: int, count: int) -> str | None:
    return None if busy >= enough else f"only {busy} of {count} workers prepared anything"


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


class WorkerThreads:
    """Threads of this process, one kernel thread each; transforms run at once where they release the GIL."""

    def __init__(self, count: int, preparation: Preparation, samples: Tensor, pinned: bool) -> None:
        self._prepare, self._samples = preparation.prepare, samples
        shape = (preparation.batch, *preparation.prepared_shape)
        self._buffers = [torch.empty(shape, pin_memory=pinned) for _ in range(PREFETCHED * count)]
        self.busy: set[int] = set()  # threads that have prepared a batch
        self._asked: deque[Future[Tensor]] = deque()
        self._threads = ThreadPoolExecutor(count, "preparing", torch.set_num_threads, (1,))

    def batches(self, numbers: Sequence[Tensor]) -> Iterator[Tensor]:
        """float32 [batch, channels, height, width] for each of `numbers`; raises the error of a transform."""
        return in_order(numbers, len(self._buffers), self._ask, lambda place: self._asked.popleft().result())

    def _ask(self, place: int, numbers: Tensor) -> None:
        self._asked.append(self._threads.submit(self._work, numbers, self._buffers[place % len(self._buffers)]))

    def _work(self, numbers: Tensor, buffer: Tensor) -> Tensor:
        self.busy.add(threading.get_ident())
        self._prepare(self._samples, numbers, buffer)
        return buffer

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)


class WorkerProcesses:
    """Processes that fill shared memory; one message each way per batch names its place there.

    `batches` raises RuntimeError when a worker fails, with its traceback, or dies, with its signal or status.
    """

    def __init__(self, count: int, preparation: Preparation, samples: Tensor) -> None:
        slots, shape = PREFETCHED * count, (preparation.batch, *preparation.prepared_shape)
        self._numbers = _shared(torch.empty(slots, preparation.batch, dtype=torch.int64))
        self._prepared = _shared(torch.empty(slots, *shape))
        self.busy: set[int] = set()  # processes that have prepared a batch
        self._pipes: list[Connection] = []
        self.processes: list[Any] = []
        shared = (preparation.prepare, _shared(samples), self._numbers, self._prepared)
        context = torch.multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])  # it serves the first worker of this process, and all later ones
        try:
            for _ in range(count):
                ours, theirs = multiprocessing.Pipe()
                self._pipes.append(ours)
                process = context.Process(target=_work, args=(theirs, *shared), daemon=True)
                with theirs:
                    process.start()
                self.processes.append(process)
        except BaseException:
            self.close()
            raise

    def batches(self, numbers: Sequence[Tensor]) -> Iterator[Tensor]:
        """float32 [batch, channels, height, width] for each of `numbers`, in shared memory."""
        return in_order(numbers, len(self._prepared), self._ask, self._take)

    def _ask(self, place: int, numbers: Tensor) -> None:
        slot, worker = place % len(self._prepared), place % len(self.processes)
        self._numbers[slot].copy_(numbers)
        try:
            self._pipes[worker].send_bytes(bytes([slot]))
        except OSError as error:
            raise self._dead(worker, place) from error

    def _take(self, place: int) -> Tensor:
        worker = place % len(self.processes)
        multiprocessing.connection.wait([self._pipes[worker], self.processes[worker].sentinel])
        try:
            failure = self._pipes[worker].recv_bytes() if self._pipes[worker].poll() else None
        except (EOFError, OSError):
            failure = None
        if failure is None:
            raise self._dead(worker, place)
        if failure != DONE:
            raise RuntimeError(f"{self._name(worker)} failed on batch {place}: {failure.decode()}")
        self.busy.add(worker)
        return self._prepared[place % len(self._prepared)]

    def _name(self, worker: int) -> str:
        return f"worker process {worker + 1} of {len(self.processes)}"

    def _dead(self, worker: int, place: int) -> RuntimeError:
        self.processes[worker].join(SECONDS_TO_END)
        status = self.processes[worker].exitcode
        how = f"exit status {status}" if status is None or status >= 0 else signal.Signals(-status).name
        advice = "see the kernel's log whether memory ran out, or use fewer workers"
        return RuntimeError(f"{self._name(worker)} died of {how} before batch {place} was there: {advice}")

    def close(self) -> None:
        """Ends and joins every worker, by force where it does not respond. May be called again."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError), pipe:
                pipe.send_bytes(END)
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
            slot = message[0]
            try:
                prepare(samples, numbers[slot], prepared[slot])
                answer = DONE
            except Exception as error:
                answer = f"{type(error).__name__}: {error}\n{traceback.format_exc()}".encode()
            pipe.send_bytes(answer)
