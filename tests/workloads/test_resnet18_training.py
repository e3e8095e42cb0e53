"""The training ladder: what its rungs change, and what a step would notice. All on a CPU."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpugate.workload import Context
from tests.support.small_models import SmallNet
from workloads.parts.compiled import NHWC
from workloads.parts.trainer import Recipe
from workloads.resnet18_training import WORKLOADS, training
from workloads.resnet18_training.pictures import seeded_pictures
from workloads.resnet18_training.training import (
    CPU_BOTTOM,
    WHOLE_STEP,
    PictureTrainer,
    Rung,
    TrainingLoop,
    receipts,
)

FULL, SMALL = WORKLOADS
PICTURES = seeded_pictures(0, 64)
CONTEXT = Context(torch.device("cpu"), items=16, seed=3, cache_dir=Path())
TINY = replace(CPU_BOTTOM, batch=8, piece=8)


@pytest.fixture(autouse=True)
def small_net(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "architecture", SmallNet)


def losses(rung: Rung, iterations: int = 2) -> list[float]:
    """The losses of iterations whose pictures came in their turn, of a loop that is as its rung says."""
    with closing(TrainingLoop(CONTEXT, rung, PICTURES)) as loop:
        done = [loop.iterate() for _ in range(iterations)]
        assert loop.why_not() is None
    assert all(bool(in_turn.all()) for in_turn, _ in done)
    return [float(loss) for _, loss in done]


@pytest.mark.parametrize(("workload", "kind"), [(FULL, "cuda"), (SMALL, "cpu")])
def test_batches_and_pieces_fill_a_step(workload, kind) -> None:
    items = workload.sizes[kind].items
    for optimization in workload.optimizations:
        rung = optimization.build.keywords["rung"]
        assert items % rung.batch == rung.batch % rung.piece == 0


RUNGS = {
    "bottom": TINY,
    "workers": replace(TINY, workers=2),
    "large batch": replace(TINY, batch=16),
    "bytes": replace(TINY, uint8=True),
    "copy stream": replace(TINY, workers=2, batch=16, prefetched=True),
    "bytes by a copy stream": replace(TINY, uint8=True, workers=2, batch=16, prefetched=True),
    "bf16 channels last": replace(TINY, recipe=Recipe(torch.bfloat16, layout=NHWC)),
    "resident": replace(TINY, resident=True, recipe=Recipe(stem_channels=4)),
    "fused": replace(TINY, batch=16, resident=True, recipe=Recipe(fused=True)),
    "compiled": replace(TINY, recipe=Recipe(compiled=True)),
    "compiled bytes": replace(TINY, uint8=True, recipe=Recipe(compiled=True)),
    "compiled, resident": replace(TINY, resident=True, recipe=Recipe(compiled=True)),
}
CLOSE_TO = {TINY.batch: "bottom", 2 * TINY.batch: "large batch"}
SAME_BITS = ("workers", "copy stream")


def test_a_picture_out_of_its_turn_loses_its_receipt() -> None:
    with closing(TrainingLoop(CONTEXT, TINY, PICTURES)) as loop:
        expected = loop._expected.clone()
        expected[[3, 12]] = expected[[12, 3]]
        loop._expected = expected
        asked = receipts(CONTEXT, 0)
        assert (loop.step(asked) == asked).tolist() == [place not in (3, 12) for place in range(16)]


def test_a_loss_that_is_no_number_loses_all_receipts() -> None:
    with closing(TrainingLoop(CONTEXT, TINY, PICTURES)) as loop:
        assert loop.iterate()[0].all()
        with torch.no_grad():
            loop.trainer.model.fc.bias[0] = torch.nan
        assert not loop.iterate()[0].any()


@pytest.mark.usefixtures("no_compiler")
def test_rungs_that_must_not_change_arithmetic_do_not() -> None:
    """Each compiled rung is one graph, and one for resident images: a loop that is not so names the problem."""
    found = {name: losses(rung) for name, rung in RUNGS.items()}
    for name, rung in RUNGS.items():
        allowed = 0.0 if name in SAME_BITS else 0.05 if rung.recipe.half is not None else 1e-4
        assert found[name] == pytest.approx(found[CLOSE_TO[rung.batch]], rel=allowed, abs=0), name


def test_a_skipped_first_update_leaves_a_fused_momentum_of_zero() -> None:
    trainer = PictureTrainer(CONTEXT, Recipe(fused=True), batch=8)
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    before = [weight.detach().clone() for weight in trainer.model.parameters()]
    images, labels = torch.randn(8, 3, 32, 32), torch.arange(8)
    images[0] = torch.inf
    trainer(images, labels)
    assert trainer.scaler.get_scale() == 4, "the overflow was noticed"
    assert all(torch.equal(weight, one) for weight, one in zip(trainer.model.parameters(), before, strict=True))
    assert not any(state["momentum_buffer"].any() for state in trainer.optimizer.state.values())


def test_what_is_not_as_the_rung_says_is_noticed() -> None:
    with closing(TrainingLoop(CONTEXT, RUNGS["bf16 channels last"], PICTURES)) as loop:
        loop.trainer.model.conv2.to(memory_format=torch.contiguous_format)
        assert "conv2.weight is not in torch.channels_last" in loop.why_not()
    rung = replace(WHOLE_STEP, batch=16, side_pixels=32, recipe=RUNGS["fused"].recipe)
    with closing(TrainingLoop(CONTEXT, rung, PICTURES)) as loop:
        assert loop.why_not() == "no CUDA graph was captured"
