"""A worker of pytest-xdist: its GPU, its cores and its file, and the locks by which a case has the host alone."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpugate.errors import OptionError
from gpugate.machine.cores import find_first_threads

if TYPE_CHECKING:
    from filelock import FileLock

GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"
INPUT, REFUSAL = "gpugate", "gpugate-refusal"  # of a worker, as xdist brings them there and back
GROUPS = "groups.json"
CLAIM_S = 60.0  # until the GPU of a worker that died is free for the one that replaces it
_GPU: pytest.StashKey[FileLock] = pytest.StashKey()


@dataclass(frozen=True)
class Worker:
    """The part of one worker in the run of all: `shares` are the cores of each GPU of `gpus`, `place` is its GPU.

    A single worker has no GPU of its own: it sees what the controller sees.
    """

    name: str
    folder: Path
    started_at: str
    seed: int
    gpus: tuple[str, ...]
    shares: tuple[tuple[int, ...], ...]
    cores: tuple[int, ...]  # of the host
    place: int | None = None

    @property
    def path(self) -> Path:
        """The file of its own results, which it writes at its end."""
        return self.folder / f"{self.name}.json"

    @property
    def own_cores(self) -> tuple[int, ...]:
        return self.cores if self.place is None else self.shares[self.place]

    @property
    def fewest_cores(self) -> int:
        """The cores that each worker has at least: all of them plan a case by this number, and collect one order."""
        return min(map(len, self.shares), default=len(self.cores))

    @contextmanager
    def hold_host(self, alone: bool) -> Iterator[None]:
        """Measures a case beside those of other workers on the cores of its GPU, or `alone` on all cores.

        A case that runs alone waits for the present cases of the others, which begin no further one meanwhile.
        """
        if self.place is None:
            yield
            return
        from filelock import FileLock  # imports asyncio, which a session without workers does not need

        from gpugate.measurement.torch_flags import set_default_threads

        with ExitStack() as held:
            with FileLock(self.folder / "turn.lock"):
                for place in range(len(self.gpus)) if alone else (self.place,):
                    held.enter_context(FileLock(self.folder / f"case-{place}.lock"))
            cores = self.cores if alone else self.own_cores
            os.sched_setaffinity(0, cores)
            if "OMP_NUM_THREADS" not in os.environ:
                set_default_threads(len(set(find_first_threads(cores).values())))
            yield

    def name_groups(self, groups: Mapping[str, str]) -> None:
        """Gives the controller the group of each test that stays with others in one worker."""
        from gpugate.store.json_file import write_atomically  # with pydantic

        write_atomically(self.folder / GROUPS, json.dumps(groups))

    @contextmanager
    def begin(self) -> Iterator[bool]:
        """Yields True in the first worker that begins, for which all others wait."""
        from filelock import FileLock

        began = self.folder / "began"
        with FileLock(self.folder / "begin.lock"):
            yield not began.exists()
            began.touch()


def read_worker(config: pytest.Config) -> Worker | None:
    """Returns this worker; None in the controller and without xdist."""
    text = getattr(config, "workerinput", {}).get(INPUT)
    if text is None:
        return None
    found = json.loads(text)
    lists = {name: tuple(found[name]) for name in ("gpus", "cores")}
    folder, shares, place = Path(found["folder"]), tuple(map(tuple, found["shares"])), config.stash.get(_GPU, None)
    of_gpu = None if place is None else int(Path(place.lock_file).stem)
    name = config.workerinput["workerid"]  # type: ignore[attr-defined]
    return Worker(**{**found, **lists, "name": name, "folder": folder, "shares": shares, "place": of_gpu})


def claim_gpu(config: pytest.Config, worker: Worker) -> None:
    """Takes a GPU that no other worker has, as long as this process lives, before torch looks for GPUs."""
    from filelock import FileLock, Timeout

    until = time.monotonic() + CLAIM_S
    while time.monotonic() < until:
        for place, gpu in enumerate(worker.gpus):
            lock = FileLock(worker.folder / f"{place}.gpu")
            try:
                lock.acquire(blocking=False)
            except Timeout:
                continue
            config.stash[_GPU], os.environ[GPU_VARIABLE] = lock, gpu
            return
        time.sleep(0.1)
    raise OptionError(f"other processes kept the GPUs {', '.join(worker.gpus)} for {CLAIM_S:g} s: repeat the run")


def check_worker(config: pytest.Config, worker: Worker) -> None:
    """Raises OptionError in one of several workers that have no GPUs of their own."""
    count: int = config.workerinput["workercount"]  # type: ignore[attr-defined]
    if count > 1 and not worker.gpus:
        raise OptionError(
            f"-n {count} would run {count} tests at once, which is no measurement, since no workload was registered "
            "before the tests were collected: name their folder, such as pytest perf_tests -n auto"
        )
