"""CIFAR-10 from its own files, or one sentence that says why not; and the seeded pictures that stand in for it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpugate.workload import Context
from tests.support.bad_checkpoints import Touches
from workloads.resnet18_training import cifar
from workloads.resnet18_training.cifar import (
    TRAINING_FILES,
    VALUES,
    Pictures,
    read_cifar10,
    seeded_pictures,
    training_pictures,
)

ROWS = 4  # of the files here, where CIFAR-10's have 10,000


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "PICTURES_PER_FILE", ROWS)
    read_cifar10.cache_clear()


def batch(number: int) -> dict[bytes, Any]:
    """Makes the content of file `number`: every picture filled with its own value, channel after channel."""
    values = 10 * number + np.arange(ROWS, dtype=np.uint8)[:, None]
    data = np.repeat(values, VALUES, axis=1) + np.repeat(np.arange(3, dtype=np.uint8), VALUES // 3) * 64
    return {b"data": data, b"labels": [(number + row) % 10 for row in range(ROWS)], b"batch_label": b"training"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(TRAINING_FILES):
        (tmp_path / name).write_bytes(pickle.dumps(batch(number), protocol=2))
    return tmp_path


def refused(folder: Path) -> str:
    """The one sentence that reading the folder ends with."""
    with pytest.raises((ValueError, FileNotFoundError), match="--perf-set cifar10=") as raised:
        read_cifar10(folder)
    text = str(raised.value)
    assert str(folder) in text
    assert "\n" not in text
    return text


def test_the_five_files_are_joined_in_order(folder: Path) -> None:
    found = read_cifar10(folder)
    assert found.pixels.shape == (5 * ROWS, 3, 32, 32)
    assert found.pixels.dtype == torch.uint8
    assert found.pixels[:, 0, 0, 0].tolist() == [10 * number + row for number in range(5) for row in range(ROWS)]
    assert found.pixels[5, :, 31, 31].tolist() == [11, 11 + 64, 11 + 128], "channel after channel, row after row"
    assert found.labels.tolist() == [(number + row) % 10 for number in range(5) for row in range(ROWS)]


def test_the_folder_that_the_archive_unpacks_to_may_lie_inside(folder: Path) -> None:
    inner = folder / "cifar-10-batches-py"
    inner.mkdir()
    for name in TRAINING_FILES:
        (folder / name).rename(inner / name)
    assert len(read_cifar10(folder)) == 5 * ROWS


def test_a_context_with_a_data_path_reads_it(folder: Path) -> None:
    context = Context(torch.device("cpu"), items=4, seed=0, cache_dir=Path(), settings={"cifar10": str(folder)})
    assert torch.equal(training_pictures(context).pixels, read_cifar10(folder).pixels)


def test_a_pickle_as_python_2_wrote_it_is_read(folder: Path) -> None:
    array = (  # _reconstruct(ndarray, (0,), "b"), then its state
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x04M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        b"T" + (ROWS * VALUES).to_bytes(4, "little") + bytes(range(ROWS)) * VALUES + b"tb"
    )
    old = b"\x80\x02}(U\x0bbatch_labelU\x01xU\x06labels](K\x01K\x02K\x03K\x09eU\x04data" + array + b"u."
    (folder / TRAINING_FILES[0]).write_bytes(old)
    found = read_cifar10(folder)
    assert found.labels[:ROWS].tolist() == [1, 2, 3, 9]
    assert found.pixels[:ROWS].flatten()[:5].tolist() == [0, 1, 2, 3, 0]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert "is no folder" in refused(tmp_path / "nowhere")


def test_an_empty_folder(tmp_path: Path) -> None:
    assert "has no data_batch_1, data_batch_2, data_batch_3, data_batch_4, data_batch_5" in refused(tmp_path)


def test_a_half_downloaded_folder(folder: Path) -> None:
    (folder / "data_batch_3").unlink()
    assert "has no data_batch_3 of CIFAR-10" in refused(folder)


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _no_pickle(path: Path) -> None:
    path.write_text("<html>not found</html>")


def _written(change: Callable[[dict[bytes, Any]], object]) -> Callable[[Path], None]:
    """Writes what `change` makes of a good batch, or what it returns instead."""

    def write(path: Path) -> None:
        content = batch(1)
        path.write_bytes(pickle.dumps(change(content) or content, protocol=2))

    return write


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (_truncated, "cannot be read"),
        (_empty, "cannot be read (EOFError"),
        (_no_pickle, "cannot be read"),
        (_written(lambda content: [1, 2]), "holds a list, not a dictionary"),
        (_written(lambda content: {b"labels": [1]}), "has no pictures in bytes"),
        (_written(lambda content: content.update({b"data": b"pixels"})), "has no pictures in bytes"),
        (_written(lambda content: content.update({b"data": content[b"data"][:3]})), "of shape [3, 3072] where"),
        (_written(lambda content: content.update({b"data": content[b"data"][:, :768]})), "of shape [4, 768] where"),
        (_written(lambda content: content.pop(b"labels") and None), "has no labels for 4 pictures"),
        (_written(lambda content: content[b"labels"].pop() and None), "has 3 labels for 4 pictures"),
        (_written(lambda content: content[b"labels"].__setitem__(0, 10)), "no numbers from 0 to 9"),
        (_written(lambda content: content[b"labels"].__setitem__(0, b"cat")), "no numbers from 0 to 9"),
        (_written(lambda content: content.update({b"data": content[b"data"].astype(np.float32)})), "cannot be read"),
        (_written(lambda content: content.update({b"data": content[b"data"].astype(object)})), "cannot be read"),
    ],
)
def test_a_bad_file_is_named_with_its_problem(folder: Path, write: Callable[[Path], None], reason: str) -> None:
    write(folder / "data_batch_2")
    text = refused(folder)
    assert "data_batch_2" in text
    assert reason in text


def test_a_file_cannot_run_code(folder: Path) -> None:
    (folder / "data_batch_2").write_bytes(pickle.dumps(Touches(folder / "ran"), protocol=2))
    assert "which no batch of pictures needs" in refused(folder)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("name", ["eval", "getattr", "exec"])
def test_builtins_are_refused_by_name(folder: Path, name: str) -> None:
    (folder / "data_batch_2").write_bytes(b"c__builtin__\n" + name.encode() + b"\n(U\x041+1\ntR.")
    assert f"asks for __builtin__.{name}" in refused(folder) or f"asks for builtins.{name}" in refused(folder)


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
