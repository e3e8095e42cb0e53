"""One fresh process of duets: pytest collects the head's cases, and each is measured against the base's."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from gpugate.catalogue import CONFTEST, catalogue
from gpugate.errors import SPANS_GPUS, GpugateError, SideError
from gpugate.faults.fault import Fault
from gpugate.faults.mutate import apply
from gpugate.machine import children
from gpugate.measurement.progress import silent
from gpugate.measurement.record import Measurement
from gpugate.measurement.settings import Settings
from gpugate.measurement.time_limit import limit_time
from gpugate.results.duet import BUDGET_S, DuetProcess, plan_size
from gpugate.session.duets import HUNG, DuetPlan
from gpugate.session.measure_case import collect_garbage
from gpugate.session.other_tree import Layout, OtherTree, find_below, find_tops
from gpugate.session.perf_session import PerfSession
from gpugate.session.selection import PERF_RUN, cases_of, usage_errors
from gpugate.statistics.sequential import ALTERNATIVE
from gpugate.store.baseline import Record
from gpugate.store.codec import from_json, to_json
from gpugate.workload import BASELINE, Case

_LOG = logging.getLogger(__name__)
PREFIX = "gpugate_base"
FAILED = 1


def explain_absence(perf: PerfSession, case: Case) -> str | None:
    """The reason why no duet of the case can be measured here, also a need that cannot be checked; else None."""
    try:
        missing = perf.missing(case)
    except GpugateError as error:
        return str(error)
    if missing is not None:
        return missing.reason
    return SPANS_GPUS if case.spans_gpus else None


class DuetTaker:
    """A plugin of one pytest run. A problem of the whole run is its usage error: one line on stderr.

    `send` gets a DuetProcess, in JSON, with all that is measured so far.
    """

    def __init__(self, plan: DuetPlan, send: Callable[[object], None]) -> None:
        self.plan, self._send = plan, send
        self.done = False
        self._measured: DuetProcess

    @pytest.hookimpl(tryfirst=True)  # before xdist's, which would run tests in workers of its own
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        run = session.config.pluginmanager.get_plugin(PERF_RUN)
        if run is None or run.opened is None:
            if self.plan.case_ids is not None:
                raise pytest.UsageError(f"there is no case {' or '.join(self.plan.case_ids)}")
            raise pytest.UsageError("no case is selected: give --path with perf tests, or another -k or -m")
        perf, run.opened = run.opened, None  # nothing is judged, recorded or shown when this session ends
        cases = {case.id: case for item in session.items for case in cases_of(item)}
        tree = OtherTree(read_layout(Path(self.plan.base), session), PREFIX)
        with usage_errors(), tree.importable():
            self._measure_all(perf, cases, tree.cases())
        self.done = True
        return True

    def _measure_all(self, perf: PerfSession, cases: Mapping[str, Case], base: Mapping[str, Case]) -> None:
        """Sends what is measured after every case, so that a process that is killed keeps its measurements."""
        known = {case.id for case in catalogue.cases()}
        wanted = [name for name in self.plan.case_ids or cases if name in cases and name in base]  # the first one first
        absent = {name: reason for name in wanted if (reason := explain_absence(perf, cases[name])) is not None}
        self._report(
            DuetProcess(
                swapped=self.plan.swapped,
                environment=perf.environment,
                wanted=tuple(name for name in wanted if perf.can_measure(cases[name])),
                problems=absent,
                added=tuple(name for name in cases if name not in base),
                removed=tuple(sorted(name for name in base.keys() - known if name.endswith(f"/{perf.device.type}"))),
            )
        )
        for name in (one for one in wanted if one not in absent):
            case = cases[name]
            try:
                with limit_time(perf.options.step_timeout_s, partial(self._end_hung, case)):
                    found = self._measure(perf, case, base[name])
            except GpugateError as error:
                _LOG.debug("comparing %s failed", name, exc_info=True)
                self._report_problem(case, error)
            else:
                self._report(replace(self._measured, measured={**self._measured.measured, name: found}))

    def _report(self, process: DuetProcess) -> None:
        self._measured = process
        self._send(to_json(process))

    def _report_problem(self, case: Case, error: GpugateError) -> None:
        """Reports an error of the case with the version of its side; the engine knows the sides by their roles."""
        name = case.optimization.name
        if isinstance(error, SideError) and error.side in (BASELINE, name):
            version = "base" if (error.side == BASELINE) is not self.plan.swapped else "head"
            error = SideError(f"{name} of the {version}", error.doing, error.cause)
        self._report(replace(self._measured, problems={**self._measured.problems, case.id: str(error)}))

    def _end_hung(self, case: Case, error: SideError) -> NoReturn:
        """Reports the error of the case, and ends the process: its main thread does not return from C code."""
        try:
            self._report_problem(case, error)
        finally:
            os._exit(HUNG)

    def _measure(self, perf: PerfSession, case: Case, base: Case) -> Measurement:
        from gpugate.measurement.run import measure

        settings = plan_settings(self.plan, perf.records.find_record(case))
        settings = replace(settings, seed=perf.result.seed, count=self.plan.count)
        collect_garbage()
        duet = make_duet(case, base, self.plan.swapped, self.plan.fault)
        return measure(duet, perf.context(case), settings, silent)


def plan_settings(orders: DuetPlan, record: Record | None) -> Settings:
    """The settings of a case by the noise of its record; warm-up and builds may take BUDGET_S beside the pairs.

    A case without a record is sampled until its interval is half as wide as the change that a duet tests for, or for
    BUDGET_S.
    """
    size = plan_size(record.processes) if record is not None else None
    if size is None:
        return Settings(budget_s=orders.budget_s or BUDGET_S, half_width=ALTERNATIVE / 4, duet=True)
    most_s = BUDGET_S + size.sampling_s
    return Settings(
        budget_s=min(most_s, orders.budget_s or most_s),
        pairs_per_build=size.pairs,
        min_builds=size.builds,
        duet=True,
        planned=True,
    )


def read_layout(base: Path, session: pytest.Session) -> Layout:
    """The layout of the base by that of the head: the conftest.py files that pytest reads for the selected tests, those
    that register workloads, and the import paths."""
    base_top, top = find_tops(base, Path.cwd())
    root, tests = session.config.rootpath.resolve(), [item.path.resolve() for item in session.items]
    folders = catalogue.folders | {one for path in tests for one in path.parents if one.is_relative_to(root)}
    conftests = sorted((str(one.relative_to(top) / CONFTEST) for one in folders if one.is_relative_to(top)), key=len)
    paths = [str(below) for path in (*sys.path, "", "src") if (below := find_below(top, path)) is not None]
    return Layout(str(base_top), conftests, paths)


def make_duet(case: Case, base: Case, swapped: bool, fault: Fault | None = None) -> Case:
    """A case whose reference is the base's version of the optimization; `swapped` exchanges the two. The head's version
    has the fault.

    The outputs of the optimized side are then compared with those of the other version on the head's inputs.
    """
    head = case.optimization.build
    builds = [base.optimization.build, head if fault is None else apply(fault, head)]
    reference, optimized = reversed(builds) if swapped else builds
    alone = replace(case.optimization, build=optimized, compared_with=BASELINE, contract={}, proofs=())
    workload = replace(case.workload, baseline=reference, optimizations=(alone,), ladder=False)
    return replace(case, workload=workload, optimization=alone)


def main(words: list[str]) -> int:
    """`words` are pytest's arguments. The status is 0 when every case had its turn."""
    taker = DuetTaker(from_json(DuetPlan, children.task), children.parent.send)
    # The search path is that of the command, which may run in another version of the project.
    theirs, top = find_tops(Path(taker.plan.project), Path.cwd())
    sys.path[:] = [path if (one := find_below(theirs, path)) is None else str(top / one) for path in sys.path]
    sys.path += [str(Path.cwd()), str(Path.cwd() / "src")]
    status = int(pytest.main(words, plugins=[taker]))
    return 0 if taker.done else status or FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
