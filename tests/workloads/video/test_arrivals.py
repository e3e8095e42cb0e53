"""The record of the frames that arrive: each fault shows on both kinds of path."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from workloads.video.arrivals import DECODED_LEVELS, Arrivals, luma_grids
from workloads.video.clip import SMALL, Clip, clip_path
from workloads.video.decode import HostDecoder, HostPlanesDecoder

CPU = torch.device("cpu")


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
    return Arrivals(luma_grids(path), CPU)


def test_all_is_right_round_and_round(arrivals: Arrivals, nv12: Tensor) -> None:
    around = torch.cat((nv12, nv12))
    for first in range(0, 18, 6):
        assert arrivals.of_nv12(around[first : first + 6]).tolist() == [1] * 6
    assert arrivals.of_nv12(torch.cat((nv12[8:], around, nv12[:2]))).tolist() == [1] * 24


@pytest.mark.parametrize("clip", [Clip(320, 192, 10), SMALL], ids=["short", "whole"])
def test_any_two_frames_of_a_clip_differ_by_more_than_is_allowed(clip: Clip, cache_dir: Path) -> None:
    grids = luma_grids(clip_path(cache_dir, clip))
    apart = (grids[:, None] - grids).square().mean((2, 3)).sqrt()
    assert apart[~torch.eye(clip.frames, dtype=torch.bool)].min() > 2 * DECODED_LEVELS


def test_a_lost_a_doubled_and_a_swapped_frame_are_out_of_turn(path: Path, nv12: Tensor, bgr: NDArray[np.uint8]) -> None:
    for order, right in (
        ([0, 2, 3], [1, 0, 0]),
        ([0, 0, 1], [1, 0, 0]),
        ([0, 2, 1], [1, 0, 0]),
        ([0, 1, 2], [1, 1, 1]),
    ):
        assert Arrivals(luma_grids(path), CPU).of_nv12(nv12[order]).tolist() == right
        assert Arrivals(luma_grids(path), CPU).of_bgr(bgr[order], "bt601").tolist() == right


def test_a_frame_without_an_expected_luma_fits(path: Path, nv12: Tensor) -> None:
    grids = luma_grids(path).clone()
    grids[1:] = torch.nan
    assert Arrivals(grids, CPU).of_nv12(255 - nv12[:3]).tolist() == [0, 1, 1]
