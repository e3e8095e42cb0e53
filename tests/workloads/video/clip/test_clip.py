"""Clips: what is drawn depends on its arguments alone, with a fair share of foreground; what is coded is kept whole."""

import hashlib
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from workloads.video.clip import clip as clip_module
from workloads.video.clip.clip import FULL, SMALL, Clip, clip_path, rendered
from workloads.video.clip.frame_number import read_numbers, strip_height
from workloads.video.clip.scene import Actor, Swing, Texture, scene
from workloads.video.clip.video_file import examine
from workloads.video.encode.compressed_only import FRAME_BYTES, compressed_only

av = pytest.importorskip("av", reason="PyAV writes and reads clips: pip install av")

TINY = Clip(160, 96, 36)
CODECS = ("h264", "hevc")


def decoded(path: Path) -> list:
    with av.open(path) as container:
        return list(container.decode(video=0))


def luma_of(frames: list) -> torch.Tensor:
    """uint8 [n, H, W]."""
    height = frames[0].height
    return torch.from_numpy(np.stack([frame.to_ndarray()[:height] for frame in frames]))


@pytest.mark.parametrize("clip", [FULL, SMALL, TINY, replace(SMALL, seed=7)], ids=["full", "small", "tiny", "seed 7"])
def test_a_fair_share_is_foreground_at_any_time(clip: Clip) -> None:
    shares = [rendered(clip, number)[1].mean() for number in range(0, 3000, 150)]
    assert min(shares) > 0.15
    assert max(shares) < 0.40
    assert np.ptp(shares) > 0.001, "things move"


@pytest.mark.parametrize(("width", "height"), [(96, 160), (128, 128), (320, 64)])
def test_frames_of_any_shape_can_be_drawn(width: int, height: int) -> None:
    for number in range(0, 300, 30):
        rgb, mask = rendered(Clip(width, height, 4), number)
        assert rgb.shape[:2] == mask.shape == (height, width)


@pytest.mark.parametrize("x", [-2.0, -0.6, -0.1, 0.5, 1.05, 1.6, 3.0])
@pytest.mark.parametrize("y", [-2.0, -0.3, 0.5, 1.1, 1.6, 3.0])
def test_an_actor_is_drawn_as_far_as_it_is_inside(x: float, y: float) -> None:
    random = np.random.default_rng(0)
    outline, still = random.random((20, 31)) < 0.5, Swing((1.0, 1.0), (0.0, 0.0))
    texture = Texture(random.integers(1, 256, (20, 31, 3), np.uint8), still)
    rgb, mask = np.zeros((24, 40, 3), np.uint8), np.zeros((24, 40), np.bool_)
    Actor(outline, texture, (x, y), (0.0, 0.0), still).draw(0.0, rgb, mask)
    top, left = round(y * 24 - 10), round(x * 40 - 15.5)
    expected = np.zeros_like(rgb)
    for row, column in np.argwhere(outline):
        if 0 <= row + top < 24 and 0 <= column + left < 40:
            expected[row + top, column + left] = texture.pixels[row, column]
    assert np.array_equal(rgb, expected)
    assert np.array_equal(mask, expected.any(2))


def test_a_frame_depends_on_its_arguments_alone() -> None:
    rgb, mask = rendered(TINY, 5)
    rendered(TINY, 6)
    scene.cache_clear()
    again, mask_again = rendered(TINY, 5)
    assert (rgb.shape, rgb.dtype, mask.shape, mask.dtype) == ((96, 160, 3), np.uint8, (96, 160), np.bool_)
    assert np.array_equal(rgb, again)
    assert np.array_equal(mask, mask_again)
    assert not np.array_equal(rgb, rendered(TINY, 6)[0])
    assert not np.array_equal(rgb, rendered(replace(TINY, seed=1), 5)[0])
    assert np.array_equal(rgb, rendered(replace(TINY, frames=3, codec="hevc"), 5)[0])


def test_what_is_returned_may_be_written_to() -> None:
    rgb, _ = rendered(TINY, 5)
    before = rgb.copy()
    rgb[:] = 0
    assert np.array_equal(rendered(TINY, 5)[0], before)


def test_foreground_and_background_differ_in_colour_and_texture() -> None:
    rgb, mask = rendered(SMALL, 20)
    warmth = rgb[..., 0].astype(int) - rgb[..., 2]
    assert warmth[mask].min() > 0 > warmth[~mask].max()
    below = slice(strip_height(SMALL.height) + 8, None)
    luma = rgb.astype(float).mean(2)[below]
    steep = np.abs(luma[:, 6:] - luma[:, :-6])
    inside = mask[below][:, 6:] & mask[below][:, :-6]
    outside = ~mask[below][:, 6:] & ~mask[below][:, :-6]
    assert steep[inside].mean() > 2 * steep[outside].mean(), "stripes against clouds"


def test_background_moves_slowly_and_figures_faster() -> None:
    rgb, mask = rendered(SMALL, 0)
    later, later_mask = rendered(SMALL, 15)
    both_background = ~mask & ~later_mask
    assert (rgb != later)[both_background].any()
    assert (mask != later_mask).mean() > 0.01


@pytest.mark.parametrize("number", [0, 1, 47, 599])
def test_the_strip_tells_the_number_and_is_foreground(number: int) -> None:
    rgb, mask = rendered(SMALL, number)
    assert read_numbers(torch.from_numpy(rgb).float().mean(2)[None]).tolist() == [number]
    assert mask[: strip_height(SMALL.height)].all()


@pytest.mark.parametrize("codec", CODECS)
def test_a_clip_is_what_was_drawn_in_order_and_tagged_as_bt601(cache_dir: Path, codec) -> None:
    clip = replace(TINY, codec=codec)
    path = clip_path(cache_dir, clip)
    info = examine(path)
    assert (info.width, info.height, info.frames, info.frames_per_second) == (160, 96, 36, 30)
    assert (info.codec, info.matrix, info.keyframes) == (codec, "bt601", (0, 30))
    frames = decoded(path)
    assert {(each.colorspace, each.color_range, each.format.name) for each in frames} == {(6, 1, "yuv420p")}
    assert read_numbers(luma_of(frames)).tolist() == list(range(36))
    for number in (0, 17, 35):
        found = frames[number].to_ndarray(format="rgb24").astype(float)
        drawn = rendered(clip, number)[0]
        assert 10 * np.log10(255**2 / np.square(found - drawn).mean()) > 25  # dB; chroma has a quarter of the samples


@pytest.mark.parametrize("codec", CODECS)
def test_decoding_may_begin_at_every_keyframe(cache_dir: Path, codec) -> None:
    path = clip_path(cache_dir, replace(TINY, codec=codec))
    with av.open(path) as container:
        stream = container.streams.video[0]
        container.seek(stream.duration, stream=stream)  # to the last keyframe
        frames = list(container.decode(stream))
    assert read_numbers(luma_of(frames)).tolist() == list(range(30, 36))


@pytest.mark.parametrize(("clip", "crf"), [(replace(SMALL, frames=36), "51"), (TINY, "40")], ids=["small", "tiny"])
def test_numbers_survive_the_worst_coding_there_is(clip: Clip, crf: str, monkeypatch, tmp_path: Path) -> None:
    encoder, options = clip_module.CODECS["h264"]
    ordinary_bytes = clip_path(tmp_path, clip).stat().st_size
    monkeypatch.setitem(clip_module.CODECS, "h264", (encoder, {**options, "crf": crf}))
    path = clip_path(tmp_path, clip)
    assert path.stat().st_size < ordinary_bytes / 3
    assert read_numbers(luma_of(decoded(path))).tolist() == list(range(36))


def test_a_clip_is_made_once_and_again_when_it_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = replace(TINY, frames=4)
    path = clip_path(tmp_path, clip)
    intact, made = path.read_bytes(), path.stat().st_mtime_ns
    assert clip_path(tmp_path, clip).stat().st_mtime_ns == made
    damaged = [
        intact[: len(intact) // 2],
        intact[:2000] + bytes([intact[2000] ^ 1]) + intact[2001:],
        b"",
    ]
    for content in damaged:
        path.write_bytes(content)
        assert clip_path(tmp_path, clip).read_bytes() == intact
    (sums,) = tmp_path.glob("*.sha256")
    sums.unlink()
    assert clip_path(tmp_path, clip).read_bytes() == intact
    path.unlink()
    assert clip_path(tmp_path, clip).read_bytes() == intact
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([path.name, sums.name])


def test_the_sum_beside_a_clip_is_one_that_sha256sum_checks(cache_dir: Path) -> None:
    path = clip_path(cache_dir, TINY)
    told, name = path.with_name(f"{path.name}.sha256").read_text().split()
    assert (told, name) == (hashlib.sha256(path.read_bytes()).hexdigest(), path.name)


def test_clips_with_other_parameters_have_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    clips = [
        TINY,
        replace(TINY, width=162),
        replace(TINY, height=98),
        replace(TINY, frames=35),
        replace(TINY, codec="hevc"),
        replace(TINY, seed=1),
        replace(TINY, frames_per_second=25),
    ]
    names = {each.file_name for each in clips}
    assert len(names) == len(clips)
    monkeypatch.setattr(clip_module, "FORMAT", clip_module.FORMAT + 1)
    assert TINY.file_name not in names


def test_a_drawing_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = clip_module.rendered

    def breaks_at_three(clip: Clip, number: int):
        if number == 3:
            raise ArithmeticError("no more paint")
        return draw(clip, number)

    monkeypatch.setattr(clip_module, "rendered", breaks_at_three)
    with pytest.raises(ArithmeticError, match="no more paint"):
        clip_path(tmp_path, TINY)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        OSError, match=r"none/clip-160x96-.*cannot be written \(No such file or directory\): name a file"
    ):
        clip_path(tmp_path / "none", TINY)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((161, 96, 4), "161x96 pixels: take even numbers"),
        ((160, 97, 4), "160x97 pixels: take even numbers"),
        ((80, 96, 4), "80x96 pixels: take even numbers, 88x48 or more"),
        ((160, 96, 0), "0 frames: take 1 to 65536"),
        ((160, 96, 65537), "65537 frames: take 1 to 65536"),
    ],
)
def test_a_clip_that_cannot_be_made_is_refused(size: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Clip(*size)


def test_what_a_gpu_may_send_back_is_derived_from_a_picture_of_the_clip() -> None:
    """Takes the size of libjpeg with the sampling of nvJPEG: encoders differ by some per cent, never by half."""
    rgb, _ = rendered(FULL, 300)
    coded = io.BytesIO()
    Image.fromarray(rgb).save(coded, "JPEG", quality=90, subsampling=0)
    assert pytest.approx(coded.tell(), rel=0.03) == FRAME_BYTES
    limit = compressed_only(10, FRAME_BYTES)
    assert limit.counter == "device_to_host_bytes"
    assert 10 * coded.tell() < limit.at_most < 10 * 1920 * 1080 * 3 // 2 / 3
