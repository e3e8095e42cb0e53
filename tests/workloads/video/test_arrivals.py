"""The bar code of a frame number: read back at any size and after a blur, and refused when it is damaged."""

import cv2
import numpy as np
import pytest
import torch

from workloads.video.arrivals import CELLS, DATA_BITS, paint, read_numbers

SIZES = [(1920, 1080), (88, 48), (1001, 333)]
NUMBERS = (0, 1, 2, 599, 0x5555, 0xAAAA, 12345, 2**DATA_BITS - 1)


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


def test_a_number_survives_the_blur_of_the_background_at_1080p() -> None:
    """31 pixels, sigma as OpenCV derives it from the size of the kernel, blended with the sharp frame."""
    sharp = painted(12345, 1920, 1080)
    blurred = cv2.GaussianBlur(sharp, (31, 31), 0)
    for alpha in (0.0, 0.37, np.random.default_rng(0).random((1080, 1920, 1))):
        mixed = (alpha * sharp + (1 - alpha) * blurred).astype(np.uint8)
        assert read_numbers(luma_of(mixed)).tolist() == [12345]


@pytest.mark.parametrize("cell", range(CELLS))
def test_any_one_cell_that_turned_over_is_seen(cell: int) -> None:
    luma = luma_of(painted(0x3C5A, 220, 96))
    column = cell * 10
    is_light = luma[0, 4, column + 5] > 128
    luma[0, :8, column : column + 10] = 61 if is_light else 194
    assert read_numbers(luma).tolist() == [-1]


def test_frames_without_a_code_have_no_number() -> None:
    noise = torch.randint(0, 256, (64, 96, 160), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    assert read_numbers(noise).tolist() == [-1] * 64
    one, other = luma_of(painted(100)).float(), luma_of(painted(101)).float()
    assert read_numbers((one + other) / 2).tolist() == [-1], "two frames mixed into one"
    half = luma_of(painted(5))
    assert read_numbers(half.flip(2)).tolist() == [-1], "a mirrored code begins dark"
    assert read_numbers(torch.full((1, 96, 160), float("nan"))).tolist() == [-1]
