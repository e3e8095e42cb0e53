"""Compositing in NV12 held against OpenCV's in BGR. That CV-CUDA composites alike is tested on a GPU."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.video.clip.clip import FULL, SMALL, Clip, rendered
from workloads.video.clip.colour import nv12_from_rgb, rgb_from_nv12
from workloads.video.composite import (
    OnDevice,
    alpha_of,
    blur_pixels,
    on_host,
)
from workloads.video.preprocess import input_size

CPU = torch.device("cpu")


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@functools.cache
def clip_frames(clip: Clip = SMALL, numbers: tuple[int, ...] = (3, 40)) -> tuple[Tensor, Tensor]:
    """NV12 of frames of the clip, and logits that find its moving shapes, with soft edges."""
    drawn = [rendered(clip, number) for number in numbers]
    rgb = torch.from_numpy(np.stack([frame for frame, _ in drawn])).movedim(3, 1).contiguous()
    mask = torch.from_numpy(np.stack([mask for _, mask in drawn]))[:, None].float()
    shrunk = F.interpolate(mask, input_size(clip.height, clip.width), mode="bilinear")
    sureness = 8 * F.avg_pool2d(shrunk, 7, 1, 3) - 4
    return nv12_from_rgb(rgb, "bt601"), torch.cat([-sureness, sureness], 1)


def shown(nv12: Tensor) -> np.ndarray:
    """BGR as OpenCV decodes it."""
    return np.ascontiguousarray(rgb_from_nv12(nv12, "bt601").flip(1).movedim(1, 3).numpy())


def hidden(bgr: np.ndarray) -> Tensor:
    return nv12_from_rgb(torch.from_numpy(bgr).movedim(3, 1).flip(1).contiguous(), "bt601")


def psnr_db(one: Any, other: Any) -> float:
    difference = torch.as_tensor(one).double() - torch.as_tensor(other).double()
    return float(10 * torch.log10(255**2 / difference.square().mean()))


def test_the_blur_grows_with_the_frame_and_stays_odd() -> None:
    heights = (1080, 2160, 720, 360, 96, 48)
    assert [blur_pixels(height) for height in heights] == [31, 61, 21, 11, 3, 3]


def test_alpha_is_what_is_not_background() -> None:
    for classes in (2, 3, 21):
        logits = torch.randn(2, classes, 5, 7, generator=random())
        torch.testing.assert_close(alpha_of(logits), 1 - logits.softmax(1)[:, 0])
        assert alpha_of(logits.half()).dtype == torch.float32
    with pytest.raises(ValueError, match="logits of 1 class tell no foreground"):
        alpha_of(torch.zeros(1, 1, 4, 4))


@pytest.mark.parametrize(
    ("clip", "dtype", "least_db"),
    [(SMALL, torch.float32, 46.0), (SMALL, torch.float16, 46.0), (FULL, torch.float32, 50.0)],
    ids=["360p", "360p in FP16", "1080p"],
)
def test_the_composite_is_opencvs(clip: Clip, dtype: torch.dtype, least_db: float) -> None:
    nv12, logits = clip_frames(clip, (3,) if clip is FULL else (3, 40))
    ours = OnDevice(clip.height, clip.width, CPU, dtype)(nv12, logits)
    theirs = on_host(shown(nv12), logits)
    assert psnr_db(nv12, ours) < 36, "there is something to blur"
    assert psnr_db(ours, hidden(theirs)) >= 47.5, "48 dB, as documented"
    per_frame = [psnr_db(*pair) for pair in zip(shown(ours), theirs, strict=True)]
    assert min(per_frame) >= least_db
