"""The training ladder on a CPU with a few small pictures: its rungs, what a step notices, and its proofs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gpugate.workload import Context, DisprovedError
from tests.support.small_models import SmallNet
from workloads.parts.compiled import NHWC
from workloads.parts.random_inputs import stamps
from workloads.parts.trainer import Recipe
from workloads.resnet18_training import WORKLOADS, proofs, training
from workloads.resnet18_training.pictures import seeded_pictures
from workloads.resnet18_training.training import (
    CPU_BOTTOM,
    WHOLE_STEP,
    PictureTrainer,
    Rung,
    TrainingLoop,
)

FULL, SMALL = WORKLOADS
PICTURES = seeded_pictures(0, 64)
CONTEXT = Context(torch.device("cpu"), items=16, seed=3, cache_dir=Path())
TINY = replace(CPU_BOTTOM, batch=8, piece=8)


@pytest.fixture(autouse=True)
def few_pictures_and_a_small_net(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "training_pictures", lambda context: PICTURES)
    monkeypatch.setattr(proofs, "CURVE_ITERATIONS", 3)
    monkeypatch.setattr(training, "architecture", SmallNet)
    proofs.loss_curve.cache_clear()


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


def test_a_picture_out_of_its_turn_loses_its_stamp() -> None:
    with closing(TrainingLoop(CONTEXT, TINY, PICTURES)) as loop:
        expected = loop._expected.clone()
        expected[[3, 12]] = expected[[12, 3]]
        loop._expected = expected
        asked = stamps(CONTEXT, 0)
        assert (loop.step(asked) == asked).tolist() == [place not in (3, 12) for place in range(16)]


def test_a_loss_that_is_no_number_loses_all_stamps() -> None:
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


# --- proofs, and the faults that disprove them ------------------------------------------------------------------------


def test_equal_losses_are_shown_and_others_disproved() -> None:
    assert "3 losses bit for bit those" in proofs.same_losses(CONTEXT, RUNGS["workers"], TINY)
    with pytest.raises(DisprovedError, match="off those of the rung before"):
        proofs.same_losses(CONTEXT, RUNGS["large batch"], TINY)


def test_close_losses_are_shown_and_others_disproved(monkeypatch: pytest.MonkeyPatch) -> None:
    for rung in (RUNGS["bf16 channels last"], RUNGS["bytes"]):
        assert "3 losses" in proofs.close_losses(CONTEXT, rung)
    proofs.loss_curve.cache_clear()
    monkeypatch.setitem(proofs.CLOSE_MEAN, torch.bfloat16, 1e-9)
    with pytest.raises(DisprovedError, match=r"1e-09 are allowed"):
        proofs.close_losses(CONTEXT, RUNGS["bf16 channels last"])


def test_a_curve_of_other_pictures_is_no_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    iterate = TrainingLoop.iterate
    monkeypatch.setattr(TrainingLoop, "iterate", lambda self: (~iterate(self)[0], torch.ones(())))
    with pytest.raises(DisprovedError, match="whose turn it was"):
        proofs.loss_curve(CONTEXT, TINY, 1)


def test_batches_that_arrive_whole_are_shown() -> None:
    said = proofs.batches_arrive(CONTEXT, RUNGS["bytes by a copy stream"])
    assert "12 batches of 16 bit for bit what the host sent" in said


def test_a_batch_that_changes_while_it_is_used_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    train = PictureTrainer.__call__

    def overwriting(self: PictureTrainer, images: Tensor, labels: Tensor, meanwhile: Callable[[], None]) -> Tensor:
        loss = train(self, images, labels, meanwhile)
        images[0, 0, 0, 0] += 1
        return loss

    monkeypatch.setattr(PictureTrainer, "__call__", overwriting)
    with pytest.raises(DisprovedError, match="12 of 12 batches"):
        proofs.batches_arrive(CONTEXT, RUNGS["bytes by a copy stream"])


def test_a_training_that_learned_is_told_from_one_that_did_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "PICTURES", 1024)
    rung = replace(TINY, batch=16, resident=True)
    with pytest.raises(DisprovedError, match=r"% of 512 unseen pictures after 0 iterations, 97 % are wanted"):
        proofs.learns_pictures(CONTEXT, rung, iterations=0)
