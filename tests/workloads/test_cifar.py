"""CIFAR-10 from its own files, or one sentence that says why not; and the seeded pictures that stand in for it."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10

from gpugate.workload import Context
from tests.support.bad_checkpoints import Touches
from workloads.resnet18_training.cifar import VALUES, Pictures, read_cifar10, seeded_pictures, training_pictures

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


def test_the_folder_that_the_archive_unpacks_to_is_taken_too(folder: Path) -> None:
    assert len(read_cifar10(folder / CIFAR10.base_folder)) == 5 * ROWS


def test_a_context_with_a_data_path_reads_it(folder: Path) -> None:
    context = Context(torch.device("cpu"), items=4, seed=0, cache_dir=Path(), settings={"cifar10": str(folder)})
    assert torch.equal(training_pictures(context).pixels, read_cifar10(folder).pixels)


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


def test_seeded_pictures_depend_on_their_arguments_alone() -> None:
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    first = seeded_pictures(3, 200)
    seeded_pictures.cache_clear()
    again, other = seeded_pictures(3, 200), seeded_pictures(4, 200)
    assert torch.equal(first.pixels, again.pixels)
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.pixels, other.pixels)
    assert torch.equal(torch.random.get_rng_state(), state), "the caller's random numbers go on as before"


def test_seeded_pictures_have_the_shape_of_cifar10_and_differ() -> None:
    found = seeded_pictures(0, 300)
    assert found.pixels.shape == (300, 3, 32, 32)
    assert found.pixels.dtype == torch.uint8
    assert found.labels.dtype == torch.int64
    assert set(found.labels.tolist()) == set(range(10))
    assert len(found.pixels.flatten(1).unique(dim=0)) == 300
    assert 30 < float(found.pixels.float().std()) < 80


def nearest_class(found: Pictures, seen: int, values: slice) -> float:
    """The share of pictures after the first `seen` that lie nearest to the mean of their class."""
    pictures = found.pixels.flatten(1)[:, values].float()
    means = torch.stack([pictures[:seen][found.labels[:seen] == label].mean(0) for label in range(10)])
    return float((torch.cdist(pictures[seen:], means).argmin(1) == found.labels[seen:]).float().mean())


def test_classes_can_be_learned_but_not_from_one_pixel() -> None:
    found = seeded_pictures(0, 1500)
    assert nearest_class(found, 1000, slice(None)) > 0.97
    assert nearest_class(found, 1000, slice(1500, 1501)) < 0.4
