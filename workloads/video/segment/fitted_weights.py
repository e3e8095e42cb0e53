"""Weights that segment our clips without any training: seeded, calibrated, and fitted in closed form.

The convolutions are random. BatchNorm statistics come from a few frames of the clip, and the last convolution from a
linear fit to its true masks. The fit is stored on disk, so that every side and every process computes with equal
weights.
"""

from __future__ import annotations

import functools
import importlib.metadata
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from gpugate.workload import DeviceKind
from workloads.parts.kept_files import keep, key_of, read_kept
from workloads.video.clip.clip import Clip
from workloads.video.segment.architectures import ARCHITECTURES, coarse_network
from workloads.video.segment.network_frames import fit_numbers, frames_with_truth
from workloads.video.segment.readout import coarse_targets, ridge

FORMAT = 1  # of the stored file; raise it whenever seeding, calibration or the fit change
FITTED = "fitted.pt"
FRAMES_AT_ONCE = 4
LOGIT = 4.0  # inside the foreground and, negative, outside: a probability of 0.9997
RESIDUAL_SCALES = 0.05, 0.15


@functools.lru_cache(maxsize=1)
def fitted_weights(
    kind: DeviceKind, clip: Clip, seed: int, device: torch.device, cache_dir: Path
) -> Mapping[str, Tensor]:
    """The state_dict of `coarse_network(kind)`, on the CPU, fitted on `device` unless `cache_dir` has it already.

    A stored fit that was damaged is deleted with a RuntimeWarning and made again.
    """
    coarse = seeded_network(kind, seed)
    path = cache_dir / "video-segmenter" / fit_key(kind, clip, seed, device) / FITTED
    content = read_kept(path)
    if content is None:
        coarse.to(device)
        fit(coarse, ARCHITECTURES[kind].readouts, *frames_with_truth(clip, fit_numbers(clip), device))
        content = _stored(_fitted_part(kind, coarse.cpu()))
        keep(path, content)
    coarse.load_state_dict(torch.load(io.BytesIO(content), weights_only=True), strict=False)
    return {name: value.detach() for name, value in coarse.state_dict().items()}


def seeded_network(kind: DeviceKind, seed: int) -> nn.Module:
    """The network with random weights, on the CPU, in eval mode; the random numbers of the process go on as before.

    Three choices keep it from losing its input, and from amplifying rounding from layer to layer. The output of a
    residual block is small, as training makes it: with full-size blocks, FP16 logits of 101 layers are 5 % off, not 0.1
    %, and every feature mixes half of the frame. Kernels over one to three channels have a mean, which passes colours
    on. BatchNorm biases above zero keep more than half of the ReLUs open.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        coarse = coarse_network(kind).eval().requires_grad_(False)
        for module in coarse.modules():
            if isinstance(module, nn.Conv2d) and module.weight.shape[1] <= 3:
                module.weight += module.weight.std() * torch.randn_like(module.weight[:, :, :1, :1])
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_(0.3, 0.2)
        for norm in _ends_of_residual_blocks(coarse):
            norm.weight.uniform_(*RESIDUAL_SCALES)
            norm.bias.zero_()
    return coarse


def _ends_of_residual_blocks(coarse: nn.Module) -> Iterator[nn.BatchNorm2d]:
    from torchvision.models.mobilenetv3 import InvertedResidual
    from torchvision.models.resnet import Bottleneck

    for block in coarse.modules():
        if isinstance(block, Bottleneck):
            yield block.bn3
        if isinstance(block, InvertedResidual) and block.use_res_connect:
            yield block.block[-1][1]


@torch.inference_mode()
def fit(coarse: nn.Module, readouts: Sequence[str], frames: Tensor, masks: Tensor) -> None:
    """Calibrates and fits `coarse` in place to `frames` [n, 3, h, w], whose truth is `masks`, bool [n, h, w].

    The fit uses strict FP32 and deterministic algorithms, and restores the process's own choice.
    """
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        calibrate(coarse, frames[:: max(1, len(frames) // FRAMES_AT_ONCE)])
        features = [_features(coarse, readouts, some) for some in torch.split(frames, FRAMES_AT_ONCE)]
        joined = torch.cat(features)
        weights, intercept = ridge(joined, coarse_targets(masks, joined))
    _read_out(coarse, readouts, LOGIT * weights.float(), LOGIT * float(intercept))


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


def _features(coarse: nn.Module, readouts: Sequence[str], frames: Tensor) -> Tensor:
    """The inputs of the last convolutions, side by side: [n, channels, h/8, w/8]."""
    seen: list[Tensor] = []
    with _watching(coarse, readouts, seen):
        coarse(frames)
    return torch.cat(seen, dim=1)


@contextmanager
def _watching(coarse: nn.Module, readouts: Sequence[str], seen: list[Tensor]) -> Iterator[None]:
    hooks = [
        coarse.get_submodule(name).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        for name in readouts
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _read_out(coarse: nn.Module, readouts: Sequence[str], weights: Tensor, intercept: float) -> None:
    """Sets the logits to -z (background) and z (foreground), where z is `weights` times features plus `intercept`."""
    convs = [coarse.get_submodule(name) for name in readouts]
    biases = [intercept, *[0.0] * (len(convs) - 1)]
    parts = torch.split(weights, [int(conv.in_channels) for conv in convs])  # type: ignore[arg-type]
    for conv, part, bias in zip(convs, parts, biases, strict=True):
        values = {"weight": torch.stack([-part, part])[:, :, None, None], "bias": torch.tensor([-bias, bias])}
        conv.load_state_dict(values)


def _fitted_part(kind: DeviceKind, coarse: nn.Module) -> Mapping[str, Tensor]:
    """The part of the weights that is fitted; the rest, 200 MB, follows from the seed alone."""
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    fitted = (*statistics, *(f"{name}.{part}" for name in ARCHITECTURES[kind].readouts for part in ("weight", "bias")))
    return {name: value for name, value in coarse.state_dict().items() if name.endswith(fitted)}


def _stored(weights: Mapping[str, Tensor]) -> bytes:
    buffer = io.BytesIO()
    torch.save({name: value.clone() for name, value in weights.items()}, buffer)
    return buffer.getvalue()


def fit_key(kind: DeviceKind, clip: Clip, seed: int, device: torch.device) -> str:
    """A folder name that changes with any fact that decides the weights."""
    processor = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"  # cuda only
    torchvision = importlib.metadata.version("torchvision")  # its import takes a second
    return key_of(FORMAT, kind, clip.file_name, seed, processor, torch.__version__, torchvision)
