"""The stage that decodes: OpenCV on the CPU against decoders that leave the frames where the next stage wants them.

A step reads the next frames of the clip, round and round, and returns what arrived: float32 [frames, 2], see
`Arrivals`, times the step's stamps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from gpugate.errors import DisprovedError
from gpugate.workload import (
    TOLERANCE_BY_DTYPE,
    Context,
    Contract,
    DeviceKind,
    Limit,
    Needs,
    Optimization,
    Proof,
    Side,
    Size,
    Tolerance,
    Workload,
)
from workloads.video_segmentation.arrivals import Arrivals
from workloads.video_segmentation.colour import rgb_from_nv12
from workloads.video_segmentation.plan import BATCH, SESSIONS
from workloads.video_segmentation.source_clip import CLIPS, Source, source

Codec = Literal["h264", "hevc"]
FRAMES: Mapping[DeviceKind, int] = {"cuda": 32, "cpu": 12}  # per step
COMPARED_FRAMES, LEAST_DB = 16, 45.0


class Decoder(Protocol):
    """Gives the next frames, as a NumPy array in BGR or as a tensor in NV12.

    What it decodes ahead is there again after `settle`, or else it is its stock.
    """

    stock_frames: int

    def read(self, frames: int) -> Any: ...

    def settle(self) -> None: ...

    def close(self) -> None: ...


MakeDecoder = Callable[[Source, torch.device, bool], Decoder]  # the last one: whether it goes round and round


def size(kind: DeviceKind) -> Size:
    """Bytes: each frame written once, in NV12. A decoder's operations are no FLOPs."""
    clip = CLIPS[kind]
    frame_bytes = clip.width * clip.height * 3 // 2
    return Size(items=FRAMES[kind], flops=0.0, bytes=float(FRAMES[kind] * frame_bytes))


def stamps(context: Context, index: int) -> Tensor:
    """Input set `index`: float32 [items] between 1 and 2 on the device, one per frame of the step.

    Which frames come is no input: decoders read ahead. A record times its stamps cannot be an earlier one's.
    """
    generator = torch.Generator().manual_seed(1_000_003 * context.seed + index)
    return (1 + torch.rand(context.items, generator=generator)).to(context.device)


def _side(decoder: Decoder, context: Context, record: Callable[[Any], Tensor]) -> Side:
    def step(stamp: Tensor) -> Tensor:
        counts = [min(BATCH, context.items - done) for done in range(0, context.items, BATCH)]
        records = [record(decoder.read(count)) for count in counts]
        return torch.cat(records).to(stamp.device) * stamp[:, None]

    stock_steps = -(-decoder.stock_frames // context.items)
    return Side(step, finish=decoder.settle, close=decoder.close, stock_steps=stock_steps, works_ahead=True)


def on_host(codec: Codec, context: Context) -> Side:
    """OpenCV: BGR in host memory."""
    from workloads.video_segmentation.decoding import HostDecoder

    clip = source(context, codec)
    arrivals = Arrivals(clip.path, torch.device("cpu"), clip.numbered)
    matrix = clip.info.matrix
    return _side(HostDecoder(clip.path, loop=True), context, lambda frames: arrivals.of_bgr(frames, matrix))


def planes(clip: Source, device: torch.device, loop: bool) -> Decoder:
    """FFmpeg's decoder too, without the conversion to BGR that nothing behind it needs: NV12 in host memory."""
    from workloads.video_segmentation.host_planes import HostPlanesDecoder

    return HostPlanesDecoder(clip.path, loop)


def nvdec(sessions: int, clip: Source, device: torch.device, loop: bool) -> Decoder:
    """NVDEC: NV12 in device memory."""
    from workloads.video_segmentation.nvdec import DeviceDecoder  # cuda only

    return DeviceDecoder(clip.path, device, sessions, loop)  # cuda only


def torchcodec(clip: Source, device: torch.device, loop: bool) -> Decoder:
    """NVDEC through torchcodec: NV12 in device memory."""
    from workloads.video_segmentation.torchcodec_decoding import TorchCodecDecoder  # cuda only

    return TorchCodecDecoder(clip.path, device, loop)  # cuda only


def to_nv12(make: MakeDecoder, codec: Codec, context: Context) -> Side:
    clip = source(context, codec)
    place = torch.device("cpu") if make is planes else context.device
    arrivals = Arrivals(clip.path, place, clip.numbered)
    return _side(make(clip, context.device, True), context, arrivals.of_nv12)


def frames_agree(make: MakeDecoder, codec: Codec, context: Context) -> str:
    """Frames in NV12, once they are converted, are those that OpenCV decodes."""
    from workloads.video_segmentation.decoding import HostDecoder
    from workloads.video_segmentation.encoding.quality import psnr_db

    clip = source(context, codec)
    with closing(HostDecoder(clip.path)) as host, closing(make(clip, context.device, False)) as decoder:
        wanted, found = host.read(COMPARED_FRAMES), decoder.read(COMPARED_FRAMES)
    rgb = (rgb_from_nv12(each[None], clip.info.matrix)[0] for each in found)
    bgr = (each.flip(0).movedim(0, 2).cpu().numpy() for each in rgb)
    worst_db = min(psnr_db(frame, other) for frame, other in zip(bgr, wanted, strict=True))
    words = f"{worst_db:.1f} dB with OpenCV's over {COMPARED_FRAMES} frames"
    if worst_db < LEAST_DB:
        raise DisprovedError(f"{words}: {LEAST_DB:g} dB are wanted")
    return words


HOST = ("cv2", "av")
INSTALL = "pip install 'gpugate[workloads]'"
INSTALL_VIDEO = "pip install 'gpugate[workloads,video]'"
ON_HOST = Needs(HOST, install=INSTALL)
NVDEC = Needs((*HOST, "PyNvVideoCodec"), install=INSTALL_VIDEO)
TORCHCODEC = Needs((*HOST, "torchcodec"), install="pip install torchcodec")
# Every frame is the one whose turn it is, or it is not; whatever decoded it.
EXACT = {dtype: Tolerance(relative_l2=1e-6, max_error=1e-6) for dtype in TOLERANCE_BY_DTYPE}
NO_FRAME_CROSSES = {
    "cuda": Contract(
        engaged=(Limit("host_to_device_bytes", at_most=2**20), Limit("device_to_host_bytes", at_most=2**20))
    )
}
ONE_ENGINE = (
    "one engine decodes fewer frames a second than 16 cores, but they are on the GPU then and the cores are free"
)
ENGINES = "the clip is split at its keyframes: every engine decodes a part of its own"


def _variant(name: str, make: MakeDecoder, codec: Codec, min_speedup: Mapping[str, float], **more: Any) -> Optimization:
    return Optimization(
        name,
        partial(to_nv12, make, codec),
        min_speedup,
        tolerance=EXACT,
        proofs=(Proof("frames agree", partial(frames_agree, make, codec)),),
        **more,
    )


def _on_device(codec: Codec) -> tuple[Optimization, ...]:
    one, several = partial(nvdec, 1), partial(nvdec, SESSIONS)
    more: dict[str, Any] = {"needs": NVDEC, "contract": NO_FRAME_CROSSES}
    # Of HEVC an engine decodes twice as many frames: at 4,000 a second there are 0.25 ms for all of a frame's Python.
    speedup = {"sm_90": 3.0 if codec == "h264" else 2.2, "cuda": 0.9}
    return (
        _variant("nvdec", one, codec, {"cuda": 0.1}, why=ONE_ENGINE, **more),
        _variant("nvdec-sessions", several, codec, speedup, compared_with="nvdec", why=ENGINES, **more),
    )


TORCHCODEC_ALONE: dict[str, Any] = {"needs": TORCHCODEC, "contract": NO_FRAME_CROSSES, "why": ONE_ENGINE}
HALF_AS_LARGE = "a frame that stays in NV12 is half as large, and nobody converts it"
DECODE = Workload(
    name="video/decode",
    baseline=partial(on_host, "h264"),
    inputs=stamps,
    sizes={kind: size(kind) for kind in FRAMES},
    optimizations=(
        *_on_device("h264"),
        # Only where it is installed: it needs FFmpeg's shared libraries besides, which pip cannot bring.
        *(
            [_variant("torchcodec", torchcodec, "h264", {"cuda": 0.1}, **TORCHCODEC_ALONE)]
            if find_spec("torchcodec")
            else []
        ),
        _variant("planes", planes, "h264", {"cuda": 0.6, "cpu": 0.6}, needs=ON_HOST, why=HALF_AS_LARGE),
    ),
    cold=False,  # the inputs are stamps; frames are decoded anew in every step
    timing="pipeline",
)
DECODE_HEVC = Workload(
    name="video/decode-hevc",
    baseline=partial(on_host, "hevc"),
    inputs=stamps,
    sizes={"cuda": size("cuda")},
    optimizations=_on_device("hevc"),
    cold=False,
    timing="pipeline",
)
