"""The prefetcher hands out every batch whole and in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from workloads.parts.loader import Prefetcher

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


def test_every_batch_is_whole_and_in_order() -> None:
    found = taken(Prefetcher(batches(14), CPU, pieces=2), 7)
    assert [numbers.tolist() for _, numbers in found] == [[2 * n, 2 * n, 2 * n + 1, 2 * n + 1] for n in range(7)]
    assert all(torch.equal(images[:, 0].long(), numbers) for images, numbers in found)
