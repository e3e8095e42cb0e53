"""The verdicts that tests gave to `gate`, and the problems that make a gate red where no test failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpugate.judging.knee import judge_knee
from gpugate.results.series import sweeps
from gpugate.session.selection import cases_of

if TYPE_CHECKING:
    import pytest

    from gpugate.results.case import CaseResult
    from gpugate.results.run import RunResult
    from gpugate.results.verdict import Verdict
    from gpugate.workload import Case

CAUGHT, IMPOSSIBLE = 0, 2  # the exit statuses of a run with a fault; 1 is that of a fault that a case missed
NOTHING_MEASURED = "the gate measured nothing: select cases that this machine can run"


@dataclass(eq=False)  # pytest's plugins must be hashable
class HeldVerdicts:
    """A plugin of pytest that keeps the verdicts and the end of every test of this process."""

    verdicts: dict[str, list[Verdict]] = field(default_factory=dict)  # by the test's node id
    failed: dict[str, bool] = field(default_factory=dict)  # of every test that ran here
    refused: list[str] = field(default_factory=list)  # a sentence for each verdict that is not of this run

    def add(self, test: pytest.Item, verdict: Verdict) -> None:
        self.verdicts.setdefault(test.nodeid, []).append(verdict)

    # `tryfirst` as pytest's own count of failures, which decides the exit status.
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        earlier = self.failed.get(report.nodeid, False) and report.when != "setup"  # a rerun starts anew
        self.failed[report.nodeid] = earlier or (report.failed and not hasattr(report, "wasxfail"))

    def problems(
        self, items: Iterable[pytest.Item], run: RunResult, accepts_absence: Callable[[Case], bool]
    ) -> Iterator[str]:
        """Writes a sentence for each case of `items` that failed no test and gave `gate` no good verdict.

        Records in every case of the run which of its checks were held.
        """
        tests: dict[str, tuple[Case, list[str]]] = {}
        for item in items:
            for case in cases_of(item):
                tests.setdefault(case.id, (case, []))[1].append(item.nodeid)
        yield from self.refused
        for case_id, (case, node_ids) in tests.items():
            result = run.cases.get(case_id)
            held = [verdict for node_id in node_ids for verdict in self.verdicts.get(node_id, ())]
            if result is not None:
                in_sweep = case.optimization.point is not None
                held = [one for one in held if one in result.verdicts or (in_sweep and one.check == "knee")]
                result.held = tuple(dict.fromkeys(one.check for one in held))
            if not any(self.failed.get(node_id) for node_id in node_ids):
                accepted = result is not None and result.skipped is not None and accepts_absence(case)
                problem = None if accepted else _problem(case_id, result, held)
                yield from [problem] if problem else []


def _problem(case_id: str, result: CaseResult | None, held: list[Verdict]) -> str | None:
    """The reason against a case none of whose tests failed and whose absence is not accepted; None for a good one."""
    if result is None:
        return f"no test measured {case_id}: take away what skips its tests, or deselect them"
    if result.error is not None:
        return f"the error of {case_id} failed no test: {result.error}"
    if result.skipped is not None:
        return f"the absence of {case_id} failed no test: {result.skipped}"
    not_good = next((one for one in held if not one.good), None)
    if not_good is not None:
        return (
            f"{not_good.outcome.value} {not_good.check} of {not_good.case_id} failed no test: {not_good.reason}; take "
            "away what lets its test pass, such as an xfail mark"
        )
    return None if held else f"no test held a verdict of {case_id}: call gate(workload.speedup) in a test of it"


def list_red(run: RunResult) -> list[str]:
    """The errors and the held verdicts that make a stored gate red, whatever exit status its file has."""
    swept = {case_id: case for case_id, case in run.cases.items() if "knee" in case.held}
    judged = [one for case in run.cases.values() for one in case.verdicts if one.check in case.held]
    judged += [judge_knee(sweep, run.mode) for sweep in sweeps(swept)]
    errors = [f"the error of {case_id}" for case_id, case in run.cases.items() if case.error is not None]
    measured = [case for case in run.cases.values() if case.measurement is not None and case.error is None]
    errors += [f"no held verdict of {case.case_id}" for case in measured if run.gate and not case.held]
    return errors + [f"{one.outcome.value} {one.check} of {one.case_id}" for one in judged if not one.good]


def run_problems(run: RunResult) -> Iterator[str]:
    """Writes a sentence for a gate that measured nothing at all, and for a fault that nothing caught."""
    cases = run.cases.values()
    # The cases of a shard may all be absent: the night that is merged of all shards must have measured something.
    if run.gate and run.shard is None and not any(case.measurement is not None or case.error for case in cases):
        yield NOTHING_MEASURED
    missed = [case.case_id for case in cases if case.verdicts and not any(one.bad for one in case.verdicts)]
    if run.mutated is not None and missed:
        yield (
            f"nothing caught {run.mutated} in {', '.join(missed)}: record a baseline without the fault first, make the "
            "fault larger, or give more --perf-budget"
        )


def fault_status(run: RunResult) -> int:
    """The exit status of a run with a fault that no case missed: CAUGHT, or IMPOSSIBLE where a case cannot show it."""
    cases = run.cases.values()
    shown = any(case.verdicts for case in cases)
    return CAUGHT if shown and not any(case.error for case in cases) else IMPOSSIBLE
