"""`gpugate trust`: trials in fresh processes, and a report of false alarms and of slowdowns that the gate misses."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from gpugate.commands.trust.plan import Plan, count_missing, count_trials
from gpugate.commands.trust.trials import FILE, SLOWDOWNS, Taken, read_all, trials_path
from gpugate.errors import OptionError, TrustError
from gpugate.machine.environment import Environment
from gpugate.measurement.settings import Settings
from gpugate.store.folder_lock import lock_folder
from gpugate.store.json_file import write_atomically

DEFAULT_TRIALS, DEFAULT_PROCESSES = 40, 8
DEFAULT_FOLDER = "gpugate-trust"
REPORT = "trust.md"  # in the folder of the trials


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 reported, 2 wrong options or a process failed, 130 interrupted"
    add = parser.add_argument
    add("paths", nargs="*", default=["perf_tests"], help="perf tests (default: perf_tests)")
    add("-k", dest="keyword", metavar="EXPR", help="only cases that pytest's -k would select")
    add("-m", dest="marker", metavar="EXPR", help="only cases that pytest's -m would select")
    add(
        "--trials",
        metavar="N",
        default=str(DEFAULT_TRIALS),
        help="A/A trials of each case, and a fifth as many of each slowdown (default: %(default)s)",
    )
    add(
        "--slowdowns",
        metavar="PERCENT",
        type=_slowdowns,
        default=SLOWDOWNS[1:],
        help=f"comma-separated, of {_percents(SLOWDOWNS[1:])} (default: all)",
    )
    add(
        "--processes",
        metavar="N",
        default=str(DEFAULT_PROCESSES),
        help="fresh processes that the trials are spread over (default: %(default)s)",
    )
    add(
        "--budget",
        metavar="SECONDS",
        default=f"{Settings.budget_s:g}",
        help="time for sampling in each trial, building apart (default: %(default)s)",
    )
    add("--device", metavar="DEVICE", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    add(
        "--output",
        metavar="DIR",
        type=Path,
        default=Path(DEFAULT_FOLDER),
        help="trials and report; trials that are there count, only what is missing is taken (default: %(default)s)",
    )
    add("--report-only", action="store_true", help="measure nothing: report on the trials in --output")


def run(arguments: argparse.Namespace) -> int:
    """Takes what is missing, then reports.

    Raises TrustError where trials cannot be taken, kept or counted together, and OptionError for --report-only
    with options that say how to measure.
    """
    folder: Path = arguments.output
    if arguments.report_only and (given := _measuring_options(arguments)):
        raise OptionError(f"--report-only reports on every trial in --output and measures none: leave out {given}")
    plan, words = _first_plan(arguments), _pytest_words(arguments)
    if arguments.report_only and not folder.is_dir():
        raise TrustError(f"--output {folder} is no folder: give the one that the trials are in")
    with lock_folder(folder, TrustError, f"--output {folder}"):
        before = read_all(folder)
        try:
            if not arguments.report_only:
                _take_what_is_missing(plan, folder, before, words)
        except (KeyboardInterrupt, TrustError):
            taken = read_all(folder)
            if len(taken.trials) > len(before.trials):
                _report(folder, taken)
                print("the same command goes on from there", file=sys.stderr)
            raise
        _report(folder, read_all(folder))
    return 0


def _measuring_options(arguments: argparse.Namespace) -> str:
    """The options that say how to measure and differ from their defaults."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    defaults = vars(parser.parse_args([]))
    differing = [name for name, value in defaults.items() if getattr(arguments, name) != value]
    spelling = {"paths": "paths", "keyword": "-k", "marker": "-m"}
    return ", ".join(spelling.get(name, f"--{name}") for name in differing if name not in ("output", "report_only"))


def _first_plan(arguments: argparse.Namespace) -> Plan:
    """The plan of a folder without trials. Raises OptionError for a number that cannot be used."""
    from gpugate.session.options import seconds, whole_number

    return Plan(
        output="",
        process=0,
        processes=whole_number("--processes", arguments.processes, DEFAULT_PROCESSES),
        budget_s=seconds("--budget", arguments.budget),
        aa_trials=whole_number("--trials", arguments.trials, DEFAULT_TRIALS),
        slowdowns=arguments.slowdowns,
    )


def _pytest_words(arguments: argparse.Namespace) -> list[str]:
    from gpugate.session.options import device_name

    words = [*arguments.paths, "--perf-device", device_name(arguments.device), "-q"]
    words += ["-p", "gpugate.plugin", "-p", "no:cacheprovider"]
    words += ["-k", arguments.keyword] if arguments.keyword else []
    return words + (["-m", arguments.marker] if arguments.marker else [])


def _take_what_is_missing(plan: Plan, folder: Path, taken: Taken, words: list[str]) -> None:
    """One process after another, until none of the selected cases lacks a trial."""
    from gpugate.commands.trust.fresh_worker import run_worker

    selected: Collection[str] | None = None  # not known before a process has collected the tests
    while True:
        plan = _next_plan(plan, folder, taken)
        if selected is not None and not any(count_missing(plan, case_id) for case_id in selected):
            return
        print(f"process {plan.process}: {len(taken.trials)} trials so far", file=sys.stderr)
        output = Path(plan.output)
        try:
            run_worker(plan, words)
            selected = FILE.read(output).case_ids
        finally:
            _forget_if_empty(output)
        taken = read_all(folder)


def _next_plan(plan: Plan, folder: Path, taken: Taken) -> Plan:
    process, counts = taken.last_process + 1, count_trials(taken.trials)
    output = str(trials_path(folder, process))
    return replace(plan, output=output, process=process, earlier=taken.conditions, taken=counts)


def _forget_if_empty(output: Path) -> None:
    if output.exists() and not FILE.read(output).trials:
        output.unlink()


def _report(folder: Path, taken: Taken) -> None:
    """Writes the report, then prints its tables. Raises TrustError for no trials, and for a file that cannot be
    written."""
    if taken.conditions is None or not taken.trials:
        raise TrustError(f"{folder} contains no trials to report: run without --report-only")
    from gpugate.commands.trust.analysis import analyse
    from gpugate.commands.trust.our_rule import our_alarms
    from gpugate.commands.trust.report import markdown, text
    from gpugate.report.terminal import stdout_takes_colour, terminal_columns

    report = analyse(taken.trials, our_alarms(taken.trials), _machine(taken.conditions.environment))
    try:
        with FILE.writing(folder / REPORT):
            write_atomically(folder / REPORT, markdown(report))
    finally:
        sys.stdout.write(text(report, terminal_columns(), stdout_takes_colour()))
        _print_limits(taken, report.processes)
    print(f"trials and report are in {folder}")


def _print_limits(taken: Taken, processes: int) -> None:
    """Prints the cases that could not be measured, and warns of too few processes."""
    from gpugate.commands.trust.our_rule import ENOUGH_PROCESSES

    for reason, skipped in groupby(sorted(taken.skipped, key=taken.skipped.__getitem__), key=taken.skipped.__getitem__):
        print(f"not measured: {', '.join(skipped)}: {reason}")
    if processes < ENOUGH_PROCESSES:
        few = "1 process is" if processes == 1 else f"{processes} processes are"
        print(f"{few} too few to estimate a gate's alarms, which needs {ENOUGH_PROCESSES}: take more trials")


def _machine(environment: Environment) -> str:
    versions = [environment.device_name]
    versions += [f"driver {environment.driver}"] if environment.driver else []
    versions += [f"torch {environment.packages['torch']}"] if "torch" in environment.packages else []
    return ", ".join(versions)


def _slowdowns(text: str) -> tuple[float, ...]:
    named = {f"{100 * slowdown:g}": slowdown for slowdown in SLOWDOWNS[1:]}
    asked = [word.strip() for word in text.split(",")]
    if unknown := [word for word in asked if word not in named]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not seeded: give some of {_percents(SLOWDOWNS[1:])}")
    return tuple(named[word] for word in named if word in asked)


def _percents(slowdowns: Iterable[float]) -> str:
    return ",".join(f"{100 * slowdown:g}" for slowdown in slowdowns)
