"""The session as perf tests see it: measured and judged cases, the gate, and what the gate of each test was given."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from rich.console import Console

from gpugate.errors import GpugateError
from gpugate.judging.knee import judge_knee
from gpugate.measurement.progress import Report, silent
from gpugate.report.benchmark_bridge import replay
from gpugate.report.live import LiveLine
from gpugate.report.next_step import describe_next_step
from gpugate.report.view import describe_absence
from gpugate.report.visible_text import show_controls
from gpugate.results.case import CaseResult
from gpugate.results.run import RunResult
from gpugate.results.series import sweeps
from gpugate.results.verdict import Check, Verdict, order_verdicts
from gpugate.session.measure_case import measure_case
from gpugate.session.perf_session import PerfSession
from gpugate.session.selection import cases_of, list_parameters
from gpugate.workload import Case, SweepCases

Gate = Callable[..., None]  # the fixture `gate`, which takes verdicts


@dataclass(frozen=True)
class Judged:
    """A measured case as a test sees it: four verdicts, and the samples behind them."""

    case: Case
    result: CaseResult
    absent: str | None = None  # why a gate fails on it

    @property
    def equivalence(self) -> Verdict:
        return self._verdict("equivalence")

    @property
    def speedup(self) -> Verdict:
        return self._verdict("speedup")

    @property
    def throughput(self) -> Verdict:
        return self._verdict("throughput")

    @property
    def counters(self) -> Verdict:
        return self._verdict("counters")

    def _verdict(self, check: Check) -> Verdict:
        __tracebackhide__ = True
        problem = f"{self.result.case_id}: {self.result.error}" if self.result.error else self.absent
        if problem is not None:
            pytest.fail(show_controls(problem), pytrace=False)
        return next(verdict for verdict in self.result.verdicts if verdict.check == check)


@dataclass(frozen=True)
class JudgedSweep:
    """A measured sweep as a test sees it."""

    cases: SweepCases
    knee: Verdict


@dataclass(eq=False)  # pytest's plugins must be hashable
class PerfTests:
    """A plugin of pytest: the work of the fixtures `workload`, `sweep` and `gate` in a session that measures."""

    config: pytest.Config
    session: PerfSession
    failed: Mapping[str, bool]  # of every test that ran here
    refused: list[str] = field(default_factory=list)  # a sentence for each verdict that is not of this run
    replayed: set[str] = field(default_factory=set)  # the cases whose samples pytest-benchmark has
    knees: list[tuple[SweepCases, Verdict]] = field(default_factory=list)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
        """Marks the tests of cases in a session that can measure none of its cases; not those with an error of their
        own."""
        report = yield
        failed = call.excinfo is not None and call.excinfo.errisinstance(pytest.fail.Exception)
        report.unmeasured = failed and not self.session.doubt.cases and bool(cases_of(item))
        return report

    def judge_case(self, case: Case) -> Judged:
        """Measures the case once per session. Skips, naming what is missing, where the machine cannot run it."""
        __tracebackhide__ = True
        result = self._measure([case])[case.id]
        if result.skipped is not None:
            if self.session.result.refuses(result):
                return Judged(case, result, absent=f"{case.id} was not measured: {describe_absence(result)}")
            pytest.skip(show_controls(result.skipped))
        return Judged(case, result)

    def judge_sweep(self, sweep: SweepCases) -> JudgedSweep:
        """Measures every point once per session. Skips where the machine can run none of them."""
        __tracebackhide__ = True
        session, results = self.session, self._measure(sweep.cases)
        points = list(results.values())
        if all(point.skipped and not session.result.refuses(point) for point in points):
            pytest.skip(show_controls(str(points[0].skipped)))
        (found,) = sweeps(results)  # the cases are the points of one
        unfit = next((point for point in points if point.unfit), None)
        knee = judge_knee(found, session.result.mode, unfit)
        self.knees.append((sweep, knee))
        return JudgedSweep(sweep, knee)

    def _measure(self, cases: Iterable[Case]) -> dict[str, CaseResult]:
        """Measures the cases and returns the results by id; an error fails the test in one sentence."""
        __tracebackhide__ = True
        try:
            with _live_report(self.config, self.session) as report:
                return {case.id: measure_case(self.session, case, report) for case in cases}
        except GpugateError as error:
            # What `pytest.fail` raises: its own raise would show what led to the error, one message for each.
            raise pytest.fail.Exception(show_controls(str(error)), pytrace=False) from None

    def gate(self, request: pytest.FixtureRequest, *verdicts: Verdict) -> None:
        """Fails by the worst verdict that is bad, or under --gate not good; the report lists all others."""
        __tracebackhide__ = True
        for verdict in verdicts:
            self._hold(request, verdict)
        failing = [one for one in verdicts if one.bad or (self.session.options.gate and not one.good)]
        if failing:
            pytest.fail(show_controls(sentence(order_verdicts(failing)[0], self.session.result)), pytrace=False)

    def _hold(self, request: pytest.FixtureRequest, verdict: Verdict) -> None:
        """Notes in the cases of a test that it decides by the verdict. Fails where this run made no such verdict for
        the test."""
        __tracebackhide__ = True
        test = request.node
        asked = [sweep for sweep, knee in self.knees if knee is verdict and sweep in list_parameters(test)]
        points = [self.session.case_result(case) for sweep in asked for case in sweep.cases]
        cases = map(self.session.case_result, cases_of(test))
        found = points or [result for result in cases if any(verdict is one for one in result.verdicts)]
        if not found:
            self.refused.append(
                f"{verdict.outcome.value} {verdict.check} of {verdict.case_id} is no verdict that this run made for "
                f"{test.name}: give `gate` one of its fixture, such as workload.speedup"
            )
            pytest.fail(self.refused[-1], pytrace=False)
        self._replay(request, verdict.case_id)
        # What `record_property` does: that fixture is missing under `-p no:junitxml`.
        test.user_properties.extend(properties(verdict).items())
        for result in found:
            result.held = tuple(dict.fromkeys((*result.held, verdict.check)))

    def problems(self, items: Iterable[pytest.Item]) -> Iterator[str]:
        """Writes a sentence for each case of `items` that failed no test and gave `gate` no good verdict."""
        run = self.session.result
        tests: dict[str, tuple[Case, list[str]]] = {}
        for item in items:
            for case in cases_of(item):
                tests.setdefault(case.id, (case, []))[1].append(item.nodeid)
        yield from self.refused
        for case_id, (case, node_ids) in tests.items():
            result = run.cases.get(case_id)
            if not any(self.failed.get(node_id) for node_id in node_ids):
                accepted = result is not None and result.skipped is not None and not run.refuses(result)
                knees = [knee for sweep, knee in self.knees if case in sweep.cases]
                problem = None if accepted else _problem(case_id, result, knees)
                yield from [problem] if problem else []

    def _replay(self, request: pytest.FixtureRequest, case_id: str) -> None:
        """Hands the samples of the optimized side to pytest-benchmark, in the first test that gates the case."""
        result = self.session.result.cases.get(case_id)
        pairs = result.measurement.pairs if result is not None and result.measurement is not None else ()
        if result is None or not pairs or case_id in self.replayed:
            return
        self.replayed.add(case_id)
        samples_s = [pair.optimized_ms / 1e3 for pair in pairs]
        speedup = next(verdict for verdict in result.verdicts if verdict.check == "speedup")
        params = {"workload": result.workload, "optimization": result.optimization, "device": result.device_kind}
        replay(request, samples_s, properties(speedup), case_id, params)


def _problem(case_id: str, result: CaseResult | None, knees: Sequence[Verdict]) -> str | None:
    """The reason against a case none of whose tests failed and whose absence is not accepted; None for a good one."""
    if result is None:
        return f"no test measured {case_id}: take away what skips its tests, or deselect them"
    if result.error is not None:
        return f"the error of {case_id} failed no test: {result.error}"
    if result.skipped is not None:
        return f"the absence of {case_id} failed no test: {result.skipped}"
    not_good = next((one for one in (*result.verdicts, *knees) if one.check in result.held and not one.good), None)
    if not_good is not None:
        return (
            f"{not_good.outcome.value} {not_good.check} of {not_good.case_id} failed no test: {not_good.reason}; take "
            "away what lets its test pass, such as an xfail mark"
        )
    return None if result.held else f"no test held a verdict of {case_id}: call gate(workload.speedup) in a test of it"


def properties(verdict: Verdict) -> dict[str, Any]:
    """Collects the outcome, the reason, its code and the numbers of a verdict for JUnit XML and pytest-benchmark."""
    numbers = {name: value for name, value in verdict.numbers.items() if value is not None}
    words = {"reason": verdict.reason, "circumstances": "; ".join(verdict.circumstances)}
    return {"verdict": verdict.outcome.value, "reason_code": verdict.code.value, **words, **numbers}


def sentence(verdict: Verdict, run: RunResult) -> str:
    """Writes the verdict with its reason in one sentence, and the command to run next."""
    step = describe_next_step(verdict, run).replace("\n", "\n  ")
    head = f"{verdict.outcome.value} {verdict.check} of {verdict.case_id}"
    return f"{head}: {verdict.reason}" + (f"\n  next: {step}" if step else "")


@contextmanager
def _live_report(config: pytest.Config, session: PerfSession) -> Iterator[Report]:
    """The live line on the real terminal, past pytest's capture; nothing where it is no terminal."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    capture = config.pluginmanager.getplugin("capturemanager")
    stream = getattr(reporter, "_tw", None) and reporter._tw._file
    if stream is None or capture is None or config.getoption("verbose") < 0:
        yield silent
        return

    def describe_session() -> str:
        return session.doubt.describe_left(session.elapsed_s)

    with capture.global_and_fixture_disabled():  # while pytest captures, its own stream is no terminal
        live = LiveLine(Console(file=stream), reporter.ensure_newline, describe_session)
    if not live.shown:
        yield silent
        return
    with capture.global_and_fixture_disabled(), closing(live):
        yield live.update
    if reporter.showfspath:  # the dots go on behind the file's name, which the live line took away
        reporter.write_fspath_result(os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0], "")
