"""Frames of a clip in the network's input format, with the true foreground: drawn, never decoded."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.parts.photographs import IMAGENET_MEAN, IMAGENET_STD
from workloads.video.clip.clip import Clip, rendered
from workloads.video.preprocess.preprocessing import input_size

FIT_FRAMES = 12


def fit_numbers(clip: Clip) -> tuple[int, ...]:
    """The numbers of the frames that weights are fitted to: a few, spread evenly from the first to the last."""
    return tuple(sorted({int(number) for number in np.linspace(0, clip.frames - 1, FIT_FRAMES).round()}))


def unseen_numbers(clip: Clip) -> tuple[int, ...]:
    """Frames half way between those of the fit; raises ValueError where a clip has none."""
    fitted = fit_numbers(clip)
    between = tuple((left + right) // 2 for left, right in pairwise(fitted) if right > left + 1)
    if not between:
        raise ValueError(f"a clip of {clip.frames} frames has none that the weights were not fitted to: make it longer")
    return between


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
