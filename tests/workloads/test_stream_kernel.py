"""The kernel of the streaming workloads, whose results are known to the last bit, and the checksum that says so."""

import pytest
import torch

from workloads.streaming.blocks import LARGEST_POINTS, WalshShift, hadamard, half_sums, record

CPU = torch.device("cpu")


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
