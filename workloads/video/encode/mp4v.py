"""MPEG-4 Part 2 by OpenCV's VideoWriter: the baseline, which encodes BGR frames while its caller waits.

OpenCV converts to BT.601 in limited range and tags nothing. It takes no quality: it requests one bit per pixel of
FFmpeg, 62 Mbit/s at 1080p30, which only detailed frames use up. OpenCV reports no failed write, so the encoder checks
the disk after every batch, and the number of frames of the finished file.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from workloads.video.clip.muxing import free_in, no_room, not_writable
from workloads.video.clip.partial_files import partial_file, remove_left_over
from workloads.video.encode.encoding import Encoded, Encoder, EncodingError, VideoFormat, encoded

SUFFIXES = (".mp4", ".mov", ".avi")
LEAST_FREE_BYTES = 2**16  # FFmpeg writes half as much at a time; a write that does not fit leaves less than that
# OpenCV writes lines on stderr for each incomplete file, and our errors are one sentence.
if "OPENCV_LOG_LEVEL" not in os.environ:
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_ERROR)


class Mp4v(Encoder[NDArray[np.uint8]]):
    """An encoder of uint8 [n, H, W, 3] BGR in host memory, read before `write()` returns.

    Raises EncodingError for a suffix outside of SUFFIXES, and OSError for a path that cannot be written or a disk that
    is full.
    """

    def __init__(self, path: Path, video: VideoFormat) -> None:
        if path.suffix.lower() not in SUFFIXES:
            raise EncodingError(f"{path} is no name for MPEG-4 Part 2: let it end in {', '.join(SUFFIXES)}")
        self.path, self.video = path, video
        self._frames = 0
        self._outcome: Encoded | EncodingError | OSError | None = None
        self._partial = _claimed(path)
        size, rate = (video.width, video.height), float(video.frames_per_second)
        self._writer = cv2.VideoWriter(str(self._partial), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*"mp4v"), rate, size)
        if not self._writer.isOpened():
            self.abort()
            raise EncodingError(f"OpenCV writes no MPEG-4 Part 2 to {path}: take one that was built with FFmpeg")

    def write(self, frames: NDArray[np.uint8]) -> None:
        if isinstance(self._outcome, OSError):
            raise self._outcome
        if self._outcome is not None:
            raise EncodingError(f"{self.path} has been closed: open another encoder for more frames")
        shape = (self.video.height, self.video.width, 3)
        if frames.dtype != np.uint8 or frames.shape[1:] != shape:  # OpenCV would drop them without an error
            raise EncodingError(
                f"frames are {frames.dtype} {list(frames.shape)}: give uint8 [n, {shape[0]}, {shape[1]}, 3]"
            )
        for frame in frames:
            self._writer.write(frame)
        self._frames += len(frames)
        if _is_full(self.path.parent):
            error = no_room(self.path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
            self._drop(error)
            raise error

    def close(self) -> Encoded:
        if self._outcome is None:
            self._writer.release()
            try:
                self._outcome = self._renamed()
            finally:
                self._partial.unlink(missing_ok=True)
        if isinstance(self._outcome, Encoded):
            return self._outcome
        raise self._outcome

    def abort(self) -> None:
        if self._outcome is None:
            self._drop(EncodingError(f"{self.path} is not written: its encoder was aborted"))

    def _drop(self, error: EncodingError | OSError) -> None:
        self._writer.release()
        self._partial.unlink(missing_ok=True)
        self._outcome = error

    def _renamed(self) -> Encoded | EncodingError:
        if not self._frames:
            return EncodingError(f"{self.path} would be a video without a frame: check what was to be encoded")
        found = _frames_in(self._partial)
        if found != self._frames:
            lost = f"{self.path} came out with {found} of {self._frames} frames, {free_in(self.path.parent)}"
            return EncodingError(f"{lost}: make room in {self.path.parent.absolute()} or choose another folder")
        self._partial.replace(self.path)
        return encoded(self.path, self._frames, self.video)


def _is_full(folder: Path) -> bool:
    disk = shutil.disk_usage(folder)
    return disk.total > 0 and disk.free < LEAST_FREE_BYTES  # a disk of size 0 does not report its space


def _claimed(path: Path) -> Path:
    """An empty file beside the final one, with its suffix: OpenCV gives no reason for a path that it cannot open."""
    partial = partial_file(path)
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        remove_left_over(path)
        partial.touch()
    except OSError as error:
        raise not_writable(path, error) from error
    return partial


def _frames_in(path: Path) -> int:
    """The number of frames by the container; 0 for one without its index, which is written last."""
    file = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG)
    count = file.get(cv2.CAP_PROP_FRAME_COUNT) if file.isOpened() else 0
    file.release()
    return max(0, round(count))
