"""One fresh process of trials: pytest collects the cases as for any run, and trials are taken in the place of tests."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gpugate.errors import SPANS_GPUS, GpugateError
from gpugate.faults.slow import slow_down
from gpugate.machine import children
from gpugate.measurement.progress import silent
from gpugate.measurement.settings import Settings
from gpugate.session.perf_session import PerfSession
from gpugate.session.registration import perf_run
from gpugate.session.selection import case_of
from gpugate.store.codec import from_json
from gpugate.store.source_hash import source_hash
from gpugate.workload import BASELINE, Case
from tools.trust.plan import Plan, share_of
from tools.trust.trials import FILE, Conditions, Trial, TrialsFile, TrustError

_LOG = logging.getLogger(__name__)
FAILED = 1


class TrialTaker:
    """A plugin of one pytest run. What goes wrong is its usage error: one line on stderr."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.done = False
        self._path = Path(plan.output)

    @pytest.hookimpl(tryfirst=True)  # before xdist's, which would run tests in workers of its own
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        run = perf_run(session.config)
        perf, run.opened = run.opened, None  # nothing is judged, recorded or shown when this session ends
        if perf is None:
            raise pytest.UsageError("no case is selected: give a folder with perf tests, or another -k or -m")
        try:
            self._take_all(perf, {case.id: case for item in session.items if (case := case_of(item)) is not None})
        except Exception as error:
            _LOG.debug("taking trials failed", exc_info=True)
            first_line = (str(error).splitlines() or ["no message"])[0]
            named = isinstance(error, GpugateError)
            raise pytest.UsageError(first_line if named else f"{type(error).__name__}: {first_line}") from None
        self.done = True
        return True

    def _take_all(self, perf: PerfSession, selected: Mapping[str, Case]) -> None:
        """Raises TrustError where nothing can be measured, or nothing that earlier trials can be counted with."""
        skipped = {name: missing.reason for name, case in selected.items() if (missing := perf.missing(case))}
        skipped |= {name: SPANS_GPUS for name, case in selected.items() if case.spans_gpus}
        cases = {name: case for name, case in selected.items() if name not in skipped}
        if not cases:
            raise TrustError(f"none of {len(selected)} selected cases can be measured: {next(iter(skipped.values()))}")
        workloads = {case.workload.name: case.workload for case in cases.values()}
        hashes = {name: source_hash(workload) for name, workload in workloads.items()}
        conditions = Conditions(perf.environment, self.plan.budget_s, hashes)
        if self.plan.earlier is not None:
            self.plan.earlier.check_same(conditions, "this run")
        file = TrialsFile(self.plan.process, conditions, tuple(cases), skipped)
        FILE.write(self._path, file)
        for case in cases.values():
            perf.measuring = case  # named where it hangs
            for trial in take(perf, case, self.plan):
                file = replace(file, trials=(*file.trials, trial))
                FILE.write(self._path, file)


def take(perf: PerfSession, case: Case, plan: Plan) -> Iterator[Trial]:
    """The trials of one case that this process is to take, each as a duet measures it.

    Raises TrustError, naming the case, when one of its sides cannot be built or run.
    """
    from gpugate.measurement.run import measure
    from gpugate.measurement.sides import build_side

    slowdowns, seed = share_of(plan, case.id), perf.result.seed
    if not slowdowns:
        return
    context = perf.context(case)
    try:
        # A gate has built and run a baseline before it measures: what libraries load and compile once is then done.
        first = case.workload.inputs(context, 0)
        build_side(case.optimization.name, case.optimization.build, context, first).close()
        for number, slowdown in enumerate(slowdowns):
            started = time.perf_counter()
            settings = Settings(budget_s=plan.budget_s, seed=seed + number, duet=True, prove=False, count=False)
            found = measure(against_itself(case, slowdown), context, settings, silent)
            yield Trial(case.id, plan.process, slowdown, found.instances, time.perf_counter() - started)
    except GpugateError as error:
        raise TrustError(f"{case.id}: {error}") from error


def against_itself(case: Case, slowdown: float) -> Case:
    """The optimization against itself; the optimized side takes `slowdown`, a share, longer per step."""
    mine = case.optimization
    plain = replace(mine, compared_with=BASELINE)
    again = replace(
        mine,
        name=f"{mine.name} again",
        compared_with=mine.name,
        build=slow_down(mine.build, slowdown) if slowdown else mine.build,
    )
    return replace(case, workload=replace(case.workload, optimizations=(plain, again)), optimization=again)


def main(words: list[str]) -> int:
    """`words` are pytest's arguments. The status is 0 when every trial was taken."""
    taker = TrialTaker(from_json(Plan, children.task))
    status = int(pytest.main(words, plugins=[taker]))
    return 0 if taker.done else status or FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
