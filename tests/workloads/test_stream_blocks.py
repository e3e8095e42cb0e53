"""The blocks of a stream: a kernel whose results are known to the last bit, exact checksums, and their file."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.full_disk import files_up_to
from workloads.streaming.blocks import LARGEST_POINTS, Regime, StreamFile, WalshShift, hadamard, half_sums, record

CPU = torch.device("cpu")
SMALL = Regime(rows=8, points=16, blocks=12, rounds=1, buffers=1, readers=1, consumers=1)
BLOCK_BYTES = 4 * 8 * 16


def random_signals(rows: int, points: int) -> torch.Tensor:
    return torch.randint(-128, 128, (rows, points), generator=torch.Generator().manual_seed(points)).float()


def swapped(signals: torch.Tensor) -> torch.Tensor:
    """With its halves exchanged: sample i at i XOR half of the points."""
    return signals.roll(signals.shape[1] // 2, dims=1)


@pytest.mark.parametrize("points", [4, 64, 1024])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_shifts_swap_the_halves_of_every_signal_exactly(points: int, rounds: int) -> None:
    signals = random_signals(33, points)
    before = signals.clone()
    shifted = WalshShift(points, rounds, CPU)(signals)
    expected = swapped(signals) if rounds % 2 else signals
    assert torch.equal(shifted.view(torch.int32), expected.view(torch.int32)), "bit by bit"
    assert torch.equal(signals, before)


def test_the_loudest_signals_stay_exact() -> None:
    points = LARGEST_POINTS
    assert points**1.5 * 128 <= 2**24, "what FP32 adds exactly, in any order"
    loudest = torch.cat([torch.full((1, points), -128.0), torch.full((1, points), 127.0), -128 * hadamard(points)[1:9]])
    assert torch.equal(WalshShift(points, 1, CPU)(loudest), swapped(loudest))


def test_sums_are_those_of_the_words_modulo_two_to_the_64() -> None:
    block = random_signals(5, 16)
    words = block.view(torch.int64).tolist()
    modulo = [sum(sum(row[start : start + 4]) for row in words) % 2**64 for start in (0, 4)]
    assert [each % 2**64 for each in half_sums(block).tolist()] == modulo
    assert torch.equal(half_sums(swapped(block)), half_sums(block).flip(0))


def test_a_single_flipped_bit_is_noticed() -> None:
    block = random_signals(64, 64)
    known = half_sums(block)
    for bit in (0, 31, 32, 63):
        damaged = block.clone()
        damaged.view(torch.int64)[17, 3] ^= -(2**63) if bit == 63 else 2**bit
        assert record(half_sums(damaged)[None], known[None])[0, 0] == 0


@pytest.fixture
def file(tmp_path: Path) -> Iterator[StreamFile]:
    opened = StreamFile(tmp_path, SMALL, seed=5)
    opened.map_pages()
    yield opened
    opened.close()


def read(file: StreamFile, number: int) -> torch.Tensor:
    block = torch.full((SMALL.rows, SMALL.points), torch.nan)
    file.read_into(number, block)
    return block


def test_it_holds_seeded_whole_numbers_and_no_block_twice(file: StreamFile, tmp_path: Path) -> None:
    blocks = torch.stack([read(file, number) for number in range(12)])
    assert SMALL.file_bytes == file.path.stat().st_size == 12 * BLOCK_BYTES
    assert torch.equal(blocks, blocks.round())
    assert (blocks.min(), blocks.max()) == (-128, 127)
    assert file.checksums.tolist() == [half_sums(block).tolist() for block in blocks]
    assert len({tuple(each) for each in file.checksums.tolist()}) == 12
    other = StreamFile(tmp_path, SMALL, seed=6)
    assert other.path.read_bytes() != file.path.read_bytes()
    other.close()


def test_a_block_out_of_the_mapped_file_is_the_one_that_is_read(file: StreamFile) -> None:
    copied = torch.empty(SMALL.rows, SMALL.points)
    for number in (0, 11):
        file.copy_into(number, copied)
        assert torch.equal(copied, read(file, number))


def test_a_whole_file_is_reused_and_a_shorter_one_written_anew(file: StreamFile) -> None:
    before, content = file.path.stat(), file.path.read_bytes()
    StreamFile(file.path.parent, SMALL, seed=5).close()
    assert file.path.stat() == before
    os.truncate(file.path, SMALL.file_bytes - 1)
    StreamFile(file.path.parent, SMALL, seed=5).close()
    assert file.path.read_bytes() == content


def test_a_file_that_became_shorter_is_named(file: StreamFile) -> None:
    os.truncate(file.path, 11 * BLOCK_BYTES + 100)
    with pytest.raises(EOFError, match=rf"{file.path} ends at byte {11 * BLOCK_BYTES + 100}: remove it"):
        read(file, 11)


def test_a_limit_reached_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    says = rf"{tmp_path}/stream-12x8x16-seed5.float32 cannot be written \({os.strerror(errno.EFBIG)}\): make room"
    with files_up_to(SMALL.file_bytes // 2), pytest.raises(OSError, match=says):
        StreamFile(tmp_path, SMALL, seed=5)
    assert list(tmp_path.iterdir()) == []
