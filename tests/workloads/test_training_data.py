"""Pictures of the training: every one in its turn, prepared as torchvision does; CIFAR-10 from its own files."""

from __future__ import annotations

import hashlib
import pickle
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate
from torchvision.datasets import CIFAR10
from torchvision.transforms.v2 import functional as reference

from tests.support.hostile_value import Touches
from workloads.resnet18_training.pictures import (
    EPOCHS,
    ID,
    LABEL,
    MARK,
    PADDING,
    VALUES,
    PreparedPictures,
    PreparedPieces,
    checked,
    image_maker,
    load_pieces,
    marks_of,
    normalization,
    read_cifar10,
    sample_order,
    seeded_pictures,
    take_resident,
)

CPU = torch.device("cpu")
PICTURES = seeded_pictures(0, 96)
ORDER = sample_order(seed=1, pictures=96, multiple=16)


def piece_of(count: int, side_pixels: int = 32, uint8: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The first images, floats [n, 3, side, side] or bytes [n, side, side, 3], and their numbers [n, 3]."""
    if uint8:
        return PreparedPieces(PICTURES, ORDER, side_pixels).__getitems__(range(count))
    return default_collate([PreparedPictures(PICTURES, ORDER, side_pixels)[number] for number in range(count)])


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
    floats, told = piece_of(4, side_pixels)
    bytes_, told_of_bytes = piece_of(4, side_pixels, uint8=True)
    wanted = torch.stack([wanted_bytes(position, side_pixels) for position in range(4)])
    torch.testing.assert_close(bytes_.permute(0, 3, 1, 2).float(), wanted, rtol=0, atol=levels)
    torch.testing.assert_close((floats - shift) / scale, wanted, rtol=0, atol=levels + 1e-3)
    for images, numbers in ((floats, told), (bytes_.permute(0, 3, 1, 2), told_of_bytes)):
        assert torch.equal(numbers[:, LABEL], PICTURES.labels[ORDER.ids[:4]])
        assert torch.equal(numbers[:, ID], ORDER.ids[:4])
        assert torch.equal(numbers[:, MARK], marks_of(images))


@pytest.mark.parametrize("side_pixels", [32, 64])
@pytest.mark.parametrize(
    ("channels", "dtype", "layout"),
    [(3, torch.float32, torch.contiguous_format), (4, torch.float16, torch.channels_last)],
)
def test_images_made_on_the_device_are_the_loaders(
    side_pixels: int, channels: int, dtype: torch.dtype, layout: torch.memory_format
) -> None:
    make = image_maker(PICTURES, side_pixels, channels, dtype, layout, CPU)
    batch = take_resident(PICTURES, ORDER, 8, make, CPU).take()
    wanted, told = piece_of(8, side_pixels)
    # PIL rounds a resized picture to whole levels, the device does not.
    off = 1e-5 if side_pixels == 32 else 1.01 * float(normalization(CPU)[0].max())
    rtol = 2e-3 if dtype == torch.float16 else 1e-5
    torch.testing.assert_close(batch.images[:, :3].float(), wanted, rtol=rtol, atol=off)
    assert not batch.images[:, 3:].any()
    assert batch.images.is_contiguous(memory_format=layout)
    assert batch.images.dtype == dtype
    assert batch.labels.tolist() == told[:, LABEL].tolist()
    assert batch.ids.tolist() == told[:, ID].tolist()
    assert batch.sound.all()


@pytest.mark.parametrize("uint8", [False, True])
def test_a_damaged_or_swapped_image_is_not_sound(uint8: bool) -> None:
    images, told = piece_of(6, uint8=uint8)
    batch = checked(images, told)
    assert batch.sound.all()
    assert batch.images.shape == (6, 3, 32, 32)
    images[[1, 2]] = images[[2, 1]]
    images[4] = 0
    assert checked(images, told).sound.tolist() == [True, False, False, True, False, True]


@pytest.mark.parametrize("kind", [PreparedPictures, PreparedPieces])
@pytest.mark.parametrize("workers", [0, 2])
def test_pieces_come_in_order_and_without_end(
    workers: int, kind: type[PreparedPictures] | type[PreparedPieces]
) -> None:
    count = len(ORDER.ids) // 32 + 2
    with closing(load_pieces(kind(PICTURES, ORDER, 32), 32, workers, pinned=False)) as pieces:
        found = [next(pieces) for _ in range(count)]
        assert len(pieces.workers) == workers
    ids = torch.cat([told[:, ID] for _, told in found])
    assert torch.equal(ids, torch.cat([ORDER.ids, ORDER.ids[:64]]))
    for images, told in found[:2]:
        assert images.shape == ((32, 3, 32, 32) if kind is PreparedPictures else (32, 32, 32, 3))
        assert checked(images, told).sound.all()


# --- CIFAR-10 from its own files, or one sentence that says why not ---------------------------------------------------

ROWS = 4  # of the files here, where CIFAR-10's have 10,000


def batch(number: int) -> dict[str, object]:
    """Makes the content of file `number`: every picture filled with its own value, channel after channel."""
    values = 10 * number + np.arange(ROWS, dtype=np.uint8)[:, None]
    data = np.repeat(values, VALUES, axis=1) + np.repeat(np.arange(3, dtype=np.uint8), VALUES // 3) * 64
    return {"data": data, "labels": [(number + row) % 10 for row in range(ROWS)]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with small files, whose sums torchvision takes for the published ones."""
    (tmp_path / CIFAR10.base_folder).mkdir()
    read_cifar10.cache_clear()

    def write(name: str, content: object) -> list[str]:
        written = pickle.dumps(content, protocol=2)
        (tmp_path / CIFAR10.base_folder / name).write_bytes(written)
        return [name, hashlib.md5(written, usedforsecurity=False).hexdigest()]

    monkeypatch.setattr(CIFAR10, "train_list", [write(f"data_batch_{n + 1}", batch(n)) for n in range(5)])
    monkeypatch.setattr(CIFAR10, "test_list", [])
    _, md5 = write("batches.meta", {"label_names": list("abcdefghij")})
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": md5})
    return tmp_path


def test_the_five_files_are_joined_in_order(folder: Path) -> None:
    found = read_cifar10(folder)
    assert found.pixels.shape == (5 * ROWS, 3, 32, 32)
    assert found.pixels.dtype == torch.uint8
    assert found.pixels.is_contiguous()
    assert found.pixels[:, 0, 0, 0].tolist() == [10 * number + row for number in range(5) for row in range(ROWS)]
    assert found.pixels[5, :, 31, 31].tolist() == [11, 11 + 64, 11 + 128], "channel after channel, row after row"
    assert found.labels.tolist() == [(number + row) % 10 for number in range(5) for row in range(ROWS)]


def test_a_missing_folder_and_a_missing_file_are_one_sentence(folder: Path) -> None:
    (folder / CIFAR10.base_folder / "data_batch_3").unlink()
    for place in (folder, folder / "nowhere"):
        with pytest.raises(ValueError, match=f"^--perf-set cifar10={place} has not all files of .*there again$"):
            read_cifar10(place)


def test_another_file_is_refused_before_it_can_run_code(folder: Path) -> None:
    other = pickle.dumps(Touches(folder / "ran"), protocol=2)
    (folder / CIFAR10.base_folder / "data_batch_2").write_bytes(other)
    with pytest.raises(ValueError, match="as they were published"):
        read_cifar10(folder)
    assert not (folder / "ran").exists()
