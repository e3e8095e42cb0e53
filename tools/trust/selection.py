"""The cases that a command line selects and the conditions of their trials, by a process that measures nothing."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from gpugate.errors import SPANS_GPUS, GpugateError
from gpugate.machine import children
from gpugate.machine.environment import Environment, compare
from gpugate.session.perf_session import PerfSession
from gpugate.session.registration import perf_run
from gpugate.session.selection import case_of
from gpugate.store.codec import from_json, to_json
from gpugate.store.source_hash import source_hash
from gpugate.units import Positive
from gpugate.workload import Case

_LOG = logging.getLogger(__name__)


class TrustError(GpugateError):
    """Trials cannot be taken, kept or continued."""


@dataclass(frozen=True)
class Conditions:
    """The conditions that trials must share to be counted together."""

    environment: Environment
    budget_s: Positive
    source_hashes: Mapping[str, str]  # by workload

    def check_same(self, now: Conditions, what: str) -> None:
        """Raises TrustError with the differences where trials of both must not be counted together. A workload that
        only one of both has is no difference."""
        found = list(compare(self.environment, now.environment).differences)
        if self.budget_s != now.budget_s:
            found.append(f"budget {self.budget_s:g} s -> {now.budget_s:g} s")
        both = sorted(set(self.source_hashes) & set(now.source_hashes))
        changed = [name for name in both if self.source_hashes[name] != now.source_hashes[name]]
        found += [f"the source of {name} changed" for name in changed]
        if found:
            differences = "; ".join(found)
            raise TrustError(f"{what} is of other conditions than earlier trials ({differences}): give another folder")


@dataclass(frozen=True)
class Selection:
    """`case_ids` were selected and can be measured here, `skipped` (with the reason) cannot."""

    conditions: Conditions
    case_ids: tuple[str, ...]
    skipped: Mapping[str, str]


def select(words: Sequence[str], budget_s: float) -> Selection:
    """The selection of pytest's arguments. Raises TrustError with the cause where nothing can be measured."""
    ended = children.run_module("tools.trust.selection", words, budget_s)
    if not ended.messages:
        raise TrustError(ended.explain("it"))
    return from_json(Selection, ended.messages[0])


class _Selector:
    """A plugin of one pytest run, which takes the place of its tests. What goes wrong is its usage error: one line on
    stderr."""

    @pytest.hookimpl(tryfirst=True)  # before xdist's, which would run tests in workers of its own
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        run = perf_run(session.config)
        perf, run.opened = run.opened, None  # nothing is judged, recorded or shown when this session ends
        if perf is None:
            raise pytest.UsageError("no case is selected: give a folder with perf tests, or another -k or -m")
        try:
            found = _describe(perf, {case.id: case for item in session.items if (case := case_of(item)) is not None})
        except Exception as error:
            _LOG.debug("the selection failed", exc_info=True)
            first_line = (str(error).splitlines() or ["no message"])[0]
            named = isinstance(error, GpugateError)
            raise pytest.UsageError(first_line if named else f"{type(error).__name__}: {first_line}") from None
        children.parent.send(to_json(found))
        return True


def _describe(perf: PerfSession, selected: Mapping[str, Case]) -> Selection:
    """Raises TrustError where nothing can be measured."""
    skipped = {name: missing.reason for name, case in selected.items() if (missing := perf.missing(case))}
    skipped |= {name: SPANS_GPUS for name, case in selected.items() if case.spans_gpus}
    cases = {name: case for name, case in selected.items() if name not in skipped}
    if not cases:
        raise TrustError(f"none of {len(selected)} selected cases can be measured: {next(iter(skipped.values()))}")
    workloads = {case.workload.name: case.workload for case in cases.values()}
    hashes = {name: source_hash(workload) for name, workload in workloads.items()}
    return Selection(Conditions(perf.environment, children.task, hashes), tuple(cases), skipped)


if __name__ == "__main__":
    sys.exit(pytest.main(sys.argv[1:], plugins=[_Selector()]))
