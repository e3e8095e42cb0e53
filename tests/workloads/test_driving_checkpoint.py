"""Checkpoints of the driving model: what they bring back, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import workloads.driving.checkpoint as checkpoint
from tests.support.full_disk import files_up_to
from tests.support.one_thread import one_thread  # noqa: F401  # in force by being here
from tests.support.small_models import small_encoder  # noqa: F401  # in force by being here
from workloads.driving.frames import WAYPOINTS, Rig
from workloads.driving.loading import Batch
from workloads.driving.training import DrivingTrainer
from workloads.parts.trainer import Recipe

RIG, OTHER_RIG = Rig(2, 32, 64), Rig(3, 32, 64)
CPU = torch.device("cpu")


def _batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (2, 2, 3, 32, 64), generator=generator, dtype=torch.uint8)
    return Batch(images, torch.tensor([0, 3]), torch.zeros(2, WAYPOINTS, 2), torch.tensor([0, 1]))


def _trainer(seed: int = 0, rig: Rig = RIG, recipe: Recipe = Recipe()) -> DrivingTrainer:  # noqa: B008  # frozen
    return DrivingTrainer(rig, recipe, seed, CPU)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint after one iteration; no test may change it."""
    path = tmp_path_factory.mktemp("checkpoints") / "driving.pt"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        trainer = _trainer()
        trainer.train(_batch())
        checkpoint.save(path, trainer, position=2)
    return path


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "cannot be read"),
    "words": (lambda path: path.write_text("weights, honestly"), "cannot be read"),
    "the last byte": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "cannot be read"),
    "of another program": (lambda path: torch.save({"weight": torch.ones(1)}, path), "cannot be read"),
    "code": (lambda path: torch.save({"model": Path("/")}, path), "Weights only load failed"),
    "of more cameras": (lambda path: checkpoint.save(path, _trainer(rig=OTHER_RIG), 0), "size mismatch for camera"),
    "of FP16": (lambda path: checkpoint.save(path, _trainer(recipe=Recipe(torch.float16)), 0), "scaled otherwise"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_checkpoint_is_refused_in_one_sentence(saved: Path, tmp_path: Path, name: str) -> None:
    (damage, said), path = BAD[name], tmp_path / "driving.pt"
    path.write_bytes(saved.read_bytes())
    damage(path)
    with pytest.raises(ValueError, match=said) as raised:
        checkpoint.resume(path, _trainer(seed=1))
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "driving.pt"
    path.write_text("the one before")
    says = r"driving\.pt cannot be written \(.*make room"
    with files_up_to(2**20), pytest.raises(OSError, match=says):
        checkpoint.save(path, _trainer(), position=0)
    assert path.read_text() == "the one before"
    assert list(tmp_path.iterdir()) == [path]
