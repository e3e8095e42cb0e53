"""The driving workload as far as a CPU goes: its model, its data paths, and how a run ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torchvision.io import decode_jpeg as _decode_on_host

import workloads.driving as driving
from gpugate.machine.environment import Environment, missing_needs
from gpugate.workload import Context
from tests.support.one_thread import one_thread  # noqa: F401  # in force by being here
from tests.support.patience import HANGS_S
from tests.support.small_models import small_encoders
from workloads.driving import training
from workloads.driving.frames import WAYPOINTS, Rig
from workloads.driving.loading import order_table, why_no_jpeg
from workloads.driving.training import Pipeline, Plan, build, driving_model, frames_of
from workloads.parts import loader
from workloads.parts.compiled import NHWC
from workloads.parts.kept_files import replacing_file
from workloads.parts.trainer import Recipe

DRIVING, WORKERS, SWEEP = driving.WORKLOADS
RIG = Rig(cameras=2, height=32, width=64)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "SMALL_RIG", RIG)
    monkeypatch.setitem(training.FRAMES, "cpu", 8)
    monkeypatch.setattr(loader, "ENDING_S", HANGS_S)


@pytest.fixture
def context(cache_dir: Path) -> Context:
    return Context(device=CPU, items=4, seed=0, cache_dir=cache_dir)


@pytest.fixture
def built(context):
    """Builds sides that are closed at the end, whatever happens."""
    sides = []

    def make(name_or_plan, context=context):
        if isinstance(name_or_plan, Plan):
            side = build(name_or_plan, context)
        else:
            workload = WORKERS if name_or_plan.startswith("workers") else DRIVING
            side = workload.optimization(name_or_plan).build(context)
        sides.append(side)
        return side

    yield make
    for side in sides:
        side.close()


def test_small_batches_are_several_iterations_of_the_same_step(context, built):
    side = built(Plan(batch=2))
    for step in range(3):
        stamps = driving.stamps(context, step)
        assert torch.equal(side.step(stamps), stamps[:, None].expand(4, 3))


def test_cached_steps_take_nothing_from_the_order(context, built):
    side = built("workers-2")
    stamps = driving.stamps(context, 0)
    side.step(stamps)
    assert all(side.cached_step().shape == (4, 3) for _ in range(3))
    assert torch.equal(side.step(stamps), stamps[:, None].expand(4, 3))
    assert side.stock_steps == 2


@pytest.mark.parametrize("name", ["workers-0", "workers-2"])
def test_a_corrupt_jpeg_is_named_and_nothing_hangs(context, tmp_path, built, name):
    context = replace(context, cache_dir=tmp_path)
    frames = frames_of(context)
    frame = int(order_table(len(frames), context.seed)[5])
    jpeg = frames.jpegs[frame][1].numpy().tobytes()
    damaged = frames.path.read_bytes().replace(jpeg, jpeg[:60] + bytes(len(jpeg) - 60))
    with replacing_file(frames.path) as path:
        path.write_bytes(damaged)
    side = built(name, context)
    side.step(driving.stamps(context, 0))
    with pytest.raises(ValueError, match=f"frame {frame} and camera 1 in {frames.path}") as raised:
        side.step(driving.stamps(context, 1))
    assert "\n" not in str(raised.value)
    side.close()
    assert multiprocessing.active_children() == []


def test_a_worker_that_dies_ends_the_run_and_leaves_nothing(context, built, monkeypatch):
    """The signal of the worker's death may interrupt anything: it must find the test waiting for the error."""
    monkeypatch.setattr(loader, "STUCK_S", 2 * HANGS_S)
    monkeypatch.setattr(loader, "DYING_S", HANGS_S)
    side = built("workers-2")
    side.step(driving.stamps(context, 0))
    workers = multiprocessing.active_children()
    mine = tuple(f"torch_{process.pid}_" for process in workers)

    def steps_after_killing() -> None:
        os.kill(workers[0].pid, signal.SIGKILL)
        for step in range(10):
            side.step(driving.stamps(context, step))

    with pytest.raises(RuntimeError, match=f"DataLoader worker.*{workers[0].pid}"):
        steps_after_killing()
    side.close()
    assert multiprocessing.active_children() == []
    assert [path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(mine)] == []  # noqa: S108


def test_a_gpu_that_decodes_no_jpeg_is_skipped_with_the_cause_and_the_next_step(monkeypatch):
    """GPU 0 decodes, and GPU 1 does not."""

    def decode(encoded: Tensor, mode: object, device: torch.device) -> Tensor:
        if device.index == 1:
            raise RuntimeError("Failed to initialize nvjpeg with hardware backend: 7\nException raised from ...")
        return _decode_on_host(encoded, mode)

    monkeypatch.setattr("torchvision.io.decode_jpeg", decode)
    needs = WORKERS.optimization("nvjpeg").needs
    h200 = Environment("cuda", "NVIDIA H200", "a CPU", 16, "3.12.3", {}, compute_capability="9.0", gpu_index=1)
    why_no_jpeg.cache_clear()
    missing, none = missing_needs(needs, h200), missing_needs(needs, replace(h200, gpu_index=0))
    why_no_jpeg.cache_clear()
    assert missing.names == ("nvjpeg",)
    assert missing.reason.startswith("GPU 1 decodes no JPEG (Failed to initialize nvjpeg with hardware backend: 7): ")
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video" in missing.reason
    assert none is None


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(layout=NHWC),
        Recipe(layout=NHWC, stem_channels=4),
        Recipe(torch.bfloat16),
        Recipe(fused=True),
        Recipe(compiled=True),
    ],
)
def test_a_recipe_trains_to_the_same_loss(context, recipe):
    """Two updates: the third loss depends on what the backward passes and the optimizer did."""
    losses = []
    for each in (Recipe(), recipe):
        with torch.random.fork_rng(devices=[]), small_encoders():
            torch.manual_seed(0)
            pipeline = Pipeline(context, Plan(batch=4, recipe=each))
            losses.append(torch.stack([pipeline.iterate()[1] for _ in range(3)]))
            assert pipeline.trainer.why_not() is None
            assert pipeline.trainer.model.missing_channels == each.stem_channels - 3
    assert losses[1] == pytest.approx(losses[0], rel=0.02 if recipe.half is None else 0.1)


def test_the_model_sees_every_camera_and_the_command():
    model = driving_model(RIG, 0).eval()
    images = torch.randint(256, (1, 2, 3, 32, 64), dtype=torch.uint8)
    with torch.no_grad():
        waypoints = model(images, torch.tensor([0]))
        assert waypoints.shape == (1, WAYPOINTS, 2)
        assert not torch.allclose(model(images, torch.tensor([1])), waypoints)
        for camera in range(2):
            dark = images.clone()
            dark[:, camera] = 0
            assert not torch.allclose(model(dark, torch.tensor([0])), waypoints)
        assert not torch.allclose(model(images.flip(1), torch.tensor([0])), waypoints)
