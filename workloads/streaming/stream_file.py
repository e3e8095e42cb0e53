"""A file of blocks that streams from disk: written once and whole, read at any place by many threads at once.

Beside it lies a file with its length and a checksum of every block. The file stays in the page cache as far as memory
allows, so that reading a block is a copy by the kernel, not a wait for the disk.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from workloads.streaming.block_checksum import half_sums

FORMAT = 1
MIB = 2**20


@dataclass(frozen=True)
class Layout:
    """The layout of a file: `blocks` blocks of float32 [rows, points], with random numbers of `seed`."""

    rows: int
    points: int
    blocks: int
    seed: int

    @property
    def block_bytes(self) -> int:
        return 4 * self.rows * self.points

    @property
    def bytes(self) -> int:
        return self.block_bytes * self.blocks

    @property
    def file_name(self) -> str:
        return f"stream-{self.blocks}x{self.rows}x{self.points}-seed{self.seed}.float32"


class StreamFile:
    """An intact file, open for reading. `checksums` is int64 [blocks, 2], see `half_sums`."""

    def __init__(self, path: Path, layout: Layout, checksums: Tensor) -> None:
        self.path, self.layout, self.checksums = path, layout, checksums
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._values = torch.empty(0)

    def read_into(self, number: int, buffer: Tensor) -> None:
        """Reads into `buffer`, contiguous float32 on the host, from the offset of `number` times its length.

        With a buffer of [rows, points] that is block `number`; a smaller buffer gets a piece of a block. The calling
        thread reads, without the GIL; others may read at the same time. Raises IndexError for a number that the file
        does not have and EOFError when it has become shorter.
        """
        view = buffer.numpy().data.cast("B")
        offset = number * len(view)
        self._check_within(offset)
        while view:
            count = os.preadv(self._descriptor, [view], offset)
            if not count:
                raise self._too_short(offset)
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
        end = buffer.nbytes * (number + 1)
        self._check_within(end - buffer.nbytes)
        length = os.fstat(self._descriptor).st_size
        if length < end:
            raise self._too_short(length)
        buffer.view(-1).copy_(self._values[number * values : (number + 1) * values])

    def _check_within(self, offset: int) -> None:
        block = offset // self.layout.block_bytes
        if not 0 <= block < self.layout.blocks:
            raise IndexError(f"block {block} was asked for, and {self.path} has {self.layout.blocks}: ask from 0 on")

    def _too_short(self, offset: int) -> EOFError:
        block = offset // self.layout.block_bytes
        return EOFError(f"{self.path} ends at byte {offset} within block {block}: remove it, to have it remade")

    def close(self) -> None:
        """Closes the file; may be called again, and only when no thread reads."""
        self._values = torch.empty(0)  # the last reference to the mapping is gone
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def open_stream_file(folder: Path, layout: Layout) -> StreamFile:
    """Opens the file of that layout in `folder`, and writes it first unless it is there intact.

    Raises OSError, in one sentence, when it cannot be written; no partial file stays.
    """
    path = folder / layout.file_name
    checksums = _checksums_if_intact(path, layout)
    if checksums is None:
        _write(path, layout)
        checksums = _checksums_if_intact(path, layout)
    if checksums is None:
        raise OSError(f"{path} reads otherwise than it was written just now: check the disk or choose another folder")
    return StreamFile(path, layout, checksums)


def beside(path: Path) -> Path:
    """The path of the length and the checksums of the file at `path`."""
    return path.with_name(f"{path.name}.json")


def _checksums_if_intact(path: Path, layout: Layout) -> Tensor | None:
    try:
        told = json.loads(beside(path).read_bytes())
        status = path.stat()
        if status.st_size != layout.bytes:
            return None
        checksums = _read_checksums(path, layout, (status.st_dev, status.st_ino, status.st_mtime_ns))
    except (OSError, EOFError, ValueError):
        return None
    return checksums if told == _what_is_known(layout, checksums) else None


@functools.lru_cache(maxsize=16)
def _read_checksums(path: Path, layout: Layout, version: tuple[int, ...]) -> Tensor:
    """int64 [blocks, 2] from the whole file, read once a process as long as `version` is unchanged."""
    file, block = StreamFile(path, layout, torch.empty(0)), torch.empty(layout.rows, layout.points)
    try:
        sums = []
        for number in range(layout.blocks):
            file.read_into(number, block)
            sums.append(half_sums(block))
        return torch.stack(sums)
    finally:
        file.close()


def _what_is_known(layout: Layout, checksums: Tensor) -> dict[str, object]:
    return {"format": FORMAT, "bytes": layout.bytes, "checksums": checksums.tolist()}


def _write(path: Path, layout: Layout) -> None:
    try:
        sums = []
        with _replacing(path) as file:
            for number in range(layout.blocks):
                block = _random_block(layout, number)
                sums.append(half_sums(torch.from_numpy(block)))
                file.write(block.data)
        with _replacing(beside(path)) as file:
            file.write(json.dumps(_what_is_known(layout, torch.stack(sums))).encode())
    except OSError as error:
        needs = f"the {layout.bytes / MIB:.0f} MiB of {path} cannot be written ({error.strerror or error})"
        raise OSError(f"{needs}, {_free(path.parent)}: make room or choose another cache folder") from error


def _free(folder: Path) -> str:
    try:
        return f"{shutil.disk_usage(folder).free / MIB:.0f} MiB are free there"
    except OSError as error:
        return f"and nobody can tell how much is free ({error.strerror})"


def _random_block(layout: Layout, number: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """A block of whole numbers -128..127, the values of an 8-bit converter."""
    random = np.random.default_rng((layout.seed, number))
    return random.integers(-128, 128, (layout.rows, layout.points), np.int8).astype(np.float32)


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that becomes `path` when all of it is on the disk, and vanishes if that fails.

    Its name contains the process: the next writer removes the file of a killed process.
    """
    for left in path.parent.glob(f".{path.name}.*"):
        if not Path("/proc", left.suffix[1:]).exists():
            left.unlink(missing_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            # A disk may be full only here; and pages written back later would disturb the timed blocks.
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
