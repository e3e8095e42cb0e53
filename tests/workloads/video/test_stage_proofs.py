"""Proofs of composited and encoded frames: they pass, and fail where their fact is broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gpugate.workload import Context, DisprovedError
from workloads.video import composite, encode, encoders
from workloads.video.clip import CLIPS, Clip

CLIP = Clip(640, 360, 24)


@pytest.fixture
def context(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setitem(CLIPS, "cpu", CLIP)  # type: ignore[arg-type]
    return Context(torch.device("cpu"), encode.FRAMES, 0, cache_dir)


def test_one_composite_that_is_another_is_disproved(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    make = composite.composited_in_nv12

    def darker(*arguments: object) -> Callable[[Tensor], Tensor]:
        composited = make(*arguments)  # type: ignore[arg-type]

        def spoiled(numbers: Tensor) -> Tensor:
            found = composited(numbers)
            found[-1] -= 8
            return found

        return spoiled

    monkeypatch.setattr(composite, "composited_in_nv12", darker)
    with pytest.raises(DisprovedError, match=r"\d\.\d dB with OpenCV's over 16 frames: 40 dB are wanted$"):
        composite.composites_agree(composite.in_torch, context)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda frames: frames[:-1], "frames, .*: all of them are wanted"),
        (lambda frames: frames[[0, 2, 1, *range(3, 8)]], r"16 of 16 frames, \d\d\.\d dB at least .*: 35 dB are wanted"),
        (lambda frames: frames // 2, r"\d\.\d dB at least .*: 35 dB are wanted"),
    ],
    ids=["a frame less", "another order", "darker"],
)
def test_a_file_that_shows_something_else_is_disproved(
    context: Context, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Tensor], Tensor], words: str
) -> None:
    write = encoders.X264.write  # of the encoder that is no baseline's
    monkeypatch.setattr(encoders.X264, "write", lambda encoder, frames: write(encoder, spoil(frames)))
    with pytest.raises(DisprovedError, match=words):
        encode.file_shows(encoders.X264, context)
