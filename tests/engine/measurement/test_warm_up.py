"""Warming up goes by time and by steadiness, on a made-up clock."""

from collections.abc import Callable, Iterator
from itertools import chain, combinations, count, repeat
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy import stats

from gpugate.measurement import warm_up as module
from gpugate.measurement.record import SideCost
from gpugate.measurement.sides import BuiltSide
from gpugate.measurement.torch_flags import TorchFlags
from gpugate.measurement.warm_up import MAX_STEPS_PER_BLOCK, PATIENCE, least_block_ms, steady, warm_up
from gpugate.workload import Side


@pytest.mark.parametrize(
    ("block_ms", "expected"),
    [
        ([10.0, 10.0], False),
        ([10.0, 10.0, 10.0], True),
        ([10.0, 10.11, 10.05], False),
        ([99.0, 50.0, 10.0, 10.0, 10.0], True),  # only the last count
        ([10.0, 10.0, 10.0, 10.0, 9.0], False),
        ([10.0, 12.0, 9.0, 11.0, 9.5] * 2, True),  # noise that does not drift
        ([12.0, 12.5, 11.5, 12.2, 11.8, 10.0, 10.5, 9.5, 10.2, 9.8], False),  # noise that does
        (([10.0, 12.0, 9.0, 11.0, 9.5] * 2)[1:], False),  # too few to tell
    ],
)
def test_steady_is_within_a_hundredth_or_without_a_drift_that_can_be_seen(block_ms, expected) -> None:
    assert steady(block_ms) is expected


def test_a_drift_is_what_the_test_of_mann_and_whitney_finds_at_five_percent() -> None:
    """In every order of ten blocks of different lengths."""
    found = []
    for earlier in combinations(range(10), 5):
        before, recent = (
            [10.0 + rank for rank in range(10) if (rank in earlier) is wanted] for wanted in (True, False)
        )
        found.append(steady([*before, *recent]))
        assert found[-1] is bool(stats.mannwhitneyu(before, recent, method="exact").pvalue > 0.05)
    assert set(found) == {True, False}


@pytest.mark.parametrize(
    ("step_ms", "stock_steps", "stocks", "round_steps", "steps"),
    [
        *((300.0, 1, 1, 1, 2), (300.0, 1, 2, 1, 2), (300.0, 0, 2, 1, 1), (30.0, 16, 2, 1, 33), (30.0, 16, 1, 1, 17)),
        *((20.0, 0, 1, 1, 1), (19.9, 0, 1, 1, 3), (1e-9, 0, 1, 1, MAX_STEPS_PER_BLOCK + 1), (0.0, 0, 1, 1, 100_001)),
        *((8.0, 0, 2, 75, 75), (8.0, 0, 2, 20, 21), (0.1, 0, 2, 75, 225), (5.0, 0, 2, 1, 5), (1.0, 2, 2, 1, 21)),
    ],
)
def test_a_block_lasts_for_stocks_and_whole_rounds_and_ends_on_another_input_each_time(
    step_ms: float, stock_steps: int, stocks: int, round_steps: int, steps: int
) -> None:
    assert module.steps_of_block(step_ms, 20.0, stock_steps, stocks, round_steps) == steps
    assert (steps + stock_steps) % 2


def warmed(
    monkeypatch: pytest.MonkeyPatch,
    step_ms: Iterator[float],
    seconds: float,
    sets: int = 1,
    ragged: bool = False,
    **declared: int,
) -> tuple[float, BuiltSide]:
    """Seconds of the made-up clock that warming up took, and the side."""
    clock, steps = SimpleNamespace(now_ms=0.0), [0]
    monkeypatch.setattr(module, "perf_counter", lambda: clock.now_ms / 1e3)

    def step(inputs: object) -> None:
        steps[0] += 1

    def time_ms(run: Callable[[], None]) -> float:
        steps[0] = 0
        run()
        block_ms = next(step_ms) * steps[0]
        clock.now_ms += block_ms
        return block_ms

    side = BuiltSide("fast", Side(step, **declared), TorchFlags(), torch.device("cpu"), SideCost(0.0, 0.0))
    warm_up(side, [None] * sets, time_ms, 20.0, seconds, ragged)
    return clock.now_ms / 1e3, side


# The times of a step, the seconds asked for, the side; the seconds that it takes from and to, and its steps of a block.
WARMED = {
    "steady": (lambda: repeat(0.5), 0.3, {}, 0.3, 0.322, 41),
    "loaders, by blocks of one stock after a step": (lambda: repeat(100.0), 0.3, {"stock_steps": 2}, 0.7, 0.7, 5),
    "drifting until it is steady": (
        lambda: chain((20.0 * 0.95**block for block in range(15)), repeat(1.0)), 0.25, {}, 0.25, PATIENCE * 0.25, 21,
    ),
    "never steady": (lambda: count(20.0, 0.3), 0.3, {}, PATIENCE * 0.3, PATIENCE * 0.3 + 0.1, 1),
    "no round on a CPU": (lambda: repeat(4.0), 0.03, {"round_steps": 101}, 0.044, 0.044, 5),
    "all sets of ragged inputs": (lambda: repeat(4.0), 0.03, {"sets": 9, "ragged": True}, 0.044, 0.044, 9),
    "whole rounds of 404 ms": (lambda: repeat(4.0), 0.03, {"round_steps": 101, "ragged": True}, 0.044, 0.044, 101),
    "too long a round": (lambda: repeat(4.01), 0.03, {"round_steps": 101, "ragged": True}, 0.0441, 0.0442, 5),
}  # fmt: skip


@pytest.mark.parametrize(("step_ms", "seconds", "side", "least_s", "most_s", "steps"), WARMED.values(), ids=WARMED)
def test_a_side_is_warmed_up_by_time_until_it_is_steady(
    monkeypatch: pytest.MonkeyPatch, step_ms: Any, seconds: float, side: Any, least_s: float, most_s: float, steps: int
) -> None:
    monkeypatch.setattr(module, "LONGEST_ROUND_MS", 404.0)
    took_s, found = warmed(monkeypatch, step_ms(), seconds, **side)
    assert least_s - 1e-9 <= took_s <= most_s + 1e-9
    assert found.steps_per_block == steps, "as the last blocks ask for"


@pytest.mark.parametrize(
    ("kind", "works_ahead", "block_ms"), [("cuda", False, 20.0), ("cuda", True, 200.0), ("cpu", True, 10.0)]
)
def test_blocks_of_a_side_that_works_ahead_on_a_gpu_are_longer(kind: str, works_ahead: bool, block_ms: float) -> None:
    side = Side(lambda inputs: inputs, works_ahead=works_ahead)
    assert least_block_ms(BuiltSide("fast", side, TorchFlags(), torch.device(kind), SideCost(0.0, 0.0))) == block_ms
