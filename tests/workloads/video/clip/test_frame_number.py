"""The bar code of a frame's number: read back after coding, blurring and scaling, and refused when it is damaged."""

import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from workloads.video.clip.frame_number import CELLS, LARGEST_NUMBER, paint, read_numbers, strip_height

SIZES = [(160, 96), (640, 360), (1920, 1080), (88, 48), (1001, 333)]
NUMBERS = (0, 1, 2, 599, 0x5555, 0xAAAA, 12345, LARGEST_NUMBER)


def painted(number: int, width: int = 160, height: int = 96) -> np.ndarray:
    rgb = np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)
    paint(rgb, number)
    return rgb


def luma_of(rgb: np.ndarray, limited: bool = True) -> torch.Tensor:
    """BT.601, uint8 [1, H, W]."""
    luma = rgb @ np.array([0.299, 0.587, 0.114])
    luma = 16 + luma * 219 / 255 if limited else luma
    return torch.from_numpy(luma.round().astype(np.uint8))[None]


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("limited", [True, False], ids=["limited", "full"])
def test_numbers_come_back_from_luma_of_any_size_and_range(width: int, height: int, limited: bool) -> None:
    luma = torch.cat([luma_of(painted(number, width, height), limited) for number in NUMBERS])
    found = read_numbers(luma)
    assert found.dtype == torch.int64
    assert found.tolist() == read_numbers(luma.float()).tolist() == list(NUMBERS)


def test_every_number_has_its_own_code() -> None:
    codes = set()
    for number in range(0, LARGEST_NUMBER + 1, 37):
        rgb = np.zeros((48, 88, 3), np.uint8)
        paint(rgb, number)
        codes.add(rgb[: strip_height(48)].tobytes())
    assert len(codes) == len(range(0, LARGEST_NUMBER + 1, 37))


def test_the_strip_is_a_twelfth_of_the_frame() -> None:
    assert [strip_height(height) for height in (1080, 360, 96)] == [90, 30, 8]


def test_only_the_strip_is_painted() -> None:
    rgb = np.zeros((96, 160, 3), np.uint8)
    paint(rgb, 7)
    assert rgb[: strip_height(96), :, 0].all()
    assert not rgb[strip_height(96) :].any()


def test_the_strip_is_more_red_than_blue_like_the_foreground() -> None:
    strip = painted(0x1234)[:8].astype(int)
    assert (strip[..., 0] - strip[..., 2] > 100).all()


def test_a_number_survives_the_blur_of_the_background_at_1080p() -> None:
    """31 pixels, sigma as OpenCV derives it from the size of the kernel, blended with the sharp frame."""
    cv2 = pytest.importorskip("cv2")
    sharp = painted(12345, 1920, 1080)
    blurred = cv2.GaussianBlur(sharp, (31, 31), 0)
    for alpha in (0.0, 0.37, 0.8):
        mixed = (alpha * sharp + (1 - alpha) * blurred).astype(np.uint8)
        assert read_numbers(luma_of(mixed)).tolist() == [12345]
    # Even a box as wide, which is far from what a Gaussian does, and a mask that is ragged along the strip.
    alpha = np.random.default_rng(0).random((1080, 1920, 1))
    ragged = (alpha * sharp + (1 - alpha) * cv2.blur(sharp, (31, 31))).astype(np.uint8)
    assert read_numbers(luma_of(ragged)).tolist() == [12345]


@pytest.mark.parametrize("quality", [5, 30, 90])
def test_a_number_survives_jpeg(quality: int) -> None:
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.fromarray(painted(599, 640, 360)).save(file, "JPEG", quality=quality)
    assert read_numbers(luma_of(np.array(image.open(file)), limited=False)).tolist() == [599]


def test_a_number_survives_being_scaled_to_a_third_and_back() -> None:
    luma = luma_of(painted(31000, 640, 360)).float()
    third = F.interpolate(luma[None], (120, 216), mode="bilinear")
    assert read_numbers(third[0]).tolist() == [31000]
    assert read_numbers(F.interpolate(third, (360, 640), mode="bilinear")[0]).tolist() == [31000]


def test_dimmer_and_flatter_frames_are_still_read() -> None:
    luma = luma_of(painted(777)).float()
    assert read_numbers(luma * 0.5 + 60).tolist() == [777]


@pytest.mark.parametrize("cell", range(CELLS))
def test_any_one_cell_that_turned_over_is_seen(cell: int) -> None:
    luma = luma_of(painted(0x3C5A, 220, 96))
    column = cell * 10
    is_light = luma[0, 4, column + 5] > 128
    luma[0, :8, column : column + 10] = 61 if is_light else 194
    assert read_numbers(luma).tolist() == [-1]


def test_two_frames_mixed_into_one_are_no_number() -> None:
    one, other = luma_of(painted(100)).float(), luma_of(painted(101)).float()
    assert read_numbers((one + other) / 2).tolist() == [-1]


@pytest.mark.parametrize("level", [0, 16, 128, 235, 255])
def test_an_even_frame_has_no_number(level: int) -> None:
    assert read_numbers(torch.full((1, 96, 160), level, dtype=torch.uint8)).tolist() == [-1]


def test_frames_without_a_code_have_no_number() -> None:
    noise = torch.randint(0, 256, (64, 96, 160), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    assert read_numbers(noise).tolist() == [-1] * 64
    half = luma_of(painted(5))
    assert read_numbers(half.flip(2)).tolist() == [-1], "a mirrored code begins dark"
    assert read_numbers(torch.full((1, 96, 160), float("nan"))).tolist() == [-1]


def test_no_frames_have_no_numbers() -> None:
    assert read_numbers(torch.zeros(0, 96, 160)).shape == (0,)


@pytest.mark.parametrize("number", [-1, LARGEST_NUMBER + 1])
def test_a_number_that_does_not_fit_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match=rf"frame number {number} does not fit .*number from 0 to 65535"):
        paint(np.zeros((96, 160, 3), np.uint8), number)


@pytest.mark.parametrize(("width", "height"), [(86, 96), (160, 46)])
def test_a_frame_too_small_for_the_code_is_refused(width: int, height: int) -> None:
    with pytest.raises(ValueError, match=rf"{width}x{height} pixels is too small .*take 88x48 or more"):
        paint(np.zeros((height, width, 3), np.uint8), 3)
    with pytest.raises(ValueError, match="too small"):
        read_numbers(torch.zeros(1, height, width))
