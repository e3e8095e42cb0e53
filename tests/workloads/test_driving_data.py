"""The driving frames: what they show, how they are stored, in which order they come, and what is noticed on arrival."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.io import encode_jpeg

from workloads.driving.frames import Frames, Rig, scene, stored_frames
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


def test_what_is_stored_is_what_was_drawn_and_the_jpegs_show_it(kept: Frames) -> None:
    assert len(kept) == COUNT
    for frame in range(COUNT):
        pictures, command, waypoints = scene(RIG, 3, frame)
        assert np.array_equal(kept.raw[frame].numpy(), pictures)
        assert int(kept.commands[frame]) == command
        assert np.array_equal(kept.waypoints[frame].numpy(), waypoints)
        assert kept.raw_sums[frame].tolist() == pictures.reshape(2, -1).sum(1, dtype=np.int64).tolist()
        decoded = kept.decoded(frame)
        assert (decoded.float() - kept.raw[frame].float()).abs().mean() < 15
        assert picture_sums(decoded[None])[0].tolist() == kept.jpeg_sums[frame].tolist()
        assert sum(jpeg.numel() for jpeg in kept.jpegs[frame]) < 0.7 * RIG.frame_bytes


def _scrambled(jpeg: torch.Tensor) -> torch.Tensor:
    """A decoder takes this for a picture."""
    middle = len(jpeg) // 2
    return torch.cat((jpeg[:middle], jpeg[middle : middle + 8] ^ 0x15, jpeg[middle + 8 :]))


@pytest.mark.parametrize(
    "damaged",
    [
        _scrambled,
        lambda jpeg: torch.tensor([0, 1, 2] * 100, dtype=torch.uint8),
        lambda jpeg: jpeg[:40],
        lambda jpeg: encode_jpeg(torch.zeros(3, 8, 8, dtype=torch.uint8)),
    ],
    ids=["scrambled", "noise", "the header alone", "another size"],
)
def test_a_corrupt_jpeg_is_named(kept: Frames, damaged) -> None:
    jpegs = [*kept.jpegs]
    jpegs[4] = [jpegs[4][0], damaged(jpegs[4][1])]
    frames = replace(kept, jpegs=jpegs)
    with pytest.raises(ValueError, match=f"frame 4 and camera 1 in {kept.path}") as raised:
        frames.decoded(4)
    assert "\n" not in str(raised.value)
    assert frames.decoded(3).shape == (2, 3, 32, 64)


def _objects(path: Path) -> None:
    """What would be unpickled, in place of numbers."""
    torch.save({"commands": Path("/")}, path)


def _flip_a_bit(path: Path) -> None:
    """One bit of a waypoint, which is in the file as it is in memory."""
    waypoints, content = scene(RIG, 3, 0)[2].tobytes(), path.read_bytes()
    assert content.count(waypoints) == 1
    path.write_bytes(content.replace(waypoints, bytes([waypoints[0] ^ 1]) + waypoints[1:]))


@pytest.mark.parametrize("damage", [_objects, _flip_a_bit, lambda path: os.truncate(path, path.stat().st_size // 2)])
def test_a_damaged_file_is_named(kept: Frames, tmp_path: Path, damage) -> None:
    path = tmp_path / kept.path.name
    shutil.copy(kept.path, path)
    damage(path)
    with pytest.raises(ValueError, match=f"{path}.*delete the file") as raised:
        stored_frames(tmp_path, RIG, COUNT, seed=3)
    assert "\n" not in str(raised.value)


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
    delivery.place.next()
    assert not delivery.record(batch, FINE)[:, :2].any()


@pytest.mark.parametrize("as_float", [False, True])
def test_a_single_byte_that_is_off_is_noticed(delivered, as_float) -> None:
    delivery, batch = delivered
    images = batch.images.clone()
    images[1, 1, 2, 5, 7] ^= 1
    changed = batch._replace(images=normalized(images) if as_float else images)
    assert delivery.record(changed, FINE).tolist() == [[1, 1, 1], [1, 0, 1], [1, 1, 1]]


def test_swapped_cameras_and_a_loss_that_is_no_number_are_noticed(delivered) -> None:
    delivery, batch = delivered
    swapped = batch._replace(images=batch.images.flip(1))
    assert delivery.record(swapped, torch.tensor(float("nan")))[:, 1:].tolist() == [[0, 0]] * 3


def test_another_decoder_may_round_otherwise_and_no_more(kept: Frames) -> None:
    table = order_table(COUNT, seed=1)
    batch = _batch(kept, table[:1])
    bytes_each = RIG.frame_bytes // RIG.cameras
    for off, right in ((bytes_each, 1), (bytes_each + 1, 0)):
        delivery = Delivery(table, kept.raw_sums + off, 1, CPU, levels=1.0)
        assert delivery.record(batch, FINE)[0, 1] == right
