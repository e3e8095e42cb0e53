"""The streaming workloads: sides agree in every regime, faults of overlap are seen, and errors end all threads."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from gpugate.errors import DisprovedError
from gpugate.workload import Context, Side
from tests.support.patience import HANGS_S
from workloads import streaming
from workloads.streaming import (
    COMPUTE,
    COPY,
    LONG_COMPUTE,
    block_numbers,
    blocks,
    show_whole_file,
)
from workloads.streaming.blocks import LARGEST_POINTS, Regime, WalshShift
from workloads.streaming.sides import at_once, file_of, in_a_row, read_by_threads

pytestmark = pytest.mark.usefixtures("no_thread_stays")
SMALL = {"cpu": Regime(rows=32, points=16, blocks=20, rounds=1, buffers=3, readers=2, consumers=2)}
# Regimes whose results are whole blocks, one whose results are checksums, and one whose readers share every block.
EVEN = {"cpu": replace(SMALL["cpu"], rounds=2)}
CHECKSUMS = {"cpu": replace(SMALL["cpu"], rounds=0)}
PIECES = {"cpu": replace(SMALL["cpu"], readers=3, pieces=4)}
SIDES = {
    "reader-threads": read_by_threads,
    "pipelined": at_once,
    "one buffer": partial(at_once, buffers=1),
}


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(torch.device("cpu"), items=8, seed=3, cache_dir=tmp_path)


@pytest.fixture
def build(context: Context) -> Iterator[Callable[..., Side]]:
    built: list[Side] = []

    def build_and_remember(make: Callable[[Context], Side], context: Context = context) -> Side:
        built.append(make(context))
        return built[-1]

    yield build_and_remember
    for side in built:
        side.close()


@pytest.mark.parametrize("regime", [*COMPUTE.values(), *COPY.values(), *LONG_COMPUTE.values()])
def test_a_file_is_larger_than_the_buffers_and_its_results_are_exact(regime: Regime) -> None:
    buffers_per_slot = 2 if regime.rounds else 1
    assert regime.blocks > buffers_per_slot * regime.buffers
    assert regime.rows % regime.pieces == 0
    assert regime.points <= LARGEST_POINTS
    assert regime.rounds == 0 or regime.rounds % 2, "an even number of swaps would look like none"


def test_the_stated_work_is_what_crosses_the_bus_and_what_the_products_cost() -> None:
    regime = Regime(rows=10, points=8, blocks=4, rounds=3, buffers=1, readers=1, consumers=1)
    assert streaming.size(regime, 5).bytes == 5 * 2 * 10 * 8 * 4
    assert streaming.size(regime, 5).flops == 5 * 6 * 2 * 10 * 8 * 8
    assert streaming.size(replace(regime, rounds=0), 5).bytes == 5 * 10 * 8 * 4


@pytest.mark.parametrize("regimes", [SMALL, EVEN, CHECKSUMS, PIECES], ids=["swapped", "even", "checksums", "in pieces"])
@pytest.mark.parametrize("make", SIDES.values(), ids=SIDES)
def test_sides_give_the_baselines_record_of_every_step(context: Context, build, make, regimes) -> None:
    steps = [block_numbers(regimes, context, index) for index in range(6)]
    reference, side = build(partial(in_a_row, regimes, False)), build(partial(make, regimes))
    outputs = [side.step(numbers) for numbers in steps]
    side.finish()
    for numbers, output in zip(steps, outputs, strict=True):
        expected = reference.step(numbers)
        assert expected[:, 0].tolist() == [1] * 8
        assert torch.equal(output, expected)
    assert len({tuple(output[0].tolist()) for output in outputs}) > 1, "steps differ, so a stale output is seen"
    assert side.engaged() is None


def test_a_kernel_that_is_wrong_in_one_number_is_seen(context: Context, build, monkeypatch) -> None:
    reference, side = build(partial(in_a_row, SMALL, False)), build(partial(at_once, SMALL))
    shift = WalshShift.__call__

    def slightly_wrong(kernel: WalshShift, signals: torch.Tensor) -> torch.Tensor:
        shifted = shift(kernel, signals)
        shifted[3, 5] += 1
        return shifted

    monkeypatch.setattr(WalshShift, "__call__", slightly_wrong)
    output = side.step(torch.arange(8))
    side.finish()
    assert output[:, 0].tolist() == [0] * 8
    with pytest.raises(ValueError, match=r"blocks \[5\] of .* came back wrong: remove the file"):
        reference.step(torch.tensor([5]))


def test_a_pipeline_that_never_overlapped_says_so(context: Context, build) -> None:
    side = build(partial(at_once, SMALL))
    assert side.engaged() == "never more than 0 block was on its way, with 3 buffers"
    one = build(partial(at_once, SMALL, buffers=1))
    assert one.engaged() is None, "one buffer promises no overlap"


def fails_at(block: int, block_bytes: int) -> Callable[..., int]:
    read = os.preadv

    def preadv(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        if offset >= block * block_bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(descriptor, buffers, offset)

    return preadv


@pytest.mark.parametrize(("make", "regimes"), [(read_by_threads, SMALL), (at_once, PIECES)], ids=["whole", "in pieces"])
def test_a_reader_that_dies_ends_the_step_with_its_error_and_all_threads(
    context: Context, build, make, regimes, monkeypatch
) -> None:
    side = build(partial(make, regimes))
    side.step(torch.arange(8))
    monkeypatch.setattr(blocks.os, "preadv", fails_at(11, 32 * 16 * 4))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)) as raised:
        side.step(torch.arange(8, 16))
    assert "read_into" in [entry.name for entry in raised.traceback], "the traceback leads to the reader"
    assert [each.name for each in threading.enumerate() if each.name.startswith("stream-")] == []


def test_a_check_that_fails_late_ends_all_threads_where_the_step_is_finished(
    context: Context, build, monkeypatch
) -> None:
    may_check = threading.Event()

    def broken(regime: Regime, result: torch.Tensor) -> torch.Tensor:
        assert may_check.wait(HANGS_S)
        raise ArithmeticError("no sums today")

    side = build(partial(at_once, SMALL), replace(context, items=2))
    monkeypatch.setattr(Regime, "wanted", broken)
    side.step(torch.tensor([4, 2]))
    may_check.set()
    with pytest.raises(ArithmeticError, match="no sums today"):
        side.finish()
    assert [each.name for each in threading.enumerate() if each.name.startswith("stream-")] == []


def test_the_whole_file_is_shown_to_come_back(context: Context) -> None:
    assert show_whole_file(SMALL, context).startswith("20 of 20 blocks came back in order")


def test_a_block_out_of_place_disproves_it(context: Context, monkeypatch) -> None:
    def two_swapped(regime: Regime, context: Context):
        file = file_of(regime, context)
        read_into = file.read_into
        places = {4: 9, 9: 4}
        monkeypatch.setattr(file, "read_into", lambda number, block: read_into(places.get(number, number), block))
        return file

    monkeypatch.setattr("workloads.streaming.sides.file_of", two_swapped)
    with pytest.raises(DisprovedError, match="2 of 20 blocks came back wrong or out of place, first block 4"):
        show_whole_file(SMALL, context)
