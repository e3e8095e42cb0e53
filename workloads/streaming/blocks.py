"""The blocks of a stream: the file that they are read from, the kernel that runs on them, and exact checksums.

Multiplying a spectrum by the s-th Walsh function moves sample i of the signal to i XOR s; with s half of the points,
the halves of every signal change places. Samples are whole numbers -128..127, so every sum on the way is exact in
FP32 whatever the order of adding: a spectrum has the norm of the signal times sqrt(points), and by Cauchy-Schwarz no
partial sum of the way back exceeds points^1.5 x 128 in units of its last place, 2^22 for 1024 points.

A checksum has the sums of 64-bit words modulo 2^64 over the left and over the right half of a block's rows: the same on
a host and on a GPU, in any order of adding. It distinguishes a block from every other block and from its own mirror
images, but not from one with swapped rows.

The file is written once and whole, and read at any place by many threads at once. It stays in the page cache as far as
memory allows, so that reading a block is a copy by the kernel, not a wait for the disk.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from workloads.parts.kept_files import replacing_file

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

    @property
    def file_bytes(self) -> int:
        return 4 * self.rows * self.points * self.blocks

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
        from scipy.linalg import hadamard  # its import takes a fifth of a second

        walsh = torch.from_numpy(hadamard(points, np.float32)).to(device)
        self._rounds = rounds
        self._forth = walsh * walsh[points // 2]  # to the spectrum, already multiplied by the Walsh function
        self._back = walsh / points

    def __call__(self, signals: Tensor) -> Tensor:
        """Shifts float32 [rows, points], which stay untouched; returns a new tensor of that shape."""
        for _ in range(self._rounds):
            signals = (signals @ self._forth) @ self._back
        return signals


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


class StreamFile:
    """The file of a regime in a folder, with numbers of a seed: written where it is not there whole, open for reading.

    Raises OSError, in one sentence, when it cannot be written; no partial file stays.
    """

    def __init__(self, folder: Path, regime: Regime, seed: int) -> None:
        self.regime, self.seed = regime, seed
        self.path = folder / f"stream-{regime.blocks}x{regime.rows}x{regime.points}-seed{seed}.float32"
        if not self.path.is_file() or self.path.stat().st_size != regime.file_bytes:
            _write(self.path, regime, seed)
        self._file = self.path.open("rb", buffering=0)
        self._values = torch.empty(0)

    @property
    def checksums(self) -> Tensor:
        """int64 [blocks, 2], see `half_sums`: of the whole file, read once a process as long as nobody writes to it."""
        return _checksums(self.path.parent, self.regime, self.seed, self.path.stat().st_mtime_ns)

    def read_into(self, number: int, buffer: Tensor) -> None:
        """Reads into `buffer`, contiguous float32 on the host, from the offset of `number` times its length.

        With a buffer of [rows, points] that is block `number`; a smaller buffer gets a piece of a block. The calling
        thread reads, without the GIL; others may read at the same time. Raises EOFError when the file is shorter.
        """
        view = buffer.numpy().data.cast("B")
        offset = number * len(view)
        while view:
            count = os.preadv(self._file.fileno(), [view], offset)
            if not count:
                raise EOFError(f"{self.path} ends at byte {offset}: remove it, to have it remade")
            view, offset = view[count:], offset + count

    def map_pages(self) -> None:
        """Maps the whole file into memory, for `copy_into`."""
        self._values = torch.from_file(str(self.path), shared=False, size=self.regime.file_bytes // 4)

    def copy_into(self, number: int, buffer: Tensor) -> None:
        """Reads like `read_into`, by all threads of PyTorch together, from the memory that `map_pages` has mapped.

        The file must not become shorter meanwhile, which would kill the process.
        """
        values = buffer.numel()
        buffer.view(-1).copy_(self._values[number * values : (number + 1) * values])

    def close(self) -> None:
        """Closes the file; may be called again, and only when no thread reads."""
        self._values = torch.empty(0)  # the last reference to the mapping is gone
        self._file.close()


@functools.lru_cache(maxsize=16)
def _checksums(folder: Path, regime: Regime, seed: int, written_at: int) -> Tensor:
    block, sums = regime.host_block(pinned=False), []
    with closing(StreamFile(folder, regime, seed)) as file:
        for number in range(regime.blocks):
            file.read_into(number, block)
            sums.append(half_sums(block))
    return torch.stack(sums)


def _write(path: Path, regime: Regime, seed: int) -> None:
    """Writes whole numbers -128..127, the values of an 8-bit converter, to a file that appears when it is whole."""
    try:
        with replacing_file(path) as partial, partial.open("wb") as file:
            for number in range(regime.blocks):
                random = np.random.default_rng((seed, number))
                block = random.integers(-128, 128, (regime.rows, regime.points), np.int8).astype(np.float32)
                file.write(block.data)
            file.flush()
            # A disk may be full only here; and pages written back later would disturb the timed blocks.
            os.fsync(file.fileno())
    except OSError as error:
        needs = f"the {regime.file_bytes / 2**20:.0f} MiB of {path} cannot be written ({error.strerror or error})"
        raise OSError(f"{needs}: make room or choose another cache folder") from error
