"""Decoders that give the frames of a clip in order, in batches, round after round; OpenCV's is the baseline."""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workloads.video.clip.colour import planes
from workloads.video.clip.video_file import VideoError, VideoInfo, copy_as_nv12, examine, planar_frames

# One for each of its threads, at most FFmpeg's 16: OpenCV returns a frame and decodes the following ones.
FRAMES_IN_FFMPEG = min(16, len(os.sched_getaffinity(0)))


class Decoder(ABC):
    """Gives the frames of the clip `info` in order, over and over where `loop` is True.

    Up to `stock_frames` frames are decoded ahead. After `settle` they are complete again, where that can be known.
    """

    stock_frames = 0

    def __init__(self, info: VideoInfo, loop: bool) -> None:
        self.info, self._loop = info, loop

    def read(self, frames: int) -> Any:
        """The next `frames` frames, fewer at the end, then 0: an array in BGR, or a tensor in NV12."""
        batch = self._new_batch(frames)
        return batch[: self._fill(batch)]

    def _fill(self, batch: Any) -> int:
        for filled, frame in enumerate(batch):
            if not self._decode_into(frame) and not (self._loop and self._rewound() and self._decode_into(frame)):
                return filled
        return len(batch)

    @abstractmethod
    def _new_batch(self, frames: int) -> Any: ...

    @abstractmethod
    def _decode_into(self, frame: Any) -> bool:
        """Writes the next frame of the clip into `frame`; False after the last."""

    @abstractmethod
    def _rewound(self) -> bool:
        """Returns to the first frame, and True."""

    def settle(self) -> None:  # noqa: B027 (not every decoder decodes ahead)
        """Returns at once: it is not known how far this decoder is ahead."""

    @abstractmethod
    def close(self) -> None: ...


class HostDecoder(Decoder):
    """OpenCV decodes on all cores of the CPU and converts to BGR, uint8 [n, H, W, 3], by the file's tag."""

    stock_frames = FRAMES_IN_FFMPEG

    def __init__(self, path: Path, loop: bool = False) -> None:
        import cv2

        super().__init__(examine(path), loop)
        self._capture = cv2.VideoCapture(str(path.absolute()), cv2.CAP_FFMPEG)
        if not self._capture.isOpened():
            raise VideoError(f"{path} cannot be opened by OpenCV: convert it, for instance to H.264 in MP4")

    def _new_batch(self, frames: int) -> NDArray[np.uint8]:
        return np.empty((frames, self.info.height, self.info.width, 3), np.uint8)

    def _decode_into(self, frame: NDArray[np.uint8]) -> bool:
        decoded, image = self._capture.read(frame)
        if not decoded:
            decoded, image = self._capture.read(frame)  # after a damaged packet come frames that were held back
        return decoded and image.shape == frame.shape

    def _rewound(self) -> bool:
        import cv2

        return self._capture.set(cv2.CAP_PROP_POS_FRAMES, 0)

    def close(self) -> None:
        self._capture.release()


class HostPlanesDecoder(Decoder):
    """FFmpeg's decoder by PyAV, with its own threads, and frames in their coded form: NV12, half as large as BGR."""

    stock_frames = FRAMES_IN_FFMPEG

    def __init__(self, path: Path, loop: bool = False) -> None:
        super().__init__(examine(path), loop)
        self._frames = planar_frames(path)

    def read(self, frames: int) -> Tensor:
        batch: Tensor = super().read(frames)
        return batch

    def _new_batch(self, frames: int) -> Tensor:
        return torch.empty(frames, self.info.height * 3 // 2, self.info.width, dtype=torch.uint8)

    def _decode_into(self, frame: Tensor) -> bool:
        decoded = next(self._frames, None)
        if decoded is not None:
            copy_as_nv12(decoded, frame.numpy())
        return decoded is not None

    def _rewound(self) -> bool:
        self._frames = planar_frames(self.info.path)
        return True

    def close(self) -> None:
        self._frames = iter(())  # the last reference, which closes the file


class TorchCodecDecoder(Decoder):
    """torchcodec without its conversion to RGB: one session on `device`, on the caller's current stream.

    NVDEC on CUDA, FFmpeg on a CPU, NV12 out of both. Needs torchcodec 0.17 or newer, whose `Demuxer` and packet
    decoders hand out frames as they were coded, and FFmpeg's shared libraries beside it.
    """

    def __init__(self, path: Path, device: torch.device, loop: bool = False) -> None:
        super().__init__(examine(path), loop)
        self._device = device
        self._frames = self._all_frames()

    def _new_batch(self, frames: int) -> Tensor:
        return torch.empty(frames, self.info.height * 3 // 2, self.info.width, dtype=torch.uint8, device=self._device)

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

    def _rewound(self) -> bool:
        self._frames = self._all_frames()
        return True

    def close(self) -> None:
        self._frames = iter(())  # the last references to the file, and to a session that the library keeps for others

    def _all_frames(self) -> Iterator[Any]:
        library = importlib.import_module("torchcodec.decoders")
        demuxer = library.Demuxer(self.info.path, streams="video")
        decoder = demuxer.streams[0].make_decoder(self._device)
        for packet in demuxer:
            yield from decoder.decode(packet)
        yield from decoder.drain()
