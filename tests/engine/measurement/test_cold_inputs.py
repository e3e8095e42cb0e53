"""Enough input sets to keep caches cold, and nobody writes to them unseen."""

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gpugate.measurement import cold_inputs
from gpugate.measurement.cold_inputs import (
    FIRST_FRESH_INDEX,
    HOT_SETS,
    MAX_SETS,
    Inputs,
    _exchangeable,
    check_untouched,
    checksums,
    count_sets,
    exchange,
    exchange_used,
    make_inputs,
)
from gpugate.workload import Context, Optimization, Side, Size, Workload

L2_BYTES = 60 * 10**6


@pytest.mark.parametrize(
    ("input_bytes", "cold", "expected"),
    [
        (77_070_336, True, 2),  # a batch of 128 photographs in FP32 does not fit by itself
        (60 * 10**6, True, 2),
        (59 * 10**6, True, 3),
        (10 * 10**6, True, 7),
        (602_112, True, 101),
        (1000, True, MAX_SETS),
        (0, True, HOT_SETS),
        (1000, False, HOT_SETS),
    ],
)
def test_sets_exceed_the_cache_by_one(input_bytes: int, cold: bool, expected: int) -> None:
    count = count_sets(input_bytes, L2_BYTES, cold)
    assert count == expected
    if HOT_SETS < count < MAX_SETS:
        assert (count - 1) * input_bytes >= L2_BYTES > (count - 2) * input_bytes


@pytest.mark.parametrize(
    "tensor",
    [torch.tensor(1.5), torch.ones(0), torch.ones(3, dtype=torch.bool), torch.arange(24.0).reshape(4, 6)[:, ::2]],
    ids=["scalar", "empty", "bool", "strided"],
)
def test_inputs_of_any_kind_have_a_checksum(tensor: torch.Tensor) -> None:
    assert checksums([tensor, tensor])[""] == 2 * checksums([tensor])[""]


def swapped(first: int, second: int) -> Callable[[torch.Tensor], object]:
    """A permutation that no version of the tensor shows."""
    return lambda tensor: tensor.data.__setitem__([first, second], tensor.data[[second, first]])


@pytest.mark.parametrize(
    "write",
    [
        lambda tensor: tensor.add_(1),
        lambda tensor: tensor.copy_(tensor.flip(0)),  # the same bytes in another order
        lambda tensor: tensor.mul_(1),  # the same bits: written all the same
        lambda tensor: tensor.numpy().__setitem__(0, 5),  # past torch
        *(swapped(*places) for places in ((0, 1), (3, 803), (3, 900), (17, 1016))),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_a_write_changes_the_checksum(write: Callable[[torch.Tensor], object], inference: bool) -> None:
    with torch.inference_mode(inference):
        tensor = torch.arange(1017).to(torch.uint8)
        before = checksums([{"image": tensor}])
        write(tensor)
    bits_stay = torch.equal(tensor, torch.arange(1017).to(torch.uint8))
    assert (checksums([{"image": tensor}]) != before) is not (inference and bits_stay), "no version in inference mode"


def test_a_changed_number_a_new_part_and_a_part_that_is_gone_change_the_checksums_and_a_lock_does_not() -> None:
    lock, inputs = threading.Lock(), {"step": 1, "more": [torch.ones(2)]}
    inputs["lock"] = lock
    before = checksums([inputs])
    with lock:
        assert checksums([inputs]) == before
    inputs["step"] += 1
    assert {name for name, found in checksums([inputs]).items() if found != before[name]} == {"step"}
    inputs["more"].append(torch.ones(2))
    assert checksums([inputs]).keys() - before.keys() == {"more[1]"}


def made(cold: bool, seed: int) -> tuple[Inputs, list[int]]:
    asked: list[int] = []

    def draw(context: Context, index: int) -> torch.Tensor:
        asked.append(index)
        return torch.full((256,), float(index % 1000))

    fast = Optimization("fast", lambda context: Side(lambda inputs: inputs), {"cpu": 1.0})
    workload = Workload("net", fast.build, draw, {"cpu": Size(1, 0, 0)}, (fast,), cold=cold)
    return make_inputs(workload, Context(torch.device("cpu"), 1, 0, Path()), 3, random.Random(seed)), asked  # noqa: S311


def test_timed_sets_are_numbered_and_fresh_ones_are_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_inputs, "most_cached_bytes", lambda device: 4 * 1024)
    inputs, asked = made(cold=True, seed=1)
    fresh = [inputs.fresh_index + offset for offset in range(3)]
    assert asked == [0, 1, 2, 3, 4, *fresh]
    assert (len(inputs.timed), len(inputs.fresh), inputs.fresh_index >= FIRST_FRESH_INDEX) == (5, 3, True)
    assert made(cold=True, seed=1)[0].fresh_index == inputs.fresh_index
    assert made(cold=True, seed=2)[0].fresh_index != inputs.fresh_index
    assert len(made(cold=False, seed=1)[0].timed) == HOT_SETS >= 2, "even a hot workload alternates"


def test_contents_change_places_unseen_and_every_set_gets_another_one() -> None:
    inputs, _ = made(cold=False, seed=1)
    drawn = random.Random(1)  # noqa: S311
    for _ in range(5):
        before = list(inputs.contents)
        exchange(inputs, range(len(inputs.timed)), drawn)
        assert all(now != then for now, then in zip(inputs.contents, before, strict=True))
        for number, content in enumerate(inputs.contents):
            assert bool((inputs.timed[number] == float(content)).all())
    check_untouched(inputs, "fast")
    assert [tensor._version for tensor in inputs.timed] == [0, 0]


def test_what_was_used_last_changes_places_within_the_bytes_that_a_pair_is_worth(monkeypatch) -> None:
    monkeypatch.setattr(cold_inputs, "most_cached_bytes", lambda device: 40 * 1024)
    monkeypatch.setitem(cold_inputs.EXCHANGED_BYTES, "cpu", 3 * 1024)
    inputs, _ = made(cold=True, seed=1)
    exchange_used(inputs, [1, 2, 3, 4], draw=random.Random(1))  # noqa: S311
    moved = {number for number, content in enumerate(inputs.contents) if number != content}
    assert len(moved) == 3
    assert moved <= {1, 2, 3, 4}


@pytest.mark.parametrize(
    "sets",
    [
        (torch.ones(4), torch.ones(5)),
        (torch.arange(8.0)[:4], torch.arange(8.0)[4:]),
        (torch.ones(1).expand(4), torch.ones(1).expand(4)),
        ((1, torch.ones(4)), (2, torch.ones(4))),
        ([torch.ones(4)], {"image": torch.ones(4)}),
        (1, 2),
        (torch.ones(4),) * 2,
    ],
)
def test_contents_that_cannot_change_places_stay(sets: tuple[object, ...]) -> None:
    assert not _exchangeable(sets)
    assert _exchangeable((torch.ones(4), torch.ones(4)))
