"""torchcodec's decoder without its conversion to RGB: NVDEC on CUDA, FFmpeg on a CPU, NV12 out of both.

Needs torchcodec 0.17 or newer, whose `Demuxer` and packet decoders hand out frames as they were coded, and FFmpeg's
shared libraries beside it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workloads.video.clip.colour import planes
from workloads.video.clip.video_file import examine
from workloads.video.decode.decoding import SequentialDecoder


class TorchCodecDecoder(SequentialDecoder[Tensor]):
    """One session on `device`, in the caller's thread and on its current stream.

    Raises VideoError for videos that `examine` refuses.
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
        try:
            for packet in demuxer:
                yield from decoder.decode(packet)
        except RuntimeError:
            if not self.info.frames_missing:
                raise  # a file that was cut short ends with a packet that cannot be decoded
        yield from decoder.drain()
