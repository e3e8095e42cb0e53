"""Encodes without end, one file after the other: whatever is measured for long would else fill the disk."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sized
from pathlib import Path
from typing import Generic, TypeVar

from workloads.video_segmentation.encoding import Encoded, Encoder

_Frames = TypeVar("_Frames", bound=Sized)


class Recorder(Generic[_Frames]):
    """Writes to the encoders that `make(path)` gives; each gets the batches of one clip, then it is closed.

    A file is removed when the next one is complete, and the last one by `close()`: `latest` tells of it.
    """

    def __init__(
        self, make: Callable[[Path], Encoder[_Frames]], suffix: str, frames_per_file: int, folder: Path
    ) -> None:
        self.latest: Encoded | None = None
        self._make, self._name, self._most = make, f"clip{suffix}", frames_per_file
        self._folder = tempfile.TemporaryDirectory(prefix="recording-", dir=folder)
        self._encoder: Encoder[_Frames] | None = None
        self._frames = 0

    def write(self, frames: _Frames) -> None:
        if self._encoder is None:
            self._encoder = self._make(Path(self._folder.name, self._name))
        self._encoder.write(frames)
        self._frames += len(frames)
        if self._frames >= self._most:
            self.latest = self._encoder.close()
            self._encoder, self._frames = None, 0

    def settle(self) -> None:
        """See `Encoder.settle`."""
        if self._encoder is not None:
            self._encoder.settle()

    def close(self) -> None:
        """Drops the file that is not complete; may be called again."""
        if self._encoder is not None:
            self._encoder.abort()
            self._encoder = None
        self._folder.cleanup()
