"""All stages together, on a CPU: every frame arrives, in order, in a file that shows it, however the stages are run.

What runs on a GPU's memory runs here on the host's: NV12 from preprocessing to encoding, and libjpeg for nvJPEG.
"""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gpugate.workload import Context, DisprovedError
from tests.support.patience import soon
from tests.support.small_models import clip_on_cpu
from workloads.video import composite, pipeline, preprocess
from workloads.video.clip import Clip, clip_path
from workloads.video.encoders import X264, MotionJpeg
from workloads.video.pipeline import (
    END_TO_END,
    ON_CPU,
    REFERENCE,
    Batch,
    Pipeline,
    Rung,
    build,
    composite_grids,
    file_is_whole,
)
from workloads.video.segment import segmenter

pytestmark = pytest.mark.usefixtures("no_thread_stays")
TINY = Clip(312, 192, 24)  # an exact third of it is what the network gets, as of 1080p
IN_NV12 = Rung(sample=preprocess.in_torch, blend=composite.in_torch, encoder=X264)
AS_JPEG = replace(IN_NV12, encoder=MotionJpeg)


@pytest.fixture(autouse=True)
def tiny_clip(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with clip_on_cpu(monkeypatch, TINY):
        yield
    composite_grids.cache_clear()


@pytest.fixture
def context(cache_dir: Path) -> Context:
    """The context of a process that has computed the reference's composites: no build computes them again."""
    made = Context(torch.device("cpu"), 8, 0, cache_dir)
    composite_grids(made)
    return made


# --- steps ------------------------------------------------------------------------------------------------------------


def spoiled(fault: str) -> Rung:
    """A rung whose stage behind the network has a fault."""

    def make(*size: Any) -> Callable[[Tensor, Tensor], Tensor]:
        intact, masks = composite.in_torch(*size), list[Tensor]()

        def blend(nv12: Tensor, logits: Tensor) -> Tensor:
            masks.append(logits.clone())
            mask = {"no network": torch.zeros_like(logits), "stale mask": masks[-2:][0]}.get(fault, logits)
            done = intact(nv12, mask)
            if fault == "no compositing":
                return nv12
            if fault == "mean colour":
                done[:, : TINY.height] = done[:, : TINY.height].float().mean((1, 2), keepdim=True).byte()
            if fault == "a spoiled frame" and len(masks) == 1 + 3:  # the first one is of the build
                done[5, 96:128, 128:160] = 128  # a sixtieth of its pixels
            if fault == "no colours":
                done[:, TINY.height :] = 128
            return done

        return blend

    return replace(IN_NV12, blend=make)


@pytest.mark.parametrize(
    ("fault", "wrong", "overlapped"),
    [
        ("no network", [*range(24)], False),
        ("no compositing", [*range(24)], False),
        ("stale mask", [*range(24)], True),
        ("mean colour", [*range(24)], False),
        ("a spoiled frame", [21], True),
    ],
)
def test_other_pictures_are_wrong_in_the_step_that_has_them(
    fault: str, wrong: list[int], overlapped: bool, context: Context
) -> None:
    with closing(build(replace(spoiled(fault), overlapped=overlapped), context)) as side:
        record = torch.cat([side.step(torch.ones(8)) for _ in range(3)])
    assert (record == 0).nonzero().flatten().tolist() == wrong


def test_a_reference_that_is_wrong_is_refused(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same fault on both sides would give equal records."""
    stamps = END_TO_END.inputs(context, 0)
    with closing(build(REFERENCE, context)) as side:
        assert side.expected_step is not None
        assert torch.equal(side.expected_step(stamps), stamps)
    monkeypatch.setattr(composite, "on_host", lambda bgr, logits: bgr)
    with closing(build(REFERENCE, context)) as side:
        assert side.expected_step is not None
        with pytest.raises(ValueError, match=r"the baseline's frames are no longer those in .*: remove that folder"):
            side.expected_step(stamps)


def test_a_later_process_reads_the_composites_and_other_weights_or_videos_have_their_own(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = composite_grids(context)
    composite_grids.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "Pipeline", None)  # which would compute them
        assert torch.equal(composite_grids(replace(context, items=16)), found)
    weights = tmp_path / "own.pt"
    torch.save(segmenter(context).coarse.state_dict(), weights)
    other = str(clip_path(tmp_path, replace(TINY, frames=16)))
    settings: list[dict[str, str]] = [{}, {"segmenter-weights": str(weights)}, {"video": other}]
    contexts = [replace(context, seed=1), *(replace(context, settings=each) for each in settings)]
    assert len({pipeline._key(each) for each in contexts}) == 4


@pytest.mark.parametrize("rung", [ON_CPU, replace(IN_NV12, overlapped=True)], ids=["on_cpu", "in_nv12"])
@pytest.mark.parametrize("stage", ["decode", "compute", "encode"])
def test_a_stage_that_fails_ends_all_threads(
    rung: Rung, stage: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = getattr(Pipeline, stage), iter(range(100))

    def fails(self: Pipeline, *batch: Batch) -> Any:
        if next(calls) == 3:
            raise OSError(f"{stage} is out of order")
        return whole(self, *batch)

    monkeypatch.setattr(Pipeline, stage, fails)
    side = build(rung, context)
    with pytest.raises(OSError, match=f"{stage} is out of order"):
        soon(lambda: list(iter(lambda: side.step(torch.ones(8)), None)))
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("video-")] == [], "the conveyor's"
    side.finish()
    side.close()
    assert list(context.cache_dir.glob("recording-*")) == []


def test_every_frame_arrives_in_its_turn_and_a_round_lasts_until_a_file_is_complete(context: Context) -> None:
    with closing(build(IN_NV12, context)) as side:
        for step in range(side.round_steps):
            side.finish()
            assert list(context.cache_dir.glob("recording-*/clip-*")) == []
            stamps = END_TO_END.inputs(context, step)
            record = side.step(stamps)
        side.finish()
        assert torch.equal(record, stamps)
        (recorded,) = context.cache_dir.glob("recording-*/clip-*")
        assert recorded.stem == "clip-0"
    assert list(context.cache_dir.glob("recording-*")) == []


# --- proofs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rung", [ON_CPU, AS_JPEG], ids=["on_cpu", "as_jpeg"])
def test_a_file_is_whole(rung: Rung, context: Context) -> None:
    words = file_is_whole(rung, context)
    middle = r"\S+ dB at least and \S+ dB in the middle of 3, \S+ Mbit/s"
    assert re.fullmatch(rf"24 of 24 frames, {middle}, \S+ dB of the first composite with the baseline's", words)


def test_a_file_without_colours_is_disproved(context: Context) -> None:
    rung = spoiled("no colours")
    with closing(build(rung, context)) as side:
        assert side.step(torch.ones(8)).all(), "a step sees the luma alone"
    with pytest.raises(DisprovedError, match=r"dB of the first composite with the baseline's: 40 dB are wanted"):
        file_is_whole(rung, context)


def test_a_file_of_another_order_is_disproved(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    write, order = X264.write, [0, 1, 2, 6, 4, 5, 3, 7]  # the frames whose colours are compared stay
    monkeypatch.setattr(X264, "write", lambda encoder, frames: write(encoder, frames[order]))
    with pytest.raises(DisprovedError, match=r"24 of 24 frames, .*: frame 3 is another one"):
        file_is_whole(IN_NV12, context)


def test_a_baseline_that_composites_nothing_is_refused(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reference by the same function would agree with a wrong variant."""
    monkeypatch.setattr(composite, "on_host", lambda bgr, logits: bgr)
    monkeypatch.setattr(pipeline, "FOLDER", "another folder")
    composite_grids.cache_clear()
    with pytest.raises(ValueError, match="the baseline's composites have inf dB with its input: nothing was blurr"):
        composite_grids(context)


def test_a_file_that_lacks_its_end_is_not(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    take = Pipeline.take

    def short(self: Pipeline) -> Batch | None:
        batch = take(self)
        return None if batch is None or batch.first >= 8 else batch

    monkeypatch.setattr(Pipeline, "take", short)
    with pytest.raises(DisprovedError, match=r"16 of 24 frames, .*: all of them are wanted"):
        file_is_whole(REFERENCE, context)
