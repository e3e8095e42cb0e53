"""Memory that grows with every step, on a made-up device: a leak, and no allocation made once and no garbage."""

import weakref
from collections.abc import Callable
from functools import partial
from random import Random
from statistics import median
from typing import Any

import pytest
import torch

from gpugate.measurement import unprofiled as growth
from gpugate.measurement.record import SideCost
from gpugate.measurement.sides import BuiltSide
from gpugate.measurement.torch_flags import TorchFlags
from gpugate.workload import Side

CPU = torch.device("cpu")
OUTPUT = torch.ones(1)
LEVELS = growth.LEVELS * growth.LOOKS - 1  # rounds
LOOKED_AGAIN = growth.ROUNDS + LEVELS  # rounds, where the first ones looked like growth


class _Block:
    """A kilobyte; with `cyclic`, only the garbage collector frees it."""

    def __init__(self, cyclic: bool) -> None:
        self.itself = self if cyclic else None


class Memory:
    def __init__(self) -> None:
        self.blocks: weakref.WeakSet[_Block] = weakref.WeakSet()
        self.kept: list[_Block] = []
        self.steps = 0

    @property
    def rounds(self) -> int:
        """Before the one that runs."""
        return (self.steps - 1) // growth.STEPS

    def allocate(self, cyclic: bool = False) -> _Block:
        block = _Block(cyclic)
        self.blocks.add(block)
        return block

    def grown(
        self,
        monkeypatch: pytest.MonkeyPatch,
        work: Callable[[], object],
        steps_per_block: int = growth.STEPS,
        step_ms: float = 0.0,
    ) -> float:
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1000 * len(self.blocks))

        def step(inputs: object) -> torch.Tensor:
            self.steps += 1
            work()
            return OUTPUT

        side = BuiltSide("fast", Side(step), TorchFlags.current(), CPU, SideCost(0.0, 0.0), steps_per_block)
        return growth.grown_bytes(side, [None, None], step_ms)


@pytest.mark.parametrize(
    ("more", "steps"), [({}, growth.STEPS), ({"step_ms": growth.ROUND_MS / 2}, 2), ({"steps_per_block": 1}, 1)]
)
def test_what_every_step_keeps_is_growth_and_long_steps_are_watched_for_fewer_of_them(
    monkeypatch, more: dict[str, Any], steps: int
) -> None:
    memory = Memory()
    assert memory.grown(monkeypatch, lambda: memory.kept.append(memory.allocate()), **more) == 1000.0
    assert memory.steps == (LOOKED_AGAIN + LEVELS) * steps


def test_what_is_allocated_once_or_given_back_is_no_growth(monkeypatch) -> None:
    memory = Memory()
    assert memory.grown(monkeypatch, memory.allocate) == 0.0
    memory = Memory()
    assert memory.grown(monkeypatch, lambda: memory.steps in (3, 18) and memory.kept.append(memory.allocate())) == 0.0
    memory = Memory()
    memory.kept = [memory.allocate() for _ in range(100)]
    assert memory.grown(monkeypatch, lambda: memory.kept.pop()) == 0.0
    memory = Memory()
    assert memory.grown(monkeypatch, partial(memory.allocate, cyclic=True)) == 0.0
    assert memory.steps == LOOKED_AGAIN * growth.STEPS, "garbage looked like growth at first"


def of_a_library(monkeypatch, leaked: int, drift: int | None = None) -> list[float]:
    """Measures 100 sides that leak this many blocks a step, beside a library that keeps 0 to 80 blocks.

    With `drift`, what the library keeps changes by at most so many blocks from one step to the next.
    """
    monkeypatch.setattr(growth.gc, "collect", lambda: 0)  # which takes a fifth of a second each time
    found, random = list[float](), Random(1)  # noqa: S311
    for _ in range(100):
        memory, ours, its = Memory(), list[object](), list[object]()

        def step(memory: Memory = memory, ours: list[object] = ours, its: list[object] = its) -> None:
            ours.extend(memory.allocate() for _ in range(leaked))
            kept = 20 * random.randrange(5) if drift is None else len(its) + random.randint(-drift, drift)
            its[:] = [memory.allocate() for _ in range(min(max(kept, 0), 80))]

        found.append(memory.grown(monkeypatch, step))
    return found


@pytest.mark.parametrize(("drift", "most"), [(None, 2), (4, 5)])
def test_what_a_library_keeps_for_a_while_is_no_growth(monkeypatch, drift: int | None, most: int) -> None:
    assert sum(grown > 0 for grown in of_a_library(monkeypatch, 0, drift)) <= most


def test_what_a_library_holds_hides_no_leak(monkeypatch) -> None:
    found = of_a_library(monkeypatch, 4)  # in a round a quarter of what it may hold
    assert sum(grown > 0 for grown in found) >= 70
    assert 2000 < median(found) < 6000


def test_what_is_allocated_while_it_looks_again_is_no_growth(monkeypatch) -> None:
    for late in (growth.ROUNDS, growth.ROUNDS + growth.LOOKS):  # at its first level, at its second
        memory = Memory()

        def step(memory: Memory = memory, late: int = late) -> None:
            if memory.rounds in (1, late):
                memory.kept.append(memory.allocate())

        assert memory.grown(monkeypatch, step) == 0.0
        assert memory.rounds + 1 == LOOKED_AGAIN, "it looked like growth at first"


@pytest.mark.parametrize("at_step", [16, 40, 60, 100])
def test_memory_that_is_allocated_once_hides_no_leak(monkeypatch, at_step: int) -> None:
    memory = Memory()

    def leak() -> None:
        memory.kept += [memory.allocate() for _ in range(1000 if memory.steps == at_step else 1)]

    assert memory.grown(monkeypatch, leak) == 1000.0
