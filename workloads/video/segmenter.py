"""The segmenter, which separates foreground from background: frames in, logits out; FCN-ResNet101, or LR-ASPP on a CPU.

Its weights segment our clips without any training: seeded, calibrated, and fitted in closed form, or those of the
user's checkpoint. The convolutions are random. BatchNorm statistics come from a few frames of the clip, and the last
convolution from a linear fit to its true masks. The fit is stored on disk, so that every side and every process
computes with equal weights.
"""

from __future__ import annotations

import functools
import importlib.metadata
import io
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpugate.workload import Context, DeviceKind
from workloads.parts.kept_files import key_of, read_or_make
from workloads.parts.photographs import IMAGENET_MEAN, IMAGENET_STD
from workloads.parts.state_dicts import read_state_dict
from workloads.video.clip import CLIPS, Clip, rendered
from workloads.video.preprocess import input_size

CLASSES = 2  # background and foreground
FORMAT = 1  # of the stored file; raise it whenever seeding, calibration or the fit change
FITTED = "fitted.pt"
FIT_FRAMES = 12
FRAMES_AT_ONCE = 4
PENALTY = 1e-2
LOGIT = 4.0  # inside the foreground and, negative, outside: a probability of 0.9997
RESIDUAL_SCALES = 0.05, 0.15
AUXILIARY = "aux_classifier."  # torchvision's second head, for training only
SEGMENTER_SETTING = {
    "segmenter-weights": "a state_dict of torchvision's FCN-ResNet101, on a CPU of its LR-ASPP MobileNetV3-Large"
}


# --- the network ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Architecture:
    """torchvision's name of a network, and its last convolutions: the sum of their outputs is the coarse logits."""

    name: str
    readouts: tuple[str, ...]


ARCHITECTURES: Mapping[DeviceKind, Architecture] = {
    "cuda": Architecture("fcn_resnet101", ("classifier.4",)),
    "cpu": Architecture("lraspp_mobilenet_v3_large", ("classifier.low_classifier", "classifier.high_classifier")),
}


def coarse_network(kind: DeviceKind, classes: int = CLASSES) -> nn.Module:
    """[n, 3, h, w] -> [n, classes, h/8, w/8], initialized as torchvision does; its weights have torchvision's names."""
    from torchvision.models import get_model

    whole = get_model(ARCHITECTURES[kind].name, weights=None, weights_backbone=None, num_classes=classes)
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


def foreground(logits: Tensor) -> Tensor:
    """bool [n, h, w] from logits [n, classes, h, w]: more than half of the probability is not the background's."""
    return logits.softmax(1)[:, 0] < 0.5


def segmenter(kind: DeviceKind, context: Context) -> Segmenter:
    """A new eval segmenter on the context's device, float32: FCN-ResNet101 for "cuda", LR-ASPP for "cpu".

    Without a checkpoint its weights are fitted to the clip of this kind of device, and kept in the context's
    `cache_dir`. Raises ValueError, in one sentence that names the file, for a checkpoint that is no state_dict of this
    kind's network.
    """
    own = own_checkpoint(context)
    if own is not None:
        weights = checkpoint(kind, own)
    else:
        weights = fitted_weights(kind, CLIPS[kind], context.seed, context.device, context.cache_dir)
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

    def build(weights: Mapping[str, Tensor]) -> nn.Module:
        return without_weights(kind, _classes(kind, weights))

    return read_state_dict(path, f"{option} {path}", ARCHITECTURES[kind].name, build, left_out=AUXILIARY)


def _classes(kind: DeviceKind, weights: Mapping[str, Tensor]) -> int:
    return int(weights[f"{ARCHITECTURES[kind].readouts[0]}.weight"].shape[0])


# --- frames of a clip in the network's input format, with the true foreground: drawn, never decoded -------------------


def fit_numbers(clip: Clip) -> tuple[int, ...]:
    """The numbers of the frames that weights are fitted to: a few, spread evenly from the first to the last."""
    return tuple(sorted({int(number) for number in np.linspace(0, clip.frames - 1, FIT_FRAMES).round()}))


def unseen_numbers(clip: Clip) -> tuple[int, ...]:
    """Frames half way between those of the fit."""
    return tuple((left + right) // 2 for left, right in pairwise(fit_numbers(clip)) if right > left + 1)


def frames_with_truth(clip: Clip, numbers: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """float32 [n, 3, h, w], resized and normalized as by preprocessing, and bool masks [n, h, w], on `device`."""
    drawn = [_network_frame(clip, number, device) for number in numbers]
    return torch.stack([frame for frame, _ in drawn]), torch.stack([mask for _, mask in drawn])


def _network_frame(clip: Clip, number: int, device: torch.device) -> tuple[Tensor, Tensor]:
    rgb, mask = rendered(clip, number)
    size = input_size(clip.height, clip.width)
    mean, std = (torch.tensor(values, device=device).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    frame = _resized(torch.from_numpy(rgb).to(device).movedim(-1, 0), size).div(255).sub(mean).div(std)
    return frame, _resized(torch.from_numpy(mask).to(device)[None], size)[0] > 0.5


def _resized(planes: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(planes[None].float(), size, mode="bilinear", align_corners=False)[0]


# --- fitted weights ---------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def fitted_weights(
    kind: DeviceKind, clip: Clip, seed: int, device: torch.device, cache_dir: Path
) -> Mapping[str, Tensor]:
    """The state_dict of `coarse_network(kind)`, on the CPU, fitted on `device` unless `cache_dir` has it already.

    A stored fit that was damaged is deleted with a RuntimeWarning and made again. The file has the part of the weights
    that is fitted; the rest, 200 MB, follows from the seed alone.
    """
    coarse, readouts = seeded_network(kind, seed), ARCHITECTURES[kind].readouts
    path = cache_dir / "video-segmenter" / fit_key(kind, clip, seed, device) / FITTED

    def make() -> bytes:
        fit(coarse.to(device), readouts, *frames_with_truth(clip, fit_numbers(clip), device))
        statistics = ("running_mean", "running_var", "num_batches_tracked")
        fitted = (*statistics, *(f"{name}.{part}" for name in readouts for part in ("weight", "bias")))
        buffer, weights = io.BytesIO(), coarse.cpu().state_dict()
        torch.save({name: value.clone() for name, value in weights.items() if name.endswith(fitted)}, buffer)
        return buffer.getvalue()

    # Two fits on a GPU may differ. If processes that begin together each made one, they would have weights of their
    # own, and the stored composites of the reference would be those of one of them.
    content = read_or_make(path, make)
    coarse.load_state_dict(torch.load(io.BytesIO(content), weights_only=True), strict=False)
    return {name: value.detach() for name, value in coarse.state_dict().items()}


def fit_key(kind: DeviceKind, clip: Clip, seed: int, device: torch.device) -> str:
    """A folder name that changes with any fact that decides the weights."""
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
            norm = None
            if isinstance(block, Bottleneck):
                norm = block.bn3
            if isinstance(block, InvertedResidual) and block.use_res_connect:
                norm = block.block[-1][1]
            if norm is not None:
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
        calibrate(coarse, frames[:: max(1, len(frames) // FRAMES_AT_ONCE)])
        hooks = [conv.register_forward_pre_hook(lambda _, given: inputs.append(given[0])) for conv in convs]
        features = []
        for some in torch.split(frames, FRAMES_AT_ONCE):
            coarse(some)
            features.append(torch.cat(inputs, dim=1))  # [n, channels, h/8, w/8], side by side
            inputs.clear()
        for hook in hooks:
            hook.remove()
        joined = torch.cat(features)
        # The target is each cell's share of foreground, as -1 (none) to 1 (all of it): interpolated between cells, the
        # targets change sign at the outline of the mask, within a fraction of a cell.
        rows, columns = joined.shape[-2:]
        targets = 2 * F.adaptive_avg_pool2d(masks[:, None].double(), (rows, columns))[:, 0] - 1
        weights, intercept = ridge(joined, targets)
    parts = torch.split(LOGIT * weights.float(), [int(conv.in_channels) for conv in convs])  # type: ignore[arg-type]
    for conv, part, bias in zip(convs, parts, [LOGIT * float(intercept), *[0.0] * (len(convs) - 1)], strict=True):
        values = {"weight": torch.stack([-part, part])[:, :, None, None], "bias": torch.tensor([-bias, bias])}
        conv.load_state_dict(values)


def calibrate(coarse: nn.Module, frames: Tensor) -> None:
    """Sets every BatchNorm's statistics to those of `frames` behind all the BatchNorms before it."""
    norms = [module for module in coarse.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over all its inputs
        norm.train()
    coarse(frames)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()


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
    mean, mean_wanted = rows.mean(0), wanted.mean()
    rows = rows - mean
    covariance = (rows.T @ rows / len(rows)).cpu()  # small: solving it on a GPU would cost a library's start there
    correlation = (rows.T @ (wanted - mean_wanted) / len(rows)).cpu()
    penalties = PENALTY * covariance.diagonal().mean() * torch.eye(channels, dtype=torch.float64)
    weights = torch.linalg.solve(covariance + penalties, correlation)
    return weights, mean_wanted.cpu() - mean.cpu() @ weights
