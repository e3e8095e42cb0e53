"""Stages of trainings and streams as ranges, with the items of their batch."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

pytest.importorskip("torchvision")
from gpugate.workload import Context
from tests.support.one_thread import one_thread  # noqa: F401  # in force by being here
from workloads.driving import training
from workloads.driving.delivery import Batch
from workloads.driving.scenes import WAYPOINTS, Rig
from workloads.resnet18_training import loop, step
from workloads.resnet18_training.cifar import seeded_pictures
from workloads.resnet18_training.rungs import CPU_BOTTOM

CPU = torch.device("cpu")
Stages = list[tuple[str, int | None]]


def watched(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Stages:
    seen: Stages = []

    def stage(name: str, payload: int | None = None) -> AbstractContextManager[object]:
        seen.append((name, payload))
        return nullcontext()

    monkeypatch.setattr(module, "stage", stage)
    return seen


def test_an_iteration_of_driving(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched(training, monkeypatch)
    images = torch.zeros(3, 2, 3, 32, 64, dtype=torch.uint8)
    batch = Batch(images, torch.zeros(3, dtype=torch.long), torch.zeros(3, WAYPOINTS, 2), torch.arange(3))
    training.Trainer(Rig(2, 32, 64), training.Recipe(), 0, CPU).train(batch)
    assert seen == [("forward", 3), ("backward", 3)]


def test_an_iteration_of_resnet18_and_the_copies_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, copied = watched(step, monkeypatch), watched(loop, monkeypatch)
    context = Context(CPU, items=8, seed=3, cache_dir=Path())
    with closing(loop.TrainingLoop(context, replace(CPU_BOTTOM, batch=8, piece=4), seeded_pictures(0, 16))) as begun:
        begun.iterate()
    assert seen == [("forward", 8), ("backward", 8)]
    assert copied == [("copy", 4), ("copy", 4)]
