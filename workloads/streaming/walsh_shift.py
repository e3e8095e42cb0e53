"""A shift of signals through their Walsh-Hadamard spectrum: matrix products whose result is known to the last bit.

Multiplying a spectrum by the s-th Walsh function moves sample i of the signal to i XOR s; with s half of the points,
the halves of every signal change places. Samples are whole numbers -128..127, so every sum on the way is exact in
FP32 whatever the order of adding: a spectrum has the norm of the signal times sqrt(points), and by Cauchy-Schwarz no
partial sum of the way back exceeds points^1.5 x 128 in units of its last place, 2^22 for 1024 points.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST_POINTS = 2048  # points^1.5 x 128 must stay below 2^24


class WalshShift:
    """`rounds` shifts by half of the points, one after another: 2 x `rounds` products with a [points, points] matrix.

    Raises ValueError for a number of points that is no power of two, or too large to be exact.
    """

    def __init__(self, points: int, rounds: int, device: torch.device) -> None:
        if points < 4 or points & (points - 1) or points > LARGEST_POINTS:
            raise ValueError(f"{points} points cannot be shifted exactly: use a power of two, 4 to {LARGEST_POINTS}")
        walsh = hadamard(points).to(device)
        self._rounds = rounds
        self._forth = walsh * walsh[points // 2]  # to the spectrum, already multiplied by the Walsh function
        self._back = walsh / points

    def __call__(self, signals: Tensor) -> Tensor:
        """Shifts float32 [rows, points], which stay untouched; returns a new tensor of that shape."""
        for _ in range(self._rounds):
            signals = (signals @ self._forth) @ self._back
        return signals


def hadamard(points: int) -> Tensor:
    """Sylvester's matrix: float32 [points, points] of 1 and -1."""
    matrix = torch.ones(1, 1)
    while len(matrix) < points:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


def flops(rows: int, points: int, rounds: int) -> float:
    """FLOPs: 2 per multiply-add, two products of [rows, points] with [points, points] per round."""
    return 4.0 * rounds * rows * points**2
