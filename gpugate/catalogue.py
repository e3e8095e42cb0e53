"""The catalogue: all workloads of this session, and the check that each can be measured as declared.

A workload gets in by `register(workload)` or by `register_module(name)` from a conftest.py. The latter names a module
with a tuple `WORKLOADS`, which is imported only when tests are collected. Its workloads serve all tests; those that a
conftest.py registers serve the tests below its folder.
"""

from __future__ import annotations

import importlib
import re
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING

from gpugate.errors import CatalogueError
from gpugate.workload import (
    BASELINE,
    Case,
    Optimization,
    SweepCases,
    Workload,
)
from gpugate.workload.counter_names import COUNTER_NAMES

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MOST_TOLERATED = 0.5  # a relative L2 error, or a share of unequal integers; zeros have an error of 1
CONFTEST = "conftest.py"
EVERYWHERE = Path("/")  # the folder of workloads that serve all tests
_DEVICE_CLASS = re.compile(r"cpu|cuda|sm_\d+|nvidia(-[a-z0-9]+)+")


class Catalogue:
    """The workloads of a session, each with the folder whose tests it serves.

    `load` imports the named modules by `import_module` and checks all workloads: before that, none serves a test.
    """

    def __init__(self, import_module: Callable[[str], ModuleType] = importlib.import_module) -> None:
        self._import_module = import_module
        self._registered: list[tuple[Path, Workload]] = []
        self._modules: list[tuple[str, Path]] = []  # with the folder of the conftest.py that names it
        self._loaded: list[tuple[Path, Workload]] = []

    def register(self, workload: Workload) -> Workload:
        """Adds a workload, which `load` checks: a mistake is then an error of the collection of tests."""
        self._registered.append((_find_folder(sys._getframe(1)), workload))
        return workload

    def register_module(self, name: str) -> None:
        """Names a module whose tuple `WORKLOADS` is registered when tests are collected."""
        self._modules.append((name, _find_folder(sys._getframe(1))))

    @property
    def is_empty(self) -> bool:
        """True where no conftest.py that pytest has read has a workload."""
        return not (self._registered or self._modules)

    @property
    def folders(self) -> set[Path]:
        """The folders of the conftest.py files that register a workload or name a module."""
        return {*(folder for folder, _ in self._registered), *(folder for _, folder in self._modules)}

    def load(self) -> None:
        """Imports the named modules and checks all workloads. Raises CatalogueError for one that cannot be measured."""
        of_modules = [(EVERYWHERE, workload) for name, _ in self._modules for workload in self._workloads_of(name)]
        found, known = [*self._registered, *of_modules], dict[str, tuple[Path, Workload]]()
        for folder, workload in found:
            if not isinstance(workload, Workload):
                raise CatalogueError(f"{workload!r} is no workload: register a gpugate.workload.Workload")
            check(workload)
            other, one = known.setdefault(workload.name, (folder, workload))
            if one is not workload:
                places = f"in {_describe_place(other, one)} and {_describe_place(folder, workload)}"
                raise CatalogueError(f"two workloads are named {workload.name!r} ({places}): rename one")
        self._loaded = found

    def is_partial(self, root: Path) -> bool:
        """True where a conftest.py below `root` that pytest has not read may register further workloads."""
        unread = (path for path in root.glob(f"[!.]*/**/{CONFTEST}") if path.parent not in self.folders)
        return any("gpugate" in path.read_text(encoding="utf-8", errors="replace") for path in unread)

    def _workloads_of(self, module_name: str) -> Iterable[Workload]:
        try:
            workloads = getattr(self._import_module(module_name), "WORKLOADS", None)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # importing runs the module: it may raise anything, pytest's outcomes too
            next_step = "correct its name, install what it imports or mend it"
            problem = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
            raise CatalogueError(f"module {module_name!r} cannot be imported ({problem}): {next_step}") from error
        if not isinstance(workloads, (tuple, list)):
            raise CatalogueError(f"module {module_name!r} has no tuple WORKLOADS: add one with its workloads")
        return workloads

    def workloads(self, path: Path | None = None) -> list[Workload]:
        """Lists the workloads that serve the tests in the file `path`; without one, all workloads."""
        serving = (one for folder, one in self._loaded if path is None or path.is_relative_to(folder))
        return list({one.name: one for one in serving}.values())

    def cases(self, path: Path | None = None) -> list[Case]:
        """Lists every optimization on every kind of device that both it and its workload name, for the tests in the
        file `path`."""
        return [
            Case(workload, optimization, kind)
            for workload in self.workloads(path)
            for optimization in workload.optimizations
            for kind in optimization.device_kinds
            if kind in workload.sizes
        ]

    def sweeps(self, path: Path | None = None) -> list[SweepCases]:
        """Lists every swept parameter of a workload, on every kind of device of its points."""
        groups: dict[tuple[str, str, str], dict[int, Case]] = {}
        for case in self.cases(path):
            if (point := case.optimization.point) is not None:
                groups.setdefault((case.workload.name, point.sweep, case.device_kind), {})[point.value] = case
        return [
            SweepCases(parameter, tuple(by_value[value] for value in sorted(by_value)))
            for (_, parameter, _), by_value in groups.items()
        ]


catalogue: Catalogue = Catalogue()
register: Callable[[Workload], Workload] = catalogue.register
register_module: Callable[[str], None] = catalogue.register_module


def _find_folder(frame: FrameType | None) -> Path:
    """The folder of the conftest.py that runs; EVERYWHERE in the body of another module, which several may import."""
    while frame is not None:
        path = Path(frame.f_globals.get("__file__") or "")
        if path.name == CONFTEST:
            return path.parent
        frame = None if frame.f_code.co_name == "<module>" else frame.f_back
    return EVERYWHERE


def _describe_place(folder: Path, workload: Workload) -> str:
    module = getattr(workload.baseline, "__module__", "an unknown module")
    return str(module if folder == EVERYWHERE else folder / CONFTEST)


def check(workload: Workload) -> None:
    """Raises CatalogueError, in one sentence, for a workload that cannot be measured as declared."""
    problem = next(_list_problems(workload), None)
    if problem is not None:
        raise CatalogueError(problem)


@cache
def _declared_types() -> TypeAdapter[tuple[Workload]]:
    from pydantic import ConfigDict, TypeAdapter

    config = ConfigDict(strict=True, revalidate_instances="always", allow_inf_nan=False)
    return TypeAdapter(tuple[Workload], config=config)  # which applies within the adapted type only


def _list_wrong_types(workload: Workload) -> Iterator[str]:
    """Writes a sentence about the first value that is out of range or not of its declared type, such as `(entry)` in
    place of `(entry,)`."""
    from pydantic import ValidationError

    try:
        _declared_types().validate_python((workload,))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"][1:])[1:]
        problem = f": {first['msg']}".replace(": Input should", ", which should")
        example = ", such as (entry,)" if first["type"] == "tuple_type" else ""
        found = reprlib.repr(first["input"])
        yield f"workload {workload.name!r} has {found} as {place}{problem}{example}"


def _list_problems(workload: Workload) -> Iterator[str]:
    yield from _list_wrong_types(workload)
    if not workload.sizes:
        yield f"workload {workload.name!r} has no sizes: give one for 'cuda', 'cpu' or both"
    names = [BASELINE, *(optimization.name for optimization in workload.optimizations)]
    if len(names) == 1:
        yield f"workload {workload.name!r} has no optimization: add one, there is nothing to compare"
    for name in names:
        if names.count(name) > 1:
            yield f"workload {workload.name!r} has two sides named {name!r}: rename one"
    for optimization in workload.optimizations:
        yield from _list_problems_of(workload, optimization)
    yield from _list_problems_of_sweeps(workload)
    first = workload.optimizations[0]
    if workload.ladder and first.compared_with != BASELINE:
        yield f"{workload.name}/{first.name} is the first rung of a ladder: compare it with the baseline"


def _list_problems_of_sweeps(workload: Workload) -> Iterator[str]:
    """The points of one sweep have one reference, and each another value."""
    seen: dict[str, dict[int, Optimization]] = {}
    for optimization in workload.optimizations:
        point = optimization.point
        if point is None:
            continue
        where = f"{workload.name}/{optimization.name}"
        others = seen.setdefault(point.sweep, {})
        twin = others.setdefault(point.value, optimization)
        if twin is not optimization:
            yield f"{where} is at {point.sweep} {point.value}, as {twin.name} is: give another value"
        first = next(iter(others.values()))
        if optimization.compared_with != first.compared_with:
            yield (
                f"{where} is compared with {optimization.compared_with}, and {first.name} of the same sweep with "
                f"{first.compared_with}: compare all points with one side"
            )


def _list_problems_of(workload: Workload, optimization: Optimization) -> Iterator[str]:
    where = f"{workload.name}/{optimization.name}"
    if not optimization.min_speedup:
        yield f"{where} has no min_speedup: give one per device class, such as {{'cuda': 1.2}}"
    for device_class in (*optimization.min_speedup, *optimization.contract):
        if not _DEVICE_CLASS.fullmatch(device_class):
            yield f"{where} names the device class {device_class!r}: use 'nvidia-h200', 'sm_90' etc., 'cuda' or 'cpu'"
    if optimization.compared_with == optimization.name:
        yield f"{where} is compared with itself: name the baseline or another optimization"
    if optimization.compared_with != BASELINE:
        workload.optimization(optimization.compared_with)
    if optimization.dtype not in optimization.tolerance:
        known = ", ".join(optimization.tolerance)
        yield f"{where} computes in {optimization.dtype!r}, with a tolerance only for {known}: add one"
    allowed = optimization.tolerated
    equal_share = 1.0 if allowed.equal_share is None else allowed.equal_share
    if not (allowed.relative_l2 <= MOST_TOLERATED and allowed.max_error <= 1 and equal_share >= 1 - MOST_TOLERATED):
        most = f"a relative_l2 of at most {MOST_TOLERATED}, a max_error of at most 1"
        step = f"give {most}, and an equal_share of at least {1 - MOST_TOLERATED}"
        yield f"{where} has {allowed}, which other outputs may meet: {step}"
    for limit in (one for contract in optimization.contract.values() for one in (*contract.engaged, *contract.limits)):
        if limit.counter not in COUNTER_NAMES:
            yield f"{where} limits the counter {limit.counter!r}: known are {', '.join(COUNTER_NAMES)}"
        of_reference = limit.at_least_of_reference, limit.at_most_of_reference
        if all(bound is None for bound in (limit.at_least, limit.at_most, *of_reference)):
            yield f"{where} has {limit}, which can never be broken: give it a bound"
