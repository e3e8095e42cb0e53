"""Exact checksums of blocks: sums of 64-bit words modulo 2^64, the same on a host and on a GPU, in any order of adding.

A block is float32 [rows, points], its checksum the sums over the left and over the right half of its rows. The checksum
distinguishes a block from every other block and from its own mirror images, but not from one with swapped rows.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

RECORD = 3  # numbers per block in a record


def half_sums(block: Tensor) -> Tensor:
    """int64 [2] on the block's device: the sums of the words in the left and in the right half of all rows."""
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
