"""A frame that is lost, doubled, swapped, or not what was sent shows in the record, on both kinds of path."""

from pathlib import Path

import av
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from workloads.video.clip.clip import Clip, clip_path
from workloads.video.decode.arrivals import Arrivals, luma_grids

CPU = torch.device("cpu")
CLIP = Clip(320, 192, 10)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clip_path(tmp_path_factory.mktemp("clips"), CLIP)


@pytest.fixture(scope="module")
def bgr(path: Path) -> NDArray[np.uint8]:
    with av.open(path) as container:
        return np.stack([frame.to_ndarray(format="bgr24") for frame in container.decode(video=0)])


@pytest.fixture(scope="module")
def nv12(path: Path) -> Tensor:
    with av.open(path) as container:
        return torch.from_numpy(np.stack([frame.to_ndarray(format="nv12") for frame in container.decode(video=0)]))


@pytest.fixture
def arrivals(path: Path) -> Arrivals:
    return Arrivals(luma_grids(path), CPU, numbered=True)


def test_all_is_right_round_and_round(arrivals: Arrivals, nv12: Tensor) -> None:
    assert len(arrivals) == 10
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
