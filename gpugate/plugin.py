"""pytest's hooks. Each is a few lines; the ideas are elsewhere. Importing this imports no torch."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpugate.catalogue import catalogue
from gpugate.errors import BaselineError, GpugateError, SideError
from gpugate.fixtures import HELD, SESSION, gate, replayed, sweep, workload
from gpugate.session.held_verdicts import NOTHING_MEASURED, HeldVerdicts, run_problems
from gpugate.session.options import (
    Options,
    add_options,
    gates_by_settings,
    profilers,
    read_options,
    words_without_ambiguity,
)
from gpugate.session.selection import (
    cases_of,
    deselect_other_devices,
    ended_early,
    one_node_per_case,
    parametrize,
    selected_nothing,
)
from gpugate.session.termination import termination_as_ctrl_c
from gpugate.session.xdist_workers import check_workers, received, send, worker_number

if TYPE_CHECKING:
    from gpugate.profiling.session import InnerRun
    from gpugate.results.run import RunResult
    from gpugate.session.perf_session import PerfSession

__all__ = ["gate", "replayed", "sweep", "workload"]  # fixtures are found in the plugin's namespace

OPTIONS = pytest.StashKey[Options]()
INNER: pytest.StashKey[InnerRun | None] = pytest.StashKey()  # under a profiler that gpugate started
CLOSING = pytest.StashKey[ExitStack]()
COLLECTED: pytest.StashKey[RunResult | None] = pytest.StashKey()  # by the xdist controller, from its workers
BEGUN = pytest.StashKey[bool]()  # by the xdist controller: its workers have selected cases
CASES_COLLECTED = pytest.StashKey[bool]()
MARKED = pytest.StashKey[list[Path]]()  # earlier runs that this session is to replace
RECORDED = pytest.StashKey[bool]()  # the baselines are written
SAID = pytest.StashKey[list[str]]()
NOTHING_BEGAN = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.USAGE_ERROR)
NOT_RECORDED = "no baseline was written because the session ended early: record again"


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    words, started_in = [str(word) for word in config.invocation_params.args], config.invocation_params.dir
    at_home = config.inipath is not None and started_in.is_relative_to(config.inipath.parent)
    if not at_home and (clear := words_without_ambiguity(words)) != words:
        catalogue.let_be_replaced()
        return int(pytest.main(clear, plugins=config.invocation_params.plugins))
    return _start_profiler(config)


def _start_profiler(config: pytest.Config) -> int | None:
    if not profilers(config) or config.option.collectonly or config.option.help:
        return None
    from gpugate.profiling.session import outer_run

    try:
        return outer_run(read_options(config), config.invocation_params.args)
    except GpugateError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a CUDA GPU")
    if not config.pluginmanager.hasplugin("benchmark"):
        config.addinivalue_line("markers", "benchmark: read by pytest-benchmark, which is not active")
    config.stash[SAID] = []
    try:
        options = read_options(config)
        check_workers(config, options)
        config.stash[INNER] = _inner_run(options)
        _prepare_night(config, options)
    except GpugateError as error:
        raise pytest.UsageError(str(error)) from None
    if worker_number(config) is not None:
        options = dataclasses.replace(options, json_path=None, report_path=None)  # the controller writes one for all
    config.stash[OPTIONS] = options
    config.stash[CLOSING] = ExitStack()
    config.stash[HELD] = HeldVerdicts()
    config.pluginmanager.register(config.stash[HELD])


def _prepare_night(config: pytest.Config, options: Options) -> None:
    """JUnit XML is pytest's own: it reads where to after this, since hooks of what was registered later come first."""
    if options.report_path is None or worker_number(config) is not None or config.option.collectonly:
        return
    from gpugate.report.night import prepare_night
    from gpugate.report.night_files import JUNIT

    prepare_night(options.report_path)
    if not config.getoption("xmlpath", None):
        config.option.xmlpath = str(options.report_path / JUNIT)


def _begin_night(config: pytest.Config) -> None:
    """Only now is an earlier night in the folder cleared: cases were selected, and begin."""
    path = config.stash[OPTIONS].report_path
    if path is not None:
        from gpugate.report.night import begin_night

        begin_night(path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    config = node.config
    if ids and not config.stash.get(BEGUN, False):
        config.stash[BEGUN] = True
        _begin_night(config)


def _write_night(config: pytest.Config, run: RunResult) -> None:
    path = config.stash[OPTIONS].report_path
    if path is not None:
        from gpugate.report.night import write_night

        write_night(path, run)


def _inner_run(options: Options) -> InnerRun | None:
    if options.profiling is None:
        return None
    from gpugate.profiling.session import inner_run

    return inner_run()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Where this session dies before its first case, an earlier run must not pass for this one."""
    paths = session.config.stash[OPTIONS].run_paths
    if paths and not session.config.option.collectonly:
        from gpugate.store import run_file

        try:
            session.config.stash[MARKED] = [path for path in paths if run_file.mark_outdated(path)]
        except GpugateError as error:
            raise pytest.UsageError(str(error)) from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from gpugate.report.benchmark_bridge import keep_with_benchmark_only

    config.stash[CASES_COLLECTED] = any(map(cases_of, items))
    deselect_other_devices(config, items, config.stash[OPTIONS].device)
    keep_with_benchmark_only(config, [item for item in items if "replayed" in getattr(item, "fixturenames", ())])


def pytest_collection_finish(session: pytest.Session) -> None:
    if not session.items and session.config.stash.get(CASES_COLLECTED, False):
        session.config.stash[SAID].extend(filter(None, [selected_nothing(session.config)]))
    if not session.config.option.collectonly and any(cases_of(item) for item in session.items):
        try:
            _open(session.config, one_node_per_case(session.items))
        except GpugateError as error:
            raise pytest.UsageError(str(error)) from None


def _open(config: pytest.Config, node_ids: Mapping[str, str]) -> None:
    _begin_night(config)
    from gpugate.session.left_over import none_left_over
    from gpugate.session.opening import open_session
    from gpugate.session.recording import allowed_to_record

    config.stash[CLOSING].enter_context(none_left_over())
    config.stash[CLOSING].enter_context(termination_as_ctrl_c())
    opened = open_session(config.stash[OPTIONS], config.rootpath, catalogue, worker_number(config), node_ids)
    if opened.options.update_baselines:
        config.stash[CLOSING].enter_context(allowed_to_record(opened))
    config.stash[SESSION] = opened
    _limit_time(config, opened)
    if opened.options.profiling is not None:
        from gpugate.profiling.session import begin_profiles

        begin_profiles(opened, config.stash[INNER])
    if not opened.options.gate:
        config.stash[SAID].extend(opened.problems())


def _limit_time(config: pytest.Config, opened: PerfSession) -> None:
    """The plugins that print are pytest's, so the last words of a run that hangs are printed here."""
    from gpugate.measurement.time_limit import limit_time
    from gpugate.session.left_over import end_daemons

    def end_run(error: SideError) -> None:
        sentence = opened.end_hung(error)
        capture: Any = config.pluginmanager.getplugin("capturemanager")
        if capture is not None:
            capture.suspend_global_capture()
        print(f"\nERROR: {sentence}", flush=True)
        end_daemons()
        os._exit(pytest.ExitCode.INTERRUPTED)

    config.stash[CLOSING].enter_context(limit_time(opened.options.step_timeout_s, end_run))


def pytest_enter_pdb() -> None:
    from gpugate.measurement.time_limit import end_limits

    end_limits()


def pytest_runtestloop(session: pytest.Session) -> None:
    perf = session.config.stash.get(SESSION, None)
    if perf is not None:
        try:
            perf.begin()
        except GpugateError as error:
            raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    perf = session.config.stash.get(SESSION, None)
    try:
        if perf is not None:
            _finish(session, perf, ended_early(session, exitstatus, perf.result.cases))
        else:
            _finish_without_cases(session)
    except GpugateError as error:
        session.config.stash[SAID].append(f"ERROR: {error}")
        session.exitstatus = exitstatus or pytest.ExitCode.TESTS_FAILED
    except KeyboardInterrupt:
        if perf is not None and not session.config.stash.get(RECORDED, False):
            perf.finish(interrupted=True)
            session.config.stash[SAID].extend([f"ERROR: {NOT_RECORDED}"] if perf.options.update_baselines else [])
        session.exitstatus = pytest.ExitCode.INTERRUPTED
    inner = session.config.stash.get(INNER, None)
    if inner is not None:
        inner.end(int(session.exitstatus))


def _finish(session: pytest.Session, perf: PerfSession, interrupted: bool) -> None:
    config, run, recording = session.config, perf.result, perf.options.update_baselines
    config.stash[SAID].extend(sorted(perf.notes))
    if not perf.options.gate:
        config.stash[SAID].extend(catalogue.left_out())
    if not interrupted and not recording:
        _end_red(session, run, _problems(session, perf))
    run.exit_status = None if recording else int(session.exitstatus)
    perf.finish(interrupted)
    _write_night(config, run)
    if worker_number(config) is not None:
        send(config, run)
    elif recording:
        _record(config, interrupted)


def _finish_without_cases(session: pytest.Session) -> None:
    """The end of a session that measured nothing itself: the controller of xdist, or one of plain tests alone."""
    config = session.config
    run, options = config.stash.get(COLLECTED, None), config.stash[OPTIONS]
    if run is not None:
        of_workers, run.problems = run.problems, []
        _end_red(session, run, [*of_workers, *(() if run.interrupted else run_problems(run))])
        run.exit_status = int(session.exitstatus)
        from gpugate.store import run_file

        for path in options.run_paths:
            run_file.write(path, run)
        _write_night(config, run)
    elif any(cases_of(item) for item in session.items):
        pass  # another plugin measured them, such as that of `gpugate trust`
    elif not config.option.collectonly and session.exitstatus == pytest.ExitCode.OK:
        problems = [*catalogue.left_out(), *([NOTHING_MEASURED] if options.gate else [])]
        if options.gate and worker_number(config) is None and not gates_by_settings(config):
            _end_red(session, None, problems)
        else:
            config.stash[SAID].extend(problems)
    if run is None and session.exitstatus in NOTHING_BEGAN and (marked := config.stash.get(MARKED, [])):
        from gpugate.store import run_file

        for path in marked:
            run_file.clear_mark(path)


def _problems(session: pytest.Session, perf: PerfSession) -> list[str]:
    """Why the session is red although no test failed; a worker of xdist knows of the tests that ran in it."""
    config, run, of_worker = session.config, perf.result, worker_number(session.config) is not None
    found: list[str] = []
    if perf.options.gate:
        held = config.stash[HELD]
        items = [item for item in session.items if item.nodeid in held.failed] if of_worker else session.items
        found += [*held.problems(items, run, perf.accepts_absence), *perf.problems(), *catalogue.left_out()]
    if not of_worker:
        found += run_problems(run)
    return found


def _end_red(session: pytest.Session, run: RunResult | None, problems: Iterable[str]) -> None:
    """Keeps the problems in the run, prints them at the end, and makes them the exit status."""
    for problem in problems:
        if run is not None:
            run.problems.append(problem)
        session.config.stash[SAID].append(f"ERROR: {problem}")
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def _record(config: pytest.Config, interrupted: bool) -> None:
    from gpugate.session.recording import record

    if interrupted:
        raise BaselineError(NOT_RECORDED)

    def tell(lines: Sequence[str]) -> None:
        config.stash[RECORDED] = True
        said.extend(lines)

    reporter: Any = config.pluginmanager.getplugin("terminalreporter")  # None under `-p no:terminal`
    said = config.stash[SAID]
    say = said.append if reporter is None else reporter.write_line
    record(config.stash[SESSION], say, tell)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    stash = node.config.stash
    stash[COLLECTED] = received(getattr(node, "workeroutput", {}), stash.get(COLLECTED, None))


@pytest.hookimpl(trylast=True)  # after the tables of pytest-benchmark: ours is what one looks for
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    perf = config.stash.get(SESSION, None)
    run = perf.result if perf is not None else config.stash.get(COLLECTED, None)
    if run is not None and run.cases:
        _show(terminalreporter, run)
    for line in config.stash[SAID]:
        terminalreporter.write_line(line)


def _show(reporter: Any, run: RunResult) -> None:
    from gpugate.report import terminal

    reporter.section("gpugate")
    reporter.write(terminal.text(run, terminal.terminal_columns(), reporter._tw.hasmarkup))


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    from gpugate.report import benchmark_bridge

    perf = config.stash.get(SESSION, None)
    if perf is not None:
        machine_info.update(benchmark_bridge.machine_info(perf.environment))


def pytest_unconfigure(config: pytest.Config) -> None:
    closing = config.stash.get(CLOSING, None)
    if closing is not None:
        closing.close()
