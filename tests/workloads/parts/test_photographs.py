"""Batches of photographs are normalized, a folder of the user replaces them, and a bad folder gets one sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from gpugate.workload import Context
from workloads.parts.photographs import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    photograph_batch,
)

CPU = torch.device("cpu")


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(device=CPU, items=3, seed=0, cache_dir=tmp_path)


def test_a_batch_is_normalized_float32(context):
    batch = photograph_batch(replace(context, items=32), 0)
    assert batch.shape == (32, 3, 224, 224)
    assert batch.dtype == torch.float32
    assert batch.is_contiguous()
    assert not batch.is_inference()
    low = (0 - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
    high = (1 - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
    assert (batch.amin((0, 2, 3)) >= low - 1e-5).all()
    assert (batch.amax((0, 2, 3)) <= high + 1e-5).all()
    assert 0.5 < batch.std() < 2


def test_a_users_folder_replaces_them(context, tmp_path):
    Image.new("RGB", (60, 40), (255, 0, 0)).save(tmp_path / "red.png")
    (tmp_path / "notes.txt").write_text("no picture")
    batch = photograph_batch(replace(context, settings={"photographs": str(tmp_path)}), 0)
    red = (torch.tensor([1.0, 0.0, 0.0]) - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
    torch.testing.assert_close(batch, red.view(1, 3, 1, 1).expand_as(batch))


@pytest.mark.parametrize(
    ("chosen", "files", "problem"),
    [
        ("nowhere", {}, "is no folder"),
        ("picture.PNG", {"picture.PNG": b"whatever it holds"}, "is no folder"),
        (".", {}, "holds no picture"),
        (".", {"letter.jpg": b"Dear Sir or Madam"}, "letter.jpg cannot be decoded"),
    ],
    ids=["missing", "a file", "empty", "a letter"],
)
def test_a_bad_folder_gets_one_sentence_that_names_it(context, tmp_path, chosen, files, problem):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    folder = tmp_path / chosen
    with pytest.raises((ValueError, FileNotFoundError), match=problem) as raised:
        photograph_batch(replace(context, settings={"photographs": str(folder)}), 0)
    message = str(raised.value)
    assert str(folder) in message
    assert "--perf-set photographs=" in message
    assert "\n" not in message
