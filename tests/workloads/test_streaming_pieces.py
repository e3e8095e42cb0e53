"""Blocks that several readers share: every piece is read once and lies where it belongs before its block goes on."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from tests.support.patience import HANGS_S
from workloads.streaming.stream_device import Regime
from workloads.streaming.stream_file import Layout, StreamFile, open_stream_file
from workloads.streaming.stream_pipeline import Pipeline, Stages

PIECES = 4
REGIME = Regime(rows=8, points=16, blocks=5, rounds=0, buffers=2, readers=3, consumers=1, pieces=PIECES)


@dataclass
class FakeSlot:
    pieces: list[int] = field(default_factory=list)  # those read since it was last consumed


def read(slot: FakeSlot, number: int) -> None:
    slot.pieces.append(number)


def consume(slot: FakeSlot) -> torch.Tensor:
    pieces, slot.pieces = slot.pieces, []
    return torch.tensor(sorted(pieces))


@pytest.fixture
def made() -> Iterator[list[Pipeline[FakeSlot]]]:
    pipelines: list[Pipeline[FakeSlot]] = []
    yield pipelines
    for each in pipelines:
        each.close()
    assert [each.name for each in threading.enumerate() if each.name.startswith("stream-")] == []


def pipeline(made, slots=2, readers=3, read=read, submit=lambda slot: None) -> Pipeline[FakeSlot]:
    stages = Stages(read, submit, consume, PIECES)
    made.append(Pipeline([FakeSlot() for _ in range(slots)], stages, readers, consumers=1))
    return made[-1]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[StreamFile]:
    opened = open_stream_file(tmp_path, Layout(REGIME.rows, REGIME.points, REGIME.blocks, seed=5))
    yield opened
    opened.close()


@pytest.mark.parametrize("readers", [1, 3, 8])
@pytest.mark.parametrize("slots", [1, 2, 5])
def test_every_piece_is_in_its_blocks_slot_once_when_the_block_goes_on(made, slots: int, readers: int) -> None:
    gone_on: list[Counter[int]] = []
    whole = pipeline(made, slots, readers, submit=lambda slot: gone_on.append(Counter(slot.pieces)))
    numbers = [(7 * number) % 20 for number in range(20)]
    consumed = [each.result(HANGS_S).tolist() for each in whole.stream(numbers)]
    expected = [list(range(PIECES * number, PIECES * (number + 1))) for number in numbers]
    assert consumed == expected
    assert gone_on == [Counter(pieces) for pieces in expected]
    assert whole.most_in_flight <= slots, "a block counts once, however many pieces it has"


def test_as_many_readers_as_pieces_read_one_block_at_once(made) -> None:
    together = threading.Barrier(PIECES)

    def meet(slot: FakeSlot, number: int) -> None:
        together.wait(HANGS_S)
        read(slot, number)

    (consumed,) = pipeline(made, readers=PIECES, read=meet).stream([3])
    assert consumed.result(HANGS_S).tolist() == [12, 13, 14, 15]


def test_no_more_blocks_are_asked_for_than_the_ring_has_slots(made) -> None:
    asked: list[int] = []
    ahead: list[int] = []
    numbers = (asked.append(number) or number for number in range(6))
    pipeline(made, slots=2, submit=lambda slot: ahead.append(len(asked))).stream(numbers)
    assert ahead == [2, 3, 4, 5, 6, 6]


@pytest.mark.parametrize("lost", [0, 2, 3])
@pytest.mark.parametrize("readers", [1, 3])
def test_a_block_with_a_lost_piece_does_not_go_on(made, readers: int, lost: int) -> None:
    gone_on: list[list[int]] = []

    def lose(slot: FakeSlot, number: int) -> None:
        if number == 2 * PIECES + lost:
            raise OSError(f"piece {number} is lost")
        read(slot, number)

    broken = pipeline(made, readers=readers, read=lose, submit=lambda slot: gone_on.append(sorted(slot.pieces)))
    with ThreadPoolExecutor(1, "watched") as watched, pytest.raises(OSError, match=f"piece {8 + lost} is lost"):
        watched.submit(broken.stream, range(6)).result(HANGS_S)
    assert gone_on == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_the_pieces_of_a_block_are_the_block(file: StreamFile) -> None:
    for block in range(REGIME.blocks):
        whole, in_pieces = torch.full((2, REGIME.rows, REGIME.points), torch.nan)
        file.read_into(block, whole)
        for number in reversed(range(PIECES * block, PIECES * (block + 1))):
            file.read_into(number, REGIME.piece(number, in_pieces))
        assert torch.equal(in_pieces, whole)


@pytest.mark.parametrize(("number", "block"), [(PIECES * REGIME.blocks, REGIME.blocks), (-1, -1)])
def test_a_piece_that_the_file_does_not_have_is_named_by_its_block(file: StreamFile, number: int, block: int) -> None:
    with pytest.raises(IndexError, match=f"block {block} was asked for, and .* has 5: ask from 0 on"):
        file.read_into(number, torch.empty(REGIME.rows * REGIME.points // PIECES))
