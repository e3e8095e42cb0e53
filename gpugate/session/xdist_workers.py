"""Under pytest-xdist: a worker for each GPU, with a share of the cores, and one for the host, which sees all GPUs."""

from __future__ import annotations

import datetime
import json
import os
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpugate.errors import GpugateError, OptionError
from gpugate.machine import nvml
from gpugate.machine.children import end_with_parent
from gpugate.machine.cores import find_first_threads, find_usable_cores, share_cores
from gpugate.results.fleet_plan import Group, group_cases
from gpugate.session.usage_errors import usage_errors
from gpugate.session.worker_orders import ORDERS, Orders, read_tests

if TYPE_CHECKING:
    from gpugate.session.options import Options
    from gpugate.session.stored_durations import StoredRun

GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"
HOST = "host"  # the id of the worker that sees all GPUs
# In a new worker, before it imports anything: threads and processes that it starts later have these cores too.
PIN = "import os; os.sched_setaffinity(0, channel.receive())"


WORKERS: pytest.StashKey[Workers] = pytest.StashKey()  # in the controller


def count_workers(device: str) -> int:
    """The workers of `-n auto`: one for each GPU that CUDA_VISIBLE_DEVICES leaves, and one on a machine without any."""
    return max(1, len(nvml.list_visible_gpus())) if device in ("auto", "cuda") else 1


def start_workers(config: pytest.Config, options: Options, measures: bool) -> None:
    """Prepares the workers of `-n` in the controller; in a worker, makes it end with the controller.

    A session that is not known to measure has as many workers as it likes: `check_worker` refuses one with perf tests.
    Raises OptionError for more workers than GPUs, and for recording in any worker: neither is a measurement. Raises
    RunFileError for a run of --perf-durations that cannot be read.
    """
    if hasattr(config, "workerinput"):
        end_with_parent(os.getppid())
        return
    workers = _worker_count(config.getoption("tx", None) or ())
    if not workers:
        return
    if not measures:
        _register(config, Workers(options, ()))
        return
    gpus = nvml.list_visible_gpus()
    # A worker takes the GPU of its own number; a device that was named is one device for all of them.
    if workers > (max(1, len(gpus)) if options.device in ("auto", "cuda") else 1):
        where = f"on {len(gpus)} GPU(s)"
        where = where if options.device == "auto" else f"on {options.device}, with {len(gpus)} GPU(s) here"
        raise OptionError(
            f"-n {workers} would run {workers} tests at once {where}, which is no measurement: use -n auto"
        )
    if options.update_baselines:
        raise OptionError(f"--update-baselines with -n {workers} would record workers that share a host: use -n 0")
    if workers > 1:
        config.option.tx = [*config.option.tx, f"popen//id={HOST}"]
    _register(config, Workers(options, tuple(gpus[:workers]) if workers > 1 else ()))


def _register(config: pytest.Config, workers: Workers) -> None:
    config.stash[WORKERS] = workers
    config.pluginmanager.register(workers)


def check_worker(config: pytest.Config, orders: Orders) -> None:
    """Raises OptionError in one of several workers that have no GPUs of their own."""
    count: int = config.workerinput["workercount"]  # type: ignore[attr-defined]
    if count > 1 and orders.gpus is None:
        raise OptionError(
            f"-n {count} would run {count} tests at once, which is no measurement, since no workload was registered "
            "before the tests were collected: name their folder, such as pytest perf_tests -n auto"
        )


def _worker_count(specs: Sequence[str]) -> int:
    """The number of workers in xdist's `--tx`, where `3*popen` means three."""
    counts = (spec.partition("*")[0] if "*" in spec else "1" for spec in specs)
    return sum(int(count) if count.isdecimal() else 1 for count in counts)


@dataclass(frozen=True)
class Share:
    """The GPUs that a worker sees, as CUDA_VISIBLE_DEVICES, and its cores."""

    gpus: str
    cores: tuple[int, ...]


def share_host(gpus: Sequence[str]) -> list[Share]:
    """A share of this host for each GPU, and after them all GPUs and cores, for the worker of the host."""
    usable = find_usable_cores()
    cores = share_cores(usable, [nvml.read_near_cores(gpu) for gpu in gpus], find_first_threads(usable))
    shares = [Share(gpu, tuple(sorted(own))) for gpu, own in zip(gpus, cores, strict=True)]
    return [*shares, Share(",".join(gpus), tuple(sorted(usable)))]


def _read_files(path: Path) -> list[StoredRun]:
    from gpugate.session.stored_durations import read_files  # with pydantic

    return read_files([path])


@dataclass(eq=False)
class Workers:
    """The plugin of the controller: hooks of xdist that start its workers. `gpus` is empty for a single worker."""

    options: Options
    gpus: tuple[str, ...]
    folder: Path = field(init=False)
    starting: set[Any] = field(default_factory=set)  # nodes of xdist that have not collected yet
    began: bool = False  # the files of the run
    dead: set[Any] = field(default_factory=set)  # nodes that ended before they had finished

    def __post_init__(self) -> None:
        path = self.options.durations_path
        self._given = None if path is None else _read_files(path)
        self._folder = tempfile.TemporaryDirectory(prefix="gpugate-workers-")
        self.folder = Path(self._folder.name)
        seed = secrets.randbits(32) if self.options.seed is None else self.options.seed
        now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        # A run without a file has one here for as long as it runs: a worker that is killed leaves its cases in it.
        paths = self.options.run_paths or (self.folder / "run.json",)
        runs, results = tuple(str(path.resolve()) for path in paths), tuple(map(str, self.options.result_paths))
        self.orders = Orders(str(self.folder / "tests.json"), runs, now, seed, results)

    @property
    def tests_path(self) -> Path:
        return Path(self.orders.tests_path)

    def pytest_xdist_setupnodes(self, specs: Sequence[Any]) -> None:
        if not self.gpus:
            return
        self._shares = {id(spec): share for spec, share in zip(specs, share_host(self.gpus), strict=True)}
        for spec in specs:
            spec.env[GPU_VARIABLE] = self._shares[id(spec)].gpus

    def pytest_xdist_newgateway(self, gateway: Any) -> None:
        """A worker that replaces a dead one has its spec, and therefore its share."""
        if self.gpus:
            channel = gateway.remote_exec(PIN)
            channel.send(self._shares[id(gateway.spec)].cores)
            channel.waitclose()

    def pytest_configure_node(self, node: Any) -> None:
        self.starting.add(node)
        orders = replace(self.orders, resume=self.options.resume or self.began)
        if self.gpus:
            share = self._shares[id(node.gateway.spec)]
            cores = min(len(one.cores) for one in self._shares.values())
            orders = replace(orders, gpus=share.gpus, host_cores=len(find_usable_cores()), cores=cores)
        node.workerinput[ORDERS] = json.dumps(asdict(orders))

    def place(self, node: Any) -> int:
        """The number of a worker, from 0 on, which one that replaces it has too; that of the host is the last one."""
        return next(place for place, spec in enumerate(node.nodemanager.specs) if spec is node.gateway.spec)

    def is_host(self, node: Any) -> bool:
        """True for the worker that sees all GPUs and has all cores."""
        return self.place(node) == len(self.gpus)

    @pytest.hookimpl(trylast=True)  # after the folder of the night has been cleared
    def pytest_xdist_node_collection_finished(self, node: Any) -> None:
        self.starting.discard(node)
        tests = None if self.began else read_tests(self.tests_path)
        if tests is not None:
            from gpugate.session.worker_results import unpack
            from gpugate.store import run_file  # with pydantic

            self.began = True
            with usage_errors():
                for path in self.orders.paths:
                    run_file.begin(path, unpack(tests.run))

    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        self.starting.discard(node)
        if error is not None:
            self.dead.add(node)

    def pytest_xdist_make_scheduler(self) -> Any:
        from gpugate.session.night_scheduling import NightScheduling  # with xdist

        return NightScheduling(self) if self.gpus else None

    @property
    def case_ids(self) -> tuple[str, ...]:
        """The cases that the workers collected."""
        tests = read_tests(self.tests_path)
        return () if tests is None else tuple(case.case_id for case in tests.cases)

    def plan(self) -> tuple[list[Group], dict[str, str]]:
        """The groups of the collected cases with their known durations, and the group of each test."""
        tests = read_tests(self.tests_path)
        if tests is None:
            return [], {}
        return group_cases(tests.cases, self._read_durations(tests.machine)), tests.groups

    def _read_durations(self, machine: str) -> dict[str, float]:
        """Durations on a machine from --perf-durations, else from the store; none where neither is there."""
        from gpugate.session.stored_durations import list_durations, read_store, take_newest  # with pydantic

        stored, url = self._given, self.options.store_url
        if stored is None:
            try:
                stored = [] if url is None else read_store(url)
            except GpugateError:  # a night without durations is planned too
                return {}
        remembers = self.options.proofs_path is not None
        newest = take_newest([one for one in stored if one.machine == machine])
        return list_durations(newest, with_proofs=not remembers)

    def pytest_unconfigure(self) -> None:
        self._folder.cleanup()
