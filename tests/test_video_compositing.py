"""Compositing in NV12 held against OpenCV's in BGR, the blur likewise, and CV-CUDA's calls against a stand-in."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.video_segmentation import compositing, cvcuda_tensors
from workloads.video_segmentation.clip import SMALL, rendered
from workloads.video_segmentation.colour import nv12_from_rgb, planes, rgb_from_nv12
from workloads.video_segmentation.compositing import OnDevice, alpha_of, enlarged, on_host
from workloads.video_segmentation.compositing_cvcuda import CvCuda
from workloads.video_segmentation.preprocessing import input_size
from workloads.video_segmentation.separable_blur import (
    across,
    blur_pixels,
    bordered,
    down,
    gaussian_sigma,
    gaussian_weights,
    halved,
    halved_sigma,
)

CPU = torch.device("cpu")
SIZE = SMALL.height, SMALL.width
LITTLE = 96, 160
STREAM_HANDLE = 4711
SURE = 40.0  # a logit whose probability is 1 in FP32


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@functools.cache
def clip_frames() -> tuple[Tensor, Tensor]:
    """NV12 of two frames of the small clip, and logits that find its moving shapes, with soft edges."""
    drawn = [rendered(SMALL, number) for number in (3, 40)]
    rgb = torch.from_numpy(np.stack([frame for frame, _ in drawn])).movedim(3, 1).contiguous()
    mask = torch.from_numpy(np.stack([mask for _, mask in drawn]))[:, None].float()
    shrunk = F.interpolate(mask, input_size(*SIZE), mode="bilinear")
    sureness = 8 * F.avg_pool2d(shrunk, 7, 1, 3) - 4
    return nv12_from_rgb(rgb, "bt601"), torch.cat([-sureness, sureness], 1)


def little_frames(frames: int = 8) -> tuple[Tensor, Tensor]:
    height, width = LITTLE
    nv12 = torch.randint(16, 236, (frames, height * 3 // 2, width), dtype=torch.uint8, generator=random())
    coarse = 6 * torch.randn(frames, 2, 4, 6, generator=random(1))
    return nv12, F.interpolate(coarse, input_size(*LITTLE), mode="bilinear")


def surely(foreground: bool, frames: int) -> Tensor:
    sign = 1 if foreground else -1
    return torch.tensor([-sign * SURE, sign * SURE]).view(1, 2, 1, 1).expand(frames, 2, *input_size(*LITTLE))


def shown(nv12: Tensor) -> np.ndarray:
    """BGR as OpenCV decodes it."""
    return np.ascontiguousarray(rgb_from_nv12(nv12, "bt601").flip(1).movedim(1, 3).numpy())


def hidden(bgr: np.ndarray) -> Tensor:
    return nv12_from_rgb(torch.from_numpy(bgr).movedim(3, 1).flip(1).contiguous(), "bt601")


def psnr_db(one: Any, other: Any) -> float:
    difference = torch.as_tensor(one).double() - torch.as_tensor(other).double()
    return float(10 * torch.log10(255**2 / difference.square().mean()))


def blurred(image: Tensor, weights: tuple[float, ...]) -> Tensor:
    return across(down(bordered(image, weights), weights), weights)


def opencv_blur(image: np.ndarray, pixels: int, sigma: float) -> np.ndarray:
    kernel = cv2.getGaussianKernel(pixels, sigma, cv2.CV_64F)
    return cv2.sepFilter2D(image.astype(np.float64), -1, kernel, kernel, borderType=cv2.BORDER_REFLECT_101)


# ---- the blur


def test_the_blur_grows_with_the_frame_and_stays_odd() -> None:
    heights = (1080, 2160, 720, 360, 96, 48)
    assert [blur_pixels(height) for height in heights] == [31, 61, 21, 11, 3, 3]


@pytest.mark.parametrize("pixels", [3, 11, 21, 31])
def test_weights_are_opencvs(pixels: int) -> None:
    wanted = cv2.getGaussianKernel(pixels, gaussian_sigma(pixels), cv2.CV_64F)[:, 0]
    assert gaussian_weights(pixels) == pytest.approx(wanted.tolist())
    if pixels > 9:  # up to there OpenCV has tables of its own where no sigma is given
        assert gaussian_weights(pixels) == pytest.approx(cv2.getGaussianKernel(pixels, 0, cv2.CV_64F)[:, 0].tolist())


@pytest.mark.parametrize("pixels", [3, 5, 11, 31])
@pytest.mark.parametrize("channels", [1, 2])
def test_two_directions_are_opencvs_gaussian(pixels: int, channels: int) -> None:
    image = torch.randint(0, 256, (2, 66, 90, channels), dtype=torch.uint8, generator=random())
    ours = blurred(image, gaussian_weights(pixels))
    assert ours.shape == image.shape
    theirs = np.stack([opencv_blur(each, pixels, gaussian_sigma(pixels)) for each in image.numpy()])
    torch.testing.assert_close(ours.double(), torch.from_numpy(theirs).view(image.shape), atol=1 / 16, rtol=0)


@pytest.mark.parametrize("pixels", [3, 5, 11, 21, 31])
def test_half_the_size_is_blurred_as_if_it_had_been_shown_at_full_size(pixels: int) -> None:
    """Pixels repeated, filtered, and averaged by twos: in the middle, as at the edge they are mirrored otherwise."""
    row = torch.rand(1, 1, 100, dtype=torch.float64, generator=random())
    full, half = (torch.tensor(weights).double().view(1, 1, -1) for weights in _both(pixels))
    wanted = F.avg_pool1d(F.conv1d(row.repeat_interleave(2, 2), full, padding=full.shape[2] // 2), 2)
    ours = F.conv1d(row, half, padding=half.shape[2] // 2)
    torch.testing.assert_close(ours[..., 20:80], wanted[..., 20:80])


def _both(pixels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return gaussian_weights(pixels), halved(gaussian_weights(pixels))


@pytest.mark.parametrize("pixels", [11, 21, 31])
def test_a_gaussian_of_half_the_sigma_comes_close_to_it(pixels: int) -> None:
    exact = halved(gaussian_weights(pixels))
    near = cv2.getGaussianKernel(len(exact), halved_sigma(gaussian_sigma(pixels)), cv2.CV_64F)[:, 0]
    assert np.abs(near - exact).max() < 0.003


def test_bordered_rows_are_a_multiple_of_what_is_loaded_at_once() -> None:
    frame = torch.zeros(1, 64, 1920, 1, dtype=torch.uint8)
    weights = gaussian_weights(31)
    rows = bordered(frame, weights).shape[2]
    assert (rows % 16, rows > 1920 + 30) == (0, True)
    assert bordered(frame.view(1, 64, 960, 2), halved(weights)).shape[2] * 2 % 16 == 0


# ---- alpha


def test_alpha_is_what_is_not_background() -> None:
    for classes in (2, 3, 21):
        logits = torch.randn(2, classes, 5, 7, generator=random())
        torch.testing.assert_close(alpha_of(logits), 1 - logits.softmax(1)[:, 0])
        assert alpha_of(logits.half()).dtype == torch.float32
    with pytest.raises(ValueError, match="logits of 1 class tell no foreground"):
        alpha_of(torch.zeros(1, 1, 4, 4))


# ---- composites


def test_the_composite_is_opencvs() -> None:
    nv12, logits = clip_frames()
    ours, theirs = OnDevice(*SIZE, CPU)(nv12, logits), on_host(shown(nv12), logits)
    changed = psnr_db(nv12, ours)
    assert changed < 36, "there is something to blur"
    assert psnr_db(shown(ours), theirs) >= 46, "47 dB, as documented"
    assert psnr_db(ours, hidden(theirs)) >= 47.5
    per_frame = [psnr_db(*pair) for pair in zip(shown(ours), theirs, strict=True)]
    assert min(per_frame) >= 46


def test_alpha_is_enlarged_as_opencv_does() -> None:
    alpha = torch.rand(2, *input_size(*SIZE), generator=random())
    for height, width in (SIZE, (SIZE[0] // 2, SIZE[1] // 2)):
        theirs = np.stack([cv2.resize(each, (width, height)) for each in alpha.numpy()])
        torch.testing.assert_close(
            enlarged(alpha, (height, width))[..., 0], torch.from_numpy(theirs), atol=1e-4, rtol=0
        )


def test_a_single_colour_stays_what_it_is() -> None:
    height, width = LITTLE
    logits = little_frames(2)[1]
    for luma, chroma in ((235, 128), (60, 200)):
        nv12 = torch.full((2, height * 3 // 2, width), luma, dtype=torch.uint8)
        nv12[:, height:] = chroma
        ours, theirs = OnDevice(height, width, CPU)(nv12, logits), on_host(shown(nv12), logits)
        assert torch.equal(ours, nv12)
        assert np.abs(shown(ours).astype(int) - theirs).max() <= 1


def test_certain_foreground_is_the_frame_and_certain_background_is_the_blur() -> None:
    nv12, _ = little_frames(3)
    composite = OnDevice(*LITTLE, CPU)
    assert torch.equal(composite(nv12, surely(True, 3)), nv12)
    luma, chroma = planes(composite(nv12, surely(False, 3)))
    pixels = blur_pixels(LITTLE[0])
    given_luma, given_chroma = planes(nv12)
    weights = gaussian_weights(pixels)
    assert torch.equal(luma[..., None], blurred(given_luma[..., None], weights).round().to(torch.uint8))
    assert torch.equal(chroma, blurred(given_chroma, halved(weights)).round().to(torch.uint8))
    bgr = shown(nv12)
    assert np.array_equal(on_host(bgr, surely(True, 3)), bgr)
    blurry = [cv2.GaussianBlur(frame, (pixels, pixels), gaussian_sigma(pixels)) for frame in bgr]
    assert np.array_equal(on_host(bgr, surely(False, 3)), np.stack(blurry))


def test_a_batch_is_its_frames_whatever_its_length() -> None:
    nv12, logits = little_frames()
    alone = torch.cat([OnDevice(*LITTLE, CPU)(nv12[at : at + 1], logits[at : at + 1]) for at in range(8)])
    composite = OnDevice(*LITTLE, CPU)
    assert torch.equal(composite(nv12, logits), alone)
    assert torch.equal(composite(nv12[:3], logits[:3]), alone[:3]), "a clip's last batch is shorter"
    out = torch.zeros_like(nv12[:1])
    assert composite(nv12[4:5], logits[4:5], out) is out
    assert torch.equal(out, alone[4:5])


def test_half_precision_logits_in_any_layout_will_do() -> None:
    nv12, logits = little_frames(2)
    half = logits.half().contiguous(memory_format=torch.channels_last)
    assert torch.equal(OnDevice(*LITTLE, CPU)(nv12, half), OnDevice(*LITTLE, CPU)(nv12, half.float().contiguous()))


def test_the_input_stays_as_it_is_and_the_result_is_the_same_again() -> None:
    nv12, logits = little_frames(2)
    kept, kept_logits, composite = nv12.clone(), logits.clone(), OnDevice(*LITTLE, CPU)
    first, out = composite(nv12, logits), torch.zeros_like(nv12)
    assert composite(nv12, logits, out) is out
    assert torch.equal(first, out)
    assert torch.equal(nv12, kept)
    assert torch.equal(logits, kept_logits)
    assert first.untyped_storage().data_ptr() != nv12.untyped_storage().data_ptr()


@pytest.mark.parametrize("make", [OnDevice, CvCuda])
def test_odd_sizes_and_other_frames_are_refused(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workloads.video_segmentation.compositing_cvcuda.operators", StandIn)
    for size in ((95, 160), (96, 161)):
        with pytest.raises(ValueError, match=f"4:2:0 has no frames of {size[0]} x {size[1]} pixels: give even numbers"):
            make(*size, CPU)
    with pytest.raises(
        ValueError, match=r"uint8 \[8, 144, 160\] is no NV12 of 98 x 160 pixels: give uint8 \[n, 147, 160\]"
    ):
        make(98, 160, CPU)(*little_frames())
    nv12, logits = little_frames(2)
    with pytest.raises(ValueError, match="1 logits do not fit 2 frames: give one of each"):
        make(*LITTLE, CPU)(nv12, logits[:1])


# ---- how it is compiled


def test_each_step_is_one_graph_with_the_weights_as_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, but for Inductor: traced whole, made functional, and writing into views of one NV12 batch."""
    from torch._dynamo.backends.debugging import aot_eager

    inputs = []

    def backend(graph: torch.fx.GraphModule, examples: list[Tensor]) -> Any:
        inputs.append(len(examples))
        return aot_eager(graph, examples)

    def traced(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
        return torch.compile(function, backend=backend, fullgraph=True, dynamic=False)

    nv12, logits = little_frames(4)
    wanted = OnDevice(*LITTLE, CPU)(nv12, logits)
    monkeypatch.setattr(compositing, "fused", traced)
    composite = OnDevice(*LITTLE, CPU)
    assert torch.equal(composite(nv12, logits), wanted)
    assert torch.equal(composite(nv12[:1], logits[:1]), wanted[:1])
    assert inputs == [2, 2, 6], "frames and logits; two bordered planes; two columns, frames, alpha, two planes"


# ---- CV-CUDA


class StandIn:
    """What of cvcuda is used, on host memory that it finds by the addresses and strides it is told."""

    Border = SimpleNamespace(REFLECT101="REFLECT101")
    Interp = SimpleNamespace(LINEAR="LINEAR")

    def as_stream(self, handle: int) -> tuple[str, int]:
        return "stream", handle

    def as_tensor(self, buffer: Any, layout: str) -> np.ndarray:
        told = buffer.__cuda_array_interface__
        assert (told["version"], told["stream"], layout) == (3, -1, "NHWC"), "or CV-CUDA waits for the whole device"
        return np.asarray(SimpleNamespace(__array_interface__={**told, "version": 3}))

    def gaussian_into(self, dst: Any, src: Any, size: Any, sigma: Any, border: str, *, stream: Any) -> None:
        assert (border, stream) == ("REFLECT101", ("stream", STREAM_HANDLE))
        assert (dst.dtype, src.dtype, src.shape[3]) == (np.uint8, np.uint8, 1), "all that the operator can do"
        assert min(size) == 1, "one direction at a time"
        kernels = [cv2.getGaussianKernel(pixels, each, cv2.CV_64F) for pixels, each in zip(size, sigma, strict=True)]
        for out, image in zip(dst, src, strict=True):
            out[..., 0] = cv2.sepFilter2D(image[..., 0].astype(np.float64), -1, *kernels).round()

    def resize_into(self, dst: Any, src: Any, interp: str, *, stream: Any) -> None:
        assert (interp, stream) == ("LINEAR", ("stream", STREAM_HANDLE))
        for out, image in zip(dst, src, strict=True):
            out[..., 0] = cv2.resize(np.ascontiguousarray(image), out.shape[1::-1])


@pytest.fixture
def _cvcuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cvcuda_tensors, "operators", StandIn)
    monkeypatch.setattr("workloads.video_segmentation.compositing_cvcuda.operators", StandIn)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=STREAM_HANDLE))
    cvcuda_tensors._stream.cache_clear()


@pytest.mark.usefixtures("_cvcuda")
def test_cvcuda_composites_alike() -> None:
    nv12, logits = clip_frames()
    kept, composite = nv12.clone(), CvCuda(*SIZE, CPU)
    theirs, ours = composite(nv12, logits), OnDevice(*SIZE, CPU)(nv12, logits)
    for plane, other in zip(planes(theirs), planes(ours), strict=True):
        assert psnr_db(plane, other) >= 56
    assert psnr_db(shown(theirs), on_host(shown(nv12), logits)) >= 46
    out = torch.zeros_like(nv12)
    assert composite(nv12, logits, out) is out
    assert torch.equal(out, theirs)
    assert torch.equal(nv12, kept)


@pytest.mark.usefixtures("_cvcuda")
def test_cvcuda_takes_batches_of_any_length_and_certain_masks() -> None:
    nv12, logits = little_frames()
    composite = CvCuda(*LITTLE, CPU)
    whole = composite(nv12, logits)
    assert torch.equal(composite(nv12[2:3], logits[2:3]), whole[2:3])
    assert torch.equal(composite(nv12, surely(True, 8)), nv12)
