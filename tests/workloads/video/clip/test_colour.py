"""NV12 to RGB and back, held against swscale: through OpenCV's decoder and through PyAV's conversion."""

import platform
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
import torch
from skimage import data

from workloads.video.clip.colour import LOST_LEVELS, Matrix, nv12_from_rgb, planes, rgb_from_nv12

WIDTH, HEIGHT, FRAMES = 162, 98, 6  # no multiple of what swscale works on at a time
UNTAGGED, BT709, BT601 = 2, 1, 6
SWSCALE = {"bt601": 5, "bt709": 1}  # its own numbers


def photographs() -> list[np.ndarray]:
    """uint8 [H, W, 3] crops of real pictures, saturated colours and shadows among them."""
    pictures = [data.astronaut(), data.coffee(), data.rocket(), data.chelsea(), data.retina()[400:, 400:]]
    places = [(pictures[number % 5], 17 * number) for number in range(FRAMES)]
    return [np.ascontiguousarray(picture[at : at + HEIGHT, 2 * at : 2 * at + WIDTH]) for picture, at in places]


def encoded(path: Path, tag: int) -> Path:
    with av.open(path, "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"crf": "12"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.codec_context.colorspace = tag
        for number, rgb in enumerate(photographs()):
            frame = av.VideoFrame.from_ndarray(rgb, "rgb24").reformat(format="yuv420p", dst_colorspace=tag)
            frame.pts, frame.time_base = number, Fraction(1, 30)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


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


def psnr_db(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(10 * torch.log10(255**2 / (one.double() - other.double()).square().mean()))


@pytest.mark.parametrize(("tag", "matrix"), [(BT601, "bt601"), (BT709, "bt709"), (UNTAGGED, "bt601")])
def test_a_clip_decoded_to_nv12_gets_the_colours_that_opencv_shows(tmp_path: Path, tag: int, matrix: str) -> None:
    path = encoded(tmp_path / "photographs.mp4", tag)
    ours, theirs = rgb_from_nv12(decoded_nv12(path), matrix), decoded_rgb(path)
    assert ours.shape == theirs.shape == (FRAMES, 3, HEIGHT, WIDTH)
    assert ours.dtype == torch.uint8
    if platform.machine() == "x86_64":
        assert torch.equal(ours, theirs)
    assert psnr_db(ours, theirs) >= 45
    other = {"bt601": "bt709", "bt709": "bt601"}[matrix]
    assert psnr_db(rgb_from_nv12(decoded_nv12(path), other), theirs) < 42, "the matrix matters"


def test_large_frames_without_a_tag_are_taken_for_bt601_too(tmp_path: Path) -> None:
    """Other players guess BT.709 for them."""
    path = tmp_path / "large.mp4"
    with av.open(path, "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 1280, 720, "yuv420p"
        rgb = np.ascontiguousarray(np.tile(data.astronaut(), (2, 3, 1))[:720, :1280])
        container.mux(stream.encode(av.VideoFrame.from_ndarray(rgb, "rgb24")))
        container.mux(stream.encode(None))
    nv12, theirs = decoded_nv12(path), decoded_rgb(path)
    assert psnr_db(rgb_from_nv12(nv12, "bt601"), theirs) >= 45
    assert psnr_db(rgb_from_nv12(nv12, "bt709"), theirs) < 42


def test_exact_arithmetic_lies_as_close_as_the_docstring_says(tmp_path: Path) -> None:
    path = encoded(tmp_path / "photographs.mp4", BT601)
    luma, chroma = planes(decoded_nv12(path).double())
    u, v = (chroma - 128).repeat_interleave(2, 1).repeat_interleave(2, 2).unbind(-1)
    y, gain = (luma - 16) * 255 / 219, 255 / 224
    # ITU-R BT.601: E'R - E'Y and so on, solved for R, G and B
    rgb = torch.stack([y + 1.402 * gain * v, y - gain * (0.344136 * u + 0.714136 * v), y + 1.772 * gain * u], 1)
    theirs = decoded_rgb(path)
    assert 44 < psnr_db(rgb.clamp(0, 255), theirs) < 48
    assert 0.8 < float((rgb.clamp(0, 255) - theirs).mean()) < 1.7


@pytest.mark.parametrize("matrix", ["bt601", "bt709"])
def test_nv12_from_rgb_agrees_with_swscale(matrix: str) -> None:
    rgb = np.stack(photographs())
    ours = nv12_from_rgb(torch.from_numpy(rgb).permute(0, 3, 1, 2).contiguous(), matrix)
    frames = [av.VideoFrame.from_ndarray(each, "rgb24") for each in rgb]
    theirs = torch.stack([nv12_of(each.reformat(format="yuv420p", dst_colorspace=SWSCALE[matrix])) for each in frames])
    difference = ours.float() - theirs.float()
    assert difference[:, :HEIGHT].abs().max() <= 1
    assert difference[:, :HEIGHT].mean().abs() < 0.05, "both round to the nearest"
    assert difference[:, HEIGHT:].mean().abs() < 0.2
    assert psnr_db(ours[:, HEIGHT:], theirs[:, HEIGHT:]) >= 50


@pytest.mark.parametrize("matrix", ["bt601", "bt709"])
def test_colours_survive_there_and_back(matrix: str) -> None:
    """Uniform ones, which lose nothing with their chroma's resolution: all corners of the cube, and greys."""
    corners = torch.cartesian_prod(*[torch.tensor([0, 255], dtype=torch.uint8)] * 3)
    greys = torch.arange(0, 256, 15, dtype=torch.uint8)[:, None].expand(-1, 3)
    rgb = torch.cat([corners, greys])[:, :, None, None].expand(-1, -1, 4, 6).contiguous()
    nv12 = nv12_from_rgb(rgb, matrix)
    luma, chroma = planes(nv12)
    assert (int(luma.min()), int(luma.max())) == (16, 235)
    assert (int(chroma.min()), int(chroma.max())) == (16, 240)
    assert int((rgb_from_nv12(nv12, matrix).int() - rgb.int()).abs().max()) <= 4


def test_levels_outside_the_limited_range_are_clamped() -> None:
    nv12 = torch.full((2, 6, 4), 128, dtype=torch.uint8)
    nv12[0, :4], nv12[1, :4] = 0, 255
    rgb = rgb_from_nv12(nv12, "bt601")
    assert rgb[0].eq(0).all()
    assert rgb[1].eq(255).all()


def test_planes_are_views() -> None:
    nv12 = torch.arange(2 * 6 * 4, dtype=torch.uint8).view(2, 6, 4)
    luma, chroma = planes(nv12)
    assert luma.shape == (2, 4, 4)
    assert chroma.shape == (2, 2, 2, 2)
    assert chroma[1, 0].tolist() == [[40, 41], [42, 43]]
    assert {luma.untyped_storage().data_ptr(), chroma.untyped_storage().data_ptr()} == {nv12.data_ptr()}


@pytest.mark.parametrize("shape", [(1, 5, 4), (1, 6, 3)])
def test_what_is_no_nv12_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"NV12 cannot be \[1, \d, \d\]: give \[n, H\*3/2, W\]"):
        rgb_from_nv12(torch.zeros(shape, dtype=torch.uint8), "bt601")


@pytest.mark.parametrize("matrix", ["bt601", "bt709"])
def test_float32_is_exact_for_every_product(matrix: str) -> None:
    """All bytes as luma and as chroma, against whole numbers."""
    levels = torch.arange(256, dtype=torch.uint8)
    nv12 = torch.cat([levels.repeat(2, 1), levels[None]])[None]
    rgb = rgb_from_nv12(nv12, matrix)[0, :, 0]
    red = {"bt601": 13075, "bt709": 14686}[matrix]  # swscale's crv / 8: 104597 and 117489, in 1/8192
    v = levels[1::2].long().repeat_interleave(2)
    wanted = ((levels.long() - 16) * 9539 >> 13) + ((v - 128) * red >> 13)
    assert rgb[0].tolist() == wanted.clamp(0, 255).tolist()


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
