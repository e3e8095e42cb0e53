"""Reading of driving frames on the host, one by one, by this process or by workers, and stacking into batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from workloads.driving.data import Frames
from workloads.driving.delivery import Batch, BatchOrder, normalized
from workloads.parts.loader_workers import dead_workers, end_workers, workers_of
from workloads.parts.shared_memory import check_shared_memory

STUCK_S = 30.0  # a batch takes a worker a second at most: a worker silent for this long has failed
PREFETCHED = 1  # batches per worker, so that little is in stock


@dataclass(frozen=True)
class FrameSet(Dataset[Batch]):
    """Single frames in the form that `read` names: uint8 or float32 [cameras, 3, height, width]."""

    frames: Frames
    read: Callable[[Frames, int], Tensor]

    def __getitem__(self, frame: int) -> Batch:
        labels = self.frames.commands[frame], self.frames.waypoints[frame]
        return Batch(self.read(self.frames, frame), *labels, torch.tensor(frame))

    def batch_bytes(self, batch: int) -> int:
        """Bytes of the pictures of a batch, in the form in which they are read."""
        return batch * self.frames.rig.frame_bytes * (4 if self.read is read_normalized else 1)

    def example(self, batch: int) -> Batch:
        """A batch of the right shapes and types."""
        return _stacked([self[0]] * batch)


def read_raw(frames: Frames, frame: int) -> Tensor:
    return frames.raw[frame]


def read_normalized(frames: Frames, frame: int) -> Tensor:
    return normalized(frames.raw[frame])


def read_jpeg(frames: Frames, frame: int) -> Tensor:
    return frames.decoded(frame)


def _stacked(frames: list[Batch]) -> Batch:
    return Batch(*map(torch.stack, zip(*frames, strict=True)))


class HostBatches(Iterator[Batch]):
    """Batches in pageable host memory, read by this process or by `workers` others; endless, in the order given.

    Raises OSError where shared memory cannot hold what the workers keep ready beside the batch in use.
    """

    def __init__(self, frame_set: FrameSet, order: BatchOrder, workers: int) -> None:
        self.workers, self.stock = workers, PREFETCHED * workers
        check_shared_memory((self.stock + 1) * frame_set.batch_bytes(order.batch) if workers else 0)
        loader = DataLoader(
            frame_set,
            batch_sampler=order,
            collate_fn=_stacked,
            num_workers=workers,
            prefetch_factor=PREFETCHED if workers else None,
            # Forked, the frames are shared and not copied. The generator leaves the process's random numbers alone.
            multiprocessing_context="fork" if workers else None,
            timeout=STUCK_S if workers else 0,
            generator=torch.Generator().manual_seed(0),
        )
        self._batches: Iterator[Batch] = iter(loader)

    def __next__(self) -> Batch:
        """Raises ValueError naming a file that cannot be used, RuntimeError within seconds when a worker has died."""
        try:
            return next(self._batches)
        except ValueError as error:  # of a worker: its whole traceback, whose last line has the cause
            said = str(error).strip().splitlines()[-1].removeprefix("ValueError: ")
            raise ValueError(said) from error
        except (RuntimeError, OSError, EOFError) as error:  # a dead worker causes any of these
            for worker in dead_workers(self._batches):
                how = f"worker process {worker.pid} died with exit code {worker.exitcode}"
                raise RuntimeError(f"DataLoader {how}: look for what killed it, such as too little memory") from error
            if "timed out" in str(error):
                raise RuntimeError(f"{error}: look for what holds its workers up, such as a slow disk") from error
            raise

    def workers_alive(self) -> int:
        return sum(worker.is_alive() for worker in workers_of(self._batches))

    def close(self) -> None:
        batches, self._batches = self._batches, iter(())
        end_workers(batches)
