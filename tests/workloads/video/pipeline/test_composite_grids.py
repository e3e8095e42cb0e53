"""The luma of the reference's composites: computed once, kept on disk, and of their own for other weights or videos."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpugate.workload import Context
from tests.support.small_clips import clip_on_cpu
from workloads.video.clip.clip import Clip, clip_path, source
from workloads.video.decode.arrivals import luma_grids, luma_of_bgr
from workloads.video.pipeline import sides as grids_file
from workloads.video.pipeline.chain import Chain, decoder_of
from workloads.video.pipeline.plan import BASELINE
from workloads.video.pipeline.sides import composite_grids
from workloads.video.segmenter import segmenter

TINY = Clip(312, 192, 24)


@pytest.fixture(autouse=True)
def tiny_clip(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    composite_grids.cache_clear()
    with clip_on_cpu(monkeypatch, TINY):
        yield
    composite_grids.cache_clear()


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(torch.device("cpu"), 8, 0, tmp_path)


def _nothing_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> None:
        raise AssertionError("the grids are computed")

    composite_grids.cache_clear()
    monkeypatch.setattr(grids_file, "Chain", fails)


def test_the_grids_are_those_of_the_baselines_composites(context: Context) -> None:
    clip = source(context)
    found = composite_grids(context, clip)
    with (
        closing(Chain(BASELINE, context, clip.info, lambda frames: None)) as chain,
        closing(decoder_of(BASELINE, clip.path, context.device, loop=False)) as decoder,
    ):
        batches = [chain.compute(batch).on_host for batch in iter(lambda: chain.decode(decoder), None)]
    assert torch.equal(found, torch.cat([luma_of_bgr(frames, "bt601") for frames in batches]))
    assert (found - luma_grids(clip.path)).square().mean((1, 2)).sqrt().min() > 3, "the input's are others"


def test_a_later_process_reads_them(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = source(context)
    found = composite_grids(context, clip)
    _nothing_is_computed(monkeypatch)
    assert torch.equal(composite_grids(context, clip), found)
    assert torch.equal(composite_grids(replace(context, items=16), clip), found)


def test_other_weights_and_another_video_have_grids_of_their_own(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = source(context)
    weights = tmp_path / "own.pt"
    torch.save(segmenter("cpu", context).coarse.state_dict(), weights)
    other = clip_path(tmp_path, replace(TINY, seed=1))
    keys = {
        grids_file._key(context, clip),
        grids_file._key(replace(context, seed=1), clip),
        grids_file._key(replace(context, settings={"segmenter-weights": str(weights)}), clip),
        grids_file._key(context, source(replace(context, settings={"video": str(other)}))),
    }
    monkeypatch.setattr(grids_file, "FORMAT", grids_file.FORMAT + 1)
    assert len({*keys, grids_file._key(context, clip)}) == 5
