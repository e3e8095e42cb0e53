"""The stage that segments video frames, as far as a CPU goes: sizes, inputs, sides, and what its proof notices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

pytest.importorskip("torchvision")

from gpugate.catalogue import Catalogue
from gpugate.errors import DisprovedError
from gpugate.workload import BASELINE, Context, Side, Workload
from workloads.parts import model_sides
from workloads.parts.cudnn_fusion import (
    CUDNN,
    STEM_CHANNELS,
    FusedConv,
    Geometry,
    LastConv,
    Operators,
    fuse,
    max_pool,
    to_channels_last_half,
)
from workloads.parts.model_sides import Replay
from workloads.video.clip.clip import Clip, clip_path
from workloads.video.clip.frame_bank import bgr_frames
from workloads.video.clip.source_clip import CLIPS
from workloads.video.preprocess.preprocessing import input_size, on_host
from workloads.video.segment import dilated_fusion
from workloads.video.segment import promises as segment
from workloads.video.segment import sides as segmenting
from workloads.video.segment.architectures import without_weights
from workloads.video.segment.fitted_weights import fitted_weights
from workloads.video.segment.fused_network import packed, unpacked
from workloads.video.segment.mask_agreement import intersection_over_union, masks_agree
from workloads.video.segment.network_frames import fit_numbers, unseen_numbers
from workloads.video.segment.segmenter import Segmenter, foreground

CPU = torch.device("cpu")
TINY = Clip(320, 192, 24)
HEIGHT, WIDTH = 64, 104  # of its frames where the network sees them


@pytest.fixture(autouse=True)
def tiny_clip(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(CLIPS, "cpu", TINY)  # type: ignore[arg-type]
    yield
    segmenting._unseen_frames.cache_clear()
    fitted_weights.cache_clear()


@pytest.fixture
def context(cache_dir: Path) -> Context:
    return Context(device=CPU, items=2, seed=0, cache_dir=cache_dir)


@pytest.fixture
def flags() -> Iterator[None]:
    """Build functions set global flags; the engine restores them, here the test does."""
    before = torch.backends.cudnn.benchmark
    yield
    torch.backends.cudnn.benchmark = before


def _relative_l2(out: Tensor, reference: Tensor) -> float:
    return float((out - reference).norm() / reference.norm())


def test_the_catalogue_takes_it():
    size = segmenting.size("cuda")
    catalogue = Catalogue()
    catalogue.register(
        Workload(
            "video-segment",
            segmenting.baseline,
            segmenting.inputs,
            {"cuda": size},
            optimizations=segment.OPTIMIZATIONS,
        )
    )
    catalogue.load()
    assert {case.id for case in catalogue.cases()} == {
        f"video-segment/{name}/cuda"
        for name in ("channels-last-fp16", "inductor-fp16", "cudnn-fused", "cuda-graph", "tensorrt-fp16")
    }


def test_the_graph_is_compared_with_what_it_captures():
    compared = {one.name: one.compared_with for one in segment.OPTIMIZATIONS}
    assert compared.pop("cuda-graph") == "channels-last-fp16"
    assert set(compared.values()) == {BASELINE}


def test_no_optimization_may_draw_other_masks():
    for one in segment.OPTIMIZATIONS:
        assert [proof.name for proof in one.proofs] == ["masks"]
        assert one.tolerance[one.dtype].relative_l2 <= (3e-3 if one.name.startswith("tensorrt") else 2e-3)


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
@torch.no_grad()
def test_the_stated_work_is_the_networks(kind, monkeypatch):
    monkeypatch.undo()  # the clips that are really worked on
    counted = {"read": 0, "written": 0}

    def count(_: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        counted["read"] += inputs[0].numel()
        counted["written"] += output.numel()

    model = Segmenter(without_weights(kind).eval())
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(count)
    clip = CLIPS[kind]
    frames = torch.empty(3, 3, *input_size(clip.height, clip.width), device="meta")
    with FlopCounterMode(display=False) as counter:
        model(frames)
    weights = sum(weight.numel() for weight in model.parameters())
    assert segmenting.size(kind, 3).flops == counter.get_total_flops()
    assert segmenting.size(kind, 3).bytes == 4 * (weights + counted["read"] + counted["written"])
    assert segmenting.size(kind).items == 8


def test_batches_depend_on_seed_and_index_alone(context):
    first = segmenting.inputs(context, 0)
    assert first.shape == (2, 3, HEIGHT, WIDTH)
    assert first.dtype == torch.float32
    kept = first.clone()
    others = [segmenting.inputs(context, index) for index in (1, 2, 1_000_003, 2**31)]
    segmenting._unseen_frames.cache_clear()
    assert torch.equal(segmenting.inputs(context, 0), kept)
    assert not torch.equal(segmenting.inputs(replace(context, seed=1), 0), kept)
    batches = [first, *others]
    assert len({float(batch[0].double().mul(torch.arange(WIDTH)).sum()) for batch in batches}) == len(batches)


def test_batches_are_whole_frames_moved_around_their_edges(context):
    frames, _ = segmenting._unseen_frames(TINY, CPU)
    known = [frame.flatten(1).sort().values for frame in frames]
    for frame in segmenting.inputs(context, 5):
        assert any(torch.equal(frame.flatten(1).sort().values, one) for one in known)


def test_a_batch_belongs_to_nobody_else(context):
    segmenting.inputs(context, 0).zero_()
    assert segmenting.inputs(context, 0).std() > 0.5


def test_the_truth_is_about_frames_that_no_weight_was_fitted_to(context):
    frames, masks = segmenting.truth(replace(context, items=13))
    assert frames.shape == (13, 3, HEIGHT, WIDTH)
    assert masks.shape == (13, HEIGHT, WIDTH)
    assert torch.equal(frames[11], frames[0]), "of 11 frames"
    assert not {*fit_numbers(TINY)} & {*unseen_numbers(TINY)}


def test_the_baseline_segments(context):
    side = segmenting.baseline(context)
    frames, masks = segmenting.truth(context)
    untouched = frames.clone()
    logits = side.step(frames)
    assert logits.shape == (2, 2, HEIGHT, WIDTH)
    assert logits.dtype == torch.float32
    assert intersection_over_union(foreground(logits), masks) > 0.6, "of 64 x 104 pixels, it sees every eighth"
    assert torch.equal(frames, untouched)
    assert side.engaged() is None


@pytest.mark.usefixtures("flags")
def test_fp16_returns_float32_close_to_the_baselines(context):
    frames = segmenting.inputs(context, 0)
    side = segmenting.channels_last_fp16(context)
    logits = side.step(frames)
    assert logits.dtype == torch.float32
    assert 0 < _relative_l2(logits, segmenting.baseline(context).step(frames)) < 1e-2
    assert side.engaged() is None
    assert not torch.backends.cudnn.benchmark


@pytest.mark.usefixtures("flags")
def test_a_lost_layout_or_precision_is_noticed(context):
    side = segmenting.channels_last_fp16(context)
    side.model.coarse.classifier.cbr[0].weight.data = torch.zeros(128, 960, 1, 1, dtype=torch.float16)[:, ::2]
    assert "cbr.0.weight is not in torch.channels_last" in side.engaged()
    side.model.coarse.backbone.float()
    assert "coarse.backbone.0.0.weight is torch.float32, not torch.float16" in side.engaged()


class _Small(nn.Module):
    """A network that compiles fast; with `breaks`, not in one graph."""

    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.conv, self.bn, self.breaks = nn.Conv2d(3, 8, 3, stride=8, padding=1), nn.BatchNorm2d(8), breaks

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.conv(x))
        if self.breaks:
            torch._dynamo.graph_break()
        return x.relu()


@pytest.fixture
def counting_compiler(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Inductor's entry without Inductor, which would take half a minute for two graphs: how often it was asked."""
    asked: list[int] = []

    def compile_fx(graph: torch.fx.GraphModule, examples: list[Tensor]):
        asked.append(len(examples))
        return graph.forward

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    return asked


def _compiled(coarse: nn.Module, example: Tensor) -> Side:
    model = Segmenter(coarse).eval().requires_grad_(False)
    return model_sides.compiled(model, example, torch.float32, torch.contiguous_format)


def test_a_compiled_side_is_one_frozen_graph_for_one_shape(counting_compiler):
    coarse, frames = _Small(), torch.randn(2, 3, 32, 48)
    side = _compiled(coarse, frames)
    assert len(counting_compiler) == 1, "compiled while it is built, not in its first step"
    torch.testing.assert_close(side.step(frames), Segmenter(coarse)(frames))
    assert side.engaged() is None
    side.step(frames[:1])
    assert "2 graphs were compiled" in side.engaged()


@pytest.mark.usefixtures("counting_compiler")
def test_a_graph_break_is_noticed():
    assert "graph breaks" in _compiled(_Small(breaks=True), torch.randn(1, 3, 16, 16)).engaged()


@pytest.mark.usefixtures("counting_compiler")
def test_every_build_compiles_for_itself():
    frames = torch.randn(1, 3, 16, 16)
    with torch._dynamo.config.patch(recompile_limit=1):
        assert [_compiled(_Small(), frames).engaged() for _ in range(2)] == [None] * 2


@pytest.mark.parametrize(("frozen", "reason"), [([], "0 graphs"), ([True, True], "2 graphs"), ([False], "not frozen")])
def test_compilation_that_did_not_go_as_promised_is_noticed(frozen, reason):
    assert reason in model_sides._not_one_frozen_graph(frozen)


@pytest.mark.usefixtures("flags")
def test_every_inductor_side_is_compiled_in_fp16_for_its_batch(context, monkeypatch):
    seen = {}

    def compiled(model: nn.Module, example: Tensor, dtype: torch.dtype, layout: torch.memory_format) -> Side:
        seen.update(shape=tuple(example.shape), dtype=dtype, layout=layout)
        return Side(model, model)

    monkeypatch.setattr(segmenting, "compiled", compiled)
    segmenting.inductor_fp16(context)
    assert seen == {"shape": (2, 3, HEIGHT, WIDTH), "dtype": torch.float16, "layout": torch.channels_last}


@pytest.mark.usefixtures("flags")
def test_without_a_graph_the_same_kernels_run_one_by_one(context):
    frames = segmenting.inputs(context, 0)
    side = segmenting.cuda_graph(replace(context, capture_graphs=False))
    assert torch.equal(side.step(frames), segmenting.channels_last_fp16(context).step(frames))


def test_a_graph_gets_its_frames_padded_in_channels_last_half(context, monkeypatch):
    """Replaying needs a GPU; what is captured, and what a step copies to it, do not."""
    read, buffers = [], []

    class Network(nn.Identity):
        def forward(self, buffer: Tensor) -> Tensor:
            buffers.append(buffer)
            return buffer

    class Graph:
        def replay(self) -> None:
            read.append(buffers[0].clone())

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(model_sides, "recorded", lambda work, stream: (Graph(), work()))
    example, frames = segmenting.inputs(context, 1), segmenting.inputs(context, 0)
    side = model_sides.captured(context, Network(), STEM_CHANNELS, example)
    assert torch.equal(buffers[0][:, :3], example.half()), "warmed up on frames, not on zeros"
    assert isinstance(side.step, Replay)
    assert side.step(frames) is side.step.logits
    assert torch.equal(read[0][:, :3], frames.half())
    assert not read[0][:, 3:].any()
    assert read[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.usefixtures("flags")
def test_a_fused_side_holds_nothing_but_fused_convolutions(context, monkeypatch):
    """106 of 106, and their weights are half; what they compute is proved in test_cudnn_fusion."""
    torch.manual_seed(0)
    model = Segmenter(without_weights("cuda").to_empty(device=CPU).eval())
    stored = unpacked(packed(to_channels_last_half(fuse(model.coarse))))
    monkeypatch.setattr(segmenting, "fused_network", lambda *_: stored)
    fused = segmenting.fused(context, CUDNN)
    kinds = [type(module) for module in fused.modules() if not list(module.children())]
    assert kinds.count(FusedConv) == 105
    assert kinds.count(LastConv) == 1
    assert kinds.count(nn.Conv2d) == 0
    halves = [module for module in fused.modules() if isinstance(module, FusedConv | LastConv)]
    assert {module.weight.dtype for module in halves} == {torch.float16}
    assert all(module.weight.is_contiguous(memory_format=torch.channels_last) for module in halves)


class _Recorded(nn.Module):
    """A network that notes what it was asked for."""

    def __init__(self, done: list[object]) -> None:
        super().__init__()
        self.done = done

    def forward(self, x: Tensor) -> Tensor:
        self.done.append((x.dtype, tuple(x.shape), x.is_contiguous(memory_format=torch.channels_last)))
        return x


@pytest.mark.usefixtures("flags")
def test_algorithms_are_found_before_the_device_is_to_rest_and_the_graph_captured(context, monkeypatch):
    done: list[object] = []

    def captured(_: Context, network: nn.Module, channels: int, example: Tensor) -> Side:
        done.append(("captured", channels, tuple(example.shape)))
        return Side(nn.Identity(), network)

    monkeypatch.setattr(segmenting, "fused", lambda *_: _Recorded(done))
    monkeypatch.setattr(segmenting, "captured", captured)
    side = segmenting.cudnn_fused(context, before_capture=lambda: done.append("rests"))
    assert done == [
        (torch.float16, (2, STEM_CHANNELS, HEIGHT, WIDTH), True),
        "rests",
        ("captured", STEM_CHANNELS, (2, 3, HEIGHT, WIDTH)),
    ]
    assert side.engaged() is None


def test_a_checkpoint_of_the_users_is_fused_and_not_kept(context, monkeypatch, tmp_path):
    torch.manual_seed(0)
    model = Segmenter(without_weights("cuda").to_empty(device=CPU).eval())
    monkeypatch.setattr(segmenting, "segmenter", lambda *_: model)
    monkeypatch.setattr(segmenting, "own_checkpoint", lambda _: tmp_path / "mine.pt")
    network = segmenting.fused(replace(context, cache_dir=tmp_path), CUDNN)
    weights = [each for each in network.buffers() if each.dim() == 4]
    assert (len(weights), {each.dtype for each in weights}) == (106, {torch.float16})
    assert list(tmp_path.iterdir()) == []


def test_a_tensorrt_side_is_one_engine_and_the_interpolation(context, monkeypatch):
    seen = []

    def build_engine(model: nn.Module, example: Tensor, precision: str, cache_dir: Path):
        seen.append((example.shape, precision, cache_dir))
        engine = MagicMock(side_effect=lambda frames: seen.append(frames.dtype) or frames[:, :2, ::8, ::8])
        engine.layers = lambda: ["conv1 + relu"]
        return engine

    monkeypatch.setattr(segmenting, "build_engine", build_engine)
    side = segmenting.tensorrt_fp16(context)
    logits = side.step(segmenting.inputs(context, 0))
    assert seen == [((2, 3, HEIGHT, WIDTH), "fp16", context.cache_dir), torch.float32]
    assert (logits.dtype, logits.shape) == (torch.float32, (2, 2, HEIGHT, WIDTH))
    assert side.layers() == ["conv1 + relu"]


def _drawing(change) -> Side:
    """A build function whose side draws the true masks, changed."""

    def build(context: Context) -> Side:
        _, masks = segmenting.truth(context)
        drawn = change(masks.clone())
        return Side(lambda _: torch.stack([-4.0 * drawn, 4.0 * drawn], 1))

    return build


def _shifted(pixels: int):
    return lambda masks: masks.roll(pixels, 2)


def test_masks_that_agree_are_told_in_figures(context):
    proof = masks_agree(_drawing(_shifted(0)), _drawing(_shifted(0)), segmenting.truth)
    assert (
        proof.show(context) == "IoU 1.0000 with the baseline's over 2 frames, 1.000 with the truth, the baseline 1.000"
    )


@pytest.mark.parametrize(
    ("baseline", "optimized", "reason"),
    [(0, 3, "the baseline's masks need 0.98"), (3, -3, "the baseline's masks need 0.98")],
)
def test_other_masks_are_disproved(context, baseline, optimized, reason):
    proof = masks_agree(_drawing(_shifted(baseline)), _drawing(_shifted(optimized)), segmenting.truth)
    with pytest.raises(DisprovedError, match=reason) as raised:
        proof.show(context)
    assert "\n" not in str(raised.value)


def test_masks_further_from_the_truth_are_disproved_even_if_close_to_the_baselines(context):
    def thinner(masks: Tensor) -> Tensor:
        kept = masks.flatten()
        kept[kept.nonzero()[::67]] = False  # 1.5 %
        return kept.view_as(masks)

    proof = masks_agree(_drawing(_shifted(0)), _drawing(thinner), segmenting.truth)
    with pytest.raises(DisprovedError, match=r"the baseline has 1.000, and at most 0.01 may be lost"):
        proof.show(context)


def test_a_side_is_closed_whatever_it_does(context):
    closed = []

    def failing(_: Context) -> Side:
        return Side(lambda _: 1 / 0, close=lambda: closed.append("closed"))

    with pytest.raises(ZeroDivisionError):
        masks_agree(failing, failing, segmenting.truth).show(context)
    assert closed == ["closed"]


@pytest.mark.usefixtures("flags")
def test_the_proof_holds_for_fp16_on_a_cpu(context):
    (proof,) = segment.OPTIMIZATIONS[0].proofs
    assert proof.show(context).startswith("IoU 0.99")


def test_iou_counts_pixels_of_all_frames_together():
    one, other = torch.zeros(2, 2, 2, dtype=torch.bool), torch.zeros(2, 2, 2, dtype=torch.bool)
    assert intersection_over_union(one, other) == 1
    one[0, 0], other[0, 0, 0], other[1, 1] = True, True, True
    assert intersection_over_union(one, other) == pytest.approx(1 / 4)


# --- dilated convolutions, which cuDNN may fuse nothing into ----------------------------------------------------------

PLAIN, DILATED = Geometry((1, 1), (1, 1), (1, 1), 1), Geometry((1, 1), (2, 2), (2, 2), 1)


def _cudnn(calls: list[str], error: Exception) -> Operators:
    """A stand-in for cuDNN with an engine for convolutions that are not dilated."""

    def fused(x: Tensor, weight: Tensor, *rest: object) -> Tensor:
        calls.append("fused")
        if rest[-1].dilation != (1, 1):
            raise error
        return x

    return replace(CUDNN, conv_relu=fused, conv_add_relu=fused)


def test_what_cudnn_cannot_fuse_is_computed_apart_and_told():
    calls = []
    some, told = dilated_fusion.operators(_cudnn(calls, RuntimeError("no engine")))
    x, weight, z, bias = torch.randn(1, 4, 8, 8), torch.randn(4, 4, 3, 3), torch.randn(1, 4, 8, 8), torch.randn(4)
    assert some.conv_relu(x, weight, bias, PLAIN) is x
    assert told() is None
    wanted = F.conv2d(x, weight, bias, 1, 2, 2)
    for _ in range(2):
        assert torch.equal(some.conv_relu(x, weight, bias, DILATED), wanted.relu())
        assert torch.equal(some.conv_add_relu(x, weight, z, bias, DILATED), (wanted + z).relu())
    assert len(calls) == 3, "a second call, which may be captured, asks for nothing that was refused"
    assert told() == "cuDNN fuses nothing into dilated convolutions with weights [4, 4, 3, 3], [4, 4, 3, 3]"


def test_pooling_is_not_compiled():
    some, _ = dilated_fusion.operators()
    assert some.max_pool is max_pool
    x, bias = torch.randn(2, 4, 9, 9), torch.randn(4)
    assert torch.equal(some.pool_relu(x, bias, 3, 2, 1), F.max_pool2d((x + bias.view(1, 4, 1, 1)).relu(), 3, 2, 1))


@pytest.mark.parametrize(
    ("geometry", "error"), [(PLAIN, RuntimeError("no engine")), (DILATED, torch.cuda.OutOfMemoryError("none left"))]
)
def test_other_failures_of_cudnn_are_raised(geometry, error):
    def fails(*_: object) -> Tensor:
        raise error

    some, _ = dilated_fusion.operators(replace(CUDNN, conv_relu=fails))
    with pytest.raises(type(error), match=str(error)):
        some.conv_relu(torch.randn(1, 4, 8, 8), torch.randn(4, 4, 3, 3), torch.randn(4), geometry)


# --- a video of the user's --------------------------------------------------------------------------------------------


def test_a_users_video_is_what_is_segmented(context, tmp_path):
    clip = Clip(192, 144, 10, seed=5)
    own = replace(context, settings={"video": str(clip_path(tmp_path, clip))})
    frames = segmenting.inputs(own, 0)
    assert frames.shape == (2, 3, *input_size(144, 192))
    decoded = [frame.flatten().sort().values for frame in on_host(bgr_frames(own), CPU)]
    for frame in frames:  # moved around its edges
        assert any(torch.equal(frame.flatten().sort().values, one) for one in decoded)
    compared, masks = segmenting.truth(own)
    assert masks is None
    assert len(compared) == 2
    words = masks_agree(segmenting.baseline, segmenting.baseline, segmenting.truth).show(own)
    assert words == "IoU 1.0000 with the baseline's over 2 frames"
