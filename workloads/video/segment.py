"""Segmentation: FCN-ResNet101 in eager FP32 against precision, layout, fusion and compilers.

Every side gets the same float32 frames [items, 3, h, w] and returns float32 logits [items, classes, h, w]. On a CPU,
where nothing but the baseline runs, the network is LR-ASPP. A proof compares masks with the baseline's and the truth.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from gpugate.errors import DisprovedError
from gpugate.workload import (
    BASELINE,
    Build,
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
from workloads.parts.compiled import NCHW, NHWC, compiled, eager
from workloads.parts.cudnn_fusion import (
    CUDNN,
    STEM_CHANNELS,
    fuse,
    max_pool,
    pool_relu,
    to_channels_last_half,
)
from workloads.parts.graph_capture import captured
from workloads.parts.photographs import UNMEASURED_BATCH
from workloads.parts.tensorrt_engine import TENSORRT_LIBRARY, build_engine
from workloads.video.clip import CLIPS, VIDEO_SETTING, Clip, Source, bgr_frames, is_users, source
from workloads.video.preprocess import on_host
from workloads.video.segmenter import (
    SEGMENTER_SETTING,
    Segmenter,
    foreground,
    frames_with_truth,
    interpolated,
    segmenter,
    unseen_numbers,
)

FRAMES = 8
LEAST_IOU = 0.98  # of the masks with the baseline's
MOST_LOST = 0.01  # of the baseline's IoU with the truth


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
    network = fused(context)
    with torch.inference_mode():  # cuDNN searches for its algorithms now, the longest part
        network(F.pad(like, (0, 0, 0, 0, 0, STEM_CHANNELS - like.shape[1])).to(torch.float16, memory_format=NHWC))
    before_capture()
    return captured(context, network, STEM_CHANNELS, like)


# Pooling is PyTorch's: Inductor's kernel saves 0.1 ms a batch, which the second of its first import outweighs in 600
# frames.
OPERATORS = replace(CUDNN, max_pool=max_pool, pool_relu=pool_relu)


def fused(context: Context) -> Segmenter:
    """The fused segmenter for [n, STEM_CHANNELS, h, w] in channels_last FP16, with weights of its own."""
    return Segmenter(copy.deepcopy(_fused_on_host(context)).to(context.device))


@functools.lru_cache(maxsize=1)
def _fused_on_host(context: Context) -> fx.GraphModule:
    """The rewritten network, for all sides of the process: tracing and folding it take a second."""
    return to_channels_last_half(fuse(segmenter("cuda", context).coarse, OPERATORS)).cpu()


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


# --- the proof: the baseline's masks, with the baseline's accuracy ----------------------------------------------------


def intersection_over_union(masks: Tensor, others: Tensor) -> float:
    """The overlap of two bool tensors of one shape, over all their pixels together; 1 where both are empty."""
    union = int((masks | others).sum())
    return int((masks & others).sum()) / union if union else 1.0


def masks_agree(build: Build) -> Proof:
    """Proves that the masks of the frames of `truth` are the baseline's, and as accurate."""
    return Proof("masks", partial(_masks_agree, build))


def _masks_agree(build: Build, context: Context) -> str:
    frames, true_masks = truth(context)
    wanted, found = _by_baseline(context), _masks(build, context)
    agreement = intersection_over_union(found, wanted)
    figures = f"IoU {agreement:.4f} with the baseline's over {len(frames)} frames"
    if agreement < LEAST_IOU:
        raise DisprovedError(f"{figures}: the baseline's masks need {LEAST_IOU}")
    if true_masks is None:
        return figures
    before, after = (intersection_over_union(masks, true_masks) for masks in (wanted, found))
    figures = f"{figures}, {after:.3f} with the truth"
    if after < before - MOST_LOST:
        raise DisprovedError(f"{figures}: the baseline has {before:.3f}, and at most {MOST_LOST} may be lost")
    return f"{figures}, the baseline {before:.3f}"


@functools.lru_cache(maxsize=1)
def _by_baseline(context: Context) -> Tensor:
    """The baseline's masks, with which every optimization is compared."""
    return _masks(baseline, context)


def _masks(build: Build, context: Context) -> Tensor:
    frames, side = truth(context)[0], build(context)
    with closing(side):
        logits = side.step(frames)
        side.finish()
        return foreground(logits).to(frames.device)


# --- promises ---------------------------------------------------------------------------------------------------------

VOLTA, AMPERE = Needs(compute_capability=(7, 0)), Needs(compute_capability=(8, 0))
TENSORRT = Needs(compute_capability=(7, 5), engine=TENSORRT_LIBRARY)

ALL_LAYERS = Limit("kernels", at_least=107)  # 106 convolutions and the interpolation: no work vanished
TENSOR_CORES = (ALL_LAYERS, Limit("tensor_core_kernels", at_least=40))
ONE_GRAPH = (*TENSOR_CORES, Limit("graph_launches", at_least=1, at_most=1), Limit("kernel_launches", at_most=1))
ENGINE = (Limit("kernels", at_least=40, at_most_of_reference=0.5), Limit("engine_layers", at_least=108))
FUSED = Limit("engine_layers", at_most=109)  # of TensorRT 8.6: 106 convolutions, the pool and two casts


def _promised(
    name: str,
    build: Build,
    sm_90: float,
    cuda: float,
    engaged: tuple[Limit, ...],
    needs: Needs,
    limits: tuple[Limit, ...] = (),
    against: str = BASELINE,
) -> Optimization:
    """At least the speedup `sm_90`, within `limits`, on an H200 or H100 and `cuda` on any GPU, with equal masks."""
    return Optimization(
        name,
        build,
        {"sm_90": sm_90, "cuda": cuda},
        dtype="float16",
        compared_with=against,
        needs=needs,
        contract={"sm_90": Contract(engaged, limits), "cuda": Contract(engaged)},
        proofs=(masks_agree(build),),
    )


def _limit_size(memory_share: float, kernels_share: float, longest_share: float = 0.58) -> tuple[Limit, ...]:
    """Limits on peak memory, all kernels and the 15 longest kernels, as shares of the reference's.

    The longest kernels of channels_last have 0.51 of the reference's time on an H100 and 0.69 on an H200, those of
    inductor 0.47 and 0.63, those of each other side 0.47 and 0.52.
    """
    return (
        Limit("peak_bytes", at_most_of_reference=memory_share),
        Limit("kernel_ms", at_most_of_reference=kernels_share),
        Limit("longest_kernels_mean_ms", at_most_of_reference=longest_share),
    )


# On a slow host an H200 gained 1.3x to 1.5x, while its kernels took half of the reference's time: the limit sees that.
LAUNCHES_BIND = "566 launches take longer than the kernels where the host is slow"


OPTIMIZATIONS = (
    replace(
        _promised(
            "channels-last-fp16", channels_last_fp16, 1.05, 1.0, TENSOR_CORES, VOLTA, _limit_size(0.65, 0.57, 0.75)
        ),
        min_speedup_why=LAUNCHES_BIND,
    ),
    _promised("inductor-fp16", inductor_fp16, 2.4, 1.2, TENSOR_CORES, VOLTA, _limit_size(0.6, 0.38, 0.7)),
    _promised("cudnn-fused", cudnn_fused, 3.4, 1.2, ONE_GRAPH, AMPERE, _limit_size(0.6, 0.28)),
    _promised("cuda-graph", cuda_graph, 1.0, 0.95, ONE_GRAPH, VOLTA, against="channels-last-fp16"),
    replace(
        _promised("tensorrt-fp16", tensorrt_fp16, 3.4, 1.2, ENGINE, TENSORRT, (FUSED, *_limit_size(0.42, 0.28))),
        tolerance={"float16": Tolerance(relative_l2=3e-3, max_error=2e-2)},  # 2.3e-3 and 1.0e-2: FP16 also in sums
    ),
)
SEGMENT = Workload(
    name="video/segment",
    baseline=baseline,
    inputs=inputs,
    sizes={"cuda": size("cuda")},
    optimizations=OPTIMIZATIONS,
    settings={**VIDEO_SETTING, **SEGMENTER_SETTING},
)
