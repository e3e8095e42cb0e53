"""All stages together, on a CPU: every frame arrives, in order, in a file that shows it, however the stages are run.

What runs on a GPU's memory runs here on the host's: NV12 from preprocessing to encoding, and libjpeg for nvJPEG.
"""

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from apps.video_segmentation import __main__ as program
from apps.video_segmentation.__main__ import Run, _tell, age_s, main
from gpugate.errors import DisprovedError
from gpugate.workload import Context, Limit, Side, for_device_class
from tests.support.copied_clips import copied
from tests.support.patience import HANGS_S
from workloads.parts import tensorrt_engine
from workloads.parts.model_sides import NCHW, eager
from workloads.video.clip import video_file
from workloads.video.clip.clip import Clip, clip_path
from workloads.video.clip.frame_number import strip_height
from workloads.video.clip.source_clip import CLIPS, source
from workloads.video.clip.video_file import VideoError
from workloads.video.composite import compositing, compositing_cvcuda
from workloads.video.encode.encoding import Encoded
from workloads.video.encode.x264 import X264, stock_frames
from workloads.video.pipeline import chain
from workloads.video.pipeline import plan as plans
from workloads.video.pipeline import proofs as end_to_end_proofs
from workloads.video.pipeline import sides as end_to_end
from workloads.video.pipeline.chain import Batch, Chain, decoder_of
from workloads.video.pipeline.composite_grids import composite_grids
from workloads.video.pipeline.contact_sheet import chosen_frames
from workloads.video.pipeline.conveyor import Conveyor
from workloads.video.pipeline.plan import Plan
from workloads.video.pipeline.promises import ALWAYS_BUSY, END_TO_END, LADDER, OPTIMIZED
from workloads.video.pipeline.proofs import compared_numbers, composited_numbers, file_is_whole
from workloads.video.pipeline.sides import build, size, x264_alone
from workloads.video.pipeline.stage_clock import StageClock, StageTime
from workloads.video.preprocess import preprocessing, preprocessing_cvcuda
from workloads.video.segment import sides as segmenting
from workloads.video.segment.architectures import ARCHITECTURES
from workloads.video.segment.fitted_weights import fitted_weights
from workloads.video.segment.segmenter import segmenter

BASELINES = Path(__file__).parents[4] / "baselines"
TINY = Clip(312, 192, 24)  # an exact third of it is what the network gets, as of 1080p
IN_NV12 = Plan(preprocess="torch", composite="torch", encode="x264")
AS_JPEG = replace(IN_NV12, encode="nvjpeg")
INDEX_FIRST = {"movflags": "faststart"}  # of MP4, where cutting it short leaves it
BACKGROUND_ALONE = torch.tensor([1.0, 0.0])[:, None, None]
PLANS = [plan for base in (plans.BASELINE, IN_NV12, AS_JPEG) for plan in (base, replace(base, overlapped=True))]


@pytest.fixture(autouse=True)
def tiny_clip(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    monkeypatch.setitem(CLIPS, "cpu", TINY)  # type: ignore[arg-type]
    yield
    torch.set_num_threads(threads)
    fitted_weights.cache_clear()
    composite_grids.cache_clear()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith(("video-", "encode "))] == []


@pytest.fixture
def context(cache_dir: Path) -> Context:
    """The context of a process that has computed the reference's composites: no build computes them again."""
    made = Context(torch.device("cpu"), 8, 0, cache_dir)
    composite_grids(made, source(made))
    return made


# --- plans ------------------------------------------------------------------------------------------------------------


def test_a_plan_says_what_it_changes() -> None:
    assert str(plans.BASELINE) == "the baseline"
    assert str(plans.NVJPEG) == (
        "decode nvdec, preprocess torch, segment cudnn-fused, composite torch, encode nvjpeg, sessions 4, overlapped"
    )


def test_every_rung_changes_one_stage() -> None:
    ladder = (
        plans.BASELINE,
        plans.SEGMENT,
        plans.COMPOSITE,
        plans.PREPROCESS,
        plans.DECODE,
        plans.ENCODE,
        plans.NVJPEG,
    )
    stages = ("decode", "preprocess", "segment", "composite", "encode", "overlapped")
    changed = [
        [stage for stage in stages if getattr(one, stage) != getattr(other, stage)] for one, other in pairwise(ladder)
    ]
    assert changed == [["segment"], ["composite"], ["preprocess"], ["decode"], ["encode"], ["overlapped"]]
    rungs = [each for each in END_TO_END.optimizations if each.name in dict.fromkeys(r.name for r in LADDER)]
    assert [rung.compared_with for rung in rungs] == ["baseline", *(rung.name for rung in rungs[:-1])]


def test_stages_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="preprocess by OpenCV wants frames on the host, and nvdec leaves them on the"):
        Plan(decode="nvdec", composite="torch")


def test_nvidias_libraries_take_the_place_of_ours_in_three_stages() -> None:
    stages = ("decode", "preprocess", "segment", "composite", "encode", "sessions", "overlapped")
    changed = [stage for stage in stages if getattr(plans.TENSORRT, stage) != getattr(plans.X264, stage)]
    assert changed == ["preprocess", "segment", "composite"]
    case = END_TO_END.optimization("optimized-tensorrt")
    assert (case.compared_with, case.min_speedup["sm_90"]) == ("optimized-x264", 0.95)
    assert case.needs.packages == ("cv2", "av", "PyNvVideoCodec", "cvcuda")
    assert case.needs.engine is not None
    assert case.needs.engine.name == "tensorrt"


def test_a_step_must_be_whole_batches(context: Context) -> None:
    with pytest.raises(ValueError, match="a step of 12 frames is no whole number of batches of 8: change one"):
        build(plans.BASELINE, replace(context, items=12))


def test_a_whole_run_is_the_clip() -> None:
    assert size("cpu").whole_run_items == TINY.frames
    assert size("cuda").whole_run_items == 600


# --- steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_every_frame_arrives_in_its_turn_round_after_round(plan: Plan, context: Context) -> None:
    side = build(plan, context)
    try:
        for index in range(5):
            stamps = END_TO_END.inputs(context, index)
            record = side.step(stamps)
            side.finish()
            assert torch.equal(record, stamps[:, None].expand(8, 2))
    finally:
        side.close()
    assert list(context.cache_dir.glob("recording-*")) == []


@dataclass
class Spoiled:
    """A fault of the compositing stage; calls take a batch, its logits, and the intact stage."""

    fault: str
    masks: list[Tensor] = field(default_factory=list)

    def __call__(self, batch: Batch, logits: Tensor, intact: Callable[[Batch, Tensor], Batch]) -> Batch:
        self.masks.append(logits.clone())
        if self.fault == "no network":
            return intact(batch, torch.zeros_like(logits))
        if self.fault == "no compositing":
            return batch
        if self.fault == "stale mask":
            return intact(batch, self.masks[max(0, len(self.masks) - 2)])
        done = intact(batch, logits)
        nv12, below = done.on_device, slice(strip_height(TINY.height), TINY.height)
        if self.fault == "mean colour":
            nv12[:, below] = nv12[:, below].float().mean((1, 2), keepdim=True).byte()
        if self.fault == "a spoiled frame" and len(self.masks) == 3:
            nv12[5, 96:128, 128:160] = 128  # a sixtieth of its pixels
        return done


def spoil(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, spoiled = chain._compositing, Spoiled(fault)

    def compositing(*arguments: Any) -> Any:
        intact = make(*arguments)
        return lambda batch, logits: spoiled(batch, logits, intact)

    monkeypatch.setattr(chain, "_compositing", compositing)


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        ("none", []),
        ("no network", [*range(48)]),
        ("no compositing", [*range(48)]),
        ("stale mask", [*range(8, 48)]),
        ("mean colour", [*range(48)]),
        ("a spoiled frame", [21]),
    ],
)
def test_other_pictures_are_wrong_in_the_step_that_has_them(
    fault: str, wrong: list[int], overlapped: bool, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bar codes of all these frames are right."""
    spoil(fault, monkeypatch)
    with closing(build(replace(IN_NV12, overlapped=overlapped), context)) as side:
        record = torch.cat([side.step(torch.ones(8)) for _ in range(6)])
    in_turn, alike = record.unbind(1)
    assert in_turn.tolist() == [1] * 48
    assert (alike == 0).nonzero().flatten().tolist() == wrong


def test_a_network_of_low_precision_is_right(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    rounded = eager(segmenter("cpu", context), torch.bfloat16, NCHW)
    monkeypatch.setattr(segmenting, "baseline", lambda context: rounded)
    with closing(build(IN_NV12, context)) as side:
        assert torch.cat([side.step(torch.ones(8)) for _ in range(3)]).tolist() == [[1, 1]] * 24


def test_a_reference_that_is_wrong_is_refused(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same fault on both sides would give equal records."""
    stamps = END_TO_END.inputs(context, 0)
    with closing(build(plans.BASELINE, context)) as side:
        assert side.expected_step is not None
        assert torch.equal(side.expected_step(stamps), stamps[:, None].expand(8, 2))
    monkeypatch.setattr(compositing, "on_host", lambda bgr, logits: bgr)
    with closing(build(plans.BASELINE, context)) as side:
        assert side.expected_step is not None
        with pytest.raises(ValueError, match=r"the baseline's frames are no longer those in .*: remove that folder"):
            side.expected_step(stamps)


@pytest.mark.parametrize("overlapped", [False, True])
def test_a_lost_frame_shows(overlapped: bool, context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    make = end_to_end.decoder_of

    def skipping(*arguments: Any, **more: Any) -> Any:
        decoder = make(*arguments, **more)
        read, calls = decoder.read, iter(range(10**6))
        decoder.read = lambda count: read(count + 1)[1:] if next(calls) == 1 else read(count)
        return decoder

    monkeypatch.setattr(end_to_end, "decoder_of", skipping)
    side = build(replace(plans.BASELINE, overlapped=overlapped), context)
    ones = torch.ones(8)
    try:
        assert side.step(ones)[:, 0].tolist() == [1] * 8
        assert side.step(ones)[:, 0].tolist() == [0] * 8
    finally:
        side.close()


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
    before = set(threading.enumerate())
    side = build(plan, context)
    errors: list[Exception] = []

    def until_it_fails() -> None:
        try:
            list(iter(lambda: side.step(torch.ones(8)), None))
        except OSError as error:
            errors.append(error)

    caller = threading.Thread(target=until_it_fails, daemon=True)
    caller.start()
    caller.join(HANGS_S)
    assert not caller.is_alive(), "it hangs"
    assert [str(error) for error in errors] == [f"{stage} is out of order"]
    alive = [thread.name for thread in set(threading.enumerate()) - before]
    assert [name for name in alive if name.startswith("video-")] == [], "of the conveyor"
    side.finish()
    side.close()
    assert set(threading.enumerate()) <= before
    assert list(context.cache_dir.glob("recording-*")) == []


def test_what_cannot_be_built_leaves_nothing(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object, **more: object) -> None:
        raise ValueError("no network")

    monkeypatch.setattr(end_to_end, "Chain", fails)
    with pytest.raises(ValueError, match="no network"):
        build(plans.ON_CPU, context)
    assert list(context.cache_dir.glob("recording-*")) == []


def test_a_chain_that_cannot_be_built_closes_its_segmenter(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    def fails(*arguments: object) -> None:
        raise ValueError("no blur")

    segmenting_side = Side(lambda frames: frames, close=lambda: closed.append("segmenter"))
    monkeypatch.setattr(segmenting, "baseline", lambda context: segmenting_side)
    monkeypatch.setattr(chain, "_compositing", fails)
    with pytest.raises(ValueError, match="no blur"):
        Chain(plans.BASELINE, context, source(context).info, lambda frames: None)
    assert closed == ["segmenter"]


def test_the_encoder_alone_needs_a_whole_batch(context: Context, tmp_path: Path) -> None:
    short = clip_path(context.cache_dir, replace(TINY, frames=7))
    with pytest.raises(ValueError, match=r"\.mp4 has 7 frames: give a video of 8 or more"):
        x264_alone(IN_NV12, replace(context, settings={"video": str(short)}))


def test_an_overlapped_plan_has_a_conveyor_and_no_other(context: Context) -> None:
    for overlapped in (False, True):
        pipeline = end_to_end.Pipeline(replace(plans.BASELINE, overlapped=overlapped), context)
        assert isinstance(pipeline._flow._conveyor, Conveyor) is overlapped
        pipeline.close()


def test_what_libx264_has_in_hand_is_taken_before_a_block_begins(context: Context) -> None:
    side = build(IN_NV12, context)
    side.close()
    assert 8 * (side.stock_steps - 1) < stock_frames() <= 8 * side.stock_steps
    assert end_to_end._stock_steps(plans.BASELINE, context) == 0


@pytest.mark.parametrize("make", [build, x264_alone])
def test_a_round_lasts_until_a_file_is_complete(context: Context, make: Callable[..., Side]) -> None:
    side = make(IN_NV12, context)
    for step in range(side.round_steps):
        side.finish()
        assert list(context.cache_dir.glob("recording-*/clip-*")) == []
        side.step(END_TO_END.inputs(context, step))
    side.finish()
    assert [path.name for path in context.cache_dir.glob("recording-*/clip-*")] == ["clip-0.mp4"]
    side.close()


def limits_of(name: str, device_class: str = "sm_90") -> list[Limit]:
    contract = for_device_class(END_TO_END.optimization(name).contract, (device_class, "cuda"))
    assert contract is not None
    return [*contract.engaged, *contract.limits]


@pytest.mark.parametrize("name", [each.name for each in (*LADDER, *OPTIMIZED) if each.name != "overlapped"])
@pytest.mark.parametrize("device_class", ["sm_90", "cuda"])
def test_every_rung_shows_that_it_engaged(name: str, device_class: str) -> None:
    """`overlapped` does the work of the rung below, and shows a busy GPU."""
    contract = for_device_class(END_TO_END.optimization(name).contract, (device_class, "cuda"))
    assert contract is not None
    assert contract.engaged


@pytest.mark.parametrize("name", [each.name for each in OPTIMIZED if each.name != "x264-alone"])
@pytest.mark.parametrize("device_class", ["sm_90", "cuda"])
def test_the_whole_pipelines_promise_to_stay_within_their_memory(name: str, device_class: str) -> None:
    limits = limits_of(name, device_class)
    assert [limit.at_most for limit in limits if limit.counter == "peak_bytes"] == [8 * 2**30]
    assert [limit.at_most for limit in limits if limit.counter == "host_to_device_bytes"] == [2**20]


def test_the_overlapped_pipelines_promise_a_busy_gpu() -> None:
    for name in ("overlapped", "optimized-nvjpeg"):
        assert ALWAYS_BUSY in limits_of(name)


@pytest.mark.parametrize(("name", "speedup"), [("optimized-nvjpeg", 13.4), ("optimized-x264", 5.4)])
def test_an_h200_must_show_the_whole_speedup_with_its_start_up(name: str, speedup: float) -> None:
    assert [limit.at_least for limit in limits_of(name) if limit.counter == "whole_run_speedup"] == [speedup]


def test_h264_comes_first_and_motion_jpeg_is_named() -> None:
    first, *_, last = OPTIMIZED
    assert (first.name, last.name) == ("optimized-x264", "optimized-nvjpeg")
    assert first.why.startswith("H.264 out")
    assert last.why.startswith("Motion JPEG out, with many times the bits of H.264")


@pytest.mark.parametrize("machine", ["nvidia-h200", "nvidia-h100-80gb-hbm3"])
def test_the_contracts_hold_for_what_was_recorded(machine: str) -> None:
    record = json.loads((BASELINES / machine / "video" / "end-to-end.json").read_text())
    checked = 0
    for key, case in record["cases"].items():
        sides = case["anchor"]
        for limit in limits_of(key.partition("/")[0]):
            ours, theirs = (sides[f"{side}_counters"].get(limit.counter) for side in ("optimized", "reference"))
            assert limit.at_least is None or ours >= limit.at_least, (key, limit)
            assert limit.at_most is None or ours <= limit.at_most, (key, limit)
            assert limit.at_most_of_reference is None or ours <= limit.at_most_of_reference * theirs, (key, limit)
            checked += 1
    assert checked >= 15


def test_the_encoder_alone_writes_what_the_plan_would_give_it(context: Context) -> None:
    side = x264_alone(IN_NV12, context)
    stamps = END_TO_END.inputs(context, 0)
    for _ in range(3):
        assert torch.equal(side.step(stamps), stamps[:, None].expand(8, 2))
    side.finish()
    assert [path.name for path in context.cache_dir.glob("recording-*/*")] == ["clip-0.mp4"]
    side.close()


# --- proofs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [plans.ON_CPU, AS_JPEG], ids=str)
def test_a_file_is_whole(plan: Plan, context: Context) -> None:
    words = file_is_whole(plan).show(context)
    assert words.startswith("24 of 24 frames, ")
    assert re.search(r" dB in the middle of 1\d, IoU [\d.]+ and \S+ dB with the baseline's composites of 14, ", words)
    assert words.endswith(" Mbit/s")
    assert ("IoU 1.0000 and inf dB" in words) is (plan == plans.ON_CPU)


def test_every_variant_that_writes_another_file_than_the_baseline_proves_it() -> None:
    proved = {each.name for each in END_TO_END.optimizations if each.proofs}
    names = {each.name for each in END_TO_END.optimizations}
    unproved = {"segment-fused", "composite-gpu", "preprocess-gpu", "nvdec-sessions", "x264-alone"}
    assert names - proved == unproved


@pytest.mark.parametrize("plan", [plans.ON_CPU, replace(AS_JPEG, overlapped=True)], ids=str)
@pytest.mark.parametrize("fault", ["skipped", "later frames skipped", "another mask"])
def test_a_whole_variant_that_composites_otherwise_is_told(
    plan: Plan, fault: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = chain._compositing

    def otherwise(plan: Plan, *arguments: Any) -> Any:
        whole = make(plan, *arguments)
        if not plan.overlapped or fault == "another mask":
            return whole
        return lambda batch, logits: batch if fault == "skipped" or batch.first >= 16 else whole(batch, logits)

    monkeypatch.setattr(chain, "_compositing", otherwise)
    if fault == "another mask":
        logits = Chain.logits
        monkeypatch.setattr(
            Chain, "logits", lambda self, batch: logits(self, batch) - 4 * self.plan.overlapped * BACKGROUND_ALONE
        )
    said = r"IoU [\d.]+ and [\d.]+ dB with the baseline's composites of 14 frames: 0.98 and 40 dB are wanted"
    with pytest.raises(DisprovedError, match=said) as raised:
        file_is_whole(plan).show(context)
    overlap = float(str(raised.value).split()[1])
    assert (overlap < 0.98) is (fault == "another mask")


@pytest.mark.parametrize("plan", [plans.ON_CPU, AS_JPEG], ids=str)
def test_a_baseline_that_composites_nothing_is_told(
    plan: Plan, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reference by the same function would agree with a wrong variant."""
    end_to_end_proofs._composites_by_baseline.cache_clear()
    monkeypatch.setattr(compositing, "on_host", lambda bgr, logits: bgr)
    with pytest.raises(DisprovedError, match="the baseline's composites have inf dB with its input: nothing was blurr"):
        file_is_whole(plan).show(context)


def test_the_baselines_composites_are_computed_once(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Plan] = []
    whole = Chain.__init__

    def counted(self: Chain, plan: Plan, *arguments: Any, **more: Any) -> None:
        made.append(plan)
        whole(self, plan, *arguments, **more)

    monkeypatch.setattr(Chain, "__init__", counted)
    end_to_end_proofs._composites_by_baseline.cache_clear()
    for _ in range(2):
        file_is_whole(AS_JPEG).show(context)
    assert made == [AS_JPEG, plans.BASELINE, AS_JPEG]


@pytest.mark.parametrize(("frames", "places"), [(600, 8), (48, 7), (8, 8), (1, 1)])
def test_composites_that_are_compared_are_spread_over_the_clip_and_its_batches(frames: int, places: int) -> None:
    numbers = composited_numbers(frames)
    assert len(numbers) <= 16
    assert (numbers[0], numbers[-1]) == (0, frames - 1)
    assert len({number % 8 for number in numbers}) >= places
    assert max((after - before for before, after in pairwise(numbers)), default=1) <= 1 + frames / 13


def test_a_file_that_lacks_its_end_is_not(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(end_to_end_proofs.Flow[Any]):
        def take(self) -> Any:
            batch = super().take()
            return None if batch is None or batch.first >= 8 else batch

    monkeypatch.setattr(end_to_end_proofs, "Flow", Short)
    with pytest.raises(DisprovedError, match="16 of 24 frames: all of them are wanted"):
        file_is_whole(plans.BASELINE).show(context)


def test_frames_in_another_order_are_told(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Chain.decode

    def backwards(self: Chain, decoder: Any) -> Batch | None:
        batch = whole(self, decoder)
        return batch if batch is None or batch.first != 16 else replace(batch, bgr=batch.on_host[::-1].copy())

    monkeypatch.setattr(Chain, "decode", backwards)
    with pytest.raises(DisprovedError, match="frame 16 of the file carries the number 23"):
        file_is_whole(plans.BASELINE).show(context)


@pytest.mark.parametrize(("frames", "numbers"), [(600, [*range(0, 600, 10), 599]), (21, [0, 10, 20]), (1, [0])])
def test_every_tenth_frame_of_a_file_is_compared_and_the_last(frames: int, numbers: list[int]) -> None:
    assert compared_numbers(frames) == numbers


@pytest.mark.parametrize("number", [20, 23])
def test_a_frame_that_looks_otherwise_in_the_file_is_told(
    number: int, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = X264.write

    def spoilt(self: X264, frames: torch.Tensor) -> None:
        if self._written <= number < self._written + len(frames):
            frames = frames.clone()
            frames[number - self._written, 32:] = 16  # below its bar code
        whole(self, frames)
        self._written += len(frames)

    monkeypatch.setattr(X264, "_written", 0, raising=False)
    monkeypatch.setattr(X264, "write", spoilt)
    with pytest.raises(DisprovedError, match=r"24 of 24 frames, .*: 35 dB are wanted"):
        file_is_whole(IN_NV12).show(context)


# --- the program ------------------------------------------------------------------------------------------------------


@pytest.fixture
def video(cache_dir: Path) -> Path:
    return clip_path(cache_dir, TINY)


def test_the_program_writes_the_whole_video(
    video: Path, cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.mp4"
    assert main([str(video), str(target), "--variant=optimized-on-cpu", f"--cache={cache_dir}"]) == 0
    told = capsys.readouterr().out
    stages = [line.split()[0] for line in told.splitlines() if line.endswith(" %") or line.endswith(" % ")]
    assert sorted(stages) == ["composite", "decode", "encode", "preprocess", "segment"]
    assert "24 frames in " in told
    assert f"Mbit/s in {target}" in told
    with decoded_by_baseline(target) as decoder:
        assert len(decoder.read(100)) == 24


def test_the_programs_baseline_has_pytorchs_defaults(
    video: Path, cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    class Watched(Chain):
        def __init__(self, *arguments: Any) -> None:
            seen.append((torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark))
            super().__init__(*arguments)

    monkeypatch.setattr(program, "Chain", Watched)
    assert main([str(video), str(tmp_path / "out.mp4"), "--variant=baseline", "--quiet", f"--cache={cache_dir}"]) == 0
    assert seen == [(True, False)]


def test_the_program_tells_its_seconds_as_json(video: Path, cache_dir: Path, tmp_path: Path) -> None:
    asked = [str(video), str(tmp_path / "out.mp4"), "--variant=baseline", "--quiet", f"--cache={cache_dir}"]
    began, before = time.monotonic(), age_s()
    assert main([*asked, f"--json={tmp_path / 'run.json'}"]) == 0
    took = time.monotonic() - began
    told = json.loads((tmp_path / "run.json").read_text())
    assert (told["variant"], told["frames"], told["device"]) == ("baseline", 24, "cpu")
    assert [stage["name"] for stage in told["stages"]] == ["decode", "preprocess", "segment", "composite", "encode"]
    assert told["frames_per_second"] == pytest.approx(24 / told["pipeline_s"])
    assert told["imports_s"] + told["start_up_s"] + told["pipeline_s"] == pytest.approx(told["process_s"])
    assert told["start_up_s"] + told["pipeline_s"] <= took
    assert told["device_active_at_most_s"] is None, "on a CPU"
    assert before < told["process_s"] <= age_s()


def test_the_age_of_a_process_is_since_it_was_started() -> None:
    before = time.monotonic()
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"]) as child:
        started = time.monotonic()
        time.sleep(0.05)
        least, age, most = time.monotonic() - started, age_s(str(child.pid)), time.monotonic() - before
        child.kill()
    assert least - 0.02 <= age <= most + 0.02


def test_a_contact_sheet_shows_what_was_done(video: Path, cache_dir: Path, tmp_path: Path) -> None:
    target, picture = tmp_path / "out.mp4", tmp_path / "sheet.png"
    asked = [str(video), str(target), "--variant=baseline", "--quiet", f"--cache={cache_dir}"]
    assert main([*asked, f"--contact-sheet={picture}"]) == 0
    cell = 480 * 192 // 312
    with Image.open(picture) as sheet:
        assert sheet.size == (8 + 4 * 488, 24 + 4 * (cell + 8))
        rows = [24 + row * (cell + 8) for row in range(4)]
        cells = [
            [
                np.asarray(sheet.crop((8 + 488 * column, top, 488 * (column + 1), top + cell)), np.float32)
                for top in rows
            ]
            for column in range(4)
        ]
    inputs, masks, baseline, written = cells
    assert all(len(np.unique(mask.round(-2))) > 1 for mask in masks)
    assert all(np.abs(one - other).mean() < 6 for one, other in zip(baseline, written, strict=True))
    assert all(np.abs(one - other).mean() > 2 for one, other in pairwise(inputs))
    assert all(2 < np.abs(one - other).mean() < 25 for one, other in zip(inputs, baseline, strict=True))


@pytest.mark.parametrize(
    ("frames", "numbers"), [(600, (75, 225, 375, 525)), (48, (6, 18, 30, 42)), (2, (0, 1)), (1, (0,))]
)
def test_frames_of_a_contact_sheet_are_spread_evenly(frames: int, numbers: tuple[int, ...]) -> None:
    assert chosen_frames(frames) == numbers


def decoded_by_baseline(path: Path) -> Any:
    return closing(decoder_of(plans.BASELINE, path, torch.device("cpu"), loop=False))


def test_the_last_batch_may_be_smaller(cache_dir: Path, tmp_path: Path) -> None:
    odd = clip_path(cache_dir, replace(TINY, frames=19))
    target = tmp_path / "odd.mp4"
    assert main([str(odd), str(target), "--variant=baseline", "--quiet", f"--cache={cache_dir}"]) == 0
    with decoded_by_baseline(target) as decoder:
        assert len(decoder.read(100)) == 19


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder, video: [folder / "missing.mp4", folder / "out.mp4"], "missing.mp4 is not there"),
        (lambda folder, video: [video, folder / "no" / "out.mp4"], "out.mp4 cannot be written"),
        (lambda folder, video: [video, folder / "out.mp4", "--variant=optimized-nvjpeg"], "needs a CUDA GPU"),
        (
            lambda folder, video: [video, folder / "out.mp4", f"--cache={video}"],
            "cannot be written (File exists): name a folder that may be written to",
        ),
        (
            lambda folder, video: [video, folder / "out.mp4", "--cache=/proc/self"],
            "--cache /proc/self cannot be written",
        ),
        (
            lambda folder, video: [video, folder / "out.mp4", "--checkpoint=no.pt"],
            "--checkpoint no.pt is not there: name a file of weights",
        ),
        (
            lambda folder, video: [video, folder / "out.mp4", f"--checkpoint={video}"],
            ".mp4 is the input too: name another file for --checkpoint",
        ),
        (
            lambda folder, video: [video, folder / "out.mp4", f"--checkpoint={__file__}"],
            f"--checkpoint {__file__} holds no weights of a segmenter: on a CPU the program takes a state_dict of "
            "torchvision's LR-ASPP MobileNetV3-Large (lraspp_mobilenet_v3_large)\n",
        ),
        (
            lambda folder, video: [video, folder / "out.mkv", "--variant=baseline"],
            "out.mkv cannot be written (--variant baseline encodes MPEG-4 Part 2): let its name end in .mp4, .mov, "
            ".avi\n",
        ),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    make: Any, said: str, video: Path, cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(each) for each in make(tmp_path, video)]
    assert main(["--quiet", f"--cache={cache_dir}", *arguments]) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert said in told
    assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--json={}", "--json {} cannot be written (Is a directory): name a file in a folder that exists"),
        (
            "--contact-sheet={}.png",
            "--contact-sheet {}.png cannot be written (Is a directory): name a file in a folder",
        ),
        ("--json={}/no/run.json", "--json {}/no/run.json cannot be written (No such file or directory): name a file"),
        ("--json=/proc/self/run.json", "--json /proc/self/run.json cannot be written ("),
        ("--contact-sheet=/proc/self/sheet.png", "--contact-sheet /proc/self/sheet.png cannot be written ("),
        (
            "--contact-sheet={}/x.foo",
            "--contact-sheet {}/x.foo would be a PNG under another name: let it end in .png\n",
        ),
    ],
)
def test_what_could_not_be_written_in_the_end_is_refused_before_anything_runs(
    option: str,
    said: str,
    cache_dir: Path,
    video: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def runs(*arguments: Any, **more: Any) -> None:
        raise AssertionError("it runs")

    monkeypatch.setattr(program, "Chain", runs)
    folders = [tmp_path / "folder", tmp_path / "folder.png"]
    for each in folders:
        each.mkdir()
    asked = [str(video), str(tmp_path / "out.mp4"), "--variant=baseline", "--quiet", f"--cache={cache_dir}"]
    assert main([*asked, option.format(folders[0])]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"error: {said.format(folders[0])}")
    assert told.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == folders


def test_weights_of_another_network_are_told_with_the_one_that_is_wanted(
    video: Path, cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = tmp_path / "fcn.pt"
    torch.save({"backbone.conv1.weight": torch.zeros(2), "classifier.4.weight": torch.zeros(21, 2)}, weights)
    asked = [str(video), str(tmp_path / "out.mp4"), "--variant=baseline", f"--cache={cache_dir}"]
    assert main([*asked, f"--checkpoint={weights}"]) == 1
    said = (
        f"error: --checkpoint {weights} holds the weights of another network: on a CPU the program takes a "
        "state_dict of torchvision's LR-ASPP MobileNetV3-Large (lraspp_mobilenet_v3_large)\n"
    )
    assert capsys.readouterr().err == said


def test_the_help_says_which_weights_which_device_takes(capsys: pytest.CaptureFixture[str]) -> None:
    """The test chooses weights as the program does."""
    with pytest.raises(SystemExit):
        main(["--help"])
    told = " ".join(capsys.readouterr().out.split())
    gpu, cpu = (ARCHITECTURES[kind].name for kind in ("cuda", "cpu"))
    assert re.search(rf"state_dict of torchvision's \S+ \({gpu}\) on a GPU, of [^,(]+ \({cpu}\) on a CPU", told)


def test_a_users_video_without_weights_is_warned_of(
    video: Path, cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.mp4"
    own.write_bytes(video.read_bytes())
    weights = tmp_path / "weights.pt"
    torch.save(segmenter("cpu", Context(torch.device("cpu"), 8, 0, cache_dir)).coarse.state_dict(), weights)
    asked = [str(tmp_path / "out.mp4"), "--variant=baseline", "--quiet", f"--cache={cache_dir}"]
    assert main([str(own), *asked]) == 0
    said = "warning: without --checkpoint the masks come from random features fitted to the suite's own clip, of little"
    advice = "give weights of torchvision's LR-ASPP MobileNetV3-Large (lraspp_mobilenet_v3_large)"
    assert capsys.readouterr().err == f"{said} use for {own}: {advice}\n"
    assert main([str(own), *asked, f"--checkpoint={weights}"]) == 0
    assert capsys.readouterr().err == ""
    assert main([str(video), *asked]) == 0
    assert capsys.readouterr().err == "", "the suite's own clip"


def test_weights_of_a_classifier_are_refused_by_the_program(
    video: Path, cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = tmp_path / "resnet50.pt"
    torch.save({"fc.weight": torch.zeros(2, 2)}, weights)
    assert main([str(video), str(tmp_path / "out.mp4"), f"--checkpoint={weights}", f"--cache={cache_dir}"]) == 1
    said = f"error: --checkpoint {weights} holds the weights of a classifier: name one of a segmenter's\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("package", ["av", "cv2"])
def test_a_missing_package_is_named_with_what_installs_it(
    package: str,
    video: Path,
    cache_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    video_file._found.cache_clear()
    for name in [each for each in sys.modules if each.partition(".")[0] == package or each.endswith(".mp4v")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    asked = [str(video), str(tmp_path / "out.mp4"), "--variant=baseline", "--quiet", f"--cache={cache_dir}"]
    assert main(asked) == 1
    said = f"error: the package {package} is missing: pip install 'gpugate[workloads,video]'\n"
    assert capsys.readouterr().err == said
    assert list(tmp_path.iterdir()) == []


def test_a_package_of_a_variant_is_named_with_the_extra_that_has_it() -> None:
    said = program._said(ModuleNotFoundError("no module", name="cvcuda"))
    assert said == "the package cvcuda is missing: pip install 'gpugate[workloads,video]'"


def test_without_tensorrt_its_variant_is_refused_before_anything_is_written(
    video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(tensorrt_engine, "find_spec", lambda name: None)
    out = tmp_path / "written" / "out.mp4"
    assert main([str(video), str(out), "--variant=optimized-tensorrt", "--quiet"]) == 1
    said = "the package tensorrt is missing: pip install 'gpugate[tensorrt]'"
    assert capsys.readouterr().err == f"error: --variant optimized-tensorrt: {said}\n"
    assert not out.parent.exists()


@pytest.mark.parametrize("error", [cv2.error("OpenCV:\n(-215) no\n"), av.error.ExternalError(1, "no", "a.mp4")])
def test_what_libraries_raise_is_one_sentence(
    error: Exception,
    video: Path,
    cache_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(self: Chain, batch: Batch) -> None:
        raise error

    assert not isinstance(error, OSError | ValueError | RuntimeError)
    monkeypatch.setattr(Chain, "compute", fails)
    asked = [str(video), str(tmp_path / "out.mp4"), "--variant=baseline", "--quiet", f"--cache={cache_dir}"]
    assert main(asked) == 1
    told = capsys.readouterr().err
    assert re.match(r"error: (cv2|av) failed \(.*no.*\): make the video anew, or take another --variant\n$", told)
    assert list(tmp_path.iterdir()) == []


NAMED = ("IN", "--checkpoint", "OUT", "--contact-sheet", "--json")


@pytest.mark.parametrize(("one", "other"), list(combinations(NAMED, 2)))
@pytest.mark.parametrize("by", ["path", "link", "hard link"])
def test_no_two_files_may_be_one(
    one: str,
    other: str,
    by: str,
    video: Path,
    cache_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The files may exist already or not."""
    (tmp_path / "folder").mkdir()
    own = tmp_path / "IN.mp4"
    own.write_bytes(video.read_bytes())
    paths = {"IN": own, **{name: tmp_path / f"{name.strip('-')}.mp4" for name in NAMED[1:]}}
    paths[other] = tmp_path / "folder" / ".." / paths[one].name
    if by == "link":
        paths[other] = tmp_path / "folder" / "link.mp4"
        paths[other].symlink_to(paths[one])
    if by == "hard link":
        paths[one].touch()
        paths[other] = tmp_path / "folder" / "link.mp4"
        paths[other].hardlink_to(paths[one])
    options = [f"{name}={paths[name]}" for name in NAMED if name.startswith("-") and name in (one, other)]
    before = sorted(tmp_path.rglob("*"))
    asked = [str(paths["IN"]), str(paths["OUT"]), "--variant=baseline", "--quiet", f"--cache={cache_dir}", *options]
    assert main(asked) == 1
    words = {"IN": "the input", "OUT": "the output"}
    said = f"error: {paths[other]} is {words.get(one, one)} too: name another file for {words.get(other, other)}\n"
    assert capsys.readouterr().err == said
    assert sorted(tmp_path.rglob("*")) == before
    assert own.read_bytes() == video.read_bytes()


def test_the_share_of_the_gpu_is_told_as_an_upper_bound(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = StageClock(torch.device("cpu"))
    monkeypatch.setattr(clock, "times", lambda frames: [StageTime("encode", 1.0, 2.0)])
    monkeypatch.setattr(clock, "device_ms", lambda: 750.0)
    _tell(Run(Encoded(tmp_path, 10, 1000, 1.0), 0.0, 1.0, 1.0, clock), "optimized")
    said = "GPU active for at most 75 % of the time: so long a stage's stream was open, idle or not; the suite counts"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("variant", "suffix"), [("baseline", ".mp4"), ("optimized-on-cpu", ".mp4"), ("baseline", ".mkv")]
)
def test_what_decodes_of_a_video_that_was_cut_short_is_written_and_then_it_fails(
    variant: str, suffix: str, cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = clip_path(cache_dir, replace(TINY, frames=90))
    short, target = tmp_path / f"short{suffix}", tmp_path / "out.mp4"
    short.write_bytes(
        copied(whole, tmp_path / f"indexed{suffix}", **INDEX_FIRST).read_bytes()[: whole.stat().st_size // 2]
    )
    status = main([str(short), str(target), f"--variant={variant}", "--quiet", f"--cache={cache_dir}"])
    warning, told = capsys.readouterr().err.splitlines(keepends=True)
    assert warning.startswith("warning: without --checkpoint")
    assert status == 1
    (given, wanted), (held,) = (
        re.findall(r"gave (\d+) of its (\d+) frames", told)[0],
        re.findall(r"the (\d+) frames", told),
    )
    assert (given, wanted) == (held, "90")
    assert told.count("\n") == 1
    with decoded_by_baseline(target) as decoder:
        assert len(decoder.read(100)) == int(held) > 8


@pytest.mark.parametrize(("ending", "status"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_a_program_that_is_interrupted_says_that_nothing_is_written(
    ending: BaseException, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(*_: object) -> Run:
        raise ending

    monkeypatch.setattr(program, "_run", ended)
    assert main(["in.mp4", "out.mp4", "--variant=baseline"]) == status
    assert capsys.readouterr().err == "interrupted: out.mp4 is not written\n"


def test_a_video_that_is_refused_says_why_once(context: Context, tmp_path: Path) -> None:
    bad = tmp_path / "bad.mp4"
    bad.write_bytes(b"no video")
    own = replace(context, settings={"video": str(bad)})
    with pytest.raises(VideoError, match="is not a video, has no frames or was cut short"):
        source(own)
    for _ in range(2):
        with pytest.raises(VideoError, match=r"bad\.mp4 was refused before, with the reason: name another"):
            build(plans.BASELINE, own)


def test_a_users_video_is_measured_without_numbers(video: Path, context: Context) -> None:
    own = replace(context, settings={"video": str(video)})
    assert not source(own).numbered
    side = build(plans.BASELINE, own)
    assert side.step(torch.ones(8)).tolist() == [[1, 1]] * 8
    side.close()


def test_the_decoder_works_ahead_while_the_rest_is_built_and_rests_while_a_graph_is_captured(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replaying needs a GPU; the order in which things are built does not."""
    done: list[str] = []
    make = end_to_end.decoder_of

    def opened(*arguments: Any, **more: Any) -> Any:
        decoder = make(*arguments, **more)
        done.append("opened")
        settle = decoder.settle
        decoder.settle = lambda: done.append("rests") or settle()
        return decoder

    def fused(context: Context, example: torch.Tensor, before_capture: Any) -> Any:
        done.append("found")
        before_capture()
        done.append("captured")
        return replace(segmenting.baseline(context), engaged=lambda: "cuDNN fuses nothing")

    monkeypatch.setattr(end_to_end, "decoder_of", opened)
    monkeypatch.setattr(segmenting, "cudnn_fused", fused)
    side = build(replace(IN_NV12, segment="cudnn-fused"), context)
    assert done == ["opened", "found", "rests", "captured"]
    assert side.engaged() == "cuDNN fuses nothing"
    assert side.step(torch.ones(8)).tolist() == [[1, 1]] * 8
    side.finish()
    side.close()


def test_cv_cuda_and_tensorrt_are_called_in_their_stages(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins compute the same; the real ones need a GPU."""
    done: list[str] = []

    class Preprocessing(preprocessing.OnDevice):
        def __call__(self, nv12: Tensor) -> Tensor:
            done.append("preprocess")
            return super().__call__(nv12)

    class Compositing(compositing.OnDevice):
        def __call__(self, nv12: Tensor, logits: Tensor, out: Tensor | None = None) -> Tensor:
            done.append("composite")
            return super().__call__(nv12, logits, out)

    def engine(context: Context, example: Tensor) -> Side:
        done.append(f"engine for {[*example.shape]}")
        return segmenting.baseline(context)

    monkeypatch.setattr(preprocessing_cvcuda, "CvCuda", Preprocessing)
    monkeypatch.setattr(compositing_cvcuda, "CvCuda", Compositing)
    monkeypatch.setattr(segmenting, "tensorrt_fp16", engine)
    made = end_to_end.decoder_of

    def opened(*arguments: Any, **more: Any) -> Any:
        decoder = made(*arguments, **more)
        settle = decoder.settle
        decoder.settle = lambda: done.append("rests") or settle()
        return decoder

    monkeypatch.setattr(end_to_end, "decoder_of", opened)
    with closing(build(replace(plans.TENSORRT, decode="opencv", sessions=1), context)) as side:
        assert done == ["rests", "engine for [8, 3, 64, 104]"], "other stages are captured after it"
        assert side.step(torch.ones(8)).tolist() == [[1, 1]] * 8
    assert done[2:4] == ["preprocess", "composite"]


def test_the_output_may_not_be_the_input(video: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = video.read_bytes()
    assert main([str(video), str(video), "--variant=baseline", "--quiet", f"--cache={cache_dir}"]) == 1
    assert "is the input too: name another file for the output" in capsys.readouterr().err
    assert video.read_bytes() == before


def test_a_clip_that_is_cut_short_says_so_in_the_suite_too(video: Path, context: Context, tmp_path: Path) -> None:
    whole = clip_path(context.cache_dir, replace(TINY, frames=90))
    short = tmp_path / "short.mp4"
    short.write_bytes(copied(whole, tmp_path / "indexed.mp4", **INDEX_FIRST).read_bytes()[: whole.stat().st_size // 2])
    for plan in (plans.BASELINE, plans.ON_CPU):
        side = build(plan, replace(context, settings={"video": str(short)}))
        with pytest.raises(VideoError, match="of its 90 frames, since it was cut short"):
            list(iter(lambda side=side: side.step(torch.ones(8)), None))
        side.close()
