"""The flow of batches through a chain: one batch after the other, or every stage at once on another batch.

Sequential time is the sum of the stages, a conveyor's is their maximum. Files are recorded without end, one after the
other: long measurements would otherwise fill the disk.
"""

from __future__ import annotations

import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from workloads.video.encode.encoding import Encoded, Encoder

if TYPE_CHECKING:
    pass

_Frames = TypeVar("_Frames", bound=Sized)
_Result = TypeVar("_Result")
Around = Callable[[], AbstractContextManager[object]]
QUEUED = 2  # batches between two stages: one to take, one to finish meanwhile


class _ClosedError(Exception):
    """The conveyor is closed: no batch passes any more."""


class Conveyor(Generic[_Result]):
    """Stages that work at once, each in a thread; at most QUEUED batches wait behind each.

    The first stage takes nothing and gives batches, then None; each other one takes a batch and gives one. A thread
    works within its stage's context, which enters its CUDA stream for instance. An error of a stage ends all threads,
    and is raised by `take`; of several errors, the first one.
    """

    def __init__(self, stages: Sequence[tuple[str, Callable[..., Any], Around]]) -> None:
        self._changed = threading.Condition()
        self._behind = [deque[Any]() for _ in stages]
        self._running, self._overfull = {*range(len(stages))}, set[int]()  # the latter have a batch and no room for it
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
        if self._ended:
            return None
        try:
            batch: _Result | None = self._get(len(self._behind) - 1)
        except _ClosedError:
            self.close()
            raise self._failure or ValueError("the conveyor is closed: make another one") from None
        self._ended = batch is None
        return batch

    def settle(self) -> None:
        """Waits until every thread has ended or has a finished batch and no room for it: no batch is being processed.

        Between two such moments exactly as many batches were processed as were taken. The next `take` raises the
        error of a failed stage.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._running <= self._overfull)

    def close(self) -> None:
        """Ends and joins all threads, each after the batch it works on; may be called again."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        for waiting in self._behind:
            waiting.clear()

    def _run(self, number: int, work: Callable[..., Any], around: Around) -> None:
        failure: BaseException | None = None
        try:
            with around():
                batch: object = self
                while batch is not None:
                    before = self if number == 0 else self._get(number - 1)
                    batch = None if before is None else work() if number == 0 else work(before)
                    self._put(number, batch)
        except _ClosedError:
            pass
        except BaseException as error:
            failure = error
        with self._changed:
            self._running.discard(number)
            self._failure = self._failure or failure
            self._closed = self._closed or failure is not None
            self._changed.notify_all()

    def _put(self, number: int, batch: object) -> None:
        waiting = self._behind[number]
        with self._changed:
            if len(waiting) >= QUEUED:
                self._overfull.add(number)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closed or len(waiting) < QUEUED)
                self._overfull.discard(number)
            if self._closed:
                raise _ClosedError
            waiting.append(batch)
            self._changed.notify_all()

    def _get(self, number: int) -> Any:
        waiting = self._behind[number]
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(waiting))
            if self._closed:
                raise _ClosedError
            self._overfull.discard(number)  # the waiting thread has room now, even if it does not run yet
            self._changed.notify_all()
            return waiting.popleft()


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
