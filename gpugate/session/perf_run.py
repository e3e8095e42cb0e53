"""The second plugin: pytest's hooks of a session that measures, gates or writes a run, from its collection to its end.

It imports at once what such a session needs. In the controller of xdist, which measures nothing, the run is that of
the workers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpugate.catalogue import catalogue
from gpugate.errors import BaselineError, GpugateError, SideError
from gpugate.machine.processes import end_children, treat_termination_as_ctrl_c
from gpugate.measurement.time_limit import limit_time
from gpugate.report.moves import describe_moves
from gpugate.report.screen import screen
from gpugate.report.terminal import render_text, terminal_columns
from gpugate.report.view import RunView
from gpugate.report.visible_text import show_controls
from gpugate.results.run import RunResult, night_of
from gpugate.results.series import sweeps
from gpugate.session.judged import PerfTests
from gpugate.session.measure_case import end_hung
from gpugate.session.merging import CAUGHT, NOTHING_MEASURED, fault_status, run_problems
from gpugate.session.night_report import prepare_night, write_pages
from gpugate.session.options import Options
from gpugate.session.perf_session import PerfSession, open_session
from gpugate.session.recording import lock_for_recording, record, warn_about_code
from gpugate.session.selection import (
    GPU_MARK,
    WHOLE,
    cases_of,
    describe_selection,
    describe_unmatched,
    deselect,
    deselect_other_devices,
    ended_early,
    group_tests,
    one_node_per_case,
    select_shard,
    usage_errors,
)
from gpugate.session.workers import REFUSAL, WORKERS, check_worker
from gpugate.store import run_file
from gpugate.store.night_files import JUNIT
from gpugate.store.nights import keep
from gpugate.store.version import CACHE_FOLDER
from gpugate.store.writable_folder import choose_folder
from gpugate.units import list_names, number_of

_LOG = logging.getLogger(__name__)
ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
NOT_STORED = "warning: this run is not in the store"
NOT_KEPT = "warning: gpugate accept without RUNS lacks this run, which .gpugate/runs does not keep"
NOT_RECORDED = "the session ended early, before the end of its recording: record again"


class PerfRun:
    """The state of one pytest session, and its hooks."""

    def __init__(self, config: pytest.Config, options: Options) -> None:
        self.config, self.options = config, options
        self.opened: PerfSession | None = None  # until its first case is collected, and where nothing is measured
        self.tests: PerfTests | None = None
        self.failed: dict[str, bool] = {}  # of every test that ran here
        self._collected: set[str] = set()  # the cases of all tests, before any is deselected
        self._is_worker = hasattr(config, "workerinput")
        self._of_workers: RunResult | None = None
        root, kept = config.rootpath.resolve(), choose_folder(config.rootpath / CACHE_FOLDER).parent
        elsewhere = f"{root} cannot be written: gpugate keeps cache, store and proofs in {kept}"
        self._lines = [elsewhere] if kept != root else []  # printed at the end
        self._closing = ExitStack()

    @property
    def run(self) -> RunResult | None:
        return self._of_workers if self.opened is None else self.opened.result

    def pytest_configure(self, config: pytest.Config) -> None:
        """pytest's own plugin for JUnit XML, which was registered earlier, reads its path after this hook."""
        folder = self.options.report_path
        if config.option.collectonly or self._is_worker:
            return
        with usage_errors():
            for path in {path.resolve() for path in self.options.run_paths}:
                self._closing.enter_context(run_file.reserve(path))
            if folder is not None:
                prepare_night(folder)
        if folder is not None and not config.getoption("xmlpath", None):
            config.option.xmlpath = str(folder / JUNIT)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._collected = {case.id for item in items for case in cases_of(item)}
        deselect_other_devices(self.config, items, self.options.device)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        try:
            if self.options.shard is not None:  # after -k, -m and all hooks have selected the tests of the night
                shard, others = select_shard(session.items, self.options.shard)
                self.options = replace(self.options, shard=shard)
                deselect(self.config, session.items, others)
            if self.config.option.collectonly or not any(map(cases_of, session.items)):
                return
            self._open(one_node_per_case(session.items))
            self._order(session.items)
        except GpugateError as error:
            if not self._is_worker:
                raise pytest.UsageError(show_controls(str(error))) from None
            # xdist makes an internal error of what a worker raises: every worker refuses, and has no test to run.
            self.config.workeroutput[REFUSAL] = str(error)  # type: ignore[attr-defined]
            session.items.clear()

    def _open(self, node_ids: Mapping[str, str]) -> None:
        if self.options.worker is not None:
            check_worker(self.config, self.options.worker)
        self._closing.callback(end_children)
        self._closing.enter_context(treat_termination_as_ctrl_c())
        opened = open_session(self.options, self.config.rootpath, catalogue, node_ids)
        opened.result.selection = describe_selection(self.config)
        opened.print_line = self._print_line
        if self.options.update_baselines:
            self._closing.enter_context(lock_for_recording(opened))
            for line in warn_about_code(opened):
                self._print_line(line)
        self._closing.enter_context(limit_time(self.options.step_timeout_s, partial(self._end_hung_run, opened)))
        self._closing.callback(opened.closing.close)
        self.opened, self.tests = opened, PerfTests(self.config, opened, self.failed)
        self.config.pluginmanager.register(self.tests)

    def _order(self, items: list[pytest.Item]) -> None:
        """Lets the cases of a gate come first whose source changed since their record: the time for duets may not
        suffice for all. In a worker, those that run alone on the host come last, when fewer others wait for them. The
        cases of a workload stay together."""
        opened = self.opened
        if self.options.gate and opened is not None:
            items.sort(key=lambda item: not any(map(opened.records.has_changed, cases_of(item))))
        if self.options.worker is not None and opened is not None:
            items.sort(key=lambda item: any(map(opened.needs_host, cases_of(item))))
            self.options.worker.name_groups(group_tests(items))

    def _end_hung_run(self, opened: PerfSession, error: SideError) -> None:
        """The plugins that print are pytest's, so the last words of a run that hangs are printed here.

        `self.opened` is None in a process of trials or duets, which hangs all the same.
        """
        sentence = end_hung(opened, error)
        self._write_files(opened.result)
        capture: Any = self.config.pluginmanager.getplugin("capturemanager")
        if capture is not None:
            capture.suspend_global_capture()
        print(f"\nERROR: {show_controls(sentence)}", flush=True)
        if self.opened is opened:
            lines = [] if self._is_worker else remember(opened.result, self.options, self.config.rootpath)
            print(show_controls("\n".join(lines)), flush=True)
        end_children()
        os._exit(pytest.ExitCode.INTERRUPTED)

    def pytest_runtestloop(self) -> None:
        """Writes the start of the run; of several workers, the first one that begins does."""
        worker = self.options.worker
        if self.opened is not None:
            with usage_errors(), nullcontext(True) if worker is None else worker.begin() as is_first:
                if is_first:
                    self.opened.begin()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        earlier = self.failed.get(report.nodeid, False) and report.when != "setup"  # a rerun starts anew
        self.failed[report.nodeid] = earlier or (report.failed and not hasattr(report, "wasxfail"))

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Where nothing can be measured, pytest lists no failed test: the screen has their one reason. The
        controller of xdist lists those of its workers."""
        hidden = report.when == "call" and report.failed and getattr(report, "unmeasured", False)
        return ("not measured", "F", "FAILED") if hidden else None

    @pytest.hookimpl(wrapper=True, trylast=True)  # around pytest's plugin for JUnit XML, within the one that prints
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Iterator[None]:
        self._finish_all(session, exitstatus)
        try:
            yield
        except OSError as error:
            path = error.filename or self.config.getoption("xmlpath", None) or "a file of another plugin"
            self._end_unwritten(session, f"{path} cannot be written ({error.strerror}): give another path")

    def _finish_all(self, session: pytest.Session, exitstatus: int) -> None:
        perf = self.opened
        try:
            if perf is None:
                self._finish_without_cases(session)
            else:
                perf.finish(ended_early(session, exitstatus, perf.result.cases))
                self._finish(session, perf)
                if self.options.update_baselines:
                    if perf.result.interrupted:
                        raise BaselineError(NOT_RECORDED)
                    record(perf, self._lines.extend)
        except GpugateError as error:
            self._end_unwritten(session, str(error))
        except KeyboardInterrupt:
            if perf is not None:
                perf.finish(interrupted=True)
                self._write_files(perf.result)
                self._lines.extend([f"ERROR: {NOT_RECORDED}"] if self.options.update_baselines else [])
            session.exitstatus = pytest.ExitCode.INTERRUPTED
        if self.options.gate and session.exitstatus:
            # At the very end, since a hook of another plugin may reset the status of a red gate until then.
            self.config.add_cleanup(partial(setattr, session, "exitstatus", session.exitstatus))

    def _finish(self, session: pytest.Session, perf: PerfSession) -> None:
        run, dropped = perf.result, dict(self._describe_dropped(session, perf))
        notes = [words for words, is_red in dropped.items() if not is_red]
        problems = [*self._problems(session, perf), *(words for words, is_red in dropped.items() if is_red)]
        self._lines.extend([*perf.doubt.describe(), *sorted(perf.notes), *notes])
        self._end(session, run, [] if run.interrupted or run.recording else problems)

    def _finish_without_cases(self, session: pytest.Session) -> None:
        """The end of a session that measured nothing itself: the controller of xdist, or one of plain tests alone."""
        workers = self.config.stash.get(WORKERS, None)
        run = self._of_workers = None if workers is None else workers.join_runs(self.options.given_paths)
        if run is not None:
            run.interrupted = run.interrupted or session.exitstatus not in ENDED
            problems, run.problems = run.problems, []
            self._end(session, run, [*problems, *(() if run.interrupted else run_problems(run))])
        elif any(cases_of(item) for item in session.items):
            pass  # another plugin measured them, such as that of duets
        elif self._collected and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            option = self.config.option
            self._lines.extend(describe_unmatched(option.keyword, option.markexpr, self._collected))
        elif self.options.gate and not (self._is_worker or self.config.option.collectonly or session.exitstatus):
            self._end_red(session, [NOTHING_MEASURED])

    def _end(self, session: pytest.Session, run: RunResult, problems: Sequence[str]) -> None:
        """Decides the exit status, and writes the run with it, the pages of its night, and its line in the store."""
        self._end_red(session, problems)
        if not run.interrupted:
            self._end_with_fault(session, run)
        run.exit_status = None if run.recording else int(session.exitstatus)
        try:
            self._write_files(run)
            self._write_pages(run)
        finally:  # where no file can be written, the store may have room
            self._lines.extend([] if self._is_worker else remember(run, self.options, self.config.rootpath))

    def _write_files(self, run: RunResult) -> None:
        for path in self.options.run_paths:
            run_file.write(path, run)

    def _write_pages(self, run: RunResult) -> None:
        if self.options.report_path is not None and not self._is_worker:
            write_pages(self.options.report_path, run)

    def _end_unwritten(self, session: pytest.Session, problem: str) -> None:
        """Ends the session red, also in the files and pages of its run that can be written."""
        self._end_red(session, [problem])
        run = self.run
        if run is None or run.recording:
            return
        run.exit_status = int(session.exitstatus)
        for path in self.options.run_paths:
            with suppress(GpugateError):
                run_file.write(path, run)
        with suppress(GpugateError):
            self._write_pages(run)

    def _problems(self, session: pytest.Session, perf: PerfSession) -> list[str]:
        """The problems that make a session red without a failed test; a worker of xdist counts its own tests only."""
        found: list[str] = []
        if self.options.gate and self.tests is not None:
            ran = [item for item in session.items if item.nodeid in self.failed]
            items = ran if self._is_worker else session.items
            found += self.tests.problems(items)
        if not self._is_worker:
            found += run_problems(perf.result)
        return found

    def _describe_dropped(self, session: pytest.Session, perf: PerfSession) -> Iterator[tuple[str, bool]]:
        """Yields a sentence about each recorded case that the catalogue no longer has, and one about the others that no
        test of the night measures and whose absence is not accepted, except for a developer who selects cases; each
        with True where it makes this session red."""
        gate, is_whole = self.options.gate, perf.result.selection in WHOLE
        known = {case.id: case for case in catalogue.cases()}
        yield from ((words, gate) for words in perf.records.describe_lost(known))  # which no selection can mean
        if not (gate or is_whole):
            return
        selected = {case.id for item in session.items for case in cases_of(item)}
        selected.update(self.options.shard.cases if self.options.shard else ())
        kind = "/cuda" if self.config.option.markexpr == GPU_MARK else ""
        left_out = (name for name in perf.records.recorded if name in known and name not in selected)
        others = [name for name in left_out if name.endswith(kind) and not perf.accepts_absence(known[name])]
        step = ": let their tests run, divide them by --perf-shard, or delete the records with gpugate accept --delete"
        if others:
            words = f"no selected test measures {list_names(sorted(others))}, which this machine has recorded"
            yield words + (step if is_whole else ""), gate and is_whole

    def _end_red(self, session: pytest.Session, problems: Sequence[str]) -> None:
        """Keeps the problems in the run, prints them at the end, and makes them the exit status."""
        for problem in problems:
            if self.run is not None:
                self.run.problems.append(problem)
            self._lines.append(f"ERROR: {problem}")
        # A plugin that ran before this one may have reset the exit status of failed tests.
        if problems or (self.options.gate and any(self.failed.values())):
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def _end_with_fault(self, session: pytest.Session, run: RunResult) -> None:
        """The exit status of a session with a fault, in which a failed test of a case is the fault that was caught."""
        ours = [*run.cases, *(sweep.id for sweep in sweeps(run.cases))]
        failed = (node_id for node_id, failed in self.failed.items() if failed)
        others = any(not any(case_id in node_id for case_id in ours) for node_id in failed)
        if run.mutated is None or others or run.problems or session.exitstatus not in ENDED:
            return
        session.exitstatus = fault_status(run)
        caught, fault = sum(bool(case.verdicts) for case in run.cases.values()), f"the fault {run.mutated}"
        rest = "" if session.exitstatus == CAUGHT else ", and not every other case can show it"
        words = f"{fault} was caught in {number_of(caught, 'case')}{rest}" if caught else f"no case can show {fault}"
        self._lines.append(f"{words}: exit status {session.exitstatus}")

    def _print_line(self, line: str) -> None:
        reporter: Any = self.config.pluginmanager.getplugin("terminalreporter")  # None under `-p no:terminal`
        (self._lines.append if reporter is None else reporter.write_line)(show_controls(line))

    @pytest.hookimpl(trylast=True)  # after the tables of pytest-benchmark: ours is what one looks for
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.run is not None and self.run.cases:
            terminalreporter.section("gpugate")
            width, view = terminal_columns(), RunView(self.run)
            parts = screen(view, width, detailed=self.config.get_verbosity() > 0)
            terminalreporter.write(render_text(parts, width, terminalreporter._tw.hasmarkup))
            if found := view.next_command:
                first = "commit this code, then " if self.opened is not None and warn_about_code(self.opened) else ""
                command, count = found
                self._lines += [f"next: {first}{command}", f"  {count}"]
        for line in self._lines:
            terminalreporter.write_line(show_controls(line))

    def pytest_unconfigure(self) -> None:
        self._closing.close()


def remember(run: RunResult, options: Options, root: Path) -> list[str]:
    """Adds a run with measured cases to the store, keeps its file in the project, and returns lines for the end.

    No error of the store is one of the run: it is a warning. A run with a fault on purpose does not describe the
    program and is not added, nor is one of a user's own inputs beside the records of others.
    """
    if options.store_url is None or run.mutated is not None or options.own_inputs:
        return []
    failed, step = NOT_STORED, "give another --perf-store, or --perf-store off"
    try:
        night = night_of(run, options.report_path.resolve().name if options.report_path else "")
        if not night.cases and not night.unfit:
            return []
        from gpugate.store.database import open_store  # which imports sqlalchemy: a session without cases does not

        with open_store(options.store_url) as store:
            before = store.read_night_before(night)
            store.add(night)
        failed, step = NOT_KEPT, "mend that folder"
        keep(run, root)
        return [] if before is None else describe_moves(before, night)
    except GpugateError as error:
        return [f"{failed}: {error}"]
    except Exception as error:
        _LOG.debug("the store failed", exc_info=True)
        name = type(error).__name__  # whose words may have a secret of the URL
        return [f"{failed} ({name}): {step}"]
