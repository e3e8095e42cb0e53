"""The streaming workloads: what they declare, that their CPU sides agree block by block, and how they end badly."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from gpugate.catalogue import Catalogue
from gpugate.errors import DisprovedError
from gpugate.faults.fault import Fault
from gpugate.faults.mutate import apply
from gpugate.workload import BASELINE, Context, Side, for_device_class
from tests.support.patience import HANGS_S
from workloads import streaming
from workloads.streaming import (
    COMPUTE,
    COPY,
    LONG_COMPUTE,
    STREAMING_COMPUTE,
    STREAMING_COPY,
    STREAMING_LONG_COMPUTE,
    STREAMING_RESIDENT,
    WORKLOADS,
    block_numbers,
    show_whole_file,
    stream_file,
)
from workloads.streaming.stream_device import Regime
from workloads.streaming.stream_file import open_stream_file
from workloads.streaming.stream_sides import at_once, file_of, in_a_row, read_by_threads
from workloads.streaming.walsh_shift import LARGEST_POINTS, WalshShift

SM_90 = ("sm_90", "cuda")
SMALL = {"cpu": Regime(rows=32, points=16, blocks=20, rounds=1, buffers=3, readers=2, consumers=2)}
# Regimes whose results are whole blocks, one whose results are checksums, and one whose readers share every block.
EVEN = {"cpu": replace(SMALL["cpu"], rounds=2)}
CHECKSUMS = {"cpu": replace(SMALL["cpu"], rounds=0)}
PIECES = {"cpu": replace(SMALL["cpu"], readers=3, pieces=4)}
SIDES = {
    "reader-threads": read_by_threads,
    "pipelined": at_once,
    "one buffer": partial(at_once, buffers=1),
    "eight buffers": partial(at_once, buffers=8),
}


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(torch.device("cpu"), items=8, seed=3, cache_dir=tmp_path)


@pytest.fixture(autouse=True)
def one_kernel_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    assert [each.name for each in threading.enumerate() if each.name.startswith("stream-")] == []


@pytest.fixture
def build(context: Context) -> Iterator[Callable[..., Side]]:
    built: list[Side] = []

    def build_and_remember(make: Callable[[Context], Side], context: Context = context) -> Side:
        built.append(make(context))
        return built[-1]

    yield build_and_remember
    for side in built:
        side.close()


def test_the_catalogue_takes_them_all() -> None:
    catalogue = Catalogue()
    for workload in WORKLOADS:
        catalogue.register(workload)
    catalogue.load()
    ids = {case.id for case in catalogue.cases()}
    compute = ("pinned", "reader-threads", "pipelined", *(f"buffers-{count}" for count in (1, 2, 3, 4, 8)))
    assert ids == {
        *(f"streaming-compute/{name}/cuda" for name in compute),
        "streaming-copy/pipelined/cuda",
        "streaming-resident/pipelined/cuda",
        "streaming-long-compute/pipelined/cuda",
        "streaming-compute/pipelined/cpu",
        "streaming-long-compute/pipelined/cpu",
    }


@pytest.mark.parametrize(
    ("workload", "speedup"),
    [
        (STREAMING_COMPUTE, 4.0),
        (STREAMING_COPY, 4.0),
        (STREAMING_RESIDENT, 0.97),
        (STREAMING_LONG_COMPUTE, 0.97),
    ],
)
def test_an_h200_must_show_these_speedups_over_one_stage_after_another(workload, speedup: float) -> None:
    optimization = workload.optimization("pipelined")
    assert for_device_class(optimization.min_speedup, SM_90) >= speedup
    assert optimization.compared_with == BASELINE
    assert optimization.why


@pytest.mark.parametrize(
    ("workload", "counter", "share"),
    [(STREAMING_COMPUTE, "active_fraction", 0.95), (STREAMING_COPY, "bus_share", 0.45)],
)
def test_an_h200_must_keep_the_gpu_busy_and_its_share_of_a_bus_that_others_use(
    workload, counter: str, share: float
) -> None:
    contract = for_device_class(workload.optimization("pipelined").contract, SM_90)
    assert share in [limit.at_least for limit in contract.limits if limit.counter == counter]


def test_the_sweep_compares_every_number_of_buffers_with_the_same_side() -> None:
    points = [each for each in STREAMING_COMPUTE.optimizations if each.point is not None]
    assert [(each.point.sweep, each.point.value) for each in points] == [("buffers", n) for n in (1, 2, 3, 4, 8)]
    assert {each.compared_with for each in points} == {BASELINE}


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


def test_inputs_are_orders_of_blocks_that_differ_from_set_to_set(context: Context) -> None:
    numbers = block_numbers(SMALL, replace(context, items=45), 0)
    assert numbers.shape == (45,)
    assert sorted(numbers[:20].tolist()) == sorted(numbers[20:40].tolist()) == list(range(20))
    assert torch.equal(numbers, block_numbers(SMALL, replace(context, items=45), 0))
    assert not torch.equal(numbers, block_numbers(SMALL, replace(context, items=45), 1))
    assert not torch.equal(numbers, block_numbers(SMALL, replace(context, items=45, seed=4), 0))


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
    side.cached_step()


def test_steps_return_before_their_blocks_are_checked(context: Context, build, monkeypatch) -> None:
    may_check = threading.Event()
    wanted = Regime.wanted

    def held(regime: Regime, result: torch.Tensor) -> torch.Tensor:
        assert may_check.wait(HANGS_S)
        return wanted(regime, result)

    monkeypatch.setattr(Regime, "wanted", held)
    side = build(partial(at_once, SMALL), replace(context, items=2))
    output = side.step(torch.tensor([4, 2]))
    may_check.set()
    side.finish()
    assert output[:, 0].tolist() == [1, 1]


def test_the_stock_is_what_the_buffers_hold_in_steps(context: Context, build) -> None:
    for items, stock_steps in ((8, 1), (3, 1), (2, 2), (1, 3)):
        assert build(partial(at_once, SMALL), replace(context, items=items)).stock_steps == stock_steps
    assert build(partial(in_a_row, SMALL, False)).stock_steps == 0


@pytest.mark.parametrize("kind", ["stale", "skip-work", "wrong"])
def test_a_fault_shows_in_the_record(context: Context, build, kind: str) -> None:
    steps = [block_numbers(SMALL, context, index) for index in range(2)]
    reference = build(partial(in_a_row, SMALL, False))
    side = build(apply(Fault(kind, 0.01), partial(at_once, SMALL)))
    side.step(steps[0])
    output = side.step(steps[1])
    side.finish()
    expected = reference.step(steps[1])
    assert (output - expected).norm() / expected.norm() > 1e-3


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


def test_a_buffer_that_is_filled_before_it_was_consumed_is_seen(context: Context, build, monkeypatch) -> None:
    """The race that overlap invites: the next block arrives in a buffer that is still needed."""
    side = build(partial(at_once, SMALL))
    wanted = Regime.wanted

    def too_late(regime: Regime, result: torch.Tensor) -> torch.Tensor:
        result[: len(result) // 2] = 7.0  # half of the next block is there already
        return wanted(regime, result)

    monkeypatch.setattr(Regime, "wanted", too_late)
    output = side.step(torch.arange(8))
    side.finish()
    assert output[:, 0].tolist() == [0] * 8


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


@pytest.mark.parametrize("regimes", [SMALL, PIECES], ids=["whole", "in pieces"])
@pytest.mark.parametrize("make", SIDES.values(), ids=SIDES)
def test_a_reader_that_dies_ends_the_step_with_its_error_and_all_threads(
    context: Context, build, make, regimes, monkeypatch
) -> None:
    side = build(partial(make, regimes))
    side.step(torch.arange(8))
    monkeypatch.setattr(stream_file.os, "preadv", fails_at(11, 32 * 16 * 4))
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


@pytest.mark.parametrize("regimes", [SMALL, PIECES], ids=["whole", "in pieces"])
@pytest.mark.parametrize("make", SIDES.values(), ids=SIDES)
def test_a_file_that_shrinks_while_it_streams_is_named(context: Context, build, make, regimes) -> None:
    side = build(partial(make, regimes))
    side.step(torch.arange(8))
    side.finish()
    (path,) = context.cache_dir.glob("*.float32")
    os.truncate(path, 12 * 32 * 16 * 4)
    with pytest.raises(EOFError, match="within block 12: remove it, to have it remade"):
        side.step(torch.arange(8, 16))


def test_a_full_disk_is_one_sentence_of_the_build(context: Context, monkeypatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device.*make room") as raised:
        at_once(SMALL, context)
    assert "\n" not in str(raised.value)
    assert list(context.cache_dir.iterdir()) == []


def test_the_whole_file_is_shown_to_come_back(context: Context) -> None:
    assert show_whole_file(SMALL, context).startswith("20 of 20 blocks came back in order")


def test_a_block_out_of_place_disproves_it(context: Context, monkeypatch) -> None:
    def two_swapped(regime: Regime, context: Context):
        file = file_of(regime, context)
        read_into = file.read_into
        places = {4: 9, 9: 4}
        monkeypatch.setattr(file, "read_into", lambda number, block: read_into(places.get(number, number), block))
        return file

    monkeypatch.setattr("workloads.streaming.stream_sides.file_of", two_swapped)
    with pytest.raises(DisprovedError, match="2 of 20 blocks came back wrong or out of place, first block 4"):
        show_whole_file(SMALL, context)


def test_sides_share_a_file_and_nothing_else(context: Context, build) -> None:
    sides = [build(partial(at_once, SMALL)) for _ in range(2)]
    numbers = [block_numbers(SMALL, context, index) for index in range(2)]
    outputs = [side.step(each) for side, each in zip(sides, numbers, strict=True)]
    sides[0].close()
    sides[1].finish()
    assert outputs[1][:, 0].tolist() == [1] * 8
    assert len(list(context.cache_dir.glob("*.float32"))) == 1
    open_stream_file(context.cache_dir, stream_file.Layout(32, 16, 20, seed=3)).close()


def test_the_callers_random_numbers_go_on_as_before(context: Context, build) -> None:
    state = torch.random.get_rng_state()
    build(partial(at_once, SMALL)).step(block_numbers(SMALL, context, 0))
    assert torch.equal(torch.random.get_rng_state(), state)
