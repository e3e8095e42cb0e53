"""The driving frames: what they show, how they are stored, in which order they come, and what is noticed on arrival."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("torchvision")
from torchvision.io import encode_jpeg

import workloads.driving.frames as driving_frames
from workloads.driving.frames import WAYPOINTS, Frames, Rig, scene, stored_frames
from workloads.driving.loading import (
    EPOCHS,
    Batch,
    Delivery,
    Place,
    batch_order,
    normalized,
    order_table,
    picture_sums,
)

RIG, COUNT = Rig(cameras=2, height=32, width=64), 6
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Frames:
    """Frames that no test may change."""
    return stored_frames(tmp_path_factory.mktemp("driving"), RIG, COUNT, seed=3)


@pytest.fixture
def cache_dir(kept: Frames, tmp_path: Path) -> Path:
    """A folder with a copy of the frames, to be damaged."""
    shutil.copytree(kept.folder, tmp_path / kept.folder.name)
    return tmp_path


def test_a_scene_depends_on_seed_and_number_alone() -> None:
    pictures, command, waypoints = scene(RIG, 3, 1)
    again = scene(RIG, 3, 1)
    assert np.array_equal(pictures, again[0])
    assert (command, waypoints.tolist()) == (again[1], again[2].tolist())
    for other in (scene(RIG, 3, 2), scene(RIG, 4, 1)):
        assert not np.array_equal(pictures, other[0])
        assert not np.array_equal(waypoints, other[2])


def test_what_is_stored_is_what_was_drawn(kept: Frames) -> None:
    assert len(kept) == COUNT
    for frame in range(COUNT):
        pictures, command, waypoints = scene(RIG, 3, frame)
        assert np.array_equal(kept.raw[frame].numpy(), pictures)
        assert int(kept.commands[frame]) == command
        assert np.array_equal(kept.waypoints[frame].numpy(), waypoints)
        assert kept.raw_sums[frame].tolist() == pictures.reshape(2, -1).sum(1, dtype=np.int64).tolist()
    assert kept.waypoints.shape == (COUNT, WAYPOINTS, 2)


def test_the_jpegs_show_the_same_and_are_smaller(kept: Frames) -> None:
    for frame in range(COUNT):
        decoded = kept.decoded(frame)
        assert (decoded.float() - kept.raw[frame].float()).abs().mean() < 15
        assert picture_sums(decoded[None])[0].tolist() == kept.jpeg_sums[frame].tolist()
        assert sum(jpeg.numel() for jpeg in kept.jpegs(frame)) < 0.7 * RIG.frame_bytes


def test_frames_are_made_once(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def draw_again(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(driving_frames, "scene", draw_again)
    assert len(stored_frames(cache_dir, RIG, COUNT, seed=3)) == COUNT


def _scrambled(path: Path) -> None:
    """A decoder takes this for a picture."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 8] = bytes(b ^ 0x15 for b in content[middle : middle + 8])
    path.write_bytes(content)


OF_ANOTHER_SIZE = encode_jpeg(torch.zeros(3, 8, 8, dtype=torch.uint8)).numpy().tobytes()
DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "noise": lambda path: path.write_bytes(b"\x00\x01\x02" * 100),
    "the header alone": lambda path: path.write_bytes(path.read_bytes()[:40]),
    "scrambled": _scrambled,
    "another size": lambda path: path.write_bytes(OF_ANOTHER_SIZE),
    "missing": Path.unlink,
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
}


@pytest.mark.parametrize("damage", [DAMAGE[name] for name in DAMAGE if name != "half"])
def test_a_corrupt_jpeg_is_named(cache_dir: Path, damage) -> None:
    frames = stored_frames(cache_dir, RIG, COUNT, seed=3)
    path = frames.jpeg_paths(4)[1]
    damage(path)
    with pytest.raises(ValueError, match=r"frame0004-camera1\.jpg") as raised:
        frames.decoded(4)
    assert "\n" not in str(raised.value)
    assert str(frames.folder) in str(raised.value)
    assert frames.decoded(3).shape == (2, 3, 32, 64)


@pytest.mark.parametrize("name", [driving_frames.RAW, driving_frames.LABELS])
@pytest.mark.parametrize("damage", [DAMAGE[name] for name in ("half", "empty", "missing")])
def test_an_incomplete_folder_is_named(cache_dir: Path, name: str, damage) -> None:
    (folder,) = cache_dir.iterdir()
    damage(folder / name)
    with pytest.raises(ValueError, match="delete the folder") as raised:
        stored_frames(cache_dir, RIG, COUNT, seed=3)
    assert str(folder) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_labels_are_never_unpickled(cache_dir: Path) -> None:
    (folder,) = cache_dir.iterdir()
    np.savez(folder / driving_frames.LABELS, commands=np.array([Path("/")], dtype=object))
    with pytest.raises(ValueError, match="cannot be used"):
        stored_frames(cache_dir, RIG, COUNT, seed=3)


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(driving_frames.np, "savez", full)
    with pytest.raises(OSError, match=r"No space left on device.*make room") as raised:
        stored_frames(tmp_path, RIG, COUNT, seed=3)
    assert "driving-v" in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_every_epoch_is_another_permutation() -> None:
    epochs = order_table(COUNT, seed=1).view(EPOCHS, COUNT)
    assert all(sorted(epoch) == list(range(COUNT)) for epoch in epochs.tolist())
    assert len({tuple(epoch) for epoch in epochs.tolist()}) > EPOCHS // 2
    assert torch.equal(epochs.flatten(), order_table(COUNT, seed=1))
    assert not torch.equal(epochs.flatten(), order_table(COUNT, seed=2))


def test_host_and_device_agree_on_the_order_beyond_its_end() -> None:
    table = order_table(COUNT, seed=1)
    order, place = batch_order(table, 4), Place(table, 4, CPU)
    batches = [next(order) for _ in range(len(table) // 4 + 3)]
    assert [place.next().tolist() for _ in batches] == batches
    assert batches[0] == table[:4].tolist() == batches[len(table) // 4]


def _batch(frames: Frames, indices: torch.Tensor) -> Batch:
    return Batch(frames.raw[indices], frames.commands[indices], frames.waypoints[indices], indices)


@pytest.fixture
def delivered(kept: Frames) -> tuple[Delivery, Batch]:
    """The check of a batch of 3, and the batch that it expects."""
    table = order_table(COUNT, seed=1)
    return Delivery(table, kept.raw_sums, 3, CPU), _batch(kept, table[:3])


FINE = torch.tensor(0.1)


def test_the_next_batch_in_its_place_is_wrong(delivered) -> None:
    delivery, batch = delivered
    delivery.skip()
    assert not delivery.record(batch, FINE)[:, :2].any()


@pytest.mark.parametrize("as_float", [False, True])
def test_a_single_byte_that_is_off_is_noticed(delivered, as_float) -> None:
    delivery, batch = delivered
    images = batch.images.clone()
    images[1, 1, 2, 5, 7] ^= 1
    changed = batch._replace(images=normalized(images) if as_float else images)
    assert delivery.record(changed, FINE).tolist() == [[1, 1, 1], [1, 0, 1], [1, 1, 1]]


def test_swapped_cameras_are_noticed(delivered) -> None:
    delivery, batch = delivered
    assert delivery.record(batch._replace(images=batch.images.flip(1)), FINE)[:, 1].tolist() == [0, 0, 0]


def test_a_loss_that_is_no_number_is_noticed(delivered) -> None:
    delivery, batch = delivered
    assert delivery.record(batch, torch.tensor(float("nan"))).tolist() == [[1, 1, 0]] * 3


def test_another_decoder_may_round_otherwise_and_no_more(kept: Frames) -> None:
    table = order_table(COUNT, seed=1)
    batch = _batch(kept, table[:1])
    bytes_each = RIG.picture_bytes
    for off, right in ((bytes_each, 1), (bytes_each + 1, 0)):
        delivery = Delivery(table, kept.raw_sums + off, 1, CPU, levels=1.0)
        assert delivery.record(batch, FINE)[0, 1] == right
