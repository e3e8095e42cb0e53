"""Preprocessing and compositing of NV12 held against OpenCV's in BGR, and their kernels in Triton against PyTorch.

Triton's interpreter runs the kernels on a CPU, if it is chosen before Triton is imported: in a process of its own. That
CV-CUDA agrees is tested on a GPU.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.code_in_child import interpret
from workloads.parts.photographs import IMAGENET_STD
from workloads.video import composite
from workloads.video.arrivals import psnr_db
from workloads.video.clip import FULL, SMALL, Clip, rendered
from workloads.video.composite import alpha_of, blurs_of
from workloads.video.frames import nv12_from_rgb, rgb_from_nv12
from workloads.video.preprocess import in_torch, input_size, normalization, on_host

CPU = torch.device("cpu")
SIZE = 100, 158
HALF_A_LEVEL = 0.5 / 255 / min(IMAGENET_STD)


def shown(nv12: Tensor) -> np.ndarray:
    """BGR as OpenCV decodes it."""
    return np.ascontiguousarray(rgb_from_nv12(nv12, "bt601").flip(1).movedim(1, 3).numpy())


def test_the_network_sees_a_third_in_steps_of_eight() -> None:
    sizes = {(1080, 1920): (360, 640), (360, 640): (120, 216), (720, 1280): (240, 424), (48, 88): (16, 32)}
    assert {size: input_size(*size) for size in sizes} == sizes


def test_a_size_that_is_no_multiple_differs_by_opencvs_rounding_alone() -> None:
    """NV12 of every level, also of those that stand for no colour."""
    height, width = SIZE
    nv12 = torch.randint(0, 256, (2, height * 3 // 2, width), dtype=torch.uint8, generator=random())
    ours, theirs = in_torch(*SIZE, CPU)(nv12), on_host(shown(nv12), CPU)
    assert HALF_A_LEVEL / 2 < (ours - theirs).abs().max() < 1.6 * HALF_A_LEVEL, "and its weights of 11 bits"
    scale, shift = normalization()
    exact = F.interpolate(rgb_from_nv12(nv12, "bt601").float(), input_size(*SIZE), mode="bilinear") * scale + shift
    torch.testing.assert_close(ours, exact, atol=1e-3, rtol=0)


# --- compositing ------------------------------------------------------------------------------------------------------


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


def hidden(bgr: np.ndarray) -> Tensor:
    return nv12_from_rgb(torch.from_numpy(bgr).movedim(3, 1).flip(1).contiguous(), "bt601")


def test_the_blur_grows_with_the_frame_and_stays_odd() -> None:
    heights = (1080, 2160, 720, 360, 96, 48)
    assert [blurs_of(height)[0].pixels for height in heights] == [31, 61, 21, 11, 3, 3]


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
    ours = composite.in_torch(clip.height, clip.width, CPU, dtype)(nv12, logits)
    theirs = composite.on_host(shown(nv12), logits)
    assert psnr_db(nv12.numpy(), ours.numpy()) < 36, "there is something to blur"
    assert psnr_db(ours.numpy(), hidden(theirs).numpy()) >= 47.5, "48 dB, as documented"
    per_frame = [psnr_db(*pair) for pair in zip(shown(ours), theirs, strict=True)]
    assert min(per_frame) >= least_db


# --- stages in Triton, at any size and to the frame's edge ------------------------------------------------------------

COMPARED = """
import torch
from gpugate.machine import children
from workloads.video import composite, preprocess

CPU, random, found = torch.device("cpu"), torch.Generator().manual_seed(0), {}
for height, width in ((96, 192), (100, 158)):  # an exact third, and a size whose pixels are mixed
    nv12 = torch.randint(256, (2, height * 3 // 2, width), dtype=torch.uint8, generator=random)
    for matrix in ("bt601", "bt709"):
        stages = preprocess.in_triton, preprocess.in_torch
        ours, theirs = (make(height, width, CPU, matrix)(nv12) for make in stages)
        assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())
        found[f"input {height} {matrix}"] = float((ours - theirs).abs().max())
for height, width in ((96, 160), (200, 134), (540, 70)):  # tiles that end within the frame and beyond it; wider blurs
    frames = 2 if height == 96 else 1  # the interpreter takes a second for a few tiles
    nv12 = torch.randint(16, 236, (frames, height * 3 // 2, width), dtype=torch.uint8, generator=random)
    h, w = preprocess.input_size(height, width)
    logits = 4 * torch.randn(frames, 2, h, w, generator=random)
    logits[1:] = torch.tensor([-40.0, 40.0]).view(2, 1, 1)  # all foreground
    ours, theirs = (make(height, width, CPU)(nv12, logits) for make in (composite.in_triton, composite.in_torch))
    assert torch.equal(ours[1:], nv12[1:])
    off = (ours[0].float() - theirs[0].float()).abs()
    found[f"levels {height}"], found[f"share {height}"] = float(off.max()), float((off > 0).float().mean())
children.parent.send(found)
"""


@pytest.mark.usefixtures("warm_children")
def test_a_stage_in_triton_is_the_stage_in_pytorch() -> None:
    pytest.importorskip("triton")
    (found,) = interpret(COMPARED)
    allowed = {"input": 2e-6, "levels": 1, "share": 0.04}
    assert {name: off for name, off in found.items() if off > allowed[name.split()[0]]} == {}
