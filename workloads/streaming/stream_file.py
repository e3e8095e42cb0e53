"""A file of blocks that streams from disk: written once and whole, read at any place by many threads at once.

The file stays in the page cache as far as memory allows, so that reading a block is a copy by the kernel, not a wait
for the disk.
"""

from __future__ import annotations

import functools
import mmap
import os
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from workloads.streaming.regime import half_sums


@dataclass(frozen=True)
class Layout:
    """The layout of a file: `blocks` blocks of float32 [rows, points], with random numbers of `seed`."""

    rows: int
    points: int
    blocks: int
    seed: int

    @property
    def bytes(self) -> int:
        return 4 * self.rows * self.points * self.blocks

    @property
    def file_name(self) -> str:
        return f"stream-{self.blocks}x{self.rows}x{self.points}-seed{self.seed}.float32"


class StreamFile:
    """The file of a layout in a folder, open for reading, and written first where it is not there whole.

    Raises OSError, in one sentence, when it cannot be written; no partial file stays.
    """

    def __init__(self, folder: Path, layout: Layout) -> None:
        self.path, self.layout = folder / layout.file_name, layout
        if not self.path.is_file() or self.path.stat().st_size != layout.bytes:
            _write(self.path, layout)
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        self._values = torch.empty(0)

    @property
    def checksums(self) -> Tensor:
        """int64 [blocks, 2], see `half_sums`: of the whole file, read once a process as long as nobody writes to it."""
        return _checksums(self.path.parent, self.layout, self.path.stat().st_mtime_ns)

    def read_into(self, number: int, buffer: Tensor) -> None:
        """Reads into `buffer`, contiguous float32 on the host, from the offset of `number` times its length.

        With a buffer of [rows, points] that is block `number`; a smaller buffer gets a piece of a block. The calling
        thread reads, without the GIL; others may read at the same time. Raises EOFError when the file is shorter.
        """
        view = buffer.numpy().data.cast("B")
        offset = number * len(view)
        while view:
            count = os.preadv(self._descriptor, [view], offset)
            if not count:
                raise EOFError(f"{self.path} ends at byte {offset}: remove it, to have it remade")
            view, offset = view[count:], offset + count

    def map_pages(self) -> None:
        """Maps the whole file into memory, with its pages, for `copy_into`."""
        pages = mmap.mmap(self._descriptor, 0, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*not writable")  # nobody writes to it
            self._values = torch.frombuffer(pages, dtype=torch.float32)

    def copy_into(self, number: int, buffer: Tensor) -> None:
        """Reads like `read_into`, by all threads of PyTorch together, from the memory that `map_pages` has mapped.

        The file must not become shorter meanwhile, which would kill the process.
        """
        values = buffer.numel()
        buffer.view(-1).copy_(self._values[number * values : (number + 1) * values])

    def close(self) -> None:
        """Closes the file; may be called again, and only when no thread reads."""
        self._values = torch.empty(0)  # the last reference to the mapping is gone
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@functools.lru_cache(maxsize=16)
def _checksums(folder: Path, layout: Layout, written_at: int) -> Tensor:
    file, block = StreamFile(folder, layout), torch.empty(layout.rows, layout.points)
    try:
        sums = []
        for number in range(layout.blocks):
            file.read_into(number, block)
            sums.append(half_sums(block))
        return torch.stack(sums)
    finally:
        file.close()


def _write(path: Path, layout: Layout) -> None:
    """Writes whole numbers -128..127, the values of an 8-bit converter, to a file that appears when it is whole."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            for number in range(layout.blocks):
                random = np.random.default_rng((layout.seed, number))
                block = random.integers(-128, 128, (layout.rows, layout.points), np.int8).astype(np.float32)
                file.write(block.data)
            file.flush()
            # A disk may be full only here; and pages written back later would disturb the timed blocks.
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        needs = f"the {layout.bytes / 2**20:.0f} MiB of {path} cannot be written ({error.strerror or error})"
        raise OSError(f"{needs}: make room or choose another cache folder") from error
    finally:
        partial.unlink(missing_ok=True)
