"""Video files that appear whole or not at all, written from packets of any encoder: PyAV's own, nvJPEG or NVENC.

All bytes pass through a Python file beside the final one, which is renamed at the end. This file keeps the error of a
full disk, where FFmpeg keeps a number at best, and closing it makes PyAV leave an unfinished video as it is.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from workloads.video.clip.partial_files import partial_file, remove_left_over
from workloads.video.clip.video_file import VideoError

if TYPE_CHECKING:
    import numpy as np
    from av.container import OutputContainer
    from numpy.typing import NDArray
    from typing_extensions import Buffer

FORMATS = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska", ".avi": "avi"}  # FFmpeg's names of the containers
MIB = 2**20
WRITE_BYTES = MIB  # at a time, as every write has to wait for the GIL


@contextmanager
def replacing_video(path: Path) -> Iterator[OutputContainer]:
    """A PyAV container that becomes the file `path` when the block ends, and vanishes if the block or a write fails.

    Its container follows from the suffix: .mp4, .mov, .mkv or .avi. The block adds a stream and muxes packets, from one
    thread at a time, and must flush its encoder; the trailer is written here. An earlier file at `path` stays until
    then.

    Raises VideoError for another suffix and when nothing was muxed, and OSError when the file cannot be written, each
    in one sentence; all other errors of the block are raised unchanged.
    """
    import av

    if path.suffix.lower() not in FORMATS:
        raise VideoError(f"{path} cannot be written as a video: let its name end in {', '.join(FORMATS)}")
    with replacing_file(path) as file:
        container = av.open(file, "w", format=FORMATS[path.suffix.lower()], buffer_size=WRITE_BYTES)
        try:
            yield container
            container.close()
        except BaseException:
            file.raw.close()
            with suppress(Exception):
                container.close()  # writes no trailer, as the file is closed
            raise
        if not file.tell():
            raise VideoError(f"{path} would be a video without a frame: check what was to be encoded")


@dataclass(frozen=True)
class Coding:
    """The coding of finished pictures: `codec` by FFmpeg's name, H.264 and HEVC as Annex B byte streams.

    `reordered_frames` is the largest number of pictures coded before a picture that is shown ahead of them: 0 without
    B-frames.
    """

    codec: Literal["mjpeg", "h264", "hevc"]
    width: int
    height: int
    frames_per_second: Fraction
    reordered_frames: int = 0


class CodedTrack:
    """A video stream of `container` for pictures that are coded already; `frames` and `bytes` count them."""

    def __init__(self, container: OutputContainer, coding: Coding) -> None:
        self._container, self._coding, self._frame_seconds = container, coding, 1 / coding.frames_per_second
        self._stream = container.add_mux_stream(
            coding.codec,
            rate=coding.frames_per_second,
            width=coding.width,
            height=coding.height,
            time_base=self._frame_seconds,
        )
        self.frames = self.bytes = 0

    def mux(self, picture: bytes | NDArray[np.uint8], shown: int | None = None, is_keyframe: bool = True) -> None:
        """Writes one whole picture, in coding order; `shown` is its number in display order.

        Without `shown` the two orders are equal. An array is not copied: its content must not change any more. Raises
        OSError for a full disk, which may be some pictures late.
        """
        from av.packet import Packet

        packet = Packet(picture)  # type: ignore[arg-type]  # Packet takes any buffer
        packet.stream, packet.time_base = self._stream, self._frame_seconds
        packet.pts = self.frames if shown is None else shown
        packet.dts, packet.duration = self.frames - self._coding.reordered_frames, 1
        packet.is_keyframe = is_keyframe
        self._container.mux(packet)
        self.frames += 1
        self.bytes += len(picture)


@contextmanager
def replacing_file(path: Path) -> Iterator[io.BufferedWriter[KeptErrorFile]]:
    """A file to write to that becomes `path` when the block ends, and vanishes if the block or a write fails.

    The next writer removes the file of a process that was killed on this host or container since it began. The file is
    not forced onto the disk, which would be timed with the encoder. Raises OSError, in one sentence, when it cannot be
    written.
    """
    partial = partial_file(path)
    raw = _opened(partial, path)
    try:
        file = io.BufferedWriter(raw, WRITE_BYTES)
        yield file
        file.close()
        if raw.error is not None:
            raise raw.error
        partial.replace(path)
    except BaseException as error:
        raw.close()
        partial.unlink(missing_ok=True)
        if raw.error is not None and isinstance(error, Exception):
            raise no_room(path, raw.error) from error
        raise


class KeptErrorFile(io.FileIO):
    """Keeps the error of its first failed write in `error`: the writer may receive it as another error, or never."""

    error: OSError | None = None

    def write(self, data: Buffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.error = self.error or error
            raise


def _opened(partial: Path, path: Path) -> KeptErrorFile:
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        remove_left_over(path)
        return KeptErrorFile(partial, "wb")
    except OSError as error:
        raise not_writable(path, error) from error


def not_writable(path: Path, error: OSError) -> OSError:
    """The error, in one sentence, for a file that cannot be begun."""
    return OSError(f"{_says(path, error)}: name a file in a folder that exists and may be written to")


def no_room(path: Path, error: OSError) -> OSError:
    """The error, in one sentence, for a file that cannot be finished."""
    return OSError(f"{_says(path, error)}, {free_in(path.parent)}: make room or choose another folder")


def _says(path: Path, error: OSError) -> str:
    return f"{path} cannot be written ({error.strerror or error})"


def free_in(folder: Path) -> str:
    """The free space of the folder, in words."""
    try:
        return f"{shutil.disk_usage(folder).free / MIB:.0f} MiB are free there"
    except OSError as error:
        return f"and nobody can tell how much is free ({error.strerror})"
