"""The sides of decoding: OpenCV on the CPU against decoders that leave the frames where the next stage needs them.

A step reads the next frames of the clip, round and round, and returns the record of arrivals: float32 [frames, 2], see
`Arrivals`, times the step's stamps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from gpugate.workload import Context, DeviceKind, Side, Size
from workloads.video.clip.source_clip import CLIPS, Source, source
from workloads.video.decode.arrivals import Arrivals, luma_grids
from workloads.video.pipeline.plan import BATCH

Codec = Literal["h264", "hevc"]
FRAMES: Mapping[DeviceKind, int] = {"cuda": 32, "cpu": 12}  # per step


class Decoder(Protocol):
    """Gives the next frames, as a NumPy array in BGR or as a tensor in NV12.

    After `settle` the frames decoded ahead are complete again; otherwise they are the decoder's stock.
    """

    stock_frames: int

    def read(self, frames: int) -> Any: ...

    def settle(self) -> None: ...

    def close(self) -> None: ...


MakeDecoder = Callable[[Source, torch.device, bool], Decoder]  # the last one: loop over the clip


def size(kind: DeviceKind) -> Size:
    """Bytes: each frame written once, in NV12. A decoder's operations are no FLOPs."""
    clip = CLIPS[kind]
    frame_bytes = clip.width * clip.height * 3 // 2
    return Size(items=FRAMES[kind], flops=0.0, bytes=float(FRAMES[kind] * frame_bytes))


def stamps(context: Context, index: int) -> Tensor:
    """Input set `index`: float32 [items] between 1 and 2 on the device, one per frame of the step.

    The frames of a step are no input: decoders read ahead. A record times its stamps cannot be an earlier record.
    """
    generator = torch.Generator().manual_seed(1_000_003 * context.seed + index)
    return (1 + torch.rand(context.items, generator=generator)).to(context.device)


def _side(decoder: Decoder, context: Context, record: Callable[[Any], Tensor]) -> Side:
    def step(stamp: Tensor) -> Tensor:
        counts = [min(BATCH, context.items - done) for done in range(0, context.items, BATCH)]
        records = [record(_whole(decoder, count)) for count in counts]
        return torch.cat(records).to(stamp.device) * stamp[:, None]

    stock_steps = -(-decoder.stock_frames // context.items)
    return Side(step, finish=decoder.settle, close=decoder.close, stock_steps=stock_steps, works_ahead=True)


def _whole(decoder: Decoder, frames: int) -> Any:
    """Reads exactly `frames` frames. Raises VideoError where the clip was cut short."""
    batch = decoder.read(frames)
    if len(batch) < frames:
        decoder.read(frames)  # raises the reason of the missing frames
        raise ValueError("the decoder came to its end, and it is to go round: report this")
    return batch


def on_host(codec: Codec, context: Context) -> Side:
    """OpenCV's side: BGR in host memory."""
    from workloads.video.decode.decoding import HostDecoder

    clip = source(context, codec)
    arrivals = Arrivals(luma_grids(clip.path), torch.device("cpu"), clip.numbered)
    matrix = clip.info.matrix
    return _side(HostDecoder(clip.path, loop=True), context, lambda frames: arrivals.of_bgr(frames, matrix))


def planes(clip: Source, device: torch.device, loop: bool) -> Decoder:
    """FFmpeg's decoder without the conversion to BGR, which no later stage needs: NV12 in host memory."""
    from workloads.video.clip.host_planes import HostPlanesDecoder

    return HostPlanesDecoder(clip.path, loop)


def nvdec(sessions: int, clip: Source, device: torch.device, loop: bool) -> Decoder:
    """NVDEC: NV12 in device memory."""
    from workloads.video.decode.nvdec import DeviceDecoder  # cuda only

    return DeviceDecoder(clip.path, device, sessions, loop)  # cuda only


def torchcodec(clip: Source, device: torch.device, loop: bool) -> Decoder:
    """NVDEC through torchcodec: NV12 in device memory."""
    from workloads.video.decode.torchcodec_decoding import TorchCodecDecoder  # cuda only

    return TorchCodecDecoder(clip.path, device, loop)  # cuda only


def to_nv12(make: MakeDecoder, codec: Codec, context: Context) -> Side:
    clip = source(context, codec)
    place = torch.device("cpu") if make is planes else context.device
    arrivals = Arrivals(luma_grids(clip.path), place, clip.numbered)
    return _side(make(clip, context.device, True), context, arrivals.of_nv12)
