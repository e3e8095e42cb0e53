"""The cases as pytest has them: parameters of tests, selections and shards of them, and usage errors."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpugate.catalogue import catalogue
from gpugate.errors import GpugateError
from gpugate.report.visible_text import show_controls
from gpugate.results.fleet_plan import Shard, divide, group_name, needs_host
from gpugate.units import list_names
from gpugate.workload import Case, SweepCases

if TYPE_CHECKING:
    from gpugate.store.baseline import Record

NARROWING = ("deselect", "ignore", "ignore_glob", "lf", "stepwise")  # options that select, beside -k and -m
GPU_MARK = "gpu"
WHOLE = ("", f" -m {GPU_MARK}")  # selections of all cases, the second one of those on CUDA
PERF_RUN = "gpugate.session.perf_run"  # the name of the second plugin
FIXTURE = "workload"
SWEEP_FIXTURE = "sweep"
OF_PERF_TESTS = ("gate", "perf_report", "perf_json", "update_baselines")


def expects_perf_tests(config: pytest.Config) -> bool:
    """True where a workload is known before the collection, or an option is for perf tests alone."""
    return not catalogue.is_empty or any(config.getoption(name) not in (None, False) for name in OF_PERF_TESTS)


def parametrize(metafunc: pytest.Metafunc) -> bool:
    """Makes every case, or every sweep, one parameter of a perf test; returns False for any other test.

    Session scope makes pytest run all tests of one case together.
    """
    names = [name for name in (FIXTURE, SWEEP_FIXTURE) if _asks_for_ours(metafunc, name)]
    for name in names:
        metafunc.parametrize(name, _parameters(name, metafunc.definition.path), indirect=True, scope="session")
    return bool(names)


def _parameters(name: str, path: Path) -> list[Any]:
    try:
        catalogue.load()
    except GpugateError as error:
        raise pytest.Collector.CollectError(str(error)) from None
    found: Sequence[Case | SweepCases] = catalogue.cases(path) if name == FIXTURE else catalogue.sweeps(path)
    return [pytest.param(one, id=one.id, marks=_marks(one)) for one in found]


def _marks(asked: Case | SweepCases) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.gpu] if asked.device_kind == "cuda" else []
    gpus = max(case.optimization.needs.gpus for case in _list_cases(asked))
    return marks + ([pytest.mark.multi_gpu(gpus)] if gpus > 1 else [])


def _asks_for_ours(metafunc: pytest.Metafunc, name: str) -> bool:
    """False for a project's own fixture or parameter of that name."""
    if name not in metafunc.fixturenames:
        return False
    marks = metafunc.definition.iter_markers("parametrize")
    if any(name in str(mark.args[0]).replace(",", " ").split() for mark in marks if mark.args):
        return False
    definitions: Any = metafunc._arg2fixturedefs.get(name)
    return bool(definitions) and definitions[-1].func.__module__ == "gpugate.plugin"


def parameter_of(item: pytest.Item) -> Case | SweepCases | None:
    """The case that a test measures, or the sweep that it judges; None for another test."""
    return next(iter(list_parameters(item)), None)


def list_parameters(item: pytest.Item) -> list[Case | SweepCases]:
    """The case that a test measures and the sweep that it judges; a test may have both."""
    callspec = getattr(item, "callspec", None)
    found = [] if callspec is None else [callspec.params.get(name) for name in (FIXTURE, SWEEP_FIXTURE)]
    return [one for one in found if isinstance(one, (Case, SweepCases))]


def cases_of(item: pytest.Item) -> tuple[Case, ...]:
    """Every case that a test needs: one, or all points of a sweep."""
    found = parameter_of(item)
    return () if found is None else _list_cases(found)


def _list_cases(found: Case | SweepCases) -> tuple[Case, ...]:
    return (found,) if isinstance(found, Case) else found.cases


def group_tests(items: Sequence[pytest.Item]) -> dict[str, str]:
    """The group of each perf test: all tests of a case stay together, and so do all points of a sweep."""
    first = {item.nodeid: case for item in items for case in cases_of(item)[:1]}
    return {node_id: group_name(case.id, case.optimization.point) for node_id, case in first.items()}


def deselect_other_devices(config: pytest.Config, items: list[pytest.Item], asked: str) -> None:
    """Leaves out the kind of device that is not asked for; `auto` asks for CUDA where there is one, else for all.

    Without a GPU the CUDA cases stay and skip with their reason: a gate must not be green by absence.
    """
    if not any(cases_of(item) for item in items):
        return
    wanted = asked.partition(":")[0]
    if wanted == "auto":
        import torch

        if not torch.cuda.is_available():
            return
        wanted = "cuda"
    deselect(config, items, {item for item in items if (cases := cases_of(item)) and cases[0].device_kind != wanted})


def deselect(config: pytest.Config, items: list[pytest.Item], dropped: Collection[pytest.Item]) -> None:
    """Takes the dropped items out of `items`, and reports them to pytest."""
    if dropped:
        config.hook.pytest_deselected(items=[item for item in items if item in dropped])
        items[:] = [item for item in items if item not in dropped]


def describe_selection(config: pytest.Config) -> str | None:
    """Writes `-k` and `-m` as in ` -k video`; None where another option selects, or an argument names a single test."""
    if any(config.getoption(name, None) for name in NARROWING) or any("::" in one for one in config.option.file_or_dir):
        return None
    given = {"-k": config.option.keyword, "-m": config.option.markexpr}
    return "".join(f" {option} {shlex.quote(text)}" for option, text in given.items() if text)


def describe_unmatched(keyword: str, marker: str, case_ids: Collection[str]) -> list[str]:
    """The sentence about `-k` and `-m` that select nothing, with the names that they may stand for; none without
    them."""
    given = [f"-{option} {value!r}" for option, value in (("k", keyword), ("m", marker)) if value]
    names = sorted({*case_ids, *(case_id.rsplit("/", 2)[0] for case_id in case_ids)})
    similar = get_close_matches(keyword, names, n=3) or names[:3]
    known = f"cases have names such as {list_names(similar)}" if keyword else f"cases on a GPU have the mark {GPU_MARK}"
    return [f"{' '.join(given)} selects no test; {known}"] if given else []


def ended_early(session: pytest.Session, exitstatus: int, reached: Container[str]) -> bool:
    """True where the session stopped before it had reached every case: Ctrl-C, -x, --maxfail or a crash."""
    if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return True
    stopped = session.shouldfail or session.shouldstop
    return bool(stopped) and any(case.id not in reached for item in session.items for case in cases_of(item))


def one_node_per_case(items: list[pytest.Item]) -> dict[str, str]:
    """The node id of the first test of every case, by the case's id: enough to have it measured.

    A point of a sweep whose own tests are not selected is measured by the test of its sweep.
    """
    first: dict[str, str] = {}
    for item in sorted(items, key=lambda item: not isinstance(parameter_of(item), Case)):
        for case in cases_of(item):
            first.setdefault(case.id, item.nodeid)
    return first


def case_needs_host(case: Case, record: Record | None, cores: int) -> bool:
    """True for a case beside which no other one may run on the host. `cores` are those that each GPU has for itself.

    A case that was recorded with more cores counts as one without a record.
    """
    copies: list[float | None] = [None]
    if record is not None and record.environment.cpu_count <= cores:
        copies = [side.get("copy_fraction") for side in (record.reference_counters, record.optimized_counters)]
    return needs_host(case.device_kind == "cpu", case.workload.timing == "pipeline", copies)


def select_shard(items: Sequence[pytest.Item], shard: Shard) -> tuple[Shard, set[pytest.Item]]:
    """The shard with the cases of all selected tests, and the tests that belong to other shards.

    All tests of a case stay together, and so do the points of a sweep. A test without a case belongs to every shard.
    Of more shards than groups of cases, the last ones have no case.
    """
    groups = {case.id: group_name(case.id, case.optimization.point) for item in items for case in cases_of(item)}
    own = divide(Counter(groups.values()), shard.count)[shard.number - 1]  # each case counts as equally long
    others = {item for item in items if (found := cases_of(item)) and groups[found[0].id] not in own}
    return replace(shard, cases=tuple(groups)), others


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turns a GpugateError while pytest starts or collects into pytest's usage error, with the same sentence."""
    try:
        yield
    except GpugateError as error:
        raise pytest.UsageError(show_controls(str(error))) from None
