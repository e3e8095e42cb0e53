"""The prefetcher hands out every batch whole and in order, whatever the copies and the uses wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

from workloads.parts.prefetcher import Copy, HostOrder, Prefetcher

CPU = torch.device("cpu")


def batches(count: int, length: int = 2) -> Iterator[tuple[Tensor, ...]]:
    """Batch n is filled with n: [length, 3] float32 and [length] int64."""
    for number in range(count):
        yield torch.full((length, 3), float(number)), torch.full((length,), number)


def taken(fetcher: Prefetcher, count: int) -> list[tuple[Tensor, ...]]:
    return [tuple(tensor.clone() for tensor in fetcher.take()) for _ in range(count)]


def test_the_next_batch_can_be_left_to_a_caller_that_has_work_first() -> None:
    asked: list[int] = []
    fetcher = Prefetcher((asked.append(number) or batch for number, batch in enumerate(batches(5))), CPU)
    fetcher.take(ahead=False)
    assert asked == [0]
    fetcher.copy_next()
    fetcher.copy_next()
    assert asked == [0, 1]
    assert fetcher.take(ahead=False)[1].tolist() == [1, 1]
    assert asked == [0, 1]
    fetcher.take()
    assert asked == [0, 1, 2, 3], "else it is copied before this one is handed out"


@pytest.mark.parametrize(("sent", "pieces", "whole"), [(0, 1, 0), (3, 1, 3), (5, 2, 2)])
def test_after_the_last_whole_batch_it_stops(sent: int, pieces: int, whole: int) -> None:
    fetcher = Prefetcher(batches(sent), CPU, pieces)
    assert len(taken(fetcher, whole)) == whole
    for _ in range(2):
        with pytest.raises(StopIteration):
            fetcher.take()


class LateUses(HostOrder):
    """The worst a device may do: what was enqueued on a batch runs only when a copy is made to wait for it."""

    def __init__(self) -> None:
        self.enqueued: list[Callable[[], None]] = []
        self.done = 0
        self.used = [0, 0]

    def end_use(self, slot: int) -> None:
        self.used[slot] = len(self.enqueued)

    def run_until(self, count: int) -> None:
        while self.done < count:
            self.enqueued[self.done]()
            self.done += 1

    def copy(self, slot: int, copies: Sequence[Copy]) -> None:
        self.run_until(self.used[slot])
        super().copy(slot, copies)


class LateCopies(HostOrder):
    """The other way round: a copy is made only when a use waits for it."""

    def __init__(self) -> None:
        self.waiting: list[list[Copy]] = [[], []]

    def copy(self, slot: int, copies: Sequence[Copy]) -> None:
        assert not self.waiting[slot], "the batch before was never used"
        self.waiting[slot] = list(copies)

    def begin_use(self, slot: int) -> None:
        super().copy(slot, self.waiting[slot])
        self.waiting[slot] = []

    def copying(self, slot: int) -> bool:
        return bool(self.waiting[slot])


def test_no_batch_is_overwritten_while_it_is_used() -> None:
    fetcher, order, seen = Prefetcher(batches(14), CPU, pieces=2), LateUses(), []
    fetcher._order = order
    for _ in range(7):
        images, numbers = fetcher.take()
        order.enqueued.append(lambda images=images, numbers=numbers: seen.append((images.clone(), numbers.clone())))
    order.run_until(len(order.enqueued))
    assert [numbers.tolist() for _, numbers in seen] == [[2 * n, 2 * n, 2 * n + 1, 2 * n + 1] for n in range(7)]
    assert all(torch.equal(images[:, 0].long(), numbers) for images, numbers in seen)


def test_no_batch_is_used_before_it_is_there() -> None:
    fetcher = Prefetcher(batches(14), CPU, pieces=2)
    fetcher._order = LateCopies()
    found, copying = [], []
    for _ in range(7):
        found += taken(fetcher, 1)
        copying.append(fetcher.copying())
    assert copying == [True] * 6 + [False], "the last one has none after it"
    assert [numbers.tolist() for _, numbers in found] == [[2 * n, 2 * n, 2 * n + 1, 2 * n + 1] for n in range(7)]
