"""Checkpoints of the driving model: what they bring back, and what is refused before anything is changed."""

from __future__ import annotations

import copy
import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchvision")
import workloads.driving.checkpoint as checkpoint
from tests.support.bad_checkpoints import Touches
from tests.support.full_disk import files_up_to
from tests.support.one_thread import one_thread  # noqa: F401  # in force by being here
from tests.support.small_encoder import small_encoder  # noqa: F401  # in force by being here
from workloads.driving.delivery import Batch
from workloads.driving.scenes import WAYPOINTS, Rig
from workloads.driving.training import Recipe, Trainer

RIG, OTHER_RIG = Rig(2, 32, 64), Rig(3, 32, 64)
CPU = torch.device("cpu")


def _batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (2, 2, 3, 32, 64), generator=generator, dtype=torch.uint8)
    return Batch(images, torch.tensor([0, 3]), torch.zeros(2, WAYPOINTS, 2), torch.tensor([0, 1]))


def _trainer(seed: int = 0, rig: Rig = RIG) -> Trainer:
    return Trainer(rig, Recipe(), seed, CPU)


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


@pytest.fixture
def path(saved: Path, tmp_path: Path) -> Path:
    copied = tmp_path / "driving.pt"
    copied.write_bytes(saved.read_bytes())
    return copied


def _same(one: Trainer, other: Trainer) -> bool:
    ours, theirs = one.state(), other.state()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_everything_that_decides_the_next_iteration_comes_back(saved: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        whole = _trainer()
        losses = [whole.train(_batch()) for _ in range(2)]
        torch.manual_seed(99)
        resumed = _trainer(seed=1)
        assert not torch.equal(resumed.model.to_token.weight, whole.model.to_token.weight)
        assert checkpoint.resume(saved, resumed) == 2
        assert torch.equal(resumed.train(_batch()), losses[1])
    assert _same(resumed, whole)


def _write(content: object, path: Path) -> None:
    """Writes a checkpoint as `save` does: only its content can be wrong."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    checksum = hashlib.sha256(buffer.getvalue()).hexdigest()
    path.write_bytes(f"{checkpoint.FORMAT} {checksum}\n".encode() + buffer.getvalue())


def _with(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Writes a whole checkpoint with a right checksum and another content."""

    def changed(path: Path) -> None:
        content = torch.load(io.BytesIO(path.read_bytes().partition(b"\n")[2]), weights_only=True)
        change(content)
        _write(content, path)

    return changed


def _flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _group(content: dict[str, Any]) -> dict[str, Any]:
    return content["optimizer"]["param_groups"][0]


INVALID_MT19937 = torch.full((5056,), 255, dtype=torch.uint8)
BAD = {
    "missing": (Path.unlink, "cannot be read"),
    "words": (lambda path: path.write_text("weights, honestly"), "is no 'gpugate driving checkpoint 2'"),
    "the last byte": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "truncated or damaged"),
    "a flipped bit": (_flip_a_bit, "truncated or damaged"),
    "a list": (lambda path: _write([1, 2], path), "no usable 'model'"),
    "a position before the first": (_with(lambda content: content.update(position=-5)), "has the position -5"),
    "no optimizer": (_with(lambda content: content.pop("optimizer")), "no usable 'optimizer'"),
    "a weight without values": (
        _with(lambda content: content["model"].update({"to_token.bias": content["model"]["to_token.bias"].to("meta")})),
        "is meta float32",
    ),
    "no groups": (_with(lambda content: content["optimizer"].pop("param_groups")), "is of another optimizer"),
    "a group without momentum": (_with(lambda content: _group(content).pop("momentum")), "momentum is missing there"),
    "a rate in words": (_with(lambda content: _group(content).update(lr="high")), "lr is str there and float here"),
    "fewer parameters": (_with(lambda content: _group(content)["params"].pop()), "momentum of another model"),
    "no random state": (_with(lambda content: content["random"].pop("cpu")), "no state of the cpu random numbers"),
    "an invalid random state": (
        _with(lambda content: content["random"].update(cpu=INVALID_MT19937)),
        "random numbers that PyTorch does not take",
    ),
}


@pytest.fixture(scope="module")
def other() -> Trainer:
    """A trainer of another seed than the checkpoint; no test may change it."""
    return _trainer(seed=1)


def _all_of(trainer: Trainer) -> dict[str, Any]:
    """Returns the state that a refused checkpoint must not change."""
    beside = {"optimizer": trainer.optimizer.state_dict(), "scaler": trainer.scaler.state_dict()}
    return copy.deepcopy({**trainer.state(), **beside, "random": torch.get_rng_state()})


@pytest.mark.parametrize("name", BAD)
def test_a_bad_checkpoint_is_refused_and_changes_nothing(path: Path, name: str, other: Trainer) -> None:
    damage, said = BAD[name]
    damage(path)
    before = _all_of(other)
    with pytest.raises(ValueError, match=said) as raised:
        checkpoint.resume(path, other)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)
    torch.testing.assert_close(_all_of(other), before, rtol=0, atol=0)


def test_another_models_checkpoint_names_the_difference(saved: Path) -> None:
    trainer = _trainer(rig=OTHER_RIG)
    with pytest.raises(ValueError, match=r"camera is float32 \[2, 1, 256\] there and float32 \[3, 1, 256\] here"):
        checkpoint.resume(saved, trainer)
    assert _same(trainer, _trainer(rig=OTHER_RIG))


def test_another_gradient_scaling_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "half.pt"
    trainer = Trainer(RIG, Recipe(torch.float16), 0, CPU)
    checkpoint.save(path, trainer, position=0)
    assert checkpoint.resume(path, trainer) == 0
    _with(lambda content: content["scaler"].pop("scale"))(path)
    trainer.scaler.load_state_dict({**trainer.scaler.state_dict(), "scale": 2.0})
    before = _all_of(trainer)
    with pytest.raises(ValueError, match="scale is missing there and float here"):
        checkpoint.resume(path, trainer)
    torch.testing.assert_close(_all_of(trainer), before, rtol=0, atol=0)


def test_a_checkpoint_cannot_run_code(path: Path, tmp_path: Path) -> None:
    _write({"model": Touches(tmp_path / "ran")}, path)
    with pytest.raises(ValueError, match="no checkpoint"):
        checkpoint.resume(path, _trainer())
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "driving.pt"
    path.write_text("the one before")
    with files_up_to(2**20), pytest.raises(OSError, match=r"File too large, \d+ MB.*make room") as raised:
        checkpoint.save(path, _trainer(), position=0)
    assert str(path) in str(raised.value)
    assert path.read_text() == "the one before"
    assert list(tmp_path.iterdir()) == [path]
