"""Clips: what is drawn depends on its arguments alone, with a fair share of foreground; what is coded is kept whole."""

from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest

from workloads.video.clip import FULL, SMALL, Clip, clip_path, rendered, scene
from workloads.video.frames import examine

TINY = Clip(160, 96, 36)
CODECS = ("h264", "hevc")


def decoded(path: Path) -> list:
    with av.open(path) as container:
        return list(container.decode(video=0))


@pytest.mark.parametrize("clip", [FULL, SMALL, TINY], ids=["full", "small", "tiny"])
def test_a_fair_share_is_foreground_at_any_time(clip: Clip) -> None:
    shares = [rendered(clip, number)[1].mean() for number in range(0, 3000, 500)]
    assert min(shares) > 0.15
    assert max(shares) < 0.40
    assert np.ptp(shares) > 0.001, "things move"


def test_a_frame_depends_on_its_arguments_alone() -> None:
    rgb, mask = rendered(TINY, 5)
    rendered(TINY, 6)
    scene.cache_clear()
    again, mask_again = rendered(TINY, 5)
    assert (rgb.shape, rgb.dtype, mask.shape, mask.dtype) == ((96, 160, 3), np.uint8, (96, 160), np.bool_)
    assert np.array_equal(rgb, again)
    assert np.array_equal(mask, mask_again)
    assert not np.array_equal(rgb, rendered(TINY, 6)[0])


@pytest.mark.parametrize("codec", CODECS)
def test_a_clip_is_what_was_drawn_in_order_and_tagged_as_bt601(cache_dir: Path, codec) -> None:
    clip = replace(TINY, codec=codec)
    path = clip_path(cache_dir, clip)
    assert path.stat() == clip_path(cache_dir, clip).stat(), "made once"
    info = examine(path)
    assert (info.width, info.height, info.frames, info.frames_per_second) == (160, 96, 36, 30)
    assert (info.matrix, info.keyframes) == ("bt601", (0, 30))
    frames = decoded(path)
    with av.open(path) as container:
        assert container.streams.video[0].codec_context.name == codec
    assert {(each.colorspace, each.color_range, each.format.name) for each in frames} == {(6, 1, "yuv420p")}
    assert len(frames) == 36
    for number, frame in enumerate(frames):
        found = frame.to_ndarray(format="rgb24").astype(float)
        drawn = rendered(clip, number)[0]
        assert 10 * np.log10(255**2 / np.square(found - drawn).mean()) > 25  # dB; chroma has a quarter of the samples
