"""What a stream does with its blocks: matrix products whose result is known to the last bit, and exact checksums.

Multiplying a spectrum by the s-th Walsh function moves sample i of the signal to i XOR s; with s half of the points,
the halves of every signal change places. Samples are whole numbers -128..127, so every sum on the way is exact in
FP32 whatever the order of adding: a spectrum has the norm of the signal times sqrt(points), and by Cauchy-Schwarz no
partial sum of the way back exceeds points^1.5 x 128 in units of its last place, 2^22 for 1024 points.

A checksum has the sums of 64-bit words modulo 2^64 over the left and over the right half of a block's rows: the same on
a host and on a GPU, in any order of adding. It distinguishes a block from every other block and from its own mirror
images, but not from one with swapped rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

LARGEST_POINTS = 2048  # points^1.5 x 128 must stay below 2^24
RECORD = 3  # numbers per block in a record
Kernel = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Regime:
    """A regime of streaming: a file of `blocks` blocks, float32 [rows, points], with `rounds` of WalshShift on each.

    With 0 rounds the device computes a block's checksum alone, and only that comes back. `buffers` blocks may be on
    their way at once, read by `readers` threads in `pieces` each; `consumers` threads check the results. With a `team`,
    a reader copies out of the mapped file, by so many threads of PyTorch's.
    """

    rows: int
    points: int
    blocks: int
    rounds: int
    buffers: int
    readers: int
    consumers: int
    pieces: int = 1
    team: int = 0

    def kernel(self, device: torch.device) -> Kernel:
        return WalshShift(self.points, self.rounds, device) if self.rounds else half_sums

    def wanted(self, result: Tensor) -> Tensor:
        """int64 [2]: the sums of a result, in memory of its own."""
        return half_sums(result) if self.rounds else result.clone()

    def known(self, checksums: Tensor) -> Tensor:
        """int64 [blocks, 2]: the right values of `wanted`. An odd number of shifts swaps the halves of a block."""
        return checksums.flip(-1) if self.rounds % 2 else checksums

    def piece(self, number: int, block: Tensor) -> Tensor:
        """The part of a block's buffer for piece `number` of the file: float32 [rows x points / pieces]."""
        return block.view(self.pieces, -1)[number % self.pieces]

    def host_block(self, pinned: bool) -> Tensor:
        return torch.empty(self.rows, self.points, pin_memory=pinned)

    def host_result(self, pinned: bool) -> Tensor:
        if self.rounds:
            return self.host_block(pinned)
        return torch.empty(2, dtype=torch.int64, pin_memory=pinned)

    @property
    def flops(self) -> float:
        """FLOPs of a block: 2 per multiply-add, two products of [rows, points] with [points, points] per round."""
        return 4.0 * self.rounds * self.rows * self.points**2


class WalshShift:
    """`rounds` shifts by half of the points, one after another: 2 x `rounds` products with a [points, points] matrix.

    `points` is a power of two, 4 to LARGEST_POINTS.
    """

    def __init__(self, points: int, rounds: int, device: torch.device) -> None:
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


def half_sums(block: Tensor) -> Tensor:
    """int64 [2] on the block's device: the checksum of float32 [rows, points]."""
    if block.is_cuda:
        columns = block.view(torch.int64).sum(0)  # cuda only
    else:
        # NumPy adds on the calling thread alone and without the GIL: several blocks can be summed at once.
        columns = torch.from_numpy(np.add.reduce(block.numpy().view(np.int64), axis=0))
    return columns.view(2, -1).sum(1)


def record(sums: Tensor, known: Tensor) -> Tensor:
    """float64 [blocks, 3]: 1 where a block's sums equal the known sums, and the sums themselves as shares of 2^64.

    Both arguments are int64 [blocks, 2]. The first column compares every bit; the other columns identify the block.
    """
    right = (sums == known).all(-1, keepdim=True)
    return torch.cat([right.double(), sums.double() / 2.0**64], dim=-1)
