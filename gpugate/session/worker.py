"""A worker of pytest-xdist: its GPU, its cores and its file, and the locks by which a case has the host alone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpugate.errors import OptionError
from gpugate.machine.cores import find_first_threads

GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"
INPUT, REFUSAL = "gpugate", "gpugate-refusal"  # of a worker, as xdist brings them there and back
GROUPS = "groups.json"


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
    given = getattr(config, "workerinput", {})
    found = given.get(INPUT)
    return None if found is None else Worker(**{**found, "name": given["workerid"], "folder": Path(found["folder"])})


def check_worker(config: pytest.Config, worker: Worker) -> None:
    """Raises OptionError in one of several workers that have no GPUs of their own."""
    count: int = config.workerinput["workercount"]  # type: ignore[attr-defined]
    if count > 1 and not worker.gpus:
        raise OptionError(
            f"-n {count} would run {count} tests at once, which is no measurement, since no workload was registered "
            "before the tests were collected: name their folder, such as pytest perf_tests -n auto"
        )
