"""The sides of segmentation: FCN-ResNet101 in eager FP32 against precision, layout, fusion and compilers.

Every side gets the same float32 frames [items, 3, h, w] and returns float32 logits [items, classes, h, w]. On a CPU,
where nothing but the baseline runs, the network is LR-ASPP.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gpugate.workload import Context, DeviceKind, Side, Size
from workloads.parts.compiled import NCHW, NHWC, compiled, eager
from workloads.parts.cudnn_fusion import STEM_CHANNELS, Operators, fuse, to_channels_last_half
from workloads.parts.graph_capture import captured
from workloads.parts.photographs import UNMEASURED_BATCH
from workloads.parts.tensorrt_engine import build_engine
from workloads.video.clip.clip import CLIPS, Clip, Source, is_users, source
from workloads.video.clip.frame_bank import bgr_frames
from workloads.video.preprocess.preprocessing import on_host
from workloads.video.segment.dilated_fusion import operators
from workloads.video.segment.fused_network import fused_network
from workloads.video.segment.network_frames import frames_with_truth, unseen_numbers
from workloads.video.segment.segmenter import Segmenter, interpolated, own_checkpoint, segmenter

FRAMES = 8


@dataclass(frozen=True)
class Work:
    """The work of one frame of a kind's clip; a test counts it again on the meta device."""

    multiply_adds: int  # in the convolutions
    values_read: int  # by the convolutions, weights apart
    values_written: int
    weights: int


WORK: Mapping[DeviceKind, Work] = {
    "cuda": Work(189_761_126_400, 202_982_400, 211_514_400, 51_939_394),
    "cpu": Work(211_645_384, 2_993_296, 2_862_620, 3_218_308),
}


def size(kind: DeviceKind, items: int = FRAMES) -> Size:
    """FLOPs: 2 per multiply-add of the convolutions; BatchNorm, ReLU and interpolation (0.2 %) are left out.

    Bytes: FP32 weights once, and the input and output of each convolution once.
    """
    work = WORK[kind]
    values = work.weights + items * (work.values_read + work.values_written)
    return Size(items=items, flops=2.0 * items * work.multiply_adds, bytes=4.0 * values)


def inputs(context: Context, index: int) -> Tensor:
    """Batch `index` >= 0: float32 [items, 3, h, w], normalized frames on the context's device.

    The batch depends on the context's seed and `index` alone: frames that no weight was fitted to, or the first ones of
    the user's video, chosen at random and each shifted cyclically by another distance, so that no two batches are
    alike.
    """
    frames, _ = _frames(context)
    random = np.random.default_rng((context.seed, index))
    chosen = random.integers(len(frames), size=context.items).tolist()
    rows, columns = (random.integers(extent, size=context.items).tolist() for extent in frames.shape[-2:])
    moves = zip(chosen, rows, columns, strict=True)
    return torch.stack([frames[number].roll((down, right), (1, 2)) for number, down, right in moves])


@functools.lru_cache(maxsize=2)
def _unseen_frames(clip: Clip, device: torch.device) -> tuple[Tensor, Tensor]:
    return frames_with_truth(clip, unseen_numbers(clip), device)


def truth(context: Context) -> tuple[Tensor, Tensor | None]:
    """Frames float32 [items, 3, h, w] that no weight was fitted to, and their masks, bool [items, h, w].

    The masks of the user's video are not known.
    """
    frames, masks = _frames(context)
    taken = torch.arange(context.items, device=context.device) % len(frames)
    return frames[taken], None if masks is None else masks[taken]


def _frames(context: Context) -> tuple[Tensor, Tensor | None]:
    """The frames in the network's input format, made once a process."""
    if is_users(context):
        return _users_frames(source(context), context), None
    return _unseen_frames(CLIPS[_kind(context)], context.device)


@functools.lru_cache(maxsize=1)
def _users_frames(clip: Source, context: Context) -> Tensor:
    return on_host(bgr_frames(context), context.device)


def _kind(context: Context) -> DeviceKind:
    return cast(DeviceKind, context.device.type)


def _model(context: Context) -> Segmenter:
    return segmenter(_kind(context), context)


def baseline(context: Context) -> Side:
    return eager(_model(context), torch.float32, NCHW)


def channels_last_fp16(context: Context) -> Side:
    return eager(_model(context), torch.float16, NHWC)


def inductor_fp16(context: Context) -> Side:
    torch.backends.cudnn.benchmark = True
    return compiled(_model(context), inputs(context, UNMEASURED_BATCH), torch.float16, NHWC)


def cuda_graph(context: Context) -> Side:
    """The kernels of `channels_last_fp16`, in one launch."""
    model = _model(context).to(dtype=torch.float16, memory_format=NHWC)  # type: ignore[call-overload]
    return captured(context, model, 3, inputs(context, UNMEASURED_BATCH))


def cudnn_fused(
    context: Context, example: Tensor | None = None, before_capture: Callable[[], object] = lambda: None
) -> Side:
    """Each convolution is one cuDNN call with its successors, all in one launch; interpolation is unchanged.

    The side takes frames like `example`, by default those of the stage. `before_capture` may wait for pending work of
    the device: it is called when all is ready but the graph.
    """
    torch.backends.cudnn.benchmark = True
    like = inputs(context, UNMEASURED_BATCH) if example is None else example
    cudnn, not_fused = operators()
    network = fused(context, cudnn)
    with torch.inference_mode():  # cuDNN searches for its algorithms now, the longest part
        network(F.pad(like, (0, 0, 0, 0, 0, STEM_CHANNELS - like.shape[1])).to(torch.float16, memory_format=NHWC))
    before_capture()
    return replace(captured(context, network, STEM_CHANNELS, like), engaged=not_fused)


def fused(context: Context, cudnn: Operators) -> Segmenter:
    """The fused segmenter for [n, STEM_CHANNELS, h, w] in channels_last FP16; fitted weights are stored on disk."""
    if own_checkpoint(context) is None:
        network = fused_network(CLIPS["cuda"], context.seed, context.device, context.cache_dir)
        return Segmenter(network.on(context.device, cudnn))
    return Segmenter(to_channels_last_half(fuse(segmenter("cuda", context).coarse, cudnn)))


def tensorrt_fp16(context: Context, example: Tensor | None = None) -> Side:
    """All convolutions are one engine; interpolation is PyTorch's, as it is for every other side.

    The side takes frames like `example`, by default those of the stage.
    """
    like = inputs(context, UNMEASURED_BATCH) if example is None else example
    engine = build_engine(_model(context).coarse, like, "fp16", context.cache_dir)

    @torch.inference_mode()
    def step(frames: Tensor) -> Tensor:
        return interpolated(engine(frames.contiguous()), frames)

    return Side(step, layers=engine.layers)
