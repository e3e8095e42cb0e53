"""Decoders that give the frames of a clip in order, in batches, round after round; OpenCV's is the baseline."""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workloads.video.clip.colour import planes
from workloads.video.clip.video_file import Plane, VideoError, VideoInfo, copy_as_nv12, examine, planar_frames

_Frame = TypeVar("_Frame")
# One for each of its threads, at most FFmpeg's 16: OpenCV returns a frame and decodes the following ones.
FRAMES_IN_FFMPEG = min(16, len(os.sched_getaffinity(0)))
CLOSED = "the decoder is closed: make another one"
TAGS_FOLLOWED = 5  # by OpenCV from this version on; earlier ones convert everything with the matrix of BT.601
INDEXED = (".mp4", ".mov", ".mkv")  # files whose first frame OpenCV finds again; in others it misses up to a keyframe


def missing_frames(info: VideoInfo, decoded: int) -> VideoError:
    """The error for a decoding that ended too early; `decoded` frames were returned before."""
    return VideoError(
        f"{info.path} gave {decoded} of its {info.frames} frames, since it was cut short or is damaged: "
        "make it anew, or keep what decodes, for instance with ffmpeg -i IN OUT"
    )


class Decoder(Protocol):
    """Gives the next frames of the clip `info`, as a NumPy array in BGR or as a tensor in NV12.

    After `settle` the frames decoded ahead are complete again; otherwise they are the decoder's stock.
    """

    info: VideoInfo
    stock_frames: int

    def read(self, frames: int) -> Any: ...

    def settle(self) -> None: ...

    def close(self) -> None: ...


class SequentialDecoder(ABC, Generic[_Frame]):
    """Fills batches with the frames of a clip, over and over where `loop` is True."""

    def __init__(self, info: VideoInfo, loop: bool) -> None:
        self.info = info
        self._loop, self._decoded = loop, 0  # `_decoded` counts within the round
        self._closed = False

    def close(self) -> None:
        """Ends the decoder; may be called again."""
        if not self._closed:
            self._closed = True
            self._release()

    def settle(self) -> None:
        """Returns immediately: this decoder decodes nothing ahead."""

    @abstractmethod
    def _decode_into(self, frame: _Frame) -> bool:
        """Writes the next frame of the clip into `frame`; False after the last."""

    @abstractmethod
    def _rewind(self) -> None:
        """Returns to the first frame."""

    @abstractmethod
    def _release(self) -> None:
        """Ends the underlying decoder; called once."""

    def _fill(self, batch: Iterable[_Frame]) -> int:
        """Fills the batch; returns the number of frames written: all of them, or the rest of the clip.

        Raises VideoError where the clip ended too early, in the call after the one that returned its last frames, and
        ValueError after `close`.
        """
        if self._closed:
            raise ValueError(CLOSED)
        filled = 0
        for frame in batch:
            if not self._decode_into(frame) and not (self._next_round(filled) and self._decode_into(frame)):
                break
            self._decoded += 1
            filled += 1
        return filled

    def _next_round(self, filled: int) -> bool:
        if self._decoded < self.info.frames:
            if filled:
                return False
            raise missing_frames(self.info, self._decoded)
        if self._loop:
            self._rewind()
            self._decoded = 0
        return self._loop


class HostDecoder(SequentialDecoder[NDArray[np.uint8]]):
    """OpenCV decodes on all cores of the CPU and converts to BGR with the matrix of the file's tag.

    Raises VideoError for videos that `examine` refuses, and for a matrix that this OpenCV does not support.
    """

    stock_frames = FRAMES_IN_FFMPEG

    def __init__(self, path: Path, loop: bool = False) -> None:
        import cv2

        super().__init__(examine(path), loop)
        if self.info.matrix != "bt601" and int(cv2.__version__.partition(".")[0]) < TAGS_FOLLOWED:
            raise VideoError(
                f"{path} has its colours in {self.info.matrix}, and OpenCV {cv2.__version__} would show them in bt601: "
                f"pip install 'opencv-python-headless>={TAGS_FOLLOWED}', or convert it with ffmpeg"
            )
        self._capture = cv2.VideoCapture()
        self._open()

    def read(self, frames: int) -> NDArray[np.uint8]:
        """uint8 [n, H, W, 3], BGR: `frames` frames, fewer at the end, then 0.

        Raises VideoError where the clip ended too early, after all decodable frames were returned.
        """
        batch = np.empty((frames, self.info.height, self.info.width, 3), np.uint8)
        return batch[: self._fill(batch)]

    def _decode_into(self, frame: NDArray[np.uint8]) -> bool:
        decoded, image = self._capture.read(frame)
        if not decoded and self._decoded < self.info.frames:
            decoded, image = self._capture.read(frame)  # after a damaged packet come frames that were held back
        if decoded and image.shape != frame.shape:
            found, wanted = ("x".join(str(side) for side in each.shape[1::-1]) for each in (image, frame))
            raise VideoError(
                f"{self.info.path} has a frame of {found} pixels among those of {wanted}: convert it first"
            )
        return decoded

    def _rewind(self) -> None:
        import cv2

        if self.info.path.suffix.lower() in INDEXED:
            self._capture.set(cv2.CAP_PROP_POS_FRAMES, 0)
        else:
            self._open()

    def _release(self) -> None:
        self._capture.release()

    def _open(self) -> None:
        import cv2

        if not self._capture.open(str(self.info.path.absolute()), cv2.CAP_FFMPEG):
            raise VideoError(f"{self.info.path} cannot be opened by OpenCV: convert it, for instance to H.264 in MP4")


class HostPlanesDecoder(SequentialDecoder[Plane]):
    """FFmpeg's decoder by PyAV, with its own threads, and frames in their coded form: NV12, half as large as BGR."""

    stock_frames = FRAMES_IN_FFMPEG

    def __init__(self, path: Path, loop: bool = False) -> None:
        super().__init__(examine(path), loop)
        self._frames = planar_frames(path)

    def read(self, frames: int) -> Tensor:
        """uint8 [n, H * 3 // 2, W]: `frames` frames, fewer at the end, then 0.

        Raises VideoError where the clip ended too early, after all decodable frames were returned.
        """
        batch = np.empty((frames, self.info.height * 3 // 2, self.info.width), np.uint8)
        return torch.from_numpy(batch[: self._fill(batch)])

    def _decode_into(self, frame: Plane) -> bool:
        decoded = next(self._frames, None)
        if decoded is None:
            return False
        copy_as_nv12(decoded, frame)
        return True

    def _rewind(self) -> None:
        self._frames = planar_frames(self.info.path)

    def _release(self) -> None:
        self._frames = iter(())  # the last reference, which closes the file


class TorchCodecDecoder(SequentialDecoder[Tensor]):
    """torchcodec without its conversion to RGB: one session on `device`, on the caller's current stream.

    NVDEC on CUDA, FFmpeg on a CPU, NV12 out of both. Needs torchcodec 0.17 or newer, whose `Demuxer` and packet
    decoders hand out frames as they were coded, and FFmpeg's shared libraries beside it.
    """

    stock_frames = 0  # it decodes on request

    def __init__(self, path: Path, device: torch.device, loop: bool = False) -> None:
        super().__init__(examine(path), loop)
        self._library = importlib.import_module("torchcodec.decoders")
        self._device = device
        self._rewind()

    def read(self, frames: int) -> Tensor:
        """uint8 [n, H*3/2, W] on the device: `frames` frames, fewer at the end, then 0.

        Raises VideoError where the clip ended too early, after all decodable frames were returned.
        """
        rows = self.info.height * 3 // 2
        batch = torch.empty(frames, rows, self.info.width, dtype=torch.uint8, device=self._device)
        return batch[: self._fill(batch)]

    def _decode_into(self, frame: Tensor) -> bool:
        decoded = next(self._frames, None)
        if decoded is None:
            return False
        luma, chroma = planes(frame[None])
        y, u, v = decoded.planes
        luma[0].copy_(y)
        chroma[0, ..., 0].copy_(u)
        chroma[0, ..., 1].copy_(v)
        return True

    def _rewind(self) -> None:
        self._frames = self._all_frames()

    def _release(self) -> None:
        self._frames = iter(())  # the last references to the file, and to a session that the library keeps for others

    def _all_frames(self) -> Iterator[Any]:
        demuxer = self._library.Demuxer(self.info.path, streams="video")
        decoder = demuxer.streams[0].make_decoder(self._device)
        for packet in demuxer:
            yield from decoder.decode(packet)
        yield from decoder.drain()
