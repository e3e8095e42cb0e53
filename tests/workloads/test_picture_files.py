"""Small pictures are the same by one thread and by two, and nearly the same where they are decoded at their size."""

from pathlib import Path

import pytest
import torch

from gpugate.catalogue import check
from gpugate.workload import Context
from workloads import picture_files

CONTEXT = Context(torch.device("cpu"), items=2, seed=3, cache_dir=Path())
(WORKLOAD,) = picture_files.WORKLOADS


def test_can_be_measured_as_declared() -> None:
    check(WORKLOAD)


@pytest.mark.parametrize("optimization", WORKLOAD.optimizations, ids=lambda one: one.name)
def test_small_pictures_agree(optimization: picture_files.Optimization, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture_files, "FILES", 3)
    wanted = torch.tensor([2, 0])
    reference = WORKLOAD.baseline(CONTEXT)
    expected = reference.step(wanted)
    side = optimization.build(CONTEXT)
    output = side.step(wanted)
    assert output.shape == (2, 3, 192, 256)
    error = float((output - expected).norm() / expected.norm())
    assert error <= optimization.tolerated.relative_l2
    assert (error > 0) == (optimization.name == "reduced")
    assert side.step(wanted.flip(0)).equal(output.flip(0))
    side.close()
