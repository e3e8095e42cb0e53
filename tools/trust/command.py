"""The tool `trust`: trials in fresh processes, and a report of false alarms and of slowdowns that the gate misses."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path

from gpugate.commands.cli import run_command
from gpugate.errors import CompareError, OptionError
from gpugate.faults.fault import KINDS
from gpugate.machine.environment import Environment
from gpugate.measurement.settings import Settings
from gpugate.store.json_file import write_atomically
from gpugate.store.writable_folder import lock_folder
from tools.trust.plan import Plan, count_missing, count_trials
from tools.trust.trials import FILE, SLOWDOWNS, Taken, TrustError, read_all, trials_path

DEFAULT_TRIALS, DEFAULT_PROCESSES = 40, 8
DEFAULT_FOLDER = "gpugate-trust"
REPORT = "trust.md"  # in the folder of the trials
DUET_PERCENTS = (0.0, 5.0)
LARGEST_OF_GATE = 100.0  # percent
# The options that have no effect, by the mode of the command.
_IDLE: Mapping[str, str] = {
    "with --report-only": "paths -k -m --trials --slowdowns --processes --budget --busy-cores --device",
    "with --duet": "--processes",
    "without --duet": "--busy-cores",
}
_PERCENT = re.compile(r"\d+(\.\d+)?")


def main(words: Sequence[str] | None = None) -> int:
    """Runs the tool with the options in `words` (default: the command line) and returns its exit status."""
    about = "the false alarms of the gate on this machine, and the slowdowns that it misses"
    parser = argparse.ArgumentParser(prog="python -m tools.trust", description=about)
    add_arguments(parser)
    parser.set_defaults(run=run, program=parser.prog)
    return run_command(parser, words)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 reported, 2 wrong options or a process failed, 130 interrupted"
    add = parser.add_argument
    add("--duet", action="store_true", help="trials of `gpugate compare . .` with a slowdown in the head's sides")
    add("paths", nargs="*", default=["perf_tests"], help="perf tests (default: perf_tests)")
    add("-k", metavar="EXPR", help="only cases that pytest's -k would select")
    add("-m", metavar="EXPR", help="only cases that pytest's -m would select")
    add(
        "--trials",
        metavar="N",
        default=str(DEFAULT_TRIALS),
        help="A/A trials of each case, and a fifth as many of each slowdown; with --duet as many of each (default: "
        "%(default)s)",
    )
    add(
        "--slowdowns",
        metavar="PERCENT",
        help=f"comma-separated (default: {_join(100 * slowdown for slowdown in SLOWDOWNS[1:])}; with --duet "
        f"{_join(DUET_PERCENTS)}, where 0 is A/A)",
    )
    add(
        "--processes",
        metavar="N",
        default=str(DEFAULT_PROCESSES),
        help="without --duet: fresh processes that the trials are spread over (default: %(default)s)",
    )
    add(
        "--budget",
        metavar="SECONDS",
        help=f"time for sampling in each trial, building apart (default: {Settings.budget_s:g}); with --duet in each "
        "process of a trial (default: that of gpugate compare)",
    )
    add("--busy-cores", metavar="N", help="with --duet: other programs keep N cores busy meanwhile (default: none)")
    add("--device", metavar="DEVICE", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    add(
        "--output",
        metavar="DIR",
        type=Path,
        default=Path(DEFAULT_FOLDER),
        help="trials and report; trials that are there count, only what is missing is taken (default: %(default)s)",
    )
    add("--report-only", action="store_true", help="measure nothing: report on the trials in --output")
    parser.set_defaults(default_of=parser.get_default)


@dataclass(frozen=True)
class _Trials:
    """The actions of the command on the trials of one kind: count, take and report."""

    count: Callable[[], int]
    take: Callable[[], None]
    report: Callable[[], None]


def run(arguments: argparse.Namespace) -> int:
    """Takes what is missing, then reports.

    Raises TrustError where trials cannot be taken, kept or counted together, CompareError where a process of duets
    measures no case, and OptionError for an option without effect and for a value that cannot be used.
    """
    _refuse_idle_options(arguments)
    folder: Path = arguments.output
    trials = _duets(arguments) if arguments.duet else _trials(arguments)
    if arguments.report_only and not folder.is_dir():
        raise TrustError(f"--output {folder} is no folder: give the one that the trials are in")
    with lock_folder(folder, TrustError, f"--output {folder}"):
        before = trials.count()
        try:
            if not arguments.report_only:
                trials.take()
        except (KeyboardInterrupt, TrustError, CompareError):
            if trials.count() > before:
                trials.report()
                print("the same command goes on from there", file=sys.stderr)
            raise
        trials.report()
    return 0


def _refuse_idle_options(arguments: argparse.Namespace) -> None:
    modes = ["with --report-only"] if arguments.report_only else []
    for mode in [*modes, "with --duet" if arguments.duet else "without --duet"]:
        for option in _IDLE[mode].split():
            name = option.strip("-").replace("-", "_")
            if getattr(arguments, name) != arguments.default_of(name):
                raise OptionError(f"{option} has no effect {mode}: leave it out")


def _trials(arguments: argparse.Namespace) -> _Trials:
    """Trials of the gate. Raises OptionError for a value that cannot be used."""
    folder, plan, words = arguments.output, _first_plan(arguments), _pytest_words(arguments)
    return _Trials(
        count=lambda: len(read_all(folder).trials),
        take=lambda: _take_what_is_missing(plan, folder, read_all(folder), words),
        report=lambda: _report(folder, read_all(folder)),
    )


def _duets(arguments: argparse.Namespace) -> _Trials:
    """Trials of duets. Raises OptionError for a value that cannot be used."""
    from gpugate.session.duets import BUDGET_S
    from gpugate.session.options import seconds, whole_number
    from tools.trust.duets import DuetOrders, read_duets, take_duets

    busy, percents = arguments.busy_cores, arguments.slowdowns
    orders = DuetOrders(
        trials=whole_number("--trials", arguments.trials, DEFAULT_TRIALS),
        slow_percents=DUET_PERCENTS if percents is None else _slow_percents(percents, KINDS["slow"].largest),
        budget_s=BUDGET_S if arguments.budget is None else seconds("--budget", arguments.budget),
        busy_cores=0 if busy is None else whole_number("--busy-cores", busy, 1),
        words=_pytest_words(arguments),
    )
    folder: Path = arguments.output
    return _Trials(
        count=lambda: len(read_duets(folder)),
        take=partial(take_duets, orders, folder),
        report=partial(_report_duets, folder),
    )


def _first_plan(arguments: argparse.Namespace) -> Plan:
    """The plan of a folder without trials. Raises OptionError for a number that cannot be used."""
    from gpugate.session.options import seconds, whole_number

    slowdowns, percents = SLOWDOWNS[1:], arguments.slowdowns
    if percents is not None:
        slowdowns = tuple(percent / 100 for percent in _slow_percents(percents, LARGEST_OF_GATE) if percent)
    return Plan(
        output="",
        process=0,
        processes=whole_number("--processes", arguments.processes, DEFAULT_PROCESSES),
        budget_s=Settings.budget_s if arguments.budget is None else seconds("--budget", arguments.budget),
        aa_trials=whole_number("--trials", arguments.trials, DEFAULT_TRIALS),
        slowdowns=slowdowns,
    )


def _pytest_words(arguments: argparse.Namespace) -> list[str]:
    from gpugate.session.options import device_name

    words = [*arguments.paths, "--perf-device", device_name(arguments.device), "-q"]
    words += ["-p", "gpugate.plugin", "-p", "no:cacheprovider"]
    words += ["-k", arguments.k] if arguments.k else []
    return words + (["-m", arguments.m] if arguments.m else [])


def _take_what_is_missing(plan: Plan, folder: Path, taken: Taken, words: list[str]) -> None:
    """One process after another, until none of the selected cases lacks a trial."""
    from tools.trust.fresh_worker import run_worker

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
    from gpugate.report.terminal import stdout_takes_colour, terminal_columns
    from tools.trust.analysis import analyse
    from tools.trust.our_rule import our_alarms
    from tools.trust.report import markdown, text

    report = analyse(taken.trials, our_alarms(taken.trials), _machine(taken.conditions.environment))
    try:
        _write_report(folder, markdown(report))
    finally:
        sys.stdout.write(text(report, terminal_columns(), stdout_takes_colour()))
        _print_limits(taken, report.processes)
    print(f"trials and report are in {folder}")


def _report_duets(folder: Path) -> None:
    """Raises TrustError as `_report` does."""
    from gpugate.report.terminal import stdout_takes_colour, terminal_columns
    from tools.trust.duet_report import markdown, text
    from tools.trust.duets import read_duets

    trials = read_duets(folder)
    if not any(trial.case_ids for trial in trials):
        raise TrustError(f"{folder} contains no trials of duets to report: run without --report-only")
    machine = _machine(trials[0].conditions.environment)
    try:
        _write_report(folder, markdown(trials, machine))
    finally:
        sys.stdout.write(text(trials, machine, terminal_columns(), stdout_takes_colour()))
    print(f"trials and report are in {folder}")


def _write_report(folder: Path, words: str) -> None:
    with FILE.writing(folder / REPORT):
        write_atomically(folder / REPORT, words)


def _print_limits(taken: Taken, processes: int) -> None:
    """Prints the cases that could not be measured, and warns of too few processes."""
    from tools.trust.our_rule import ENOUGH_PROCESSES

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


def _slow_percents(text: str, largest: float) -> tuple[float, ...]:
    """The percentages that `text` names, ascending. Raises OptionError for one that is not from 0 to `largest`."""
    words = [word.strip() for word in text.split(",")]
    found = {float(word) if _PERCENT.fullmatch(word) else -1.0 for word in words}
    if not all(0 <= percent <= largest for percent in found):
        raise OptionError(f"--slowdowns is {text!r}: give percentages from 0 to {largest:g}, such as 0,3,5")
    return tuple(sorted(found))


def _join(percents: Iterable[float]) -> str:
    return ",".join(f"{percent:g}" for percent in percents)
