"""NV12 to RGB and back, held against swscale through OpenCV's decoder."""

import platform
from contextlib import closing
from pathlib import Path

import pytest
import torch

from tests.workloads.video.test_video_file import make
from workloads.video.arrivals import psnr_db
from workloads.video.decode import HostDecoder, HostPlanesDecoder
from workloads.video.frames import LOST_LEVELS, Matrix, nv12_from_rgb, planes, rgb_from_nv12

WIDTH, HEIGHT, FRAMES = 162, 98, 6  # no multiple of what swscale works on at a time
UNTAGGED, BT709, BT601 = 2, 1, 6


@pytest.mark.parametrize(("tag", "matrix"), [(BT601, "bt601"), (BT709, "bt709"), (UNTAGGED, "bt601")])
def test_a_clip_decoded_to_nv12_gets_the_colours_that_opencv_shows(tmp_path: Path, tag: int, matrix: str) -> None:
    path = make(tmp_path / "a.mp4", FRAMES, (WIDTH, HEIGHT), tags={"colorspace": tag})
    with closing(HostPlanesDecoder(path)) as decoder, closing(HostDecoder(path)) as opencv:
        nv12, bgr = decoder.read(FRAMES), opencv.read(FRAMES)
    ours, theirs = rgb_from_nv12(nv12, matrix), torch.from_numpy(bgr).flip(-1).permute(0, 3, 1, 2)
    assert ours.shape == theirs.shape == (FRAMES, 3, HEIGHT, WIDTH)
    assert ours.dtype == torch.uint8
    if platform.machine() == "x86_64":
        assert torch.equal(ours, theirs)
    assert psnr_db(ours.numpy(), theirs.numpy()) >= 45
    other = {"bt601": "bt709", "bt709": "bt601"}[matrix]
    assert psnr_db(rgb_from_nv12(nv12, other).numpy(), theirs.numpy()) < 42, "the matrix matters"


@pytest.mark.parametrize("matrix", ["bt601", "bt709"])
def test_nv12_comes_back_as_light_as_it_was(matrix: Matrix) -> None:
    """Rounding down makes RGB darker; who makes NV12 of it again gives that back."""
    random = torch.Generator().manual_seed(3)
    nv12 = torch.randint(90, 160, (2, 96, 64), generator=random, dtype=torch.uint8)
    rgb = rgb_from_nv12(nv12, matrix)
    assert rgb.amin() > 0
    assert rgb.amax() < 255  # nothing was clipped
    wanted = planes(nv12)[0].float().mean()
    assert abs(planes(nv12_from_rgb(rgb, matrix, LOST_LEVELS[matrix]))[0].float().mean() - wanted) < 0.1
    assert planes(nv12_from_rgb(rgb, matrix))[0].float().mean() - wanted < -0.8
