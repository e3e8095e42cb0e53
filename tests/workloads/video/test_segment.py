"""The stage that segments video frames, as far as a CPU goes: its work, its sides, and what its proof notices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gpugate.workload import Context, DisprovedError, Side
from tests.support.small_models import clip_on_cpu
from workloads.video import segment
from workloads.video.clip import Clip, clip_path
from workloads.video.decode import bgr_frames
from workloads.video.preprocess import input_size, on_host
from workloads.video.segment import foreground, intersection_over_union, masks_agree

CPU = torch.device("cpu")
TINY = Clip(320, 192, 24)
HEIGHT, WIDTH = 64, 104  # of its frames where the network sees them


@pytest.fixture(autouse=True)
def tiny_clip(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with clip_on_cpu(monkeypatch, TINY):
        yield
    segment._frames.cache_clear()
    segment._by_baseline.cache_clear()


@pytest.fixture
def context(cache_dir: Path) -> Context:
    return Context(device=CPU, items=2, seed=0, cache_dir=cache_dir)


def test_the_baseline_segments(context):
    side = segment.baseline(context)
    frames, masks = segment.truth(context)
    untouched = frames.clone()
    logits = side.step(frames)
    assert logits.shape == (2, 2, HEIGHT, WIDTH)
    assert logits.dtype == torch.float32
    assert intersection_over_union(foreground(logits), masks) > 0.6, "of 64 x 104 pixels, it sees every eighth"
    assert torch.equal(frames, untouched)
    assert side.engaged() is None


def _drawing(change) -> Side:
    """A build function whose side draws the true masks, changed."""

    def build(context: Context) -> Side:
        _, masks = segment.truth(context)
        drawn = change(masks.clone())
        return Side(lambda _: torch.stack([-4.0 * drawn, 4.0 * drawn], 1))

    return build


def _shifted(pixels: int):
    return lambda masks: masks.roll(pixels, 2)


def _thinner(masks: Tensor) -> Tensor:
    kept = masks.flatten()
    kept[kept.nonzero()[::67]] = False  # 1.5 %: close to the baseline's, and further from the truth
    return kept.view_as(masks)


@pytest.mark.parametrize(
    ("baseline", "optimized", "reason"),
    [
        (0, _shifted(3), "the baseline's masks need 0.98"),
        (3, _shifted(-3), "the baseline's masks need 0.98"),
        (0, _thinner, r"the baseline has 1.000, and at most 0.01 may be lost"),
    ],
)
def test_other_masks_are_disproved(context, baseline, optimized, reason, monkeypatch):
    monkeypatch.setattr(segment, "baseline", _drawing(_shifted(baseline)))
    with pytest.raises(DisprovedError, match=reason):
        masks_agree(_drawing(optimized), context)


def test_the_proof_holds_for_fp16_on_a_cpu(context):
    (proof,) = segment.OPTIMIZATIONS[0].proofs
    assert proof.show(context).startswith("IoU 0.99")


def test_iou_counts_pixels_of_all_frames_together():
    one, other = torch.zeros(2, 2, 2, dtype=torch.bool), torch.zeros(2, 2, 2, dtype=torch.bool)
    assert intersection_over_union(one, other) == 1
    one[0, 0], other[0, 0, 0], other[1, 1] = True, True, True
    assert intersection_over_union(one, other) == pytest.approx(1 / 4)


# --- a video of the user's --------------------------------------------------------------------------------------------


def test_a_users_video_is_what_is_segmented(context, tmp_path):
    clip = Clip(192, 144, 10)
    own = replace(context, settings={"video": str(clip_path(tmp_path, clip))})
    frames = segment.inputs(own, 0)
    assert frames.shape == (2, 3, *input_size(144, 192))
    decoded = [frame.flatten().sort().values for frame in on_host(bgr_frames(own), CPU)]
    for frame in frames:  # moved around its edges
        assert any(torch.equal(frame.flatten().sort().values, one) for one in decoded)
    compared, masks = segment.truth(own)
    assert masks is None
    assert len(compared) == 2
    words = masks_agree(segment.baseline, own)
    assert words == "IoU 1.0000 with the baseline's over 2 frames"
