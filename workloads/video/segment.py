"""Segmentation: FCN-ResNet101 in eager FP32 against precision, layout, fusion and compilers.

Every side gets the same float32 frames [items, 3, h, w] and returns float32 logits [items, classes, h, w]. On a CPU,
where nothing but the baseline runs, the network is LR-ASPP. Each step's logits are compared with the baseline's, from
which the masks follow.

Without a checkpoint the weights segment our clips without any training: seeded, calibrated, and fitted in closed form.
The convolutions are random. BatchNorm statistics come from a few frames of the clip, and the last convolution from a
linear fit to its true masks. The fit is stored on disk, so that every side and every process computes with equal
weights.
"""

from __future__ import annotations

import copy
import functools
import importlib.metadata
import io
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.optim.swa_utils import update_bn

from gpugate.workload import (
    Build,
    Context,
    Contract,
    DeviceKind,
    Limit,
    Needs,
    Optimization,
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
from workloads.parts.kept_files import key_of, read_or_make
from workloads.parts.photographs import UNMEASURED_BATCH
from workloads.parts.state_dicts import read_state_dict
from workloads.parts.tensorrt_engine import TENSORRT_LIBRARY, build_engine
from workloads.video.clip import BATCH, CLIPS, VIDEO_SETTING, Clip, is_users, kind_of, rendered
from workloads.video.decode import bgr_frames
from workloads.video.preprocess import input_size, on_host

CLASSES = 2  # background and foreground
FORMAT = 4  # of the stored file; raise it whenever seeding, calibration or the fit change
FIT_FRAMES = 12
PENALTY = 1e-2
LOGIT = 4.0  # inside the foreground and, negative, outside: a probability of 0.9997
RESIDUAL_SCALES = 0.05, 0.15
AUXILIARY = "aux_classifier."  # torchvision's second head, for training only
SEGMENTER_SETTING = {
    "segmenter-weights": "a state_dict of torchvision's FCN-ResNet101, on a CPU of its LR-ASPP MobileNetV3-Large"
}


# --- the network ------------------------------------------------------------------------------------------------------


# torchvision's names of the networks, and their last convolutions: the sum of their outputs is the coarse logits.
NETWORKS: Mapping[DeviceKind, str] = {"cuda": "fcn_resnet101", "cpu": "lraspp_mobilenet_v3_large"}
READOUTS: Mapping[DeviceKind, tuple[str, ...]] = {
    "cuda": ("classifier.4",),
    "cpu": ("classifier.low_classifier", "classifier.high_classifier"),
}


def coarse_network(kind: DeviceKind, classes: int = CLASSES) -> nn.Module:
    """[n, 3, h, w] -> [n, classes, h/8, w/8], initialized as torchvision does; its weights have torchvision's names."""
    from torchvision.models import get_model

    whole = get_model(NETWORKS[kind], weights=None, weights_backbone=None, num_classes=classes)
    backbone = whole.backbone
    if kind == "cuda":  # this head takes the features alone, without the dictionary around them
        backbone = nn.Sequential(OrderedDict(backbone.named_children()))
    return nn.Sequential(OrderedDict(backbone=backbone, classifier=whole.classifier))


def without_weights(kind: DeviceKind, classes: int = CLASSES) -> nn.Module:
    """The network of `coarse_network` on the meta device: shapes alone."""
    with torch.device("meta"):
        return coarse_network(kind, classes)


class Segmenter(nn.Module):
    """The segmenter: frames [n, 3, h, w], normalized -> float32 logits [n, classes, h, w]; class 0 is the background.

    `coarse` gives logits for every eighth pixel, [n, classes, h/8, w/8], in the precision of its weights.
    """

    def __init__(self, coarse: nn.Module) -> None:
        super().__init__()
        self.coarse = coarse

    def forward(self, frames: Tensor) -> Tensor:
        return interpolated(self.coarse(frames), frames)


def interpolated(coarse_logits: Tensor, frames: Tensor) -> Tensor:
    """float32 [n, classes, h, w] from any floating-point [n, classes, h/8, w/8], for frames [n, 3, h, w].

    The conversion comes before the interpolation: that is a 64th of the values, and rounds nothing more.
    """
    return F.interpolate(coarse_logits.float(), size=frames.shape[-2:], mode="bilinear", align_corners=False)


def segmenter(context: Context) -> Segmenter:
    """A new eval segmenter on the context's device, float32: FCN-ResNet101 on a GPU, LR-ASPP on a CPU.

    Without a checkpoint its weights are fitted to the clip of this kind of device, and kept in the context's
    `cache_dir`. Raises ValueError, in one sentence that names the file, for a checkpoint that is no state_dict of this
    kind's network.
    """
    own, kind = own_checkpoint(context), kind_of(context)
    weights = fitted_weights(context) if own is None else checkpoint(kind, own)
    coarse = without_weights(kind, _classes(kind, weights))
    coarse.load_state_dict({name: value.to(context.device, copy=True) for name, value in weights.items()}, assign=True)
    return Segmenter(coarse).float().eval().requires_grad_(False)


# --- the user's weights -----------------------------------------------------------------------------------------------


def own_checkpoint(context: Context) -> Path | None:
    """The user's weights for the segmenter, if there are any."""
    given = context.settings.get("segmenter-weights")
    return None if given is None else Path(given)


@functools.lru_cache(maxsize=1)
def checkpoint(kind: DeviceKind, path: Path, option: str = "--perf-set segmenter-weights") -> Mapping[str, Tensor]:
    """The state_dict in `path` but for its auxiliary head, on the CPU; the last one that was read is kept.

    Raises ValueError, naming the file and the option that named it.
    """

    def make(weights: Mapping[str, Tensor]) -> nn.Module:
        return without_weights(kind, _classes(kind, weights))

    return read_state_dict(path, f"{option} {path}", NETWORKS[kind], make, left_out=AUXILIARY)


def _classes(kind: DeviceKind, weights: Mapping[str, Tensor]) -> int:
    return int(weights[f"{READOUTS[kind][0]}.weight"].shape[0])


# --- frames of a clip in the network's input format, with the true foreground: drawn, never decoded -------------------


def fit_numbers(clip: Clip) -> tuple[int, ...]:
    """The numbers of the frames that weights are fitted to: a few, spread evenly from the first to the last."""
    return tuple(np.linspace(0, clip.frames - 1, FIT_FRAMES, dtype=int).tolist())


def unseen_numbers(clip: Clip) -> tuple[int, ...]:
    """Frames half way between those of the fit."""
    return tuple((left + right) // 2 for left, right in pairwise(fit_numbers(clip)))


def frames_with_truth(clip: Clip, numbers: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """float32 [n, 3, h, w], preprocessed, and bool masks [n, h, w], on `device`."""
    pictures, drawn = zip(*(rendered(clip, number) for number in numbers), strict=True)
    shares = torch.from_numpy(np.stack(drawn))[:, None].float()
    masks = F.interpolate(shares, input_size(clip.height, clip.width), mode="bilinear", align_corners=False)[:, 0] > 0.5
    return on_host(np.stack(pictures)[..., ::-1], device), masks.to(device)


# --- fitted weights ---------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def fitted_weights(context: Context) -> Mapping[str, Tensor]:
    """The state_dict of the coarse network, on the CPU, fitted on the context's device unless its cache has it already.

    A stored fit that was damaged is deleted with a RuntimeWarning and made again.
    """
    kind, device = kind_of(context), context.device
    clip = CLIPS[kind]

    def make() -> bytes:
        coarse, buffer = seeded_network(kind, context.seed).to(device), io.BytesIO()
        fit(coarse, READOUTS[kind], *frames_with_truth(clip, fit_numbers(clip), device))
        torch.save(coarse.cpu().state_dict(), buffer)
        return buffer.getvalue()

    # Two fits on a GPU may differ. If processes that begin together each made one, they would have weights of their
    # own, and the stored composites of the reference would be those of one of them.
    key = fit_key(kind, clip, context.seed, device)
    content = read_or_make(context.cache_dir / "video-segmenter" / f"{key}.pt", make)
    weights: Mapping[str, Tensor] = torch.load(io.BytesIO(content), weights_only=True)
    return weights


def fit_key(kind: DeviceKind, clip: Clip, seed: int, device: torch.device) -> str:
    """A name that changes with any fact that decides the weights."""
    processor = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"  # cuda only
    torchvision = importlib.metadata.version("torchvision")  # its import takes a second
    return key_of(FORMAT, kind, clip.file_name, seed, processor, torch.__version__, torchvision)


def seeded_network(kind: DeviceKind, seed: int) -> nn.Module:
    """The network with random weights, on the CPU, in eval mode; the random numbers of the process go on as before.

    Three choices keep it from losing its input, and from amplifying rounding from layer to layer. The output of a
    residual block is small, as training makes it: with full-size blocks, FP16 logits of 101 layers are 5 % off, not 0.1
    %, and every feature mixes half of the frame. Kernels over one to three channels have a mean, which passes colours
    on. BatchNorm biases above zero keep more than half of the ReLUs open.
    """
    from torchvision.models.mobilenetv3 import InvertedResidual
    from torchvision.models.resnet import Bottleneck

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        coarse = coarse_network(kind).eval().requires_grad_(False)
        for module in coarse.modules():
            if isinstance(module, nn.Conv2d) and module.weight.shape[1] <= 3:
                module.weight += module.weight.std() * torch.randn_like(module.weight[:, :, :1, :1])
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_(0.3, 0.2)
        for block in coarse.modules():
            if isinstance(block, Bottleneck) or (isinstance(block, InvertedResidual) and block.use_res_connect):
                norm = block.bn3 if isinstance(block, Bottleneck) else block.block[-1][1]
                norm.weight.uniform_(*RESIDUAL_SCALES)
                norm.bias.zero_()
    return coarse


@torch.inference_mode()
def fit(coarse: nn.Module, readouts: Sequence[str], frames: Tensor, masks: Tensor) -> None:
    """Calibrates and fits `coarse` in place to `frames` [n, 3, h, w], whose truth is `masks`, bool [n, h, w].

    The fit uses strict FP32 and deterministic algorithms, and restores the process's own choice. The logits become -z
    (background) and z (foreground), where z is the fitted weights times the inputs of the last convolutions.
    """
    convs, inputs = [coarse.get_submodule(name) for name in readouts], list[Tensor]()
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        with torch.random.fork_rng([frames.device] if frames.is_cuda else []):  # the last layers drop values meanwhile
            update_bn([frames], coarse)
        hooks = [conv.register_forward_pre_hook(lambda _, given: inputs.append(given[0])) for conv in convs]
        coarse(frames)
        for hook in hooks:
            hook.remove()
        features = torch.cat(inputs, dim=1)  # [n, channels, h/8, w/8], side by side
        # The target is each cell's share of foreground, as -1 (none) to 1 (all of it): interpolated between cells, the
        # targets change sign at the outline of the mask, within a fraction of a cell.
        rows, columns = features.shape[-2:]
        targets = 2 * F.adaptive_avg_pool2d(masks[:, None].double(), (rows, columns))[:, 0] - 1
        weights, intercept = ridge(features, targets)
    parts = torch.split(LOGIT * weights.float(), [int(conv.in_channels) for conv in convs])  # type: ignore[arg-type]
    for conv, part, bias in zip(convs, parts, [LOGIT * float(intercept), *[0.0] * (len(convs) - 1)], strict=True):
        values = {"weight": torch.stack([-part, part])[:, :, None, None], "bias": torch.tensor([-bias, bias])}
        conv.load_state_dict(values)


def ridge(features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Weights, float64 [channels], and intercept, float64 [], on the CPU.

    Ridge regression of +-1 on the features (Hoerl and Kennard, Technometrics 12, 1970): minimizes the squared error
    plus PENALTY times the mean variance of the features times the squared weights. The intercept is not penalized. A
    large weight would only amplify what rounding does to a feature. `features` is [n, channels, h, w] on any device and
    `targets` [n, h, w]; products of features are summed in float64.
    """
    channels = features.shape[1]
    rows = features.double().movedim(1, -1).reshape(-1, channels)
    wanted = targets.to(rows).reshape(-1)
    covariances = torch.cov(torch.column_stack((rows, wanted)).T, correction=0).cpu()  # solved on the CPU: it is small
    covariance, correlation = covariances[:-1, :-1], covariances[:-1, -1]
    penalties = PENALTY * covariance.diagonal().mean() * torch.eye(channels, dtype=torch.float64)
    weights = torch.linalg.solve(covariance + penalties, correlation)
    return weights, wanted.mean().cpu() - rows.mean(0).cpu() @ weights


# --- the stage and its sides ------------------------------------------------------------------------------------------

# The convolutions of a frame of a kind's clip: multiply-adds, and values read, weights apart, and written; then the
# weights. A test counts them again on the meta device.
WORK: Mapping[DeviceKind, tuple[int, int, int, int]] = {
    "cuda": (189_761_126_400, 202_982_400, 211_514_400, 51_939_394),
    "cpu": (211_645_384, 2_993_296, 2_862_620, 3_218_308),
}


def size(kind: DeviceKind) -> Size:
    """The work of a step, a batch.

    FLOPs: 2 per multiply-add of the convolutions; BatchNorm, ReLU and interpolation (0.2 %) are left out. Bytes: FP32
    weights once, and the input and output of each convolution once.
    """
    multiply_adds, read, written, weights = WORK[kind]
    return Size(BATCH, flops=2.0 * BATCH * multiply_adds, bytes=4.0 * (weights + BATCH * (read + written)))


def inputs(context: Context, index: int) -> Tensor:
    """Batch `index` >= 0: float32 [items, 3, h, w], normalized frames on the context's device.

    The batch depends on the context's seed and `index` alone: frames that no weight was fitted to, or the first ones of
    the user's video, chosen at random and shifted cyclically by a distance of the batch's own, so that no two batches
    are alike.
    """
    frames, random = _frames(context), np.random.default_rng((context.seed, index))
    chosen = random.integers(len(frames), size=context.items).tolist()
    down, right = random.integers(frames.shape[-2:]).tolist()
    return frames[chosen].roll((down, right), (2, 3))


@functools.lru_cache(maxsize=2)
def _frames(context: Context) -> Tensor:
    """Frames in the network's input format that no weight was fitted to, made once a process."""
    if is_users(context):
        return on_host(bgr_frames(context), context.device)
    clip = CLIPS[kind_of(context)]
    return frames_with_truth(clip, unseen_numbers(clip), context.device)[0]


def baseline(context: Context) -> Side:
    return eager(segmenter(context), torch.float32, NCHW)


def channels_last_fp16(context: Context) -> Side:
    return eager(segmenter(context), torch.float16, NHWC)


def inductor_fp16(context: Context) -> Side:
    torch.backends.cudnn.benchmark = True
    return compiled(segmenter(context), inputs(context, UNMEASURED_BATCH), torch.float16, NHWC)


def cuda_graph(context: Context) -> Side:
    """The kernels of `channels_last_fp16`, in one launch."""
    model = segmenter(context).to(dtype=torch.float16, memory_format=NHWC)  # type: ignore[call-overload]
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
    return to_channels_last_half(fuse(segmenter(context).coarse, OPERATORS)).cpu()


def tensorrt_fp16(context: Context, example: Tensor | None = None) -> Side:
    """All convolutions are one engine; interpolation is PyTorch's, as it is for every other side.

    The side takes frames like `example`, by default those of the stage.
    """
    like = inputs(context, UNMEASURED_BATCH) if example is None else example
    engine = build_engine(segmenter(context).coarse, like, "fp16", context.cache_dir)

    @torch.inference_mode()
    def step(frames: Tensor) -> Tensor:
        return interpolated(engine(frames.contiguous()), frames)

    return Side(step, layers=engine.layers)


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
    limits: tuple[Limit, ...] = (),
    **more: Any,
) -> Optimization:
    """At least the speedup `sm_90`, within `limits`, on an H200 or H100 and `cuda` on any GPU."""
    contract = {"sm_90": Contract(engaged, limits), "cuda": Contract(engaged)}
    words = {"dtype": "float16", "needs": VOLTA, "contract": contract, **more}
    return Optimization(name, build, {"sm_90": sm_90, "cuda": cuda}, **words)


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
    _promised(
        *("channels-last-fp16", channels_last_fp16, 1.05, 1.0, TENSOR_CORES, _limit_size(0.65, 0.57, 0.75)),
        min_speedup_why=LAUNCHES_BIND,
    ),
    _promised("inductor-fp16", inductor_fp16, 2.44, 1.2, TENSOR_CORES, _limit_size(0.6, 0.38, 0.7)),
    _promised("cudnn-fused", cudnn_fused, 3.4, 1.2, ONE_GRAPH, _limit_size(0.6, 0.28), needs=AMPERE),
    _promised("cuda-graph", cuda_graph, 1.02, 0.95, ONE_GRAPH, compared_with="channels-last-fp16"),
    _promised(
        *("tensorrt-fp16", tensorrt_fp16, 3.4, 1.2, ENGINE, (FUSED, *_limit_size(0.42, 0.28))),
        needs=TENSORRT,
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
