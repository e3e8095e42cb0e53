"""The streaming workloads: exact blocks and checksums, sides that agree in every regime, and errors that end a step."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from scipy.linalg import hadamard

from gpugate.workload import Context, Side
from tests.support.full_disk import files_up_to
from tests.support.patience import HANGS_S
from workloads import streaming
from workloads.streaming import COMPUTE, COPY, LONG_COMPUTE, blocks, sides
from workloads.streaming.blocks import LARGEST_POINTS, Regime, StreamFile, WalshShift, half_sums, record
from workloads.streaming.sides import at_once, in_a_row, read_by_threads

pytestmark = pytest.mark.usefixtures("no_thread_stays")
CPU = torch.device("cpu")
SMALL = {"cpu": Regime(rows=32, points=16, blocks=20, rounds=1, buffers=3, readers=2, consumers=2)}
# Regimes whose results are whole blocks, one whose results are checksums, and one whose readers share every block.
EVEN = {"cpu": replace(SMALL["cpu"], rounds=2)}
CHECKSUMS = {"cpu": replace(SMALL["cpu"], rounds=0)}
PIECES = {"cpu": replace(SMALL["cpu"], readers=3, pieces=4)}
TEAM = {"cpu": replace(SMALL["cpu"], team=2)}
SIDES = {"reader-threads": read_by_threads, "pipelined": at_once, "one buffer": partial(at_once, buffers=1)}
BLOCK_BYTES = 4 * 32 * 16


def random_signals(rows: int, points: int) -> torch.Tensor:
    return torch.randint(-128, 128, (rows, points), generator=torch.Generator().manual_seed(points)).float()


@pytest.mark.parametrize(("points", "rounds"), [(4, 1), (64, 2), (1024, 3)])
def test_shifts_swap_the_halves_of_every_signal_exactly(points: int, rounds: int) -> None:
    signals = random_signals(33, points)
    before = signals.clone()
    expected = signals.roll(points // 2, dims=1) if rounds % 2 else signals
    assert torch.equal(WalshShift(points, rounds, CPU)(signals), expected)
    assert torch.equal(signals, before)


def test_the_loudest_signals_stay_exact() -> None:
    points = LARGEST_POINTS
    assert points**1.5 * 128 <= 2**24, "what FP32 adds exactly, in any order"
    walsh = torch.from_numpy(hadamard(points)).float()
    loudest = torch.cat([torch.full((1, points), -128.0), torch.full((1, points), 127.0), -128 * walsh[1:9]])
    assert torch.equal(WalshShift(points, 1, CPU)(loudest), loudest.roll(points // 2, dims=1))


def test_a_single_flipped_bit_is_noticed() -> None:
    block = random_signals(64, 64)
    known = half_sums(block)
    for bit in (0, 31, 32, 63):
        damaged = block.clone()
        damaged.view(torch.int64)[17, 3] ^= -(2**63) if bit == 63 else 2**bit
        assert record(half_sums(damaged)[None], known[None])[0, 0] == 0


def test_a_file_is_written_once_and_a_shorter_one_anew_or_named(tmp_path: Path) -> None:
    def stored() -> tuple[int, bytes]:
        with closing(StreamFile(tmp_path, SMALL["cpu"], seed=5)) as file:
            return file.path.stat().st_mtime_ns, file.path.read_bytes()

    written_at, content = stored()
    assert stored() == (written_at, content)
    assert len(content) == SMALL["cpu"].file_bytes == 20 * BLOCK_BYTES
    os.truncate(*tmp_path.iterdir(), len(content) - 1)
    assert stored()[1] == content
    block = torch.empty(32, 16)
    with closing(StreamFile(tmp_path, SMALL["cpu"], seed=5)) as file:
        os.truncate(file.path, 11 * BLOCK_BYTES + 100)
        with pytest.raises(EOFError, match=rf"{file.path} ends at byte {11 * BLOCK_BYTES + 100}: remove it"):
            file.read_into(11, block)


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    says = rf"{tmp_path}/stream-20x32x16-seed5.float32 cannot be written \({os.strerror(errno.EFBIG)}\): make room"
    with files_up_to(SMALL["cpu"].file_bytes // 2), pytest.raises(OSError, match=says):
        StreamFile(tmp_path, SMALL["cpu"], seed=5)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(CPU, items=8, seed=3, cache_dir=tmp_path)


@pytest.fixture
def build(context: Context) -> Iterator[Callable[..., Side]]:
    built: list[Side] = []

    def build_and_remember(make: Callable[[Context], Side]) -> Side:
        built.append(make(context))
        return built[-1]

    yield build_and_remember
    for side in built:
        side.close()


@pytest.mark.parametrize("regime", [*COMPUTE.values(), *COPY.values(), *LONG_COMPUTE.values()])
def test_a_file_is_larger_than_the_buffers_and_its_results_are_exact(regime: Regime) -> None:
    assert regime.blocks > (2 if regime.rounds else 1) * regime.buffers
    assert regime.rows % regime.pieces == 0
    assert regime.points <= LARGEST_POINTS
    assert regime.rounds == 0 or regime.rounds % 2, "an even number of swaps would look like none"


def test_the_stated_bytes_are_those_that_cross_the_bus() -> None:
    regime = Regime(rows=10, points=8, blocks=4, rounds=3, buffers=1, readers=1, consumers=1)
    assert streaming.size(regime, 5).bytes == 5 * 2 * 10 * 8 * 4
    assert streaming.size(replace(regime, rounds=0), 5).bytes == 5 * 10 * 8 * 4


@pytest.mark.parametrize(
    "regimes", [SMALL, EVEN, CHECKSUMS, PIECES, TEAM], ids=["swapped", "even", "checksums", "in pieces", "by a team"]
)
@pytest.mark.parametrize("make", SIDES.values(), ids=SIDES)
def test_sides_give_the_baselines_record_of_every_step(context: Context, build, make, regimes) -> None:
    steps = [sides.block_numbers(regimes, context, index) for index in range(6)]
    reference, side = build(partial(in_a_row, regimes, False)), build(partial(make, regimes))
    outputs = [side.step(numbers) for numbers in steps]
    side.finish()
    for numbers, output in zip(steps, outputs, strict=True):
        expected = reference.step(numbers)
        assert expected[:, 0].tolist() == [1] * 8
        assert torch.equal(output, expected)
    assert side.engaged() is None


def test_a_kernel_that_is_wrong_in_one_number_is_seen(build, monkeypatch) -> None:
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


def test_a_pipeline_that_never_overlapped_says_so(build) -> None:
    side = build(partial(at_once, SMALL))
    assert side.engaged() == "never more than 0 block was on its way, with 3 buffers"


@pytest.mark.parametrize(("make", "regimes"), [(read_by_threads, SMALL), (at_once, PIECES)], ids=["whole", "in pieces"])
def test_a_reader_that_dies_ends_the_step_with_its_error(build, make, regimes, monkeypatch) -> None:
    side, read = build(partial(make, regimes)), os.preadv
    side.step(torch.arange(8))

    def preadv(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        if offset >= 11 * BLOCK_BYTES:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(descriptor, buffers, offset)

    monkeypatch.setattr(blocks.os, "preadv", preadv)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)) as raised:
        side.step(torch.arange(8, 16))
    assert "read_into" in [entry.name for entry in raised.traceback], "the traceback leads to the reader"


def test_a_check_that_fails_late_is_an_error_of_the_finish(build, monkeypatch) -> None:
    may_check = threading.Event()

    def broken(regime: Regime, result: torch.Tensor) -> torch.Tensor:
        assert may_check.wait(HANGS_S)
        raise ArithmeticError("no sums today")

    side = build(partial(at_once, SMALL))
    monkeypatch.setattr(Regime, "wanted", broken)
    side.step(torch.tensor([4, 2]))
    may_check.set()
    with pytest.raises(ArithmeticError, match="no sums today"):
        side.finish()
