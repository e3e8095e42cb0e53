"""NV12 to RGB and back, held against swscale: through OpenCV's decoder and through PyAV's conversion."""

import platform
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
import torch

from tests.workloads.video.test_video_file import make
from workloads.video.arrivals import psnr_db
from workloads.video.colour import LOST_LEVELS, Matrix, nv12_from_rgb, planes, rgb_from_nv12

WIDTH, HEIGHT, FRAMES = 162, 98, 6  # no multiple of what swscale works on at a time
UNTAGGED, BT709, BT601 = 2, 1, 6


def decoded_nv12(path: Path) -> torch.Tensor:
    with av.open(path) as container:
        return torch.stack([nv12_of(frame) for frame in container.decode(video=0)])


def nv12_of(frame: av.VideoFrame) -> torch.Tensor:
    """uint8 [H*3/2, W] from the planes of a yuv420p frame, interleaved here."""
    y, u, v = (np.array(plane).reshape(-1, plane.line_size)[:, : plane.width] for plane in frame.planes)
    return torch.from_numpy(np.concatenate([y, np.stack([u, v], -1).reshape(len(u), -1)]))


def decoded_rgb(path: Path) -> torch.Tensor:
    capture, frames = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG), []
    while (read := capture.read())[0]:
        frames.append(torch.from_numpy(read[1]).flip(-1).permute(2, 0, 1))
    return torch.stack(frames)


@pytest.mark.parametrize(("tag", "matrix"), [(BT601, "bt601"), (BT709, "bt709"), (UNTAGGED, "bt601")])
def test_a_clip_decoded_to_nv12_gets_the_colours_that_opencv_shows(tmp_path: Path, tag: int, matrix: str) -> None:
    path = make(tmp_path / "a.mp4", FRAMES, (WIDTH, HEIGHT), tags={"colorspace": tag})
    ours, theirs = rgb_from_nv12(decoded_nv12(path), matrix), decoded_rgb(path)
    assert ours.shape == theirs.shape == (FRAMES, 3, HEIGHT, WIDTH)
    assert ours.dtype == torch.uint8
    if platform.machine() == "x86_64":
        assert torch.equal(ours, theirs)
    assert psnr_db(ours.numpy(), theirs.numpy()) >= 45
    other = {"bt601": "bt709", "bt709": "bt601"}[matrix]
    assert psnr_db(rgb_from_nv12(decoded_nv12(path), other).numpy(), theirs.numpy()) < 42, "the matrix matters"


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
