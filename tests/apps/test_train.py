"""The training program: a run that goes on from a checkpoint is the uninterrupted one, and errors are a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("torchvision")
from apps.train.__main__ import main
from tests.support.one_thread import one_thread  # noqa: F401  # in force by being here
from tests.support.small_models import small_encoder  # noqa: F401  # in force by being here
from workloads.driving import checkpoint, training
from workloads.driving.frames import Rig
from workloads.driving.training import DrivingTrainer
from workloads.parts.trainer import Recipe

RIG = Rig(cameras=2, height=32, width=64)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "SMALL_RIG", RIG)
    monkeypatch.setitem(training.FRAMES, "cpu", 8)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_a_resumed_run_ends_as_the_uninterrupted_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, half, resumed = (str(tmp_path / name) for name in ("whole", "half", "resumed"))
    common = ("--batch", "2", "--cache", str(tmp_path / "cache"))
    assert main([*common, "--steps", "4", "--checkpoint", whole]) == 0
    assert main([*common, "--steps", "2", "--checkpoint", half]) == 0
    assert main([*common, "--steps", "2", "--resume", half, "--checkpoint", resumed]) == 0
    ends = [DrivingTrainer(RIG, Recipe(), seed, torch.device("cpu")) for seed in (1, 2)]
    assert [checkpoint.resume(Path(path), end) for path, end in zip((whole, resumed), ends, strict=True)] == [8, 8]
    states = [end.state() for end in ends]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert capsys.readouterr().out.count(" frames/s; the loss went from ") == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--path", "pinned"), "--path pinned needs a GPU"), (("--resume", "nowhere"), "checkpoint nowhere cannot be")],
)
def test_what_cannot_run_is_one_sentence(
    arguments: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--cache", str(tmp_path), *arguments]) == 1
    assert capsys.readouterr().err.startswith(f"error: {said}")
