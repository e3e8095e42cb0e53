"""The stage that segments video frames, as far as a CPU goes: its baseline, and a user's video."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpugate.workload import Context
from tests.support.masks import foreground, intersection_over_union
from tests.support.small_models import clip_on_cpu
from workloads.video import segment
from workloads.video.clip import Clip, clip_path
from workloads.video.decode import bgr_frames
from workloads.video.preprocess import input_size, on_host
from workloads.video.segment import frames_with_truth, unseen_numbers

CPU = torch.device("cpu")
TINY = Clip(320, 192, 24)
HEIGHT, WIDTH = 64, 104  # of its frames where the network sees them


@pytest.fixture(autouse=True)
def tiny_clip(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with clip_on_cpu(monkeypatch, TINY):
        yield
    segment._frames.cache_clear()


@pytest.fixture
def context(cache_dir: Path) -> Context:
    return Context(device=CPU, items=2, seed=0, cache_dir=cache_dir)


def test_the_baseline_segments(context):
    side = segment.baseline(context)
    frames, masks = frames_with_truth(TINY, unseen_numbers(TINY)[:2], CPU)
    untouched = frames.clone()
    logits = side.step(frames)
    assert logits.shape == (2, 2, HEIGHT, WIDTH)
    assert logits.dtype == torch.float32
    assert intersection_over_union(foreground(logits), masks) > 0.6, "of 64 x 104 pixels, it sees every eighth"
    assert torch.equal(frames, untouched)
    assert side.engaged() is None


# --- a video of the user's --------------------------------------------------------------------------------------------


def test_a_users_video_is_what_is_segmented(context, tmp_path):
    clip = Clip(192, 144, 10)
    own = replace(context, settings={"video": str(clip_path(tmp_path, clip))})
    frames = segment.inputs(own, 0)
    assert frames.shape == (2, 3, *input_size(144, 192))
    decoded = [frame.flatten().sort().values for frame in on_host(bgr_frames(own), CPU)]
    for frame in frames:  # moved around its edges
        assert any(torch.equal(frame.flatten().sort().values, one) for one in decoded)
