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

from gpugate.errors import DisprovedError
from gpugate.workload import Context, Side
from tests.support.patience import soon
from tests.support.small_models import clip_on_cpu
from workloads.video import composite
from workloads.video.clip.clip import Clip, clip_path, source
from workloads.video.clip.frame_number import strip_height
from workloads.video.pipeline import chain
from workloads.video.pipeline import plan as plans
from workloads.video.pipeline import proofs as end_to_end_proofs
from workloads.video.pipeline import sides as end_to_end
from workloads.video.pipeline.chain import Batch, Chain
from workloads.video.pipeline.plan import Plan
from workloads.video.pipeline.promises import END_TO_END
from workloads.video.pipeline.proofs import file_is_whole
from workloads.video.pipeline.sides import build, composite_grids, x264_alone
from workloads.video.segmenter import segmenter

pytestmark = pytest.mark.usefixtures("no_thread_stays")
TINY = Clip(312, 192, 24)  # an exact third of it is what the network gets, as of 1080p
IN_NV12 = Plan(preprocess="torch", composite="torch", encode="x264")
AS_JPEG = replace(IN_NV12, encode="nvjpeg")
BACKGROUND_ALONE = torch.tensor([1.0, 0.0])[:, None, None]


@pytest.fixture(autouse=True)
def tiny_clip(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with clip_on_cpu(monkeypatch, TINY):
        yield
    composite_grids.cache_clear()


@pytest.fixture
def context(cache_dir: Path) -> Context:
    """The context of a process that has computed the reference's composites: no build computes them again."""
    made = Context(torch.device("cpu"), 8, 0, cache_dir)
    composite_grids(made, source(made))
    return made


# --- plans ------------------------------------------------------------------------------------------------------------


def test_stages_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="preprocess by OpenCV wants frames on the host, and nvdec leaves them on the"):
        Plan(decode="nvdec", composite="torch")


# --- steps ------------------------------------------------------------------------------------------------------------


def spoil(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the compositing stage."""
    make, masks = chain._compositing, list[Tensor]()

    def compositing(*arguments: Any) -> Any:
        intact = make(*arguments)

        def composite(batch: Batch, logits: Tensor) -> Batch:
            masks.append(logits.clone())
            if fault == "no compositing":
                return batch
            mask = {"no network": torch.zeros_like(logits), "stale mask": masks[max(0, len(masks) - 2)]}
            done: Batch = intact(batch, mask.get(fault, logits))
            nv12, below = done.on_device, slice(strip_height(TINY.height), TINY.height)
            if fault == "mean colour":
                nv12[:, below] = nv12[:, below].float().mean((1, 2), keepdim=True).byte()
            if fault == "a spoiled frame" and len(masks) == 3:
                nv12[5, 96:128, 128:160] = 128  # a sixtieth of its pixels
            return done

        return composite

    monkeypatch.setattr(chain, "_compositing", compositing)


@pytest.mark.parametrize(
    ("fault", "wrong", "overlapped"),
    [
        ("no network", [*range(24)], False),
        ("no compositing", [*range(24)], False),
        ("stale mask", [*range(8, 24)], True),
        ("mean colour", [*range(24)], False),
        ("a spoiled frame", [21], True),
    ],
)
def test_other_pictures_are_wrong_in_the_step_that_has_them(
    fault: str, wrong: list[int], overlapped: bool, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bar codes of all these frames are right."""
    spoil(fault, monkeypatch)
    with closing(build(replace(IN_NV12, overlapped=overlapped), context)) as side:
        record = torch.cat([side.step(torch.ones(8)) for _ in range(3)])
    in_turn, alike = record.unbind(1)
    assert in_turn.tolist() == [1] * 24
    assert (alike == 0).nonzero().flatten().tolist() == wrong


def test_a_reference_that_is_wrong_is_refused(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same fault on both sides would give equal records."""
    stamps = END_TO_END.inputs(context, 0)
    with closing(build(plans.BASELINE, context)) as side:
        assert side.expected_step is not None
        assert torch.equal(side.expected_step(stamps), stamps[:, None].expand(8, 2))
    monkeypatch.setattr(composite, "on_host", lambda bgr, logits: bgr)
    with closing(build(plans.BASELINE, context)) as side:
        assert side.expected_step is not None
        with pytest.raises(ValueError, match=r"the baseline's frames are no longer those in .*: remove that folder"):
            side.expected_step(stamps)


def test_a_later_process_reads_the_composites_and_other_weights_or_videos_have_their_own(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = source(context)
    found = composite_grids(context, clip)
    composite_grids.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(end_to_end, "Chain", None)  # which would compute them
        assert torch.equal(composite_grids(replace(context, items=16), clip), found)
    weights = tmp_path / "own.pt"
    torch.save(segmenter("cpu", context).coarse.state_dict(), weights)
    other = str(clip_path(tmp_path, replace(TINY, seed=1)))
    settings: list[dict[str, str]] = [{}, {"segmenter-weights": str(weights)}, {"video": other}]
    contexts = [replace(context, seed=1), *(replace(context, settings=each) for each in settings)]
    assert len({end_to_end._key(each, source(each)) for each in contexts}) == 4


@pytest.mark.parametrize("plan", [plans.ON_CPU, replace(IN_NV12, overlapped=True)], ids=str)
@pytest.mark.parametrize("stage", ["decode", "compute", "encode"])
def test_a_stage_that_fails_ends_all_threads(
    plan: Plan, stage: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = getattr(Chain, stage), iter(range(100))

    def fails(self: Chain, *batch: Batch) -> Any:
        if next(calls) == 3:
            raise OSError(f"{stage} is out of order")
        return whole(self, *batch)

    monkeypatch.setattr(Chain, stage, fails)
    side = build(plan, context)
    with pytest.raises(OSError, match=f"{stage} is out of order"):
        soon(lambda: list(iter(lambda: side.step(torch.ones(8)), None)))
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("video-")] == [], "the conveyor's"
    side.finish()
    side.close()
    assert list(context.cache_dir.glob("recording-*")) == []


@pytest.mark.parametrize("make", [build, x264_alone])
def test_every_frame_arrives_in_its_turn_and_a_round_lasts_until_a_file_is_complete(
    context: Context, make: Callable[..., Side]
) -> None:
    with closing(make(IN_NV12, context)) as side:
        for step in range(side.round_steps):
            side.finish()
            assert list(context.cache_dir.glob("recording-*/clip-*")) == []
            stamps = END_TO_END.inputs(context, step)
            record = side.step(stamps)
        side.finish()
        assert torch.equal(record, stamps[:, None].expand(8, 2))
        (recorded,) = context.cache_dir.glob("recording-*/clip-*")
        assert recorded.stem == "clip-0"
    assert list(context.cache_dir.glob("recording-*")) == []


# --- proofs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [plans.ON_CPU, AS_JPEG], ids=str)
def test_a_file_is_whole(plan: Plan, context: Context) -> None:
    words = file_is_whole(plan).show(context)
    assert words.startswith("24 of 24 frames, ")
    assert re.search(r" dB in the middle of 1\d, IoU [\d.]+ and \S+ dB with the baseline's composites of 14, ", words)
    assert words.endswith(" Mbit/s")
    assert ("IoU 1.0000 and inf dB" in words) is (plan == plans.ON_CPU)


@pytest.mark.parametrize("fault", ["later frames are not composited", "another mask"])
def test_a_whole_variant_that_composites_otherwise_is_told(
    fault: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, logits = chain._compositing, Chain.logits

    def otherwise(plan: Plan, *arguments: Any) -> Any:
        whole = make(plan, *arguments)
        return lambda batch, logits: batch if plan.overlapped and batch.first >= 16 else whole(batch, logits)

    def of_another_mask(self: Chain, batch: Batch) -> Tensor:
        return logits(self, batch) - 4 * self.plan.overlapped * BACKGROUND_ALONE

    if fault == "another mask":
        monkeypatch.setattr(Chain, "logits", of_another_mask)
    else:
        monkeypatch.setattr(chain, "_compositing", otherwise)
    said = r"IoU [\d.]+ and [\d.]+ dB with the baseline's composites of 14 frames: 0.98 and 40 dB are wanted"
    with pytest.raises(DisprovedError, match=said) as raised:
        file_is_whole(replace(AS_JPEG, overlapped=True)).show(context)
    overlap = float(str(raised.value).split()[1])
    assert (overlap < 0.98) is (fault == "another mask")


def test_a_baseline_that_composites_nothing_is_told(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference by the same function would agree with a wrong variant."""
    end_to_end_proofs._composites_by_baseline.cache_clear()
    monkeypatch.setattr(composite, "on_host", lambda bgr, logits: bgr)
    with pytest.raises(DisprovedError, match="the baseline's composites have inf dB with its input: nothing was blurr"):
        file_is_whole(AS_JPEG).show(context)


def test_a_file_that_lacks_its_end_is_not(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(end_to_end_proofs.Flow[Any]):
        def take(self) -> Any:
            batch = super().take()
            return None if batch is None or batch.first >= 8 else batch

    monkeypatch.setattr(end_to_end_proofs, "Flow", Short)
    with pytest.raises(DisprovedError, match="16 of 24 frames: all of them are wanted"):
        file_is_whole(plans.BASELINE).show(context)
