"""Decoding: OpenCV on the CPU against decoders that leave the frames where the next stage needs them.

A step reads the next frames of the clip, round and round, and returns the record of arrivals: float32 [frames, 2], see
`Arrivals`, times the step's stamps.
"""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpugate.errors import DisprovedError
from gpugate.workload import Context, Contract, DeviceKind, Limit, Needs, Optimization, Proof, Side, Size, Workload
from workloads.parts.random_inputs import host_generator
from workloads.video import colour
from workloads.video.arrivals import Arrivals, luma_grids
from workloads.video.clip import CLIPS, VIDEO_SETTING, source
from workloads.video.needs import BATCH, EXACT, HOST, ON_HOST, VIDEO_ENGINES
from workloads.video.video_file import VideoError, VideoInfo, copy_as_nv12, examine, planar_frames

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
        return torch.empty(frames, *self.info.nv12_shape, dtype=torch.uint8)

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
        return torch.empty(frames, *self.info.nv12_shape, dtype=torch.uint8, device=self._device)

    def _decode_into(self, frame: Tensor) -> bool:
        decoded = next(self._frames, None)
        if decoded is None:
            return False
        luma, chroma = colour.planes(frame[None])
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


# --- the sides -------------------------------------------------------------------------------------------------------

Codec = Literal["h264", "hevc"]
FRAMES: Mapping[DeviceKind, int] = {"cuda": 32, "cpu": 12}  # per step
SESSIONS = 7  # of NVDEC, as many as an H200 has engines; the driver spreads them
COMPARED_BATCHES = 32  # a frame of each: of our clip every session has decoded a part by then
LEAST_DB = 45.0
MakeDecoder = Callable[[Path, torch.device, bool], Decoder]  # the last one: loop over the clip


def size(kind: DeviceKind) -> Size:
    """Bytes: each frame written once, in NV12. A decoder's operations are no FLOPs."""
    clip = CLIPS[kind]
    frame_bytes = clip.width * clip.height * 3 // 2
    return Size(items=FRAMES[kind], flops=0.0, bytes=float(FRAMES[kind] * frame_bytes))


def stamps(context: Context, index: int) -> Tensor:
    """Input set `index`: float32 [items] between 1 and 2 on the device, one per frame of the step.

    The frames of a step are no input: decoders read ahead. A record times its stamps cannot be an earlier record.
    """
    generator = host_generator(context, index)
    return (1 + torch.rand(context.items, generator=generator)).to(context.device)


def opencv(codec: Codec, context: Context) -> Side:
    """OpenCV decodes and converts: BGR in host memory."""
    clip = source(context, codec)
    arrivals = Arrivals(luma_grids(clip.path), torch.device("cpu"), clip.numbered)
    matrix = clip.info.matrix
    return side(HostDecoder(clip.path, loop=True), context, lambda frames: arrivals.of_bgr(frames, matrix))


def planes(path: Path, device: torch.device, loop: bool) -> Decoder:
    """FFmpeg's decoder without the conversion to BGR, which no later stage needs: NV12 in host memory."""
    return HostPlanesDecoder(path, loop)


def torchcodec(path: Path, device: torch.device, loop: bool) -> Decoder:
    """NVDEC through torchcodec: NV12 in device memory."""
    return TorchCodecDecoder(path, device, loop)  # cuda only


def nvdec(path: Path, device: torch.device, loop: bool) -> Decoder:
    """NVDEC through PyNvVideoCodec: NV12 in device memory."""
    from workloads.video.nvdec import decode_on_device  # cuda only

    return decode_on_device(path, device, 1, loop)  # cuda only


def nvdec_sessions(path: Path, device: torch.device, loop: bool) -> Decoder:
    """Every engine decodes groups of pictures of its own."""
    from workloads.video.nvdec import decode_on_device  # cuda only

    return decode_on_device(path, device, SESSIONS, loop)  # cuda only


def to_nv12(make: MakeDecoder, codec: Codec, context: Context) -> Side:
    clip = source(context, codec)
    place = torch.device("cpu") if make is planes else context.device
    arrivals = Arrivals(luma_grids(clip.path), place, clip.numbered)
    return side(make(clip.path, context.device, True), context, arrivals.of_nv12)


def side(decoder: Decoder, context: Context, record: Callable[[Any], Tensor]) -> Side:
    def step(stamp: Tensor) -> Tensor:
        counts = [min(BATCH, context.items - done) for done in range(0, context.items, BATCH)]
        records = [record(decoder.read(count)) for count in counts]
        return torch.cat(records).to(stamp.device) * stamp[:, None]

    stock_steps = -(-decoder.stock_frames // context.items)
    return Side(step, finish=decoder.settle, close=decoder.close, stock_steps=stock_steps, works_ahead=True)


def frames_agree(make: MakeDecoder, codec: Codec, context: Context) -> str:
    """Proves that NV12 frames, once converted, are those of OpenCV: one frame of each batch, at another place."""
    from workloads.video.arrivals import psnr_db

    clip = source(context, codec)
    found_db = []
    with closing(HostDecoder(clip.path)) as host, closing(make(clip.path, context.device, False)) as decoder:
        for number in range(min(COMPARED_BATCHES, -(-clip.info.frames // BATCH))):
            wanted, found = host.read(BATCH), decoder.read(BATCH)
            place = number % len(wanted)
            bgr = colour.rgb_from_nv12(found[place : place + 1], clip.info.matrix)[0].flip(0).movedim(0, 2)
            found_db.append(psnr_db(bgr.cpu().numpy(), wanted[place]))
    worst_db = min(found_db)
    words = f"{worst_db:.1f} dB with OpenCV's over {len(found_db)} frames"
    if worst_db < LEAST_DB:
        raise DisprovedError(f"{words}: {LEAST_DB:g} dB are wanted")
    return words


TORCHCODEC = Needs((*HOST, "torchcodec"), install="pip install torchcodec")
NO_FRAME_CROSSES = {
    "cuda": Contract(
        engaged=(Limit("host_to_device_bytes", at_most=2**20), Limit("device_to_host_bytes", at_most=2**20))
    )
}
ONE_ENGINE = "an engine of the GPU decodes: its frames are on the GPU, and the cores are free for other work"
ENGINES = "the clip is split at its keyframes: every engine decodes a part of its own"
# An engine decodes twice as many frames of HEVC: at 4,000 a second there are 0.25 ms for all of a frame's Python. Two
# H100 gained 1.66x to 2.02x on slow hosts, and H200s gain 2.1x to 3x. For H.264 the same two gained 3.55x to 4.03x, and
# H200s gain 3.9x to 5.1x.
PYTHON_BOUND = "seven sessions leave 0.25 ms for all of a frame's Python, whose speed is the host's"
HALF_AS_LARGE = "a frame that stays in NV12 is half as large, and nobody converts it"


def _variant(
    name: str, make: MakeDecoder, codec: Codec, min_speedup: Mapping[str, float], needs: Needs, why: str, **more: Any
) -> Optimization:
    return Optimization(
        name,
        partial(to_nv12, make, codec),
        min_speedup,
        tolerance=EXACT,
        needs=needs,
        contract={} if make is planes else NO_FRAME_CROSSES,
        proofs=(Proof("frames agree", partial(frames_agree, make, codec)),),
        why=why,
        **more,
    )


def _workload(name: str, codec: Codec, kinds: Iterable[DeviceKind], *optimizations: Optimization) -> Workload:
    return Workload(
        name=name,
        baseline=partial(opencv, codec),
        inputs=stamps,
        sizes={kind: size(kind) for kind in kinds},
        optimizations=optimizations,
        cold=False,  # the inputs are stamps; frames are decoded anew in every step
        timing="pipeline",
        settings=VIDEO_SETTING,
    )


DECODE = _workload(
    "video/decode",
    "h264",
    FRAMES,
    _variant(
        "nvdec",
        nvdec,
        "h264",
        {"nvidia-h100-80gb-hbm3": 3.3, "sm_90": 2.9, "cuda": 0.1},
        VIDEO_ENGINES,
        ONE_ENGINE,
    ),
    _variant(
        "nvdec-sessions",
        nvdec_sessions,
        "h264",
        {"nvidia-h100-80gb-hbm3": 3.2, "sm_90": 3.6, "cuda": 0.9},
        VIDEO_ENGINES,
        ENGINES,
        compared_with="nvdec",
    ),
    # Only where it is installed: it needs FFmpeg's shared libraries besides, which pip cannot bring.
    *(
        [_variant("torchcodec", torchcodec, "h264", {"cuda": 0.1}, TORCHCODEC, ONE_ENGINE)]
        if find_spec("torchcodec")
        else []
    ),
    _variant("planes", planes, "h264", {"sm_90": 0.94, "cuda": 0.6, "cpu": 0.6}, ON_HOST, HALF_AS_LARGE),
)
DECODE_HEVC = _workload(
    "video/decode-hevc",
    "hevc",
    ("cuda",),
    _variant(
        "nvdec",
        nvdec,
        "hevc",
        {"nvidia-h100-80gb-hbm3": 7.4, "sm_90": 6.5, "cuda": 0.1},
        VIDEO_ENGINES,
        ONE_ENGINE,
    ),
    _variant(
        "nvdec-sessions",
        nvdec_sessions,
        "hevc",
        {"nvidia-h100-80gb-hbm3": 1.6, "sm_90": 2.05, "cuda": 0.9},
        VIDEO_ENGINES,
        ENGINES,
        compared_with="nvdec",
        min_speedup_why=PYTHON_BOUND,
    ),
)
