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

from workloads.video.clip.clip import FULL, SMALL, Clip, rendered
from workloads.video.clip.colour import nv12_from_rgb, planes, rgb_from_nv12
from workloads.video.composite.compositing import OnDevice, alpha_of, on_host
from workloads.video.composite.compositing_cvcuda import CvCuda
from workloads.video.composite.gaussian import blur_pixels, gaussian_sigma, gaussian_weights, halved, halved_sigma
from workloads.video.composite.separable import Separable, filtering, in_turns, resizing
from workloads.video.preprocess import cvcuda_tensors
from workloads.video.preprocess.preprocessing import input_size

CPU = torch.device("cpu")
SIZE = SMALL.height, SMALL.width
LITTLE = 96, 160
STREAM_HANDLE = 4711
SURE = 40.0  # a logit whose probability is 1 in FP32


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


def applied(to: Separable, planes: Tensor) -> Tensor:
    out = planes.new_full((len(planes), len(to.down), len(to.across)), torch.nan)
    to.into(out, planes)
    return out


def opencv_filter(image: np.ndarray, weights: tuple[float, ...]) -> np.ndarray:
    kernel = np.array(weights)
    return cv2.sepFilter2D(image.astype(np.float64), -1, kernel, kernel, borderType=cv2.BORDER_REFLECT_101)


def as_tensor_cores(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """A product of FP16 matrices, summed up in FP32; PyTorch's own for a CPU takes ten times as long."""
    product = torch.matmul(left.float(), right.float()).half()
    return product if out is None else out.copy_(product)


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
def test_two_products_are_opencvs_gaussian_border_and_all(pixels: int) -> None:
    image, weights = torch.rand(2, 66, 90, generator=random()), gaussian_weights(pixels)
    ours = applied(Separable(filtering(weights, 66, CPU), filtering(weights, 90, CPU)), image)
    theirs = np.stack([opencv_filter(each, weights) for each in image.numpy()])
    torch.testing.assert_close(ours, torch.from_numpy(theirs).float(), atol=1e-6, rtol=1e-6)


def test_kinds_of_samples_that_take_turns_are_not_mixed() -> None:
    pairs, matrix = torch.rand(5, 12, 2, generator=random()), torch.rand(7, 12, generator=random(1))
    ours = pairs.view(5, 24) @ in_turns(matrix, 2).T
    torch.testing.assert_close(ours.view(5, 7, 2), torch.stack([each @ matrix.T for each in pairs.unbind(2)], 2))
    assert torch.equal(in_turns(matrix, 1), matrix)


def test_a_product_goes_where_it_is_told_and_nowhere_else() -> None:
    planes, to = torch.rand(3, 4, 6, generator=random()), Separable(torch.rand(5, 4), torch.rand(8, 6))
    room = torch.zeros(3, 9, 8)
    to.into(room[:, 2:7], planes)
    assert torch.equal(room[:, 2:7], applied(to, planes))
    assert not room[:, :2].any()
    assert not room[:, 7:].any()


@pytest.mark.parametrize("height", [1080, 2160, 360])
def test_weights_in_half_precision_still_add_up_to_one(height: int) -> None:
    for weights in _both(blur_pixels(height)):
        off = filtering(weights, 128, CPU).half().double().sum(1) - 1
        assert off.abs().max() * 255 < 1 / 8, "of a level, for white"


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


# ---- alpha


def test_alpha_is_what_is_not_background() -> None:
    for classes in (2, 3, 21):
        logits = torch.randn(2, classes, 5, 7, generator=random())
        torch.testing.assert_close(alpha_of(logits), 1 - logits.softmax(1)[:, 0])
        assert alpha_of(logits.half()).dtype == torch.float32
    with pytest.raises(ValueError, match="logits of 1 class tell no foreground"):
        alpha_of(torch.zeros(1, 1, 4, 4))


# ---- composites


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("clip", "least_db"), [(SMALL, 46.0), (FULL, 50.0)], ids=["360p", "1080p"])
def test_the_composite_is_opencvs(
    clip: Clip, least_db: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (clip, dtype) == (FULL, torch.float16):
        monkeypatch.setattr(torch, "bmm", as_tensor_cores)
    nv12, logits = clip_frames(clip, (3,) if clip is FULL else (3, 40))
    ours = OnDevice(clip.height, clip.width, CPU, dtype)(nv12, logits)
    theirs = on_host(shown(nv12), logits)
    assert psnr_db(nv12, ours) < 36, "there is something to blur"
    assert psnr_db(ours, hidden(theirs)) >= 47.5, "48 dB, as documented"
    per_frame = [psnr_db(*pair) for pair in zip(shown(ours), theirs, strict=True)]
    assert min(per_frame) >= least_db


def test_half_precision_moves_few_bytes_and_those_by_a_level() -> None:
    nv12, logits = clip_frames()
    single, half = (OnDevice(*SIZE, CPU, dtype)(nv12, logits).int() for dtype in (torch.float32, torch.float16))
    assert (single - half).abs().max() == 1
    assert 0 < (single != half).float().mean() < 0.04


def test_alpha_is_enlarged_as_opencv_does() -> None:
    h, w = input_size(*SIZE)
    alpha = torch.rand(2, h, w, generator=random())
    for height, width in (SIZE, (SIZE[0] // 2, SIZE[1] // 2)):
        ours = applied(Separable(resizing(h, height, CPU), resizing(w, width, CPU)), alpha)
        theirs = np.stack([cv2.resize(each, (width, height)) for each in alpha.numpy()])
        torch.testing.assert_close(ours, torch.from_numpy(theirs), atol=1e-4, rtol=0)


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
    pixels = blur_pixels(LITTLE[0])
    filters = gaussian_weights(pixels), halved(gaussian_weights(pixels))
    for ours, given, weights in zip(planes(composite(nv12, surely(False, 3))), planes(nv12), filters, strict=True):
        blurry = np.stack([opencv_filter(each, weights) for each in given.numpy()])
        assert np.abs(ours.numpy() - blurry).max() < 0.5001, "rounded to the nearest"
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
    monkeypatch.setattr("workloads.video.composite.compositing_cvcuda.operators", StandIn)
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
    with pytest.raises(ValueError, match="logits of 32x55 do not fit these frames, whose network sees 32x56: give"):
        make(*LITTLE, CPU)(nv12, logits[..., 1:])


# ---- CV-CUDA


class StandIn:
    """The part of cvcuda that is used, on host memory at the given addresses and strides."""

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
    monkeypatch.setattr("workloads.video.composite.compositing_cvcuda.operators", StandIn)
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
