"""The training ladder: what its rungs change, and what a step would notice. All on a CPU."""

from __future__ import annotations

from contextlib import closing
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from gpugate.catalogue import check
from gpugate.faults.fault import Fault
from gpugate.faults.mutate import apply
from gpugate.judging.bill import broken_limit
from gpugate.machine.environment import Environment, missing_needs
from gpugate.results.series import rung_number
from gpugate.workload import BASELINE, Context, Limit, for_device_class
from workloads.parts.padded_stem import PaddedStem
from workloads.resnet18_training import WORKLOADS, receipts, size, step_size
from workloads.resnet18_training import rungs as training_rungs
from workloads.resnet18_training import step as training_step
from workloads.resnet18_training.cifar import seeded_pictures
from workloads.resnet18_training.data import PreparedPictures
from workloads.resnet18_training.loop import TrainingLoop, training_side
from workloads.resnet18_training.rungs import CPU_BOTTOM, WHOLE_STEP, Rung
from workloads.resnet18_training.sample_order import sample_order
from workloads.resnet18_training.step import NHWC, Recipe, Trainer

FULL, SMALL = WORKLOADS
PICTURES = seeded_pictures(0, 64)
CONTEXT = Context(torch.device("cpu"), items=16, seed=3, cache_dir=Path())
TINY = replace(CPU_BOTTOM, batch=8, piece=8)
SM_90 = ("sm_90", "cuda")


class SmallNet(nn.Module):
    """Stands in for ResNet-18, which would make these tests slow: it begins and ends alike."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 16, 3, stride=2, bias=False), nn.BatchNorm2d(16)
        self.fc = nn.Linear(16, classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.bn1(self.conv1(images)))
        return self.fc(torch.relu(self.bn2(self.conv2(hidden))).mean((2, 3)))


ARCHITECTURE = training_step.architecture


@pytest.fixture(autouse=True)
def small_net(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_step, "architecture", SmallNet)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs run as they are, which keeps tests away from the C++ compiler; perf_tests compiles for real."""
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda graph, examples, **settings: graph)


def losses(rung: Rung, iterations: int = 2) -> list[float]:
    with closing(TrainingLoop(CONTEXT, rung, PICTURES)) as loop:
        return [float(loop.iterate()[1]) for _ in range(iterations)]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_can_be_measured_as_declared(workload) -> None:
    check(workload)


def test_every_rung_is_compared_with_the_one_before_it() -> None:
    names = [one.name for one in FULL.optimizations if rung_number(FULL, one.name)]
    assert names == [
        "workers-8",
        "pinned",
        "non-blocking",
        "uint8-v2",
        "batch-512",
        "amp-fp16",
        "compile",
        "copy-stream",
        "channels-last",
        "resident-uint8",
        "whole-step-graph",
    ]
    assert [one.name for one in SMALL.optimizations if rung_number(SMALL, one.name)] == [
        "workers-2",
        "amp-bf16",
        "batch-32",
        "compile",
    ]


def test_the_whole_ladder_is_the_top_rung_against_the_bottom_one() -> None:
    whole, top = FULL.optimization("whole-ladder"), FULL.optimization("whole-step-graph")
    assert whole.build == top.build
    assert whole.compared_with == BASELINE
    assert for_device_class(whole.min_speedup, SM_90) >= 15
    assert for_device_class(whole.min_speedup, ("sm_70", "cuda")) >= 5.85
    assert rung_number(FULL, "whole-ladder") is None


def test_a_rung_that_may_lose_says_why() -> None:
    for workload in WORKLOADS:
        for optimization in workload.optimizations:
            if min(optimization.min_speedup.values()) < 0.97:
                assert optimization.why, optimization.name


def test_a_rung_that_changes_more_than_its_name_says_why() -> None:
    for name in ("batch-512", "channels-last", "resident-uint8", "whole-step-graph"):
        assert FULL.optimization(name).why, name


def test_every_rung_that_compiles_needs_a_compiler() -> None:
    for workload in WORKLOADS:
        for optimization in workload.optimizations:
            assert optimization.needs.cpp_compiler == optimization.build.keywords["rung"].recipe.compiled


def test_without_a_compiler_such_a_rung_is_skipped_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    h200 = Environment("cuda", "NVIDIA H200", "a CPU", 16, "3.12.3", {}, compute_capability="9.0")
    assert missing_needs(FULL.optimization("batch-512").needs, h200) is None
    for name in ("compile", "copy-stream", "channels-last", "resident-uint8", "whole-step-graph", "whole-ladder"):
        assert "C++ compiler" in missing_needs(FULL.optimization(name).needs, h200).reason


def test_side_streams_must_hide_a_fifth_of_what_they_copy() -> None:
    for optimization in FULL.optimizations:
        limits = {limit.counter: limit for limit in for_device_class(optimization.contract, SM_90).engaged}
        assert ("overlap_fraction" in limits) == optimization.build.keywords["rung"].prefetched
        if "overlap_fraction" in limits:
            assert limits["overlap_fraction"].at_least == 0.2


def limits(name: str) -> dict[str, Limit]:
    contract = for_device_class(FULL.optimization(name).contract, SM_90)
    return {limit.counter: limit for limit in (*contract.engaged, *contract.limits)}


def test_no_gpu_may_lose_by_workers_amp_or_a_compiler() -> None:
    for name in ("workers-8", "uint8-v2", "amp-fp16", "compile"):
        assert min(FULL.optimization(name).min_speedup.values()) >= 1, name


@pytest.mark.parametrize(("name", "gain"), [("amp-fp16", 1.3), ("compile", 1.5)])
def test_what_a_loader_may_hide_is_gained_on_cached_data(name: str, gain: float) -> None:
    def is_broken(gained: float) -> bool:
        found, reference = {"cached_step_ms": 100 / gained}, {"cached_step_ms": 100.0}
        return broken_limit(limits(name)["cached_step_ms"], found, reference) is not None

    assert not is_broken(gain + 0.01)
    assert is_broken(gain - 0.01)


def test_bytes_cross_the_bus_and_are_a_quarter_of_floats() -> None:
    with closing(TrainingLoop(CONTEXT, RUNGS["bytes"], PICTURES)) as loop:
        assert loop.source.take().images.dtype is torch.uint8
    sent = [PreparedPictures(PICTURES, sample_order(3, 64, 16), 224, uint8)[0][0].nbytes for uint8 in (False, True)]
    assert sent[1] / sent[0] == 0.25 < limits("uint8-v2")["host_to_device_bytes"].at_most_of_reference < 0.5


def changed(rung: Rung, below: Rung) -> set[str]:
    both = [(one.name, rung, below) for one in fields(Rung)] + [
        (one.name, rung.recipe, below.recipe) for one in fields(Recipe)
    ]
    return {name for name, ours, theirs in both if getattr(ours, name) != getattr(theirs, name)} - {"recipe"}


def test_every_rung_changes_what_its_name_says() -> None:
    chain = [training_rungs.BOTTOM, *(optimization.build.keywords["rung"] for optimization in FULL.optimizations[:-1])]
    assert [changed(rung, below) for below, rung in pairwise(chain)] == [
        {"workers"},
        {"pinned"},
        {"non_blocking"},
        {"uint8"},
        {"batch"},
        {"half"},
        {"compiled"},
        {"prefetched"},
        {"layout", "autotuned"},
        {"resident", "stem_channels", "workers", "pinned", "non_blocking", "uint8", "prefetched"},
        {"whole_graph", "fused_update", "gathered_pool", "tuned"},
    ]


@pytest.mark.parametrize(("workload", "kind"), [(FULL, "cuda"), (SMALL, "cpu")])
def test_batches_and_pieces_fill_a_step(workload, kind) -> None:
    items = workload.sizes[kind].items
    for optimization in workload.optimizations:
        rung = optimization.build.keywords["rung"]
        assert items % rung.batch == rung.batch % rung.piece == 0


def test_a_loader_holds_at_most_two_steps_in_stock() -> None:
    stocks = [optimization.build.keywords["rung"].stock_steps(512) for optimization in FULL.optimizations]
    assert stocks == [1, 1, 1, 1, 1, 1, 1, 2, 2, 0, 0, 0]
    assert training_rungs.BOTTOM.stock_steps(512) == 0


@pytest.mark.parametrize(("side_pixels", "area_ratio"), [(224, 1), (32, 49)])
def test_size_is_what_pytorch_counts(side_pixels: int, area_ratio: int) -> None:
    values = {"read": 0, "written": 0}

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        values["read"] += inputs[0].numel()
        values["written"] += output.numel()

    with torch.device("meta"):
        model = torchvision.models.resnet18(weights=None, num_classes=10)
        images = torch.empty(2, 3, side_pixels, side_pixels)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(count)
    with FlopCounterMode(display=False) as counter:
        model(images).sum().backward()
    weights = sum(weight.numel() for weight in model.parameters())
    moved = 3 * values["read"] - images.numel() + 2 * values["written"] + step_size.WEIGHT_PASSES * weights
    assert size(2, area_ratio).flops == counter.get_total_flops()
    assert size(2, area_ratio).bytes == 4 * moved


def test_receipts_are_never_zero_and_differ_from_set_to_set() -> None:
    first = receipts(CONTEXT, 0)
    assert first.shape == (16,)
    assert float(first.min()) >= 0.5
    assert torch.equal(first, receipts(CONTEXT, 0))
    assert not torch.equal(first, receipts(CONTEXT, 1))


RUNGS = {
    "bottom": TINY,
    "workers": replace(TINY, workers=2),
    "large batch": replace(TINY, batch=16),
    "bytes": replace(TINY, uint8=True),
    "copy stream": replace(TINY, workers=2, batch=16, prefetched=True),
    "bytes by a copy stream": replace(TINY, uint8=True, workers=2, batch=16, prefetched=True),
    "bf16 channels last": replace(TINY, recipe=Recipe(half=torch.bfloat16, layout=NHWC)),
    "resident": replace(TINY, resident=True, recipe=Recipe(stem_channels=4)),
    "fused": replace(TINY, batch=16, resident=True, recipe=Recipe(fused_update=True)),
}


@pytest.mark.parametrize("name", RUNGS)
def test_a_step_gives_back_the_receipts_of_pictures_in_their_place(name: str) -> None:
    side = training_side(CONTEXT, RUNGS[name], PICTURES)
    with closing(side):
        for index in range(2):
            asked = receipts(CONTEXT, index)
            assert torch.equal(side.step(asked), asked)
        side.finish()
        assert side.engaged() is None
        assert (side.cached_step is None) == RUNGS[name].resident
        if side.cached_step is not None:
            side.cached_step()


def test_the_next_batch_is_fetched_before_the_loss_scaler_waits_for_gradients() -> None:
    with closing(TrainingLoop(CONTEXT, RUNGS["copy stream"], PICTURES)) as loop:
        log: list[str] = []
        fetch_next, update = loop.source.fetch_next, loop.trainer.scaler.step
        loop.source.fetch_next = lambda: log.append("fetch") or fetch_next()
        loop.trainer.scaler.step = lambda optimizer: log.append("update") or update(optimizer)
        loop.iterate()
        copied = loop.source._prefetcher._copied
        loop.iterate()
    assert log == ["fetch", "update"] * 2
    assert copied == 2


def test_a_picture_out_of_its_turn_loses_its_receipt() -> None:
    with closing(TrainingLoop(CONTEXT, TINY, PICTURES)) as loop:
        expected = loop._expected.clone()
        expected[[3, 12]] = expected[[12, 3]]
        loop._expected = expected
        asked = receipts(CONTEXT, 0)
        assert (loop.step(asked) == asked).tolist() == [place not in (3, 12) for place in range(16)]


def test_a_damaged_picture_loses_its_receipt() -> None:
    with closing(TrainingLoop(CONTEXT, TINY, PICTURES)) as loop:
        marks = loop.source.take

        def damaged():
            batch = marks()
            batch.sound[5] = False
            return batch

        loop.source.take = damaged
        assert loop.iterate()[0].tolist() == [place != 5 for place in range(8)]


def test_a_loss_that_is_no_number_loses_all_receipts() -> None:
    with closing(TrainingLoop(CONTEXT, TINY, PICTURES)) as loop:
        assert loop.iterate()[0].all()
        with torch.no_grad():
            loop.trainer.model.fc.bias[0] = torch.nan
        assert not loop.iterate()[0].any()


@pytest.mark.parametrize("kind", ["skip-work", "stale"])
def test_a_fault_shows_in_the_output(kind: str) -> None:
    side = apply(Fault(kind), lambda context: training_side(context, replace(TINY, batch=16), PICTURES))(CONTEXT)
    with closing(side):
        outputs = [(side.step(asked), asked, side.finish()) for asked in (receipts(CONTEXT, n) for n in range(2))]
    output, asked, _ = outputs[-1]
    assert not torch.equal(output, asked)


def test_rungs_that_must_not_change_arithmetic_do_not() -> None:
    expected = losses(TINY)
    assert losses(RUNGS["workers"]) == expected
    assert losses(RUNGS["copy stream"]) == losses(RUNGS["large batch"])
    assert losses(RUNGS["bytes"]) == pytest.approx(expected, rel=1e-4)
    assert losses(RUNGS["bytes by a copy stream"]) == pytest.approx(losses(RUNGS["large batch"]), rel=1e-4)
    assert losses(RUNGS["fused"]) == pytest.approx(losses(RUNGS["large batch"]), rel=1e-4)
    assert losses(RUNGS["resident"]) == pytest.approx(expected, rel=1e-4)
    assert losses(RUNGS["bf16 channels last"]) == pytest.approx(expected, rel=0.05)


def test_sides_built_twice_train_alike_and_leave_the_global_seed_alone() -> None:
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    assert losses(TINY) == losses(TINY)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_trainings_losses_fall() -> None:
    found = losses(replace(TINY, batch=16), iterations=80)
    assert np.mean(found[-8:]) < 0.8 * np.mean(found[:8])


def test_the_net_is_resnet18_with_ten_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_step, "architecture", ARCHITECTURE)
    model = training_step.net(CONTEXT, Recipe(layout=NHWC, stem_channels=4))
    assert sum(weight.numel() for weight in model.parameters()) == step_size.WEIGHTS
    assert model.training
    assert model(torch.randn(2, 4, 32, 32)).shape == (2, 10)


def test_a_stem_for_padded_images_is_the_same_convolution() -> None:
    conv = nn.Conv2d(3, 4, 7, stride=2, padding=3, bias=False)
    images = torch.randn(2, 3, 32, 32)
    padded = torch.cat([images, torch.zeros(2, 1, 32, 32)], 1)
    torch.testing.assert_close(PaddedStem(conv, 4)(padded), conv(images))


def test_a_skipped_first_update_leaves_a_fused_momentum_of_zero() -> None:
    trainer = Trainer(CONTEXT, Recipe(fused_update=True), batch=8)
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    before = [weight.detach().clone() for weight in trainer.model.parameters()]
    images, labels = torch.randn(8, 3, 32, 32), torch.arange(8)
    images[0] = torch.inf
    trainer(images, labels)
    assert trainer.scaler.get_scale() == 4, "the overflow was noticed"
    assert all(torch.equal(weight, one) for weight, one in zip(trainer.model.parameters(), before, strict=True))
    assert not any(state["momentum_buffer"].any() for state in trainer.optimizer.state.values())


def test_a_fused_training_begins_like_one_that_is_not() -> None:
    images, labels = torch.randn(8, 3, 32, 32), torch.arange(8)
    trainers = [Trainer(CONTEXT, Recipe(fused_update=fused), batch=8) for fused in (False, True)]
    for trainer in trainers:
        trainer(images, labels)
    for one, other in zip(*(trainer.model.parameters() for trainer in trainers), strict=True):
        torch.testing.assert_close(one, other)


def test_state_is_everything_that_training_changes() -> None:
    trainer = Trainer(CONTEXT, Recipe(fused_update=True), batch=8)
    before = [tensor.detach().clone() for tensor in trainer.state()]
    images, labels = torch.randn(8, 3, 32, 32), torch.arange(8)
    first = float(trainer(images, labels))
    assert float(trainer(images, labels)) != first
    with torch.no_grad():
        for tensor, value in zip(trainer.state(), before, strict=True):
            tensor.copy_(value)
    assert float(trainer(images, labels)) == first
    assert len(before) == len({tensor.data_ptr() for tensor in trainer.state()}) == 8 + 6 + 8


@pytest.mark.usefixtures("no_compiler")
def test_compilation_is_one_graph_an_iteration_and_one_for_resident_images() -> None:
    for rung in (
        replace(TINY, recipe=Recipe(compiled=True)),
        replace(TINY, uint8=True, recipe=Recipe(compiled=True)),
        replace(TINY, resident=True, recipe=Recipe(compiled=True)),
    ):
        side = training_side(CONTEXT, rung, PICTURES)
        with closing(side):
            for index in range(2):
                side.step(receipts(CONTEXT, index))
            assert side.engaged() is None
        assert losses(rung) == pytest.approx(losses(TINY), rel=1e-4)


@pytest.mark.parametrize("tuned", [False, True])
def test_block_sizes_are_timed_where_the_recipe_says_so(monkeypatch: pytest.MonkeyPatch, tuned: bool) -> None:
    seen = []

    def compiled(graph, examples, config_patches):
        seen.append(config_patches["max_autotune_pointwise"])
        return graph

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compiled)
    losses(replace(TINY, recipe=Recipe(compiled=True, tuned=tuned)), iterations=1)
    assert seen == [tuned]


@pytest.mark.usefixtures("no_compiler")
def test_a_graph_break_is_noticed() -> None:
    rung = replace(TINY, recipe=Recipe(compiled=True))
    side = apply(Fault("graph-break"), lambda context: training_side(context, rung, PICTURES))(CONTEXT)
    with closing(side):
        side.step(receipts(CONTEXT, 0))
        assert "graphs were compiled, not 1" in side.engaged()


def test_what_is_not_as_the_rung_says_is_noticed() -> None:
    with closing(TrainingLoop(CONTEXT, RUNGS["bf16 channels last"], PICTURES)) as loop:
        loop.trainer.model.conv2.to(memory_format=torch.contiguous_format)
        assert "conv2.weight is not in torch.channels_last" in loop.problem()
    with closing(TrainingLoop(CONTEXT, RUNGS["workers"], PICTURES)) as loop:
        loop.source._pieces.unpinned = 3
        assert loop.problem() == "3 tensors of the loader are pageable"
        loop.source.close()
        assert loop.problem() == "0 of 2 worker processes are alive"
    rung = replace(WHOLE_STEP, batch=16, side_pixels=32, autotuned=False, recipe=RUNGS["fused"].recipe)
    with closing(TrainingLoop(CONTEXT, rung, PICTURES)) as loop:
        assert loop.problem() == "no CUDA graph was captured"
