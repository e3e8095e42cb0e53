"""The thread of an encoder: batches wait for it in order, and their number is bounded."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Generic, TypeVar

from workloads.video.encode.encoding import Encoded, Encoder, EncodingError, VideoFormat

_Batch = TypeVar("_Batch")
_Frames = TypeVar("_Frames")


class _Aborted(Exception):  # noqa: N818 (it is no error, it is what was asked for)
    """An exception where the thread waits for a batch, so that it closes its open files as after an error."""


class EncoderThread(Generic[_Batch]):
    """Runs `encode` over the batches that are put, on a thread of its own.

    `encode` opens its file, takes the batches from its iterator, flushes, and returns the complete file's facts. The
    constructor returns when `encode` requests its first batch, and raises any earlier error. A batch is in flight from
    `put` until `encode` requests the next one; `most_in_flight` bounds them. One caller at a time.
    """

    def __init__(self, path: Path, encode: Callable[[Iterator[_Batch]], Encoded], most_in_flight: int) -> None:
        if most_in_flight < 1:
            raise ValueError(f"{most_in_flight} batches in flight encode nothing: allow at least 1")
        self._path, self._most_in_flight = path, most_in_flight
        self._waiting: deque[_Batch] = deque()
        self._in_flight = 0
        self._open, self._complete, self._given_up = False, False, False
        self._changed = threading.Condition()
        self._outcome: Future[Encoded] = Future()
        # A daemon: an encoder that is never closed must not hang the interpreter at its end.
        self._thread = threading.Thread(target=self._run, args=(encode,), name=f"encode {path.name}", daemon=True)
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._open or self._outcome.done())
        self._raise_what_went_wrong()

    def wait_for_room(self) -> None:
        """Returns when another batch may be put. Raises the error of the thread, and EncodingError after the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._in_flight < self._most_in_flight or self._outcome.done())
        self._raise_what_went_wrong()
        if self._complete or self._given_up:
            raise EncodingError(f"{self._path} has been closed: open another encoder for more frames")

    def put(self, batch: _Batch) -> None:
        """Queues the next batch; `wait_for_room` has returned before."""
        with self._changed:
            self._waiting.append(batch)
            self._in_flight += 1
            self._changed.notify_all()

    def wait_until_idle(self) -> None:
        """Returns when no batch is in flight. Raises the error of the thread."""
        with self._changed:
            self._changed.wait_for(lambda: not self._in_flight or self._outcome.done())
        self._raise_what_went_wrong()

    def finish(self) -> Encoded:
        """Waits until all batches are encoded. Raises the error of the thread, and EncodingError after `abort`."""
        self._tell(complete=True)
        try:
            return self._outcome.result()
        except _Aborted:
            raise EncodingError(f"{self._path} is not written: its encoder was aborted") from None
        finally:
            self._thread.join()

    def abort(self) -> None:
        """Drops the waiting batches, and ends the thread."""
        self._tell(given_up=True)
        self._thread.join()

    def _tell(self, complete: bool = False, given_up: bool = False) -> None:
        with self._changed:
            self._complete |= complete
            self._given_up |= given_up
            self._changed.notify_all()

    def _raise_what_went_wrong(self) -> None:
        if not self._outcome.done():
            return
        error = self._outcome.exception()
        if error is not None and not isinstance(error, _Aborted):
            self._thread.join()
            raise error

    def _run(self, encode: Callable[[Iterator[_Batch]], Encoded]) -> None:
        try:
            self._outcome.set_result(encode(self._taken()))
        except BaseException as error:
            self._outcome.set_exception(error)
        with self._changed:
            self._waiting.clear()
            self._changed.notify_all()

    def _taken(self) -> Iterator[_Batch]:
        while True:
            with self._changed:
                self._open = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._complete or self._given_up)
                if self._given_up:
                    raise _Aborted
                if not self._waiting:
                    return
                batch = self._waiting.popleft()
            yield batch
            del batch  # the last one would otherwise be kept until the next one comes
            self._end_flight()

    def _end_flight(self) -> None:
        with self._changed:
            self._in_flight -= 1
            self._changed.notify_all()


class ThreadedEncoder(Encoder[_Frames], Generic[_Frames, _Batch]):
    """An encoder whose file is opened, filled and closed on a thread of its own."""

    def __init__(self, path: Path, video: VideoFormat, most_in_flight: int) -> None:
        self.path, self.video = path, video
        self._thread: EncoderThread[_Batch] = EncoderThread(path, self._encode, most_in_flight)

    @abstractmethod
    def _encode(self, batches: Iterator[_Batch]) -> Encoded:
        """Encodes the batches in the thread, from opening the file to its complete end."""

    def settle(self) -> None:
        self._thread.wait_until_idle()

    def close(self) -> Encoded:
        return self._thread.finish()

    def abort(self) -> None:
        self._thread.abort()
