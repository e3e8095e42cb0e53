"""CIFAR-10 from its own files, or one sentence that says why not."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10

from tests.support.bad_checkpoints import Touches
from workloads.resnet18_training.pictures import VALUES, read_cifar10

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
