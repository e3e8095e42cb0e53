"""The bar code of a frame number, and the record of the frames that arrive: each fault shows on both kinds of path."""

from contextlib import closing
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from workloads.video.arrivals import CELLS, DATA_BITS, Arrivals, luma_grids, paint, read_numbers
from workloads.video.clip import Clip, clip_path
from workloads.video.decode import HostDecoder, HostPlanesDecoder

CPU = torch.device("cpu")
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


# --- a frame that is lost, doubled, swapped, or not what was sent shows in the record, on both kinds of path ---------


@pytest.fixture(scope="module")
def path(cache_dir: Path) -> Path:
    return clip_path(cache_dir, Clip(320, 192, 10))


@pytest.fixture(scope="module")
def bgr(path: Path) -> NDArray[np.uint8]:
    with closing(HostDecoder(path)) as decoder:
        return decoder.read(10)


@pytest.fixture(scope="module")
def nv12(path: Path) -> Tensor:
    with closing(HostPlanesDecoder(path)) as decoder:
        return decoder.read(10)


@pytest.fixture
def arrivals(path: Path) -> Arrivals:
    return Arrivals(luma_grids(path), CPU, numbered=True)


def test_all_is_right_round_and_round(arrivals: Arrivals, nv12: Tensor) -> None:
    around = torch.cat((nv12, nv12))
    for first in range(0, 18, 6):
        assert arrivals.of_nv12(around[first : first + 6]).tolist() == [[1, 1]] * 6
    arrivals.begin()
    assert arrivals.of_nv12(nv12[:8]).tolist() == [[1, 1]] * 8


def test_a_lost_a_doubled_and_a_swapped_frame_are_out_of_turn(path: Path, nv12: Tensor, bgr: NDArray[np.uint8]) -> None:
    for order, right in (
        ([0, 2, 3], [1, 0, 0]),
        ([0, 0, 1], [1, 0, 0]),
        ([0, 2, 1], [1, 0, 0]),
        ([0, 1, 2], [1, 1, 1]),
    ):
        assert Arrivals(luma_grids(path), CPU, True).of_nv12(nv12[order])[:, 0].tolist() == right
        assert Arrivals(luma_grids(path), CPU, True).of_bgr(bgr[order], "bt601")[:, 0].tolist() == right


def test_a_clip_without_numbers_is_told_by_its_luma(path: Path, nv12: Tensor) -> None:
    found = Arrivals(luma_grids(path), CPU, numbered=False).of_nv12(nv12[[0, 5, 2]])
    assert found.tolist() == [[1, 1], [1, 0], [1, 1]], "of other pixels, though no number is wrong"


def test_a_frame_without_an_expected_luma_fits(path: Path, nv12: Tensor) -> None:
    grids = luma_grids(path).clone()
    grids[1:] = torch.nan
    found = Arrivals(grids, CPU, True).of_nv12(255 - nv12[:3])
    assert found[:, 1].tolist() == [0, 1, 1]
