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


def _missing(path: Path) -> None:
    path.unlink()


def _words(path: Path) -> None:
    path.write_text("weights, honestly")


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _keep(share: float):
    def truncated(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])

    return truncated


def _first_40_bytes(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def _list(path: Path) -> None:
    _write([1, 2], path)


def _weights_alone(path: Path) -> None:
    torch.save(_trainer().model.state_dict(), path)


def _code(path: Path) -> None:
    _write({"model": Path("/")}, path)


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


def _flipped(path: Path) -> None:
    """Flips a bit of a weight."""
    content = bytearray(path.read_bytes())
    content[content.index(_weight().numpy().tobytes())] ^= 1
    path.write_bytes(content)


def _weight() -> torch.Tensor:
    """Returns a weight whose bytes in the file are those in memory."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        trainer = _trainer()
        trainer.train(_batch())
    return trainer.model.to_token.weight.detach()


def _format_1(path: Path) -> None:
    content = path.read_bytes().replace(b"checkpoint 2 ", b"checkpoint 1 ", 1)
    path.write_bytes(content)


def _group(content: dict[str, Any]) -> dict[str, Any]:
    return content["optimizer"]["param_groups"][0]


def _momentum(content: dict[str, Any]) -> dict[Any, Any]:
    return content["optimizer"]["state"]


INVALID_MT19937 = torch.full((5056,), 255, dtype=torch.uint8)
OTHER_OPTIMIZER, OTHER_MOMENTUM = "is of another optimizer", "momentum of another model"
BAD = {
    "missing": (_missing, "cannot be read"),
    "words": (_words, "is no 'gpugate driving checkpoint 2'"),
    "empty": (_empty, "is no 'gpugate driving checkpoint 2'"),
    "a byte missing": (_keep(0.9999999), "truncated or damaged"),
    "half": (_keep(0.5), "truncated or damaged"),
    "half of its first line": (_first_40_bytes, "truncated or damaged"),
    "a flipped bit": (_flipped, "truncated or damaged"),
    "the format before": (_format_1, "is no 'gpugate driving checkpoint 2'"),
    "a list": (_list, "no usable 'model'"),
    "weights alone": (_weights_alone, "is no 'gpugate driving checkpoint 2'"),
    "code": (_code, "holds what no checkpoint does"),
    "no position": (_with(lambda content: content.pop("position")), "no usable 'position'"),
    "true for a position": (_with(lambda content: content.update(position=True)), "no usable 'position'"),
    "a position before the first": (_with(lambda content: content.update(position=-5)), "has the position -5"),
    "no optimizer": (_with(lambda content: content.pop("optimizer")), "no usable 'optimizer'"),
    "a sparse weight": (
        _with(
            lambda content: content["model"].update({"to_token.bias": content["model"]["to_token.bias"].to_sparse()})
        ),
        "is sparse float32",
    ),
    "a weight without values": (
        _with(lambda content: content["model"].update({"to_token.bias": content["model"]["to_token.bias"].to("meta")})),
        "is meta float32",
    ),
    "a part too many": (_with(lambda content: content["optimizer"].update(more=1)), OTHER_OPTIMIZER),
    "no groups": (_with(lambda content: content["optimizer"].pop("param_groups")), OTHER_OPTIMIZER),
    "two groups": (_with(lambda content: content["optimizer"]["param_groups"].append({})), "usable 'param_groups'"),
    "a group of words": (_with(lambda content: content["optimizer"].update(param_groups=["all"])), "'param_groups'"),
    "a group without parameters": (_with(lambda content: _group(content).pop("params")), OTHER_OPTIMIZER),
    "a group without momentum": (_with(lambda content: _group(content).pop("momentum")), "momentum is missing there"),
    "a group without a switch": (
        _with(lambda content: _group(content).pop("nesterov")),
        "nesterov is missing there and bool here",
    ),
    "a group with more": (_with(lambda content: _group(content).update(betas=(0.9, 0.99))), "betas is tuple there"),
    "a rate in words": (_with(lambda content: _group(content).update(lr="high")), "lr is str there and float here"),
    "fewer parameters": (_with(lambda content: _group(content)["params"].pop()), OTHER_MOMENTUM),
    "momentum in a list": (_with(lambda content: content["optimizer"].update(state=[])), OTHER_OPTIMIZER),
    "other momentum": (
        _with(lambda content: _momentum(content)[0].update(momentum_buffer=torch.zeros(3))),
        OTHER_MOMENTUM,
    ),
    "momentum of no mapping": (_with(lambda content: _momentum(content).update({0: 1.0})), OTHER_MOMENTUM),
    "momentum of nothing": (_with(lambda content: _momentum(content).update({10**6: {}})), OTHER_MOMENTUM),
    "momentum by name": (_with(lambda content: _momentum(content).update(first={})), OTHER_MOMENTUM),
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


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
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


def test_a_run_with_gradient_scaling_needs_its_scale(saved: Path) -> None:
    trainer = Trainer(RIG, Recipe(torch.float16), 0, CPU)
    with pytest.raises(ValueError, match="without gradient scaling"):
        checkpoint.resume(saved, trainer)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda scaler: scaler.pop("scale"), "scale is missing there and float here"),
        (lambda scaler: scaler.update(scale="large"), "scale is str there and float here"),
        (lambda scaler: scaler.update(more=1), "more is int there and missing here"),
    ],
)
def test_another_gradient_scaling_is_refused_and_changes_nothing(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    path, half = tmp_path / "half.pt", Recipe(torch.float16)
    trainer = Trainer(RIG, half, 0, CPU)
    assert trainer.scaler.is_enabled()
    checkpoint.save(path, trainer, position=0)
    assert checkpoint.resume(path, trainer) == 0
    _with(lambda content: change(content["scaler"]))(path)
    trainer.scaler.load_state_dict({**trainer.scaler.state_dict(), "scale": 2.0})
    before = _all_of(trainer)
    with pytest.raises(ValueError, match=said):
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


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"nowhere/driving\.pt cannot be written"):
        checkpoint.save(tmp_path / "nowhere" / "driving.pt", _trainer(), position=0)
