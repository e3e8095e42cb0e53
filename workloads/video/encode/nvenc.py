"""H.264 by the GPU's own encoder, through PyNvVideoCodec: NV12 on the device in, Annex B packets out.

A100, H100 and H200 have no such encoder, and creating one breaks the CUDA context of its process. So a child process
tries it first, and this module creates no encoder where the child could not.
"""

from __future__ import annotations

import functools
import importlib
import subprocess
import sys
from collections import deque
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workloads.video.clip.video_file import replacing_video
from workloads.video.encode.encoding import (
    H273_CODE,
    Encoder,
    EncodingError,
    PendingFrames,
    VideoFormat,
    as_of_now,
    coded_packet,
    coded_track,
    nv12_shape,
    require_frames,
)

PACKAGE, INSTALL = "PyNvVideoCodec", "pip install PyNvVideoCodec"
TRIAL_LIMIT_S = 60.0
# The child encodes four grey pictures: NVENC refuses pictures much smaller than 256 x 256. It ends without a library's
# clean-up, which could crash or hang it.
TRIAL = """
import os, sys
import numpy, PyNvVideoCodec
encoder = PyNvVideoCodec.CreateEncoder(256, 256, "NV12", True, gpu_id=int(sys.argv[1]), codec="h264")
grey = numpy.full((384, 256), 128, dtype=numpy.uint8)
packets = sum(len(encoder.Encode(grey)) for _ in range(4)) + len(encoder.EndEncode())
os._exit(0 if packets else 1)
"""
KEYFRAMES = (2, 3)  # I and IDR of NV_ENC_PIC_TYPE; an I that is no IDR cannot occur, as every group begins with an IDR
FRAMES_BETWEEN_KEYFRAMES = 250
SETTINGS: dict[str, str | int] = {
    "codec": "h264",
    "preset": "P4",
    "tuning_info": "high_quality",
    "rc": "constqp",
    "constqp": 25,
    "gop": FRAMES_BETWEEN_KEYFRAMES,
    "idrperiod": FRAMES_BETWEEN_KEYFRAMES,
}


@functools.cache
def why_not(gpu: int) -> str | None:
    """The reason why this GPU, by CUDA's index, cannot encode, as one sentence with the next step; None if it can.

    A child process tries it, which takes seconds; the answer is kept for this process.
    """
    if find_spec(PACKAGE) is None:
        return f"NVENC needs the package {PACKAGE}: {INSTALL}"
    try:
        child = subprocess.run(
            [sys.executable, "-c", TRIAL, str(gpu)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TRIAL_LIMIT_S,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        problem = f"a trial did not end within {TRIAL_LIMIT_S:g} s"
    else:
        if child.returncode == 0:
            return None
        lines = child.stdout.strip().splitlines() or [""]
        problem = f"a trial ended with status {child.returncode}, {lines[-1][:160]}"
    return f"GPU {gpu} encodes no h264 by NVENC ({problem}): take another encoder, A100, H100 and H200 have none"


class Nvenc(Encoder[Tensor]):
    """An encoder of uint8 [n, H*3//2, W] NV12, limited range, on a CUDA device.

    The library reports a finished read of a frame only by its packet: until then the batches are kept.
    """

    def __init__(self, path: Path, video: VideoFormat, device: torch.device) -> None:
        self._gpu = torch.cuda.current_device() if device.index is None else device.index
        if problem := why_not(self._gpu):
            raise EncodingError(problem)
        super().__init__(path, video)

    def _prepared(self, frames: Tensor) -> PendingFrames:
        require_frames(frames, nv12_shape(self.video))
        return as_of_now(frames)

    def _open(self) -> None:
        from av.bitstream import BitStreamFilterContext

        video, code = self.video, H273_CODE[self.video.matrix]
        # A thread without a context would get one of its own, without PyTorch's memory.
        torch.cuda.set_device(self._gpu)
        self._library: Any = importlib.import_module(PACKAGE)
        # NVENC tags no colours, which a player would guess from the frame's size: the filter rewrites parameter sets.
        colours = f"colour_primaries={code}:transfer_characteristics={code}:matrix_coefficients={code}"
        self._tags = BitStreamFilterContext(f"h264_metadata={colours}:video_full_range_flag=0", "h264")
        fps = max(1, round(video.frames_per_second))
        self._container = self._file.enter_context(replacing_video(self.path))
        self._encoder = self._library.CreateEncoder(
            video.width, video.height, "NV12", False, gpu_id=self._gpu, fps=fps, **SETTINGS
        )
        self._reordered = max(0, int(self._encoder.GetNumBFrames()))  # -1 where every picture is a keyframe
        self._track = coded_track(self._container, "h264", video)
        self._kept: deque[tuple[int, Tensor]] = deque()  # with the number of the frame after the last one
        self._given = 0

    def _encode(self, batch: PendingFrames) -> None:
        batch.wait()
        self._kept.append((self._given + len(batch.frames), batch.frames))
        for frame in batch.frames:
            picture = self._library.NV_ENC_PIC_PARAMS()
            picture.inputTimeStamp = self._given
            self._given += 1
            self._mux(self._encoder.Encode(Nv12Planes(frame), picture))

    def _flush(self) -> None:
        self._mux(self._encoder.EndEncode())
        del self._encoder  # in its thread
        self._kept.clear()

    def _mux(self, packets: list[dict[str, Any]]) -> None:
        """Writes the packets, in coding order: `data`, the frame's number as `timestamp`, and `picture_type`."""
        from av.packet import Packet

        for packet in packets:
            data, is_keyframe = bytes(packet["data"]), packet["picture_type"] in KEYFRAMES
            if is_keyframe:
                data = b"".join(bytes(tagged) for tagged in self._tags.filter(Packet(data)))
            coded = self.frames - self._reordered
            self._container.mux(coded_packet(self._track, self.video, data, packet["timestamp"], coded, is_keyframe))
            self.frames += 1
        while self._kept and self._kept[0][0] + self._reordered <= self.frames:
            self._kept.popleft()


class Nv12Planes:
    """A frame, uint8 [H*3//2, W] contiguous, for PyNvVideoCodec, whose `cuda()` returns luma and chroma.

    Each has a `__cuda_array_interface__`: [H, W, 1], and [H/2, W/2, 2] with U before V.
    """

    def __init__(self, frame: Tensor) -> None:
        rows, width = frame.shape
        height = rows * 2 // 3
        self._planes = [
            _Plane((height, width, 1), (width, 1, 1), frame.data_ptr()),
            _Plane((height // 2, width // 2, 2), (width, 2, 1), frame.data_ptr() + height * width),
        ]

    def cuda(self) -> list[_Plane]:
        return self._planes


class _Plane:
    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], address: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "strides": strides,
            "data": (address, False),
            "typestr": "|u1",
            "version": 3,
        }
