"""Batches on their way: stages that work at once, each on another batch, and files that are recorded without end."""

from __future__ import annotations

import math
import tempfile
import threading
from collections.abc import Callable, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from itertools import count
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Generic, TypeVar

from workloads.video.encoders import Encoded, Encoder

_Frames = TypeVar("_Frames", bound=Sized)
_Result = TypeVar("_Result")
Around = Callable[[], AbstractContextManager[object]]
QUEUED = 2  # batches between two stages: one to take, one to finish meanwhile
PATIENCE_S = 0.01  # between two looks at a thread that ends


class Conveyor(Generic[_Result]):
    """Stages that work at once, each in a thread; at most QUEUED batches wait behind each.

    The first stage takes nothing and gives batches, then None; each other one takes a batch and gives one. A thread
    works within its stage's context, which enters its CUDA stream for instance. An error of a stage is raised by `take`
    in place of the batch, after all threads have ended.
    """

    def __init__(self, stages: Sequence[tuple[str, Callable[..., Any], Around]]) -> None:
        self._queues = [Queue[Any](QUEUED) for _ in stages]  # behind each stage; None is the end
        self._finished: list[float] = [0] * len(stages)  # batches of each stage; infinite where its thread has ended
        self._taken = [0] * len(stages)  # out of each queue
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._closed = self._ended = False
        self._threads = [
            threading.Thread(target=self._run, args=(number, work, around), name=f"video-{name}", daemon=True)
            for number, (name, work, around) in enumerate(stages)
        ]
        for thread in self._threads:
            thread.start()

    def take(self) -> _Result | None:
        """The next batch from the last stage, None after the last one."""
        if self._closed:
            raise self._failure or ValueError("the conveyor is closed: make another one")
        batch: _Result | None = None if self._ended else self._get(len(self._queues) - 1)
        self._ended = batch is None
        if self._ended and self._failure is not None:
            self.close()
            raise self._failure
        return batch

    def settle(self) -> None:
        """Waits until every thread has ended or has a finished batch and no room for it: no batch is being processed.

        Between two such moments exactly as many batches were processed as were taken.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: all(map(lambda done, taken: done - taken > QUEUED, self._finished, self._taken))
            )

    def close(self) -> None:
        """Ends and joins all threads, each after the batch it works on; may be called again."""
        self._closed = True
        for thread, waiting in zip(self._threads, self._queues, strict=True):
            while thread.is_alive():
                with suppress(Empty):
                    waiting.get(timeout=PATIENCE_S)  # the thread may wait for room
            waiting.queue.clear()
            waiting.put(None)  # for the thread of the next stage

    def _run(self, number: int, work: Callable[..., Any], around: Around) -> None:
        try:
            with around():
                while not self._closed:
                    given = self._get(number - 1) if number else ()
                    batch = None if given is None else work(given) if number else work()
                    if batch is None:
                        break
                    self._finish(number, self._finished[number] + 1)
                    self._queues[number].put(batch)
        except BaseException as error:
            self._failure = self._failure or error
        self._finish(number, math.inf)
        self._queues[number].put(None)

    def _finish(self, number: int, batches: float) -> None:
        with self._changed:
            self._finished[number] = batches
            self._changed.notify_all()

    def _get(self, number: int) -> Any:
        batch = self._queues[number].get()
        self._taken[number] += 1
        return batch


class Recorder(Generic[_Frames]):
    """Writes to the encoders that `make(path)` gives; each gets the batches of one clip, then it is closed.

    Closing an encoder, which writes its buffered frames and the end of its file, runs beside the next one. A file is
    removed when the next one is complete, and the last one by `close()`: `latest` names it. The next `settle` raises an
    error of closing, or the `write` that ends the next file; `close()` drops it.
    """

    def __init__(
        self, make: Callable[[Path], Encoder[_Frames]], suffix: str, frames_per_file: int, folder: Path
    ) -> None:
        self.latest: Encoded | None = None
        self._make, self._suffix, self._most = make, suffix, frames_per_file
        self._folder = tempfile.TemporaryDirectory(prefix="recording-", dir=folder)
        self._numbers = count()
        self._closer = ThreadPoolExecutor(1, "close recording")
        self._closing: Future[None] | None = None
        self._encoder: Encoder[_Frames] | None = None
        self._frames = 0

    def write(self, frames: _Frames) -> None:
        if self._encoder is None:
            self._encoder = self._make(Path(self._folder.name, f"clip-{next(self._numbers)}{self._suffix}"))
        self._encoder.write(frames)
        self._frames += len(frames)
        if self._frames >= self._most:
            before, self._closing = self._closing, self._closer.submit(self._close, self._encoder)
            self._encoder, self._frames = None, 0
            if before is not None:
                before.result()

    def settle(self) -> None:
        """Waits like `Encoder.settle`; a file that is being closed is complete then."""
        closing, self._closing = self._closing, None
        if closing is not None:
            closing.result()
        if self._encoder is not None:
            self._encoder.settle()

    def close(self) -> None:
        """Drops the incomplete file; may be called again."""
        self._closer.shutdown()
        if self._encoder is not None:
            self._encoder.abort()
            self._encoder = None
        self._folder.cleanup()

    def _close(self, encoder: Encoder[_Frames]) -> None:
        before, self.latest = self.latest, encoder.close()
        if before is not None:
            before.path.unlink()
