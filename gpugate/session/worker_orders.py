"""The orders that the controller of pytest-xdist gives a worker, and the tests that the worker collected."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpugate.results.fleet_plan import PlannedCase

if TYPE_CHECKING:
    import pytest

# In the output of a worker, which xdist brings to the controller: its results, or the reason of its refusal.
RESULTS, REFUSAL = "gpugate", "gpugate-refusal"
ORDERS = "gpugate-orders"  # in the input of a worker


@dataclass(frozen=True)
class Orders:
    """The input of one worker. `gpus` is its CUDA_VISIBLE_DEVICES, `host_cores` the number of cores of all workers, and
    `cores` the number that each worker of a GPU has at least.

    All workers measure one run: it has one start and one seed, and each appends its cases to the files of `run_paths`.
    To none of them the `result_paths` of the controller are changes of the code.
    """

    tests_path: str  # where the worker describes its tests
    run_paths: tuple[str, ...]
    started_at: str
    seed: int
    result_paths: tuple[str, ...] = ()
    gpus: str | None = None  # None: a single worker sees what the controller sees
    host_cores: int | None = None
    cores: int | None = None
    resume: bool = False

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(map(Path, self.run_paths))


@dataclass(frozen=True)
class CollectedTests:
    """The tests of a worker with the facts that place them in the plan: the group of each test, and the cases.

    `run` is the run before its first case, as `worker_results.pack` writes it; a resumed one has its finished cases.
    """

    machine: str
    cases: tuple[PlannedCase, ...]
    groups: dict[str, str]
    run: str

    def text(self) -> str:
        return json.dumps(asdict(self))


def read_tests(path: Path) -> CollectedTests | None:
    """Reads the file that each worker writes; None where no worker has a perf test."""
    if not path.exists():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    return CollectedTests(**{**found, "cases": tuple(PlannedCase(**case) for case in found["cases"])})


def read_orders(config: pytest.Config) -> Orders | None:
    """The orders of this worker; None in the controller and without xdist."""
    text = getattr(config, "workerinput", {}).get(ORDERS)
    if text is None:
        return None
    found = json.loads(text)
    return Orders(**{**found, **{name: tuple(found[name]) for name in ("run_paths", "result_paths")}})
