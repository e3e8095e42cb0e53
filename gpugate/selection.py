"""Which cases become test parameters, and which of them this machine's device is asked to run."""

from __future__ import annotations

from collections.abc import Collection, Container
from typing import TYPE_CHECKING, Any

import pytest

from gpugate.catalogue import catalogue
from gpugate.errors import GpugateError

if TYPE_CHECKING:
    from gpugate.workload import Case

FIXTURE = "workload"


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Every case as one parameter; session scope makes pytest run all tests of one case together."""
    if not _asks_for_ours(metafunc):
        return
    try:
        catalogue.load()
    except GpugateError as error:
        raise pytest.Collector.CollectError(str(error)) from None
    parameters = [pytest.param(case, id=case.id, marks=_marks(metafunc.config, case)) for case in catalogue.cases()]
    metafunc.parametrize(FIXTURE, parameters, indirect=True, scope="session")


def _marks(config: pytest.Config, case: Case) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.gpu] if case.device_kind == "cuda" else []
    return marks + ([pytest.mark.xdist_group(case.id)] if config.pluginmanager.hasplugin("xdist") else [])


def _asks_for_ours(metafunc: pytest.Metafunc) -> bool:
    """A project may have a fixture or a parameter of that name that has nothing to do with us."""
    if FIXTURE not in metafunc.fixturenames:
        return False
    marks = metafunc.definition.iter_markers("parametrize")
    if any(FIXTURE in str(mark.args[0]).replace(",", " ").split() for mark in marks if mark.args):
        return False
    definitions: Any = metafunc._arg2fixturedefs.get(FIXTURE)
    return bool(definitions) and definitions[-1].func.__module__ == "gpugate.fixtures"


def case_of(item: pytest.Item) -> Case | None:
    """The case that a test measures, or None for a test that measures nothing."""
    from gpugate.workload import Case

    callspec = getattr(item, "callspec", None)
    parameter = callspec.params.get(FIXTURE) if callspec is not None else None
    return parameter if isinstance(parameter, Case) else None


def deselect_other_devices(config: pytest.Config, items: list[pytest.Item], asked: str) -> None:
    """Leaves out the kind of device that is not asked for; `auto` asks for CUDA where there is one, else for all.

    Without a GPU the CUDA cases stay and skip with their reason: a gate must not be green by absence.
    """
    if not any(case_of(item) for item in items):
        return
    wanted = asked.partition(":")[0]
    if wanted == "auto":
        import torch

        if not torch.cuda.is_available():
            return
        wanted = "cuda"
    deselect_other_kinds(config, items, {wanted})


def deselect_other_kinds(config: pytest.Config, items: list[pytest.Item], wanted: Collection[str]) -> None:
    """Leaves out the cases of every kind of device that is not among the wanted ones."""
    dropped = [item for item in items if (case := case_of(item)) is not None and case.device_kind not in wanted]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in dropped]


def ended_early(session: pytest.Session, exitstatus: int, reached: Container[str]) -> bool:
    """Whether the session stopped before it had reached every case: Ctrl-C, -x, --maxfail or a crash."""
    if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return True
    stopped = session.shouldfail or session.shouldstop
    return bool(stopped) and any(case.id not in reached for case in map(case_of, session.items) if case is not None)


def one_node_per_case(items: list[pytest.Item]) -> dict[str, str]:
    """The node id of the first test of every case, by the case's id: enough to have it measured."""
    first: dict[str, str] = {}
    for item in items:
        case = case_of(item)
        if case is not None:
            first.setdefault(case.id, item.nodeid)
    return first
