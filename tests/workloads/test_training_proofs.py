"""Proofs of the training ladder, and the faults that disprove them, on a CPU with a few small pictures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gpugate.errors import DisprovedError
from gpugate.workload import Context
from workloads.parts.prefetcher import Batch, Copy, HostOrder, Prefetcher
from workloads.resnet18_training import proofs as training_proofs
from workloads.resnet18_training import step as training_step
from workloads.resnet18_training.cifar import seeded_pictures
from workloads.resnet18_training.digits import digits
from workloads.resnet18_training.loop import TrainingLoop
from workloads.resnet18_training.rungs import CPU_BOTTOM
from workloads.resnet18_training.step import NHWC, Recipe, Trainer

PICTURES = seeded_pictures(0, 64)
CONTEXT = Context(torch.device("cpu"), items=16, seed=3, cache_dir=Path())
TINY = replace(CPU_BOTTOM, batch=8, piece=8)
WORKERS = replace(TINY, workers=2)
LARGE_BATCH = replace(TINY, batch=16)
BYTES = replace(WORKERS, uint8=True)
COPY_STREAM = replace(BYTES, batch=16, prefetched=True)
BF16 = replace(TINY, recipe=Recipe(half=torch.bfloat16, layout=NHWC))


def small_net(classes: int) -> nn.Module:
    """Stands in for ResNet-18, which would make these tests slow."""
    conv, norm = nn.Conv2d(3, 16, 7, stride=4, bias=False), nn.BatchNorm2d(16)
    return nn.Sequential(conv, norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, classes))


@pytest.fixture(autouse=True)
def few_pictures_and_a_small_net(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_proofs, "training_pictures", lambda context: PICTURES)
    monkeypatch.setattr(training_proofs, "CURVE_ITERATIONS", 3)
    monkeypatch.setattr(training_step, "architecture", small_net)
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


def test_the_host_sums_as_the_device_does() -> None:
    images = torch.randint(256, (2, 8, 8, 3), dtype=torch.uint8)
    assert torch.equal(training_proofs.byte_sums_on_host(images), training_proofs.byte_sums(images))


def test_copies_that_never_ran_beside_a_use_show_nothing() -> None:
    for device, beside in (("cuda", 1), ("cpu", 0)):
        training_proofs._demand_overlap(torch.device(device), beside)
    with pytest.raises(DisprovedError, match="each of 12 copies was over before the batch before it was in use"):
        training_proofs._demand_overlap(torch.device("cuda"), 0)


def test_what_must_compute_the_same_is_compared_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda *given, **how: pytest.fail("compiled"))
    compiled = Recipe(compiled=True)
    rung, below = (replace(one, recipe=compiled) for one in (COPY_STREAM, replace(COPY_STREAM, prefetched=False)))
    assert "losses bit for bit" in training_proofs.same_losses(CONTEXT, rung, below)


class FlipsABit(Prefetcher):
    """A prefetcher whose third batch has one wrong bit."""

    taken = 0

    def take(self, ahead: bool = True) -> tuple[Tensor, ...]:
        self.taken += 1
        images, told = super().take(ahead)
        if self.taken == 3:
            images[0, 0, 0, 0] ^= 1
        return images, told


def test_one_wrong_bit_of_one_batch_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_proofs, "Prefetcher", FlipsABit)
    with pytest.raises(DisprovedError, match="1 of 12 batches are not what the host sent"):
        training_proofs.batches_arrive(CONTEXT, COPY_STREAM)


def test_a_batch_that_changes_while_it_is_used_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    train = Trainer.__call__

    def overwriting(self: Trainer, images: Tensor, labels: Tensor, meanwhile: Callable[[], None]) -> Tensor:
        loss = train(self, images, labels, meanwhile)
        images[0, 0, 0, 0] += 1
        return loss

    monkeypatch.setattr(Trainer, "__call__", overwriting)
    with pytest.raises(DisprovedError, match="12 of 12 batches"):
        training_proofs.batches_arrive(CONTEXT, COPY_STREAM)


TRAINING, LINGERING, PREPARING = 0.1, 0.1, 0.15  # seconds of a batch: only both together outlast the loader


class SlowDevice:
    """A device that takes its time, and a host that goes on meanwhile: work is done when its time has come."""

    def __init__(self) -> None:
        self.now = self.free = 0.0
        self.pending: list[tuple[float, Callable[[], object]]] = []

    def enqueue(self, duration: float, work: Callable[[], object]) -> None:
        self.free = max(self.free, self.now) + duration
        self.pending.append((self.free, work))

    def go_on_until(self, then: float) -> None:
        self.now = max(self.now, then)
        while self.pending and self.pending[0][0] <= self.now:
            self.pending.pop(0)[1]()

    def wait(self) -> None:
        self.go_on_until(self.free)


class OrderedCopies(HostOrder):
    """A copy waits for the last use of its slot."""

    def __init__(self, device: SlowDevice) -> None:
        self.device, self.used = device, [0.0, 0.0]

    def end_use(self, slot: int) -> None:
        self.used[slot] = self.device.free

    def copy(self, slot: int, copies: Sequence[Copy]) -> None:
        self.device.go_on_until(self.used[slot])
        super().copy(slot, copies)

    def copying(self, slot: int) -> bool:
        return self.device.free > self.device.now

    def join(self) -> None:
        self.device.wait()


class HastyCopies(OrderedCopies):
    """A copy begins at once, whoever still uses its slot."""

    copy = HostOrder.copy


@pytest.fixture
def slow_device(monkeypatch: pytest.MonkeyPatch) -> SlowDevice:
    """Sums and training run on it; an update that is not fused waits for it, to learn whether a gradient overflowed."""
    device, byte_sums = SlowDevice(), training_proofs.byte_sums

    def late_sums(images: Tensor) -> Tensor:
        found = torch.zeros(len(images), dtype=torch.int64)
        device.enqueue(0, lambda: found.copy_(byte_sums(images)))
        return found

    def train(trainer: Trainer, images: Tensor, labels: Tensor, meanwhile: Callable[[], None]) -> None:
        device.enqueue(TRAINING, lambda: None)
        meanwhile()
        if not trainer.recipe.fused_update:
            device.wait()

    monkeypatch.setattr(training_proofs, "byte_sums", late_sums)
    monkeypatch.setattr(training_proofs, "_linger", lambda _: device.enqueue(LINGERING, lambda: None))
    monkeypatch.setattr(Trainer, "__call__", train)
    return device


def prefetcher_with(order: OrderedCopies) -> Callable[..., Prefetcher]:
    def prepared(pieces: Iterator[Batch], each: int) -> Iterator[Batch]:
        for piece in pieces:
            order.device.go_on_until(order.device.now + PREPARING / each)
            yield piece

    def made(batches: Iterator[Batch], device: torch.device, each: int) -> Prefetcher:
        fetcher = Prefetcher(prepared(batches, each), device, each)
        fetcher._order = order
        return fetcher

    return made


def test_a_copy_into_a_batch_in_use_is_noticed(slow_device: SlowDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where the device lags behind: not if the loop waited for it, or used a batch for less than the loader."""
    monkeypatch.setattr(training_proofs, "Prefetcher", prefetcher_with(HastyCopies(slow_device)))
    with pytest.raises(DisprovedError, match="of 12 batches are not what the host sent"):
        training_proofs.batches_arrive(CONTEXT, COPY_STREAM)


def test_copies_that_wait_for_the_last_use_are_shown(slow_device: SlowDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_proofs, "Prefetcher", prefetcher_with(OrderedCopies(slow_device)))
    said = training_proofs.batches_arrive(CONTEXT, COPY_STREAM)
    assert "bit for bit" in said
    assert "12 were still being copied" in said


def weights_of(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The models whose accuracy was asked for, of which all is right; few pictures."""
    models: list[nn.Module] = []
    monkeypatch.setattr(training_proofs, "PICTURES", 1024)
    monkeypatch.setattr(training_proofs, "accuracy", lambda loop, model, pictures: models.append(model) or 1.0)
    return models


def test_what_is_judged_is_the_mean_of_the_second_halfs_weights(
    judged: list[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    iterate, weights = TrainingLoop.iterate, []

    def noting(loop: TrainingLoop) -> tuple[Tensor, Tensor]:
        done = iterate(loop)
        weights.append(weights_of(loop.trainer.model))
        return done

    monkeypatch.setattr(TrainingLoop, "iterate", noting)
    training_proofs.learns_pictures(CONTEXT, replace(TINY, batch=16, resident=True), iterations=8)
    torch.testing.assert_close(weights_of(judged[0]), torch.stack(weights[4:]).mean(0))
    assert not torch.equal(weights[6], weights[7])


def test_the_statistics_of_the_judged_are_those_of_its_own_weights(
    judged: list[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    images, make = [], training_proofs._images
    monkeypatch.setattr(training_proofs, "_images", lambda *asked: images.append(make(*asked)) or images[-1])
    training_proofs.learns_pictures(CONTEXT, replace(TINY, batch=16, resident=True), iterations=8)
    conv, norm = judged[0][0], judged[0][1]
    with torch.no_grad():
        torch.testing.assert_close(norm.running_mean, conv(images[0]).mean((0, 2, 3)), rtol=1e-3, atol=1e-4)


def test_a_training_that_learned_is_told_from_one_that_did_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_proofs, "PICTURES", 1024)
    rung = replace(TINY, batch=16, resident=True)
    with pytest.raises(DisprovedError, match=r"% of 512 unseen pictures after 0 iterations, 97 % are wanted"):
        training_proofs.learns_pictures(CONTEXT, rung, iterations=0)


@pytest.fixture
def scikit_learn(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Its digits: 50 of 8 x 8 values from 0 to 16."""
    random = np.random.default_rng(0)
    found = SimpleNamespace(images=random.integers(0, 17, (50, 8, 8)).astype(float), target=np.arange(50) % 10)
    package, datasets = ModuleType("sklearn"), ModuleType("sklearn.datasets")
    datasets.load_digits = lambda: found
    monkeypatch.setitem(sys.modules, "sklearn", package)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", datasets)
    return found


def test_digits_become_small_pictures_and_a_fifth_is_kept_for_the_test(scikit_learn: SimpleNamespace) -> None:
    seen, unseen = digits()
    assert seen.pixels.shape == (40, 3, 32, 32)
    assert unseen.pixels.shape == (10, 3, 32, 32)
    assert seen.pixels.dtype == torch.uint8
    assert unseen.labels.tolist() == [0, 5] * 5
    assert torch.equal(seen.pixels[:, 0], seen.pixels[:, 2])
    middle_of_first = float(seen.pixels[0, 0, 2:30:4, 2:30:4].double().mean()) / 255 * 16
    assert middle_of_first == pytest.approx(scikit_learn.images[1].mean(), abs=1), "digit 0 is kept for the test"


def test_without_scikit_learn_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"handwritten digits .* is missing: pip install scikit-learn"):
        digits()
