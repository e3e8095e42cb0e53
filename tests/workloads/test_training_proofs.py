"""Proofs of the training ladder, and the faults that disprove them, on a CPU with a few small pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gpugate.errors import DisprovedError
from gpugate.workload import Context
from tests.support.small_models import SmallNet
from workloads.parts.compiled import NHWC
from workloads.parts.trainer import Recipe
from workloads.resnet18_training import proofs as training_proofs
from workloads.resnet18_training import training
from workloads.resnet18_training.pictures import seeded_pictures
from workloads.resnet18_training.training import CPU_BOTTOM, PictureTrainer, TrainingLoop

PICTURES = seeded_pictures(0, 64)
CONTEXT = Context(torch.device("cpu"), items=16, seed=3, cache_dir=Path())
TINY = replace(CPU_BOTTOM, batch=8, piece=8)
WORKERS = replace(TINY, workers=2)
LARGE_BATCH = replace(TINY, batch=16)
BYTES = replace(WORKERS, uint8=True)
COPY_STREAM = replace(BYTES, batch=16, prefetched=True)
BF16 = replace(TINY, recipe=Recipe(torch.bfloat16, layout=NHWC))


@pytest.fixture(autouse=True)
def few_pictures_and_a_small_net(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_proofs, "training_pictures", lambda context: PICTURES)
    monkeypatch.setattr(training_proofs, "CURVE_ITERATIONS", 3)
    monkeypatch.setattr(training, "architecture", SmallNet)
    training_proofs.loss_curve.cache_clear()


def test_equal_losses_are_shown_and_others_disproved() -> None:
    assert "3 losses bit for bit those" in training_proofs.same_losses(CONTEXT, WORKERS, TINY)
    with pytest.raises(DisprovedError, match="off those of the rung before"):
        training_proofs.same_losses(CONTEXT, LARGE_BATCH, TINY)


def test_close_losses_are_shown_and_others_disproved(monkeypatch: pytest.MonkeyPatch) -> None:
    for rung in (BF16, BYTES):
        assert "3 losses" in training_proofs.close_losses(CONTEXT, rung)
    training_proofs.loss_curve.cache_clear()
    monkeypatch.setitem(training_proofs.CLOSE_MEAN, torch.bfloat16, 1e-9)
    with pytest.raises(DisprovedError, match=r"1e-09 are allowed"):
        training_proofs.close_losses(CONTEXT, BF16)


def test_a_curve_of_other_pictures_is_no_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    iterate = TrainingLoop.iterate
    monkeypatch.setattr(TrainingLoop, "iterate", lambda self: (~iterate(self)[0], torch.ones(())))
    with pytest.raises(DisprovedError, match="whose turn it was"):
        training_proofs.loss_curve(CONTEXT, TINY, 1)


def test_batches_that_arrive_whole_are_shown() -> None:
    said = training_proofs.batches_arrive(CONTEXT, COPY_STREAM)
    assert "12 batches of 16 bit for bit what the host sent" in said
    assert "0 were still being copied" in said, "on a CPU"


def test_a_batch_that_changes_while_it_is_used_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    train = PictureTrainer.__call__

    def overwriting(self: PictureTrainer, images: Tensor, labels: Tensor, meanwhile: Callable[[], None]) -> Tensor:
        loss = train(self, images, labels, meanwhile)
        images[0, 0, 0, 0] += 1
        return loss

    monkeypatch.setattr(PictureTrainer, "__call__", overwriting)
    with pytest.raises(DisprovedError, match="12 of 12 batches"):
        training_proofs.batches_arrive(CONTEXT, COPY_STREAM)


def test_a_training_that_learned_is_told_from_one_that_did_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_proofs, "PICTURES", 1024)
    rung = replace(TINY, batch=16, resident=True)
    with pytest.raises(DisprovedError, match=r"% of 512 unseen pictures after 0 iterations, 97 % are wanted"):
        training_proofs.learns_pictures(CONTEXT, rung, iterations=0)
