"""The controller of pytest-xdist: it starts a worker for each GPU, and joins the results of all in one run."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpugate.errors import OptionError
from gpugate.machine import nvml
from gpugate.machine.children import end_with_parent
from gpugate.machine.cores import find_first_threads, find_usable_cores, share_cores
from gpugate.session.worker import GPU_VARIABLE, GROUPS, INPUT, REFUSAL
from gpugate.units import format_now

if TYPE_CHECKING:
    from gpugate.results.run import RunResult
    from gpugate.session.options import Options

WORKERS: pytest.StashKey[Workers] = pytest.StashKey()  # in the controller


def count_workers(device: str) -> int:
    """The workers of `-n auto`: one for each GPU that CUDA_VISIBLE_DEVICES leaves, and one on a machine without any."""
    return max(1, len(nvml.list_visible_gpus())) if device in ("auto", "cuda") else 1


def start_workers(config: pytest.Config, options: Options, measures: bool) -> None:
    """Prepares the workers of `-n` in the controller; in a worker, makes it end with the controller.

    A session that is not known to measure has as many workers as it likes: `check_worker` refuses one with perf tests.
    Raises OptionError for more workers than GPUs, and for recording in any worker: neither is a measurement.
    """
    if hasattr(config, "workerinput"):
        end_with_parent(os.getppid())
        if options.worker is not None and options.worker.place is not None:  # before torch looks for GPUs
            os.environ[GPU_VARIABLE] = options.worker.gpus[options.worker.place]
        return
    workers = _count(config.getoption("tx", None) or ())
    if not workers:
        return
    gpus: list[str] = []
    if measures:
        gpus = nvml.list_visible_gpus()
        # A worker takes a GPU of its own; a device that was named is one device for all of them.
        if workers > (max(1, len(gpus)) if options.device in ("auto", "cuda") else 1):
            where = f"on {len(gpus)} GPU(s)"
            where = where if options.device == "auto" else f"on {options.device}, with {len(gpus)} GPU(s) here"
            raise OptionError(
                f"-n {workers} would run {workers} tests at once {where}, which is no measurement: use -n auto"
            )
        if options.update_baselines:
            raise OptionError(f"--update-baselines with -n {workers} would record workers that share a host: use -n 0")
    config.stash[WORKERS] = Workers(options, gpus[:workers] if workers > 1 else [])
    config.pluginmanager.register(config.stash[WORKERS])


def _count(specs: Sequence[str]) -> int:
    """The number of workers in xdist's `--tx`, where `3*popen` means three."""
    counts = (spec.partition("*")[0] if "*" in spec else "1" for spec in specs)
    return sum(int(count) if count.isdecimal() else 1 for count in counts)


class Workers:
    """The plugin of the controller. `gpus` is empty for a single worker, and for workers of plain tests."""

    def __init__(self, options: Options, gpus: Sequence[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gpugate-workers-", ignore_cleanup_errors=True)
        self.folder, self._options = Path(self._folder.name), options
        self.refusal: str | None = None  # the reason of a worker that has no test to run
        self._died = False
        self._free = list(range(len(gpus)))  # the GPUs without a worker, by number
        usable = find_usable_cores()
        shares = share_cores(usable, [nvml.read_near_cores(gpu) for gpu in gpus], find_first_threads(usable))
        self._input = {
            "folder": str(self.folder),
            "started_at": format_now(),
            "seed": secrets.randbits(32) if options.seed is None else options.seed,
            "gpus": tuple(gpus),
            "shares": tuple(tuple(sorted(share)) for share in shares),
            "cores": tuple(sorted(usable)),
        }

    def pytest_configure_node(self, node: Any) -> None:
        place = self._free.pop(0) if self._free else None
        node.workerinput[INPUT] = {**self._input, "place": place}

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

            def remove_node(self, node: Any) -> str | None:
                """Leaves out the test that ended its worker, and its group, which would measure the same case again."""
                left = {scope: tests for scope, tests in self.assigned_work[node].items() if not all(tests.values())}
                crashed = left.pop(next(iter(left), ""), {})
                self.assigned_work[node] = left
                super().remove_node(node)
                return next((test for test, ended in crashed.items() if not ended), None)

            def _reschedule(self, node: Any) -> None:
                """Gives tests to a node that has collected, and no more than it needs: it may die with them."""
                if node in self.registered_collections and self._pending_of(self.assigned_work[node]) < 2:
                    super()._reschedule(node)

        config.option.loadscopereorder = False  # groups keep the order of their workers
        return GroupScheduling(config, log)

    @pytest.hookimpl(tryfirst=True)
    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        """Keeps the refusal of a worker that ended; xdist replaces one that died after this hook, on the same GPU."""
        place = node.workerinput[INPUT]["place"]
        self._free += [] if place is None else [place]
        self.refusal = getattr(node, "workeroutput", {}).get(REFUSAL, self.refusal)
        self._died = self._died or error is not None

    @property
    def measured(self) -> bool:
        """True where a worker began the run."""
        return (self.folder / "began").exists()

    def join_runs(self) -> RunResult | None:
        """The run of all workers, interrupted where one of them ended early; None where none measured."""
        from gpugate.session.merging import join_workers
        from gpugate.store import run_file  # with pydantic

        if not self.measured:
            return None
        ended = sorted(self.folder.glob("gw*.json"))
        stored = run_file.read((*self._options.given_paths, self.folder / "run.json")[0])
        return join_workers(stored, [run_file.read(path) for path in ended], self._died)

    def pytest_unconfigure(self) -> None:
        self._folder.cleanup()
