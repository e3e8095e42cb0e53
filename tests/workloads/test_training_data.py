"""Batches of a training loader: every picture in its turn, prepared as torchvision does."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch
from torchvision.transforms.v2 import functional as reference

from workloads.resnet18_training.pictures import (
    EPOCHS,
    ID,
    LABEL,
    MARK,
    PADDING,
    PreparedPictures,
    checked,
    image_maker,
    load_pieces,
    marks_of,
    normalization,
    sample_order,
    seeded_pictures,
    take_resident,
)

CPU = torch.device("cpu")
PICTURES = seeded_pictures(0, 96)
ORDER = sample_order(seed=1, pictures=96, multiple=16)


def prepared(side_pixels: int = 32, uint8: bool = False) -> PreparedPictures:
    return PreparedPictures(PICTURES, ORDER, side_pixels, uint8)


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
@pytest.mark.parametrize(
    ("channels", "dtype", "layout"),
    [(3, torch.float32, torch.contiguous_format), (4, torch.float16, torch.channels_last)],
)
def test_images_made_on_the_device_are_the_loaders(
    side_pixels: int, channels: int, dtype: torch.dtype, layout: torch.memory_format
) -> None:
    make = image_maker(PICTURES, side_pixels, channels, dtype, layout, CPU)
    batch = take_resident(PICTURES, ORDER, 8, make, CPU).take()
    wanted, told = (torch.stack(each) for each in zip(*(prepared(side_pixels)[n] for n in range(8)), strict=True))
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
    images, told = (torch.stack(each) for each in zip(*(prepared(32, uint8)[n] for n in range(6)), strict=True))
    batch = checked(images, told)
    assert batch.sound.all()
    assert batch.images.shape == (6, 3, 32, 32)
    images[[1, 2]] = images[[2, 1]]
    images[4] = 0
    assert checked(images, told).sound.tolist() == [True, False, False, True, False, True]


@pytest.mark.parametrize("workers", [0, 2])
def test_pieces_come_in_order_and_without_end(workers: int) -> None:
    count = len(ORDER.ids) // 32 + 2
    with closing(load_pieces(prepared(), 32, workers, pinned=False)) as pieces:
        found = [next(pieces) for _ in range(count)]
        assert len(pieces.workers) == workers
    ids = torch.cat([told[:, ID] for _, told in found])
    assert torch.equal(ids, torch.cat([ORDER.ids, ORDER.ids[:64]]))
    for images, told in found[:2]:
        assert images.shape == (32, 3, 32, 32)
        assert checked(images, told).sound.all()
