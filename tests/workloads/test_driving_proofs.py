"""The proofs of the driving workload, which fail when what they claim is broken, and its checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpugate.workload import Context, DisprovedError
from tests.support.full_disk import files_up_to
from tests.support.one_thread import one_thread  # noqa: F401  # in force by being here
from tests.support.small_models import small_encoder  # noqa: F401  # in force by being here
from workloads.driving import checkpoint, loading, proofs, training
from workloads.driving.frames import WAYPOINTS, Rig
from workloads.driving.loading import Batch, Source
from workloads.driving.proofs import RESUMES, WORKSPACE, copies_intact, deterministic, learns, repeats
from workloads.driving.training import DrivingTrainer, Plan
from workloads.parts.trainer import Recipe

CPU = torch.device("cpu")
RIG, OTHER_RIG = Rig(cameras=2, height=32, width=64), Rig(3, 32, 64)
PLAN = Plan(batch=4)
REPEATS = repeats(PLAN)


@pytest.fixture
def context(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setattr(training, "SMALL_RIG", RIG)
    monkeypatch.setitem(training.FRAMES, "cpu", 8)
    monkeypatch.setattr(proofs, "COPIED_BATCHES", 4)
    monkeypatch.setattr(proofs, "MOST_ITERATIONS", 8)  # in bf16 seconds each, where a CPU lacks it
    monkeypatch.setattr(proofs, "FEWEST_ITERATIONS", 8)
    proofs._fp32_losses.cache_clear()
    return Context(device=CPU, items=4, seed=0, cache_dir=cache_dir)


def test_a_run_that_depends_on_the_moment_is_disproved(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    train = DrivingTrainer.train

    def disturbed(trainer: DrivingTrainer, batch: object) -> torch.Tensor:
        with torch.no_grad():
            trainer.model.to_waypoints.bias[0] += int.from_bytes(os.urandom(2), "little") * 1e-9
        return train(trainer, batch)

    monkeypatch.setattr(DrivingTrainer, "train", disturbed)
    with pytest.raises(DisprovedError, match="tensors are not the first run's, the first of them"):
        REPEATS.show(context)


def test_a_resumed_run_ends_in_the_same_bits(context: Context) -> None:
    assert "resumed after 3 of 6 iterations" in RESUMES.show(context)
    assert not [path for path in context.cache_dir.iterdir() if "checkpoint" in path.name]


RESUME = checkpoint.resume
FORGETS = {
    "random numbers": (torch, "set_rng_state", lambda *_: None),
    "momentum": (torch.optim.SGD, "load_state_dict", lambda *_: None),
    "the position": (checkpoint, "resume", lambda *words: 0 * RESUME(*words)),
    "weights": (torch.nn.Module, "load_state_dict", lambda *_: None),
}


@pytest.mark.parametrize("forgets", FORGETS.values(), ids=FORGETS)
def test_a_checkpoint_that_forgets_something_is_disproved(
    context: Context, monkeypatch: pytest.MonkeyPatch, forgets: tuple[object, str, object]
) -> None:
    monkeypatch.setattr(*forgets)
    with pytest.raises(DisprovedError, match="tensors are not the uninterrupted run's"):
        RESUMES.show(context)


def _in_deterministic_mode(run: Callable[[], object]) -> None:
    with deterministic():
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.benchmark
        assert os.environ[WORKSPACE] == ":4096:8"
        run()


def _unpool() -> None:
    values, indices = torch.nn.functional.max_pool2d(torch.rand(1, 1, 4, 4), 2, return_indices=True)
    torch.nn.functional.max_unpool2d(values, indices, 2)


def test_deterministic_mode_names_what_cannot_be_so_and_puts_the_environment_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(WORKSPACE, raising=False)
    with pytest.raises(DisprovedError, match="deterministic mode leaves max_unpooling2d"):
        _in_deterministic_mode(_unpool)
    assert WORKSPACE not in os.environ
    assert torch.backends.cuda.flash_sdp_enabled()


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(torch.bfloat16)])
def test_a_recipe_that_learns_is_shown(context: Context, recipe: Recipe) -> None:
    assert "the loss went from" in learns(Plan(batch=4, recipe=recipe)).show(context)


def test_no_learning_is_disproved(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.SGD, "step", lambda *_: None)
    with pytest.raises(DisprovedError, match="it must fall to"):
        learns(PLAN).show(context)


def test_a_curve_apart_from_fp32s_is_disproved(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "_fp32_losses", lambda *_: [1.0] * 6 + [0.01] * 6)
    with pytest.raises(DisprovedError, match="they may end"):
        learns(PLAN).show(context)


def test_a_copy_that_is_overwritten_is_disproved(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    make, taken = loading.blocking, []

    def late(*arguments: object) -> Source:
        source = make(*arguments)

        def take() -> Batch:
            taken.append(source.take())
            if len(taken) == 3:
                taken[-1].images[0, 0, 0, 0] ^= 255
            return taken[-1]

        return replace(source, take=take)

    monkeypatch.setattr(loading, "blocking", late)
    with pytest.raises(DisprovedError, match="1 of 4 batches, the first of them number 2, are not the host's"):
        copies_intact(PLAN).show(context)


# --- checkpoints: what they bring back, and what is refused -----------------------------------------------------------


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
    "of more cameras": (
        lambda path: checkpoint.save(path, _trainer(rig=OTHER_RIG), 0),
        "size mismatch for camera",
    ),
    "of FP16": (
        lambda path: checkpoint.save(path, _trainer(recipe=Recipe(torch.float16)), 0),
        "scaled otherwise",
    ),
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
