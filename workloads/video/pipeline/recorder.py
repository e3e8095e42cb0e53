"""A recorder that encodes without end, one file after the other: long measurements would otherwise fill the disk."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Generic, TypeVar

from workloads.video.encode.encoding import Encoded, Encoder

_Frames = TypeVar("_Frames", bound=Sized)


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
