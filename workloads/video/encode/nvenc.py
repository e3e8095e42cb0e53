"""H.264 or HEVC by the GPU's own encoder, through PyNvVideoCodec: NV12 on the device in, Annex B packets out.

A100, H100 and H200 have no such encoder, and creating one breaks the CUDA context of its process. So a child process
tries it first, and this module creates no encoder where the child could not.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from workloads.video.clip.muxing import CodedTrack, Coding, replacing_video
from workloads.video.encode.colour_tags import ColourTags
from workloads.video.encode.encoder_thread import ThreadedEncoder
from workloads.video.encode.encoding import Encoded, EncodingError, VideoFormat, encoded, require_frames
from workloads.video.encode.nvenc_probe import PACKAGE, why_not
from workloads.video.encode.pending_frames import PendingFrames, as_of_now

MOST_IN_FLIGHT = 3
KEYFRAMES = (2, 3)  # I and IDR of NV_ENC_PIC_TYPE; an I that is no IDR cannot occur, see `arguments`


@dataclass(frozen=True)
class NvencSettings:
    """Settings of NVENC's quality and speed. `preset` goes from P1, the fastest, to P7, the best.

    `constqp` keeps the quantizer `qp`; `vbr` and `cbr` keep `bit_rate_mbit_s`, the first one loosely.
    """

    codec: Literal["h264", "hevc"] = "h264"
    preset: str = "P4"
    tuning: Literal["high_quality", "low_latency", "ultra_low_latency"] = "high_quality"
    rate_control: Literal["constqp", "vbr", "cbr"] = "constqp"
    qp: int = 25
    bit_rate_mbit_s: float | None = None
    frames_between_keyframes: int = 250

    def __post_init__(self) -> None:
        if self.preset not in [f"P{level}" for level in range(1, 8)]:
            raise ValueError(f"NVENC has no preset {self.preset!r}: choose from P1 to P7")
        if not 0 <= self.qp <= 51:
            raise ValueError(f"there is no quantizer {self.qp}: choose from 0 to 51")
        if (self.rate_control == "constqp") != (self.bit_rate_mbit_s is None):
            raise ValueError(
                f"{self.rate_control} at {self.bit_rate_mbit_s} Mbit/s: vbr and cbr need a bit rate, constqp none"
            )


DEFAULT = NvencSettings()


def arguments(settings: NvencSettings, video: VideoFormat, gpu: int) -> dict[str, str | int]:
    """Arguments of PyNvVideoCodec's CreateEncoder, besides size and pixel format, with bit rates in bits per second.

    Every group of pictures begins with an IDR. The buffer of the rate control has room for one second.
    """
    rate: dict[str, str | int] = {"rc": settings.rate_control}
    if settings.bit_rate_mbit_s is None:
        rate["constqp"] = settings.qp
    else:
        bit_rate = round(1e6 * settings.bit_rate_mbit_s)
        most = bit_rate if settings.rate_control == "cbr" else bit_rate * 3 // 2
        rate |= {"bitrate": bit_rate, "maxbitrate": most, "vbvbufsize": most}
    return {
        "gpu_id": gpu,
        "codec": settings.codec,
        "preset": settings.preset,
        "tuning_info": settings.tuning,
        "fps": max(1, round(video.frames_per_second)),
        "gop": settings.frames_between_keyframes,
        "idrperiod": settings.frames_between_keyframes,
        **rate,
    }


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


class Nvenc(ThreadedEncoder[Tensor, PendingFrames]):
    """An encoder of uint8 [n, H*3//2, W] NV12, limited range, on a CUDA device.

    The caller waits while MOST_IN_FLIGHT batches are in flight. Raises EncodingError where the GPU has no encoder.
    """

    def __init__(self, path: Path, video: VideoFormat, device: torch.device, settings: NvencSettings = DEFAULT) -> None:
        self._settings = settings
        self._gpu = torch.cuda.current_device() if device.index is None else device.index
        if problem := why_not(self._gpu, settings.codec):
            raise EncodingError(problem)
        super().__init__(path, video, MOST_IN_FLIGHT)

    def write(self, frames: Tensor) -> None:
        require_frames(frames, self.video.nv12_shape)
        self._thread.wait_for_room()
        self._thread.put(as_of_now(frames))

    def _encode(self, batches: Iterator[PendingFrames]) -> Encoded:
        video, settings = self.video, self._settings
        torch.cuda.set_device(
            self._gpu
        )  # a thread without a context would get one of its own, without PyTorch's memory
        nvc: Any = importlib.import_module(PACKAGE)
        with replacing_video(self.path) as container:
            wanted = arguments(settings, video, self._gpu)
            session = _Session(nvc, nvc.CreateEncoder(video.width, video.height, "NV12", False, **wanted))
            coding = Coding(
                settings.codec, video.width, video.height, video.frames_per_second, session.reordered_frames
            )
            track, tags = CodedTrack(container, coding), ColourTags(settings.codec, video.matrix)
            for packet in session.packets(batches):
                is_keyframe = packet["picture_type"] in KEYFRAMES
                data = bytes(packet["data"])
                track.mux(tags(data) if is_keyframe else data, packet["timestamp"], is_keyframe)
        return encoded(self.path, track.frames, video)


class _Session:
    """An encoder of the GPU, and the frames that it may still have to read.

    The library reports a finished read of a frame only by its packet: until then the batches are kept.
    """

    def __init__(self, nvc: Any, encoder: Any) -> None:
        self._nvc, self._encoder = nvc, encoder
        self.reordered_frames = max(0, int(encoder.GetNumBFrames()))  # -1 where every picture is a keyframe
        self._kept: deque[tuple[int, Tensor]] = deque()  # with the number of the frame after the last one
        self._given = self._returned = 0

    def packets(self, batches: Iterator[PendingFrames]) -> Iterator[dict[str, Any]]:
        """The packets in coding order: `data`, the frame's number as `timestamp`, and `picture_type`."""
        for batch in batches:
            batch.wait()
            self._kept.append((self._given + len(batch.frames), batch.frames))
            for frame in batch.frames:
                picture = self._nvc.NV_ENC_PIC_PARAMS()
                picture.inputTimeStamp = self._given
                self._given += 1
                yield from self._counted(self._encoder.Encode(Nv12Planes(frame), picture))
        yield from self._counted(self._encoder.EndEncode())

    def _counted(self, packets: list[dict[str, Any]]) -> list[dict[str, Any]]:
        self._returned += len(packets)
        while self._kept and self._kept[0][0] + self.reordered_frames <= self._returned:
            self._kept.popleft()
        return packets
