"""Preprocessing NV12 held against OpenCV's on the same pictures, and CV-CUDA's calls against a stand-in for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.parts.photographs import IMAGENET_MEAN, IMAGENET_STD
from workloads.video.clip.colour import Matrix, rgb_from_nv12
from workloads.video.preprocess import cvcuda_tensors
from workloads.video.preprocess.cvcuda_tensors import as_cvcuda
from workloads.video.preprocess.preprocessing import OnDevice, input_size, normalization, on_host, taps
from workloads.video.preprocess.preprocessing_cvcuda import CvCuda

CPU = torch.device("cpu")
THIRD = 96, 192  # shrinks to a third exactly
OTHER = 100, 158
HALF_A_LEVEL = 0.5 / 255 / min(IMAGENET_STD)
STREAM_HANDLE = 4711


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


def test_opencv_gives_red_green_blue_in_imagenets_scale() -> None:
    bgr = np.zeros((2, *THIRD, 3), np.uint8)
    bgr[1] = 30, 60, 90
    frames = on_host(bgr, CPU)
    assert frames.shape == (2, 3, 32, 64)
    assert frames.dtype == torch.float32
    mean, std = (torch.tensor(values) for values in (IMAGENET_MEAN, IMAGENET_STD))
    torch.testing.assert_close(frames[0, :, 5, 7], -mean / std)
    torch.testing.assert_close(frames[1, :, 31, 63], (torch.tensor([90, 60, 30]) / 255 - mean) / std)


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


@pytest.mark.parametrize(("pixels", "samples"), [(192, 64), (158, 56), (100, 32), (64, 64)])
def test_taps_are_where_half_pixel_centres_are(pixels: int, samples: int) -> None:
    places = sum(place * share for place, share in taps(pixels, samples, CPU))
    wanted = (torch.arange(samples) + 0.5) * pixels / samples - 0.5
    torch.testing.assert_close(places, wanted.float())
    assert len(taps(pixels, samples, CPU)) == (2 if pixels % samples else 1)


def test_taps_beyond_the_ends_are_the_ends() -> None:
    values = torch.tensor([3.0, 5.0, 4.0])
    enlarged = sum(values[place] * share for place, share in taps(3, 9, CPU))
    wanted = F.interpolate(values.view(1, 1, 3), 9, mode="linear", align_corners=False)[0, 0]
    torch.testing.assert_close(enlarged, wanted)


def test_half_precision_and_channels_last_are_the_same_numbers() -> None:
    nv12 = noise(THIRD)
    plain = OnDevice(*THIRD, CPU)(nv12)
    frames = OnDevice(*THIRD, CPU, torch.float16, layout=torch.channels_last)(nv12)
    assert plain.is_contiguous()
    assert frames.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(frames, plain.half())


def test_a_batch_is_its_frames_whatever_its_length() -> None:
    nv12, preprocess = noise(OTHER, frames=8), OnDevice(*OTHER, CPU)
    alone = torch.cat([OnDevice(*OTHER, CPU)(nv12[number : number + 1]) for number in range(8)])
    assert torch.equal(preprocess(nv12), alone)
    assert torch.equal(preprocess(nv12[:3]), alone[:3]), "a clip's last batch is shorter"
    assert torch.equal(preprocess(nv12[4:5]), alone[4:5])


def test_the_input_stays_as_it_is_and_results_are_their_own() -> None:
    nv12 = noise(OTHER)
    kept, preprocess = nv12.clone(), OnDevice(*OTHER, CPU)
    first = preprocess(nv12)
    second = preprocess(nv12)
    assert torch.equal(nv12, kept)
    assert torch.equal(first, second)
    assert first.data_ptr() != second.data_ptr()


@pytest.mark.parametrize("make", [OnDevice, CvCuda])
@pytest.mark.parametrize("size", [(95, 160), (96, 161), (0, 160)])
def test_odd_sizes_are_refused(make: type, size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=f"4:2:0 has no frames of {size[0]} x {size[1]} pixels: give even numbers"):
        make(*size, CPU)


@pytest.mark.parametrize("given", [noise(OTHER), noise(THIRD).float(), noise(THIRD)[0], noise(THIRD)[:0]])
def test_anything_but_such_frames_is_refused(given: Tensor) -> None:
    with pytest.raises(ValueError, match=r"is no NV12 of 96 x 192 pixels: give uint8 \[n, 144, 192\]"):
        OnDevice(*THIRD, CPU)(given)


class StandIn:
    """The part of cvcuda that is used, on host memory at the given addresses and strides."""

    ColorConversion = SimpleNamespace(YUV2RGB_NV12="YUV2RGB_NV12")
    Interp = SimpleNamespace(LINEAR="LINEAR")

    def as_stream(self, handle: int) -> tuple[str, int]:
        return "stream", handle

    def as_tensor(self, buffer: Any, layout: str) -> np.ndarray:
        told = buffer.__cuda_array_interface__
        assert (told["version"], told["stream"], layout) == (3, -1, "NHWC"), "or CV-CUDA waits for the whole device"
        return np.asarray(SimpleNamespace(__array_interface__={**told, "version": 3}))

    def cvtcolor_into(self, dst: np.ndarray, src: np.ndarray, code: str, *, stream: Any) -> None:
        assert (code, stream) == ("YUV2RGB_NV12", ("stream", STREAM_HANDLE))
        for out, nv12 in zip(dst, src, strict=True):
            out[...] = cv2.cvtColor(np.ascontiguousarray(nv12), cv2.COLOR_YUV2RGB_NV12)

    def resize_crop_convert_reformat_into(
        self,
        dst: Any,
        src: Any,
        size: Any,
        interp: str,
        crop: Any,
        *,
        srcCast: bool,  # noqa: N803
        stream: Any,
    ) -> None:
        assert (interp, crop, srcCast, stream) == ("LINEAR", (0, 0), False, ("stream", STREAM_HANDLE))
        for out, image in zip(dst, src, strict=True):
            out[...] = cv2.resize(image.astype(np.float32), size)

    def normalize_into(self, dst: Any, src: Any, base: Any, scale: Any, *, stream: Any) -> None:
        assert stream == ("stream", STREAM_HANDLE)
        for values in (base, scale):
            assert (type(values), values.shape, values.dtype) == (np.ndarray, (1, 1, 1, 3), np.float32), "no list"
        dst[...] = (src - base) * scale


@pytest.fixture
def _cvcuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cvcuda_tensors, "operators", StandIn)
    monkeypatch.setattr("workloads.video.preprocess.preprocessing_cvcuda.operators", StandIn)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=STREAM_HANDLE))
    cvcuda_tensors._stream.cache_clear()


@pytest.mark.usefixtures("_cvcuda")
@pytest.mark.parametrize("size", [THIRD, OTHER])
def test_cvcuda_is_asked_for_the_same_picture_on_torchs_stream(size: tuple[int, int]) -> None:
    nv12 = noise(size, frames=3).clamp(16, 240)  # what is darker than black is black to it
    kept = nv12.clone()
    frames = CvCuda(*size, CPU)(nv12)
    ours = OnDevice(*size, CPU)(nv12)
    assert frames.shape == ours.shape
    assert frames.is_contiguous()
    lighter = (frames - ours) / HALF_A_LEVEL / 2  # in levels; it rounds to the nearest, swscale down
    assert 0.5 < lighter.mean() < 1.6
    assert lighter.abs().max() < 3.1
    assert torch.equal(nv12, kept)


@pytest.mark.usefixtures("_cvcuda")
def test_cvcuda_gives_half_precision_and_channels_last() -> None:
    nv12 = noise(THIRD)
    frames = CvCuda(*THIRD, CPU, torch.float16, layout=torch.channels_last)(nv12)
    assert frames.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(frames, CvCuda(*THIRD, CPU)(nv12).half())


def test_cvcuda_has_no_other_matrix() -> None:
    with pytest.raises(ValueError, match="CV-CUDA has no bt709 for NV12 of limited range: use torch-gpu instead"):
        CvCuda(*THIRD, CPU, matrix="bt709")


@pytest.mark.usefixtures("_cvcuda")
def test_only_packed_pixels_are_shown_to_cvcuda() -> None:
    frame = torch.arange(48, dtype=torch.uint8).view(1, 6, 8, 1)
    assert as_cvcuda(frame[:, 2:]).tolist() == frame[:, 2:].tolist()
    with pytest.raises(ValueError, match="CV-CUDA takes packed pixels"):
        as_cvcuda(frame[:, :, ::2])
