"""Batches of a training loader: every picture in its turn, prepared as torchvision does; and the loader's end."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from types import SimpleNamespace

import pytest
import torch
from torchvision.transforms.v2 import functional as reference

from tests.support.patience import HANGS_S
from workloads.parts import shared_memory
from workloads.resnet18_training import data
from workloads.resnet18_training.cifar import seeded_pictures
from workloads.resnet18_training.data import (
    ID,
    LABEL,
    MARK,
    PREFETCH_FACTOR,
    Pieces,
    PreparedPictures,
    checked,
    marks_of,
    normalization,
)
from workloads.resnet18_training.resident_pictures import ResidentPictures, image_maker
from workloads.resnet18_training.sample_order import EPOCHS, PADDING, sample_order
from workloads.resnet18_training.step import NHWC, Recipe

CPU = torch.device("cpu")
PICTURES = seeded_pictures(0, 96)
ORDER = sample_order(seed=1, pictures=96, multiple=16)


def prepared(side_pixels: int = 32, uint8: bool = False) -> PreparedPictures:
    return PreparedPictures(PICTURES, ORDER, side_pixels, uint8)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def workers_of(pieces: Pieces) -> list[int]:
    return [process.pid for process in pieces._iterator._workers]


def take(pieces: Pieces, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [next(pieces) for _ in range(count)]


def test_an_order_shuffles_every_epoch_anew_and_has_no_odd_batch() -> None:
    order = sample_order(seed=1, pictures=50, multiple=16)
    epochs = order.ids.view(EPOCHS, 48)
    assert all(len(epoch.unique()) == 48 for epoch in epochs)
    assert not torch.equal(epochs[0], epochs[1])
    assert set(order.tops.tolist()) == set(order.lefts.tolist()) == set(range(2 * PADDING + 1))
    assert 0.3 < float(order.flips.double().mean()) < 0.7


def wanted_bytes(position: int, side_pixels: int) -> torch.Tensor:
    """The picture by torchvision's functions: bytes, unless it is resized; then floats that no level rounds."""
    wanted = reference.pad(PICTURES.pixels[int(ORDER.ids[position])], [PADDING] * 4)
    wanted = reference.crop(wanted, int(ORDER.tops[position]), int(ORDER.lefts[position]), 32, 32)
    wanted = reference.horizontal_flip(wanted) if ORDER.flips[position] else wanted
    return reference.resize(wanted.float(), [side_pixels, side_pixels], antialias=False)


@pytest.mark.parametrize("side_pixels", [32, 224])
def test_a_picture_is_prepared_as_torchvision_prepares_it(side_pixels: int) -> None:
    scale, shift = normalization(CPU)
    levels = 0 if side_pixels == 32 else 1
    for position in range(4):
        floats, told = prepared(side_pixels)[position]
        bytes_, told_of_bytes = prepared(side_pixels, uint8=True)[position]
        wanted = wanted_bytes(position, side_pixels)
        torch.testing.assert_close(bytes_.permute(2, 0, 1).float(), wanted, rtol=0, atol=levels)
        torch.testing.assert_close((floats - shift) / scale, wanted, rtol=0, atol=levels + 1e-3)
        for image, numbers in ((floats, told), (bytes_.permute(2, 0, 1), told_of_bytes)):
            id_ = int(ORDER.ids[position])
            assert numbers[[LABEL, ID]].tolist() == [int(PICTURES.labels[id_]), id_]
            assert numbers[MARK] == marks_of(image[None])[0]


@pytest.mark.parametrize("side_pixels", [32, 64])
@pytest.mark.parametrize("recipe", [Recipe(), Recipe(half=torch.float16, layout=NHWC, stem_channels=4)])
def test_images_made_on_the_device_are_the_loaders(side_pixels: int, recipe: Recipe) -> None:
    make = image_maker(PICTURES, side_pixels, recipe, CPU)
    batch = ResidentPictures(PICTURES, ORDER, 8, make).take()
    wanted, told = (torch.stack(each) for each in zip(*(prepared(side_pixels)[n] for n in range(8)), strict=True))
    # PIL rounds a resized picture to whole levels, the device does not.
    off = 1e-5 if side_pixels == 32 else 1.01 * float(normalization(CPU)[0].max())
    rtol = 2e-3 if recipe.half else 1e-5
    torch.testing.assert_close(batch.images[:, :3].float(), wanted, rtol=rtol, atol=off)
    assert not batch.images[:, 3:].any()
    assert batch.images.is_contiguous(memory_format=recipe.layout)
    assert batch.images.dtype == (recipe.half or torch.float32)
    assert batch.labels.tolist() == told[:, LABEL].tolist()
    assert batch.ids.tolist() == told[:, ID].tolist()
    assert batch.sound.all()


@pytest.mark.parametrize("uint8", [False, True])
def test_a_damaged_or_swapped_image_is_not_sound(uint8: bool) -> None:
    images, told = (torch.stack(each) for each in zip(*(prepared(32, uint8)[n] for n in range(6)), strict=True))
    batch = checked(images, told)
    assert batch.sound.all()
    assert batch.images.shape == (6, 3, 32, 32)
    images[[1, 2]] = images[[2, 1]]
    images[4] = 0
    assert checked(images, told).sound.tolist() == [True, False, False, True, False, True]


@pytest.mark.parametrize("workers", [0, 2])
def test_pieces_come_in_order_and_without_end(workers: int) -> None:
    count = len(ORDER) // 32 + 2
    with closing(Pieces(prepared(), 32, workers, pinned=False)) as pieces:
        found = take(pieces, count)
        assert pieces.problem() is None
    ids = torch.cat([told[:, ID] for _, told in found])
    assert torch.equal(ids, torch.cat([ORDER.ids, ORDER.ids[:64]]))
    for images, told in found[:2]:
        assert images.shape == (32, 3, 32, 32)
        assert checked(images, told).sound.all()


def take_after_killing(pid: int, pieces: Pieces) -> None:
    """The signal of the worker's death may interrupt anything: it must find the test waiting for the error."""
    os.kill(pid, signal.SIGKILL)
    take(pieces, 100)


def test_a_killed_worker_ends_the_run_at_once_and_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "STUCK_S", 2 * HANGS_S)
    pieces = Pieces(prepared(), 8, 2, pinned=False)
    next(pieces)
    pids = workers_of(pieces)
    started = time.perf_counter()
    with pytest.raises(RuntimeError, match="worker"), closing(pieces):
        take_after_killing(pids[0], pieces)
    assert time.perf_counter() - started < HANGS_S, "no timing of a workload: it must not wait for a silent one"
    assert not any(map(alive, pids))


def test_too_little_shared_memory_is_said_before_a_worker_dies_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = (2 * PREFETCH_FACTOR + 1) * 8 * prepared(224)[0][0].nbytes
    monkeypatch.setattr(shared_memory.shutil, "disk_usage", lambda path: SimpleNamespace(free=needed))
    with pytest.raises(OSError, match=r"keep 23 MiB ready and /dev/shm has 23 MiB free: give it more"):
        Pieces(prepared(224), 8, 2, pinned=False)
    Pieces(prepared(224), 8, 0, pinned=False).close()
