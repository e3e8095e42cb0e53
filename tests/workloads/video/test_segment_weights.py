"""The segmenter of video frames: right masks without training, one fit for all processes, one-sentence errors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Barrier, BrokenBarrierError

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import get_model
from torchvision.models.segmentation import fcn_resnet101, lraspp_mobilenet_v3_large

from gpugate.workload import Context
from tests.support.hostile_value import Touches
from tests.support.masks import foreground, intersection_over_union
from workloads.video import segment as fitting
from workloads.video.clip import CLIPS, FULL, SMALL, Clip
from workloads.video.segment import (
    NETWORKS,
    Segmenter,
    checkpoint,
    fit_numbers,
    fitted_weights,
    frames_with_truth,
    seeded_network,
    segmenter,
    unseen_numbers,
)

CPU = torch.device("cpu")
TINY = Clip(320, 192, 24)


@pytest.fixture(scope="module", autouse=True)
def nothing_remembered() -> Iterator[None]:
    yield
    fitted_weights.cache_clear()
    checkpoint.cache_clear()


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setitem(CLIPS, "cpu", TINY)  # type: ignore[misc]
    return Context(CPU, items=2, seed=0, cache_dir=tmp_path)


@torch.inference_mode()
def _unseen_iou(model: Segmenter, clip: Clip) -> float:
    frames, masks = frames_with_truth(clip, unseen_numbers(clip), CPU)
    return intersection_over_union(foreground(model(frames)), masks)


def test_the_light_network_finds_the_foreground_of_its_clip(cache_dir):
    assert _unseen_iou(segmenter(Context(CPU, 8, 0, cache_dir)), SMALL) > 0.85


@pytest.mark.parametrize("clip", [FULL, SMALL, TINY])
def test_no_frame_is_both_fitted_to_and_unseen(clip):
    fitted, unseen = fit_numbers(clip), unseen_numbers(clip)
    assert not {*fitted} & {*unseen}
    assert len(unseen) >= 8
    assert (fitted[0], fitted[-1]) == (0, clip.frames - 1)
    assert all(0 <= number < clip.frames for number in unseen)


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
@torch.inference_mode()
def test_the_logits_are_torchvisions_own(kind):
    coarse = seeded_network(kind, 0)
    whole = get_model(NETWORKS[kind], weights=None, weights_backbone=None, num_classes=2).eval()
    whole.load_state_dict(coarse.state_dict())
    frames = frames_with_truth(TINY, (3, 4), CPU)[0]
    torch.testing.assert_close(Segmenter(coarse)(frames), whole(frames)["out"])


def test_the_fit_is_made_once_and_loaded_ever_after(context, monkeypatch):
    first = {**fitted_weights(context)}
    assert len([*(context.cache_dir / "video-segmenter").glob("*.pt")]) == 1
    fitted_weights.cache_clear()  # as in another process
    monkeypatch.setattr(fitting, "fit", None)
    again = fitted_weights(context)
    assert again.keys() == first.keys()
    assert all(torch.equal(again[name], value) for name, value in first.items())


def test_processes_that_begin_together_have_the_same_weights(context, monkeypatch):
    both, fits = Barrier(2, timeout=1), list[int]()

    def fit(coarse: nn.Module, *arguments: object) -> None:
        fits.append(1)
        with suppress(BrokenBarrierError):  # the other one waits for the lock
            both.wait()
        next(coarse.buffers()).fill_(len(fits))

    monkeypatch.setattr(fitting, "fit", fit)
    with ThreadPoolExecutor(2) as pool:
        begun = [pool.submit(fitted_weights, context) for _ in range(2)]
        found = [one.result() for one in begun]
    name = next(name for name, _ in seeded_network("cpu", 0).named_buffers())
    assert [bool((weights[name] == 1).all()) for weights in found] == [True, True]


def test_a_checkpoint_of_torchvision_replaces_the_weights(context, tmp_path):
    with torch.device("meta"):
        model = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None)
    weights = _drawn(model.state_dict())
    torch.save(weights, tmp_path / "mine.pt")
    mine = segmenter(replace(context, settings={"segmenter-weights": str(tmp_path / "mine.pt")}))
    last = mine.coarse.classifier.low_classifier
    assert torch.equal(last.weight, weights["classifier.low_classifier.weight"])
    assert last.out_channels == 21
    assert next(mine.parameters()).dtype == torch.float32, "the file was FP16"
    assert not (context.cache_dir / "video-segmenter").exists()


def test_the_head_for_training_is_left_out_of_a_checkpoint(tmp_path):
    with torch.device("meta"):
        model = fcn_resnet101(weights=None, weights_backbone=None, aux_loss=True)
    torch.save(_drawn(model.state_dict()), tmp_path / "mine.pt")
    found = checkpoint("cuda", tmp_path / "mine.pt")
    assert found.keys() == {name for name in model.state_dict() if not name.startswith("aux")}


def _truncated(path: Path) -> None:
    torch.save({"fc.weight": torch.zeros(1000, 2048)}, path)
    path.write_bytes(path.read_bytes()[:1000])


BAD: dict[str, Callable[[Path], object]] = {
    "hostile": lambda path: torch.save(Touches(path.with_name("ran")), path),
    "missing": lambda path: None,
    "words": lambda path: path.write_text("weights, honestly", encoding="utf-8"),
    "truncated": _truncated,
    "another model": lambda path: torch.save({"fc.weight": torch.zeros(10, 2048)}, path),
    "a list": lambda path: torch.save([1, 2, 3], path),
    "code": lambda path: torch.save(nn.Linear(2, 2), path),
    "another backbone": lambda path: torch.save({"classifier.4.weight": torch.zeros(21, 512, 1, 1)}, path),
}


@pytest.mark.parametrize("write", BAD.values(), ids=BAD)
def test_a_bad_checkpoint_gets_one_sentence_that_names_it(tmp_path, write):
    path = tmp_path / "mine.pt"
    write(path)
    with pytest.raises(ValueError, match="--perf-set segmenter-weights") as raised:
        checkpoint("cuda", path)
    assert str(path) in str(raised.value)
    assert "fcn_resnet101" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "ran").exists(), "a checkpoint cannot run code"


@functools.cache
def _half_of_ones(shape: torch.Size) -> Tensor:
    return torch.ones(shape, dtype=torch.float16)


def _drawn(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Real tensors for those of the meta device, in FP16, one for all of a shape: the file is small."""
    return {name: _half_of_ones(value.shape) for name, value in weights.items()}
