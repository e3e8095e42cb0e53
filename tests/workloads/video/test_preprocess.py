"""Preprocessing of NV12 held against OpenCV's on the same pictures. That CV-CUDA agrees is tested on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.parts.photographs import IMAGENET_STD
from workloads.video.clip.colour import Matrix, rgb_from_nv12
from workloads.video.preprocess import OnDevice, input_size, normalization, on_host

CPU = torch.device("cpu")
THIRD = 96, 192  # shrinks to a third exactly
OTHER = 100, 158
HALF_A_LEVEL = 0.5 / 255 / min(IMAGENET_STD)


def noise(size: tuple[int, int], frames: int = 2, seed: int = 0) -> Tensor:
    """NV12 of every level, also of those that stand for no colour."""
    height, width = size
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (frames, height * 3 // 2, width), dtype=torch.uint8, generator=random)


def shown(nv12: Tensor, matrix: Matrix = "bt601") -> np.ndarray:
    """BGR as OpenCV decodes it."""
    return np.ascontiguousarray(rgb_from_nv12(nv12, matrix).flip(1).movedim(1, 3).numpy())


def test_the_network_sees_a_third_in_steps_of_eight() -> None:
    sizes = {(1080, 1920): (360, 640), (360, 640): (120, 216), (720, 1280): (240, 424), (48, 88): (16, 32)}
    assert {size: input_size(*size) for size in sizes} == sizes
    for height, width in ((95, 160), (96, 161)):
        with pytest.raises(ValueError, match=f"4:2:0 has no frames of {height} x {width} pixels: give even numbers"):
            input_size(height, width)


@pytest.mark.parametrize("matrix", ["bt601", "bt709"])
def test_an_exact_third_is_what_opencv_makes_of_the_decoded_picture(matrix: Matrix) -> None:
    nv12 = noise(THIRD)
    ours = OnDevice(*THIRD, CPU, matrix=matrix)(nv12)
    torch.testing.assert_close(ours, on_host(shown(nv12, matrix), CPU), atol=2e-6, rtol=0)


def test_another_size_differs_by_opencvs_rounding_alone() -> None:
    nv12 = noise(OTHER)
    ours, theirs = OnDevice(*OTHER, CPU)(nv12), on_host(shown(nv12), CPU)
    assert HALF_A_LEVEL / 2 < (ours - theirs).abs().max() < 1.6 * HALF_A_LEVEL, "and its weights of 11 bits"
    scale, shift = normalization()
    exact = F.interpolate(rgb_from_nv12(nv12, "bt601").float(), input_size(*OTHER), mode="bilinear") * scale + shift
    torch.testing.assert_close(ours, exact, atol=1e-3, rtol=0)
