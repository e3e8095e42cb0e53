"""The workers of pytest-xdist: each has a GPU and cores of its own; the controller joins their results in one run."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpugate.errors import OptionError
from gpugate.machine import children, nvml
from gpugate.machine.children import end_with_parent
from gpugate.machine.cores import find_first_threads, find_usable_cores, share_cores
from gpugate.report.visible_text import show_controls
from gpugate.units import format_now, number_of

if TYPE_CHECKING:
    from gpugate.results.run import RunResult

GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"
INPUT, REFUSAL = "gpugate", "gpugate-refusal"  # of a worker, as xdist brings them there and back
GROUPS = "groups.json"
WORKERS: pytest.StashKey[Workers] = pytest.StashKey()  # in the controller


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
            cores = self.cores if alone else self.shares[self.place]
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
    """Raises OptionError for more workers than GPUs, which are no measurement."""
    count: int = config.workerinput["workercount"]  # type: ignore[attr-defined]
    if count > max(1, len(worker.gpus)):
        step = "use -n auto, and name the folder of the tests, such as pytest perf_tests -n auto"
        gpus = number_of(len(worker.gpus), "GPU")
        raise OptionError(f"-n {count} would run {count} tests at once on {gpus}, which is no measurement: {step}")


def count_workers(device: str) -> int:
    """The workers of `-n auto`: one for each GPU that CUDA_VISIBLE_DEVICES leaves, and one on a machine without any."""
    return max(1, len(nvml.list_visible_gpus())) if device in ("auto", "cuda") else 1


def start_workers(config: pytest.Config, worker: Worker | None, device: str, seed: int | None, measures: bool) -> None:
    """Prepares the workers of `-n` in the controller; makes a `worker` end with the controller.

    The workers of a session that is not known to measure have no GPUs of their own: `check_worker` refuses several that
    have perf tests, and more than there are GPUs. A device that was named is one device for all workers.
    """
    if hasattr(config, "workerinput"):
        end_with_parent(os.getppid())
        if worker is not None and worker.place is not None:  # before torch looks for GPUs
            os.environ[GPU_VARIABLE] = worker.gpus[worker.place]
        return
    if children.task is not None:  # a child measures in one process, also where the project's addopts has -n
        config.option.dist, config.option.tx = "no", []
    workers = len(config.getoption("tx", None) or ())
    if workers:
        own = measures and workers > 1 and device in ("auto", "cuda")
        config.stash[WORKERS] = Workers(nvml.list_visible_gpus()[:workers] if own else [], seed)
        config.pluginmanager.register(config.stash[WORKERS])
        if measures:  # a worker that dies ends the session, as a process without workers does
            config.option.maxworkerrestart = "0"


class Workers:
    """The plugin of the controller. `gpus` is empty for a single worker, and for workers of plain tests."""

    def __init__(self, gpus: Sequence[str], seed: int | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gpugate-workers-", ignore_cleanup_errors=True)
        self.folder = Path(self._folder.name)
        self._died = False
        self._places = itertools.chain(range(len(gpus)), itertools.repeat(None))  # one of several has a GPU
        usable = find_usable_cores()
        shares = share_cores(usable, [nvml.read_near_cores(gpu) for gpu in gpus], find_first_threads(usable))
        self._input = {
            "folder": str(self.folder),
            "started_at": format_now(),
            "seed": secrets.randbits(32) if seed is None else seed,
            "gpus": tuple(gpus),
            "shares": tuple(tuple(sorted(share)) for share in shares),
            "cores": tuple(sorted(usable)),
        }

    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[INPUT] = {**self._input, "place": next(self._places)}

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """xdist's scheduling by scopes, each of which is a group: its own `loadgroup` names none under pytest 9.2."""
        from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

        path = self.folder / GROUPS
        if not self._input["gpus"]:
            return None

        class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
            @cached_property
            def groups(self) -> dict[str, str]:
                return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

            def _split_scope(self, nodeid: str) -> str:
                return self.groups.get(nodeid, nodeid)

        config.option.loadscopereorder = False  # groups keep the order of their workers
        return GroupScheduling(config, log)

    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        """Ends the session with the reason of a worker that has no test to run."""
        refusal = getattr(node, "workeroutput", {}).get(REFUSAL)
        if refusal is not None:
            raise pytest.UsageError(show_controls(refusal))
        self._died = self._died or error is not None

    @property
    def measured(self) -> bool:
        """True where a worker began the run."""
        return (self.folder / "began").exists()

    def join_runs(self, given: Sequence[Path]) -> RunResult | None:
        """The run of all workers, interrupted where one of them ended early; None where none measured.

        The finished cases are in the files that the user has `given`, else in one of the folder.
        """
        from gpugate.session.merging import join_workers
        from gpugate.store import run_file  # with pydantic

        if not self.measured:
            return None
        ended = sorted(self.folder.glob("gw*.json"))
        stored = run_file.read((*given, self.folder / "run.json")[0])
        return join_workers(stored, [run_file.read(path) for path in ended], self._died)

    def pytest_unconfigure(self) -> None:
        self._folder.cleanup()
