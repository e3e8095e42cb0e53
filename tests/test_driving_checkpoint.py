"""Checkpoints of the driving model: what they bring back, and what is refused before anything is changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("torchvision")
import workloads.driving.checkpoint as checkpoint
from tests.file_size import files_up_to
from tests.one_thread import one_thread  # noqa: F401  # in force by being here
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
    copy = tmp_path / "driving.pt"
    copy.write_bytes(saved.read_bytes())
    return copy


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


def _list(path: Path) -> None:
    torch.save([1, 2], path)


def _weights_alone(path: Path) -> None:
    torch.save(_trainer().model.state_dict(), path)


def _code(path: Path) -> None:
    torch.save({"format": checkpoint.FORMAT, "model": Path("/")}, path)


def _without(part: str):
    def incomplete(path: Path) -> None:
        content = torch.load(path, weights_only=True)
        del content[part]
        torch.save(content, path)

    return incomplete


def _other_momentum(path: Path) -> None:
    content = torch.load(path, weights_only=True)
    content["optimizer"]["state"][0]["momentum_buffer"] = torch.zeros(3)
    torch.save(content, path)


def _no_random_state(path: Path) -> None:
    content = torch.load(path, weights_only=True)
    content["random"] = {"cuda": content["random"]["cpu"]}
    torch.save(content, path)


BAD = {
    "missing": (_missing, "cannot be read"),
    "words": (_words, "truncated or no checkpoint"),
    "empty": (_empty, "truncated or no checkpoint"),
    "a byte missing": (_keep(0.9999999), "truncated or no checkpoint"),
    "half": (_keep(0.5), "truncated or no checkpoint"),
    "a list": (_list, "is 'list' and not"),
    "weights alone": (_weights_alone, "is None and not"),
    "code": (_code, "truncated or no checkpoint"),
    "no position": (_without("position"), "no usable 'position'"),
    "no optimizer": (_without("optimizer"), "no usable 'optimizer'"),
    "other momentum": (_other_momentum, "momentum of another model"),
    "no random state": (_no_random_state, "no state of the cpu random numbers"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_checkpoint_is_refused_and_changes_nothing(path: Path, name: str) -> None:
    damage, said = BAD[name]
    damage(path)
    trainer, random = _trainer(seed=1), torch.get_rng_state()
    with pytest.raises(ValueError, match=said) as raised:
        checkpoint.resume(path, trainer)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert _same(trainer, _trainer(seed=1))
    assert torch.equal(torch.get_rng_state(), random)


def test_another_models_checkpoint_names_the_difference(saved: Path) -> None:
    trainer = _trainer(rig=OTHER_RIG)
    with pytest.raises(ValueError, match=r"camera is float32 \[2, 1, 256\] there and float32 \[3, 1, 256\] here"):
        checkpoint.resume(saved, trainer)
    assert _same(trainer, _trainer(rig=OTHER_RIG))


def test_a_run_with_gradient_scaling_needs_its_scale(saved: Path) -> None:
    trainer = Trainer(RIG, Recipe(torch.float16), 0, CPU)
    with pytest.raises(ValueError, match="without gradient scaling"):
        checkpoint.resume(saved, trainer)


class _Touches:
    """What a hostile checkpoint is: unpickling it calls a function, here one that leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_checkpoint_cannot_run_code(path: Path, tmp_path: Path) -> None:
    torch.save({"format": checkpoint.FORMAT, "model": _Touches(tmp_path / "ran")}, path)
    with pytest.raises(ValueError, match="no checkpoint"):
        checkpoint.resume(path, _trainer())
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "driving.pt"
    path.write_text("the one before")
    with files_up_to(2**20), pytest.raises(OSError, match=r"File too large, \d\d MB.*make room") as raised:
        checkpoint.save(path, _trainer(), position=0)
    assert str(path) in str(raised.value)
    assert path.read_text() == "the one before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"nowhere/driving\.pt cannot be written"):
        checkpoint.save(tmp_path / "nowhere" / "driving.pt", _trainer(), position=0)
