"""`gpugate trust`: A/A trials and seeded slowdowns in fresh processes, and what they say of the gate."""

from __future__ import annotations

import argparse
import reprlib
import sys
from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpugate.commands.trust import trials_file
from gpugate.commands.trust.folder import Taken, read_all, trials_path
from gpugate.commands.trust.plan import Plan, counted, missing
from gpugate.commands.trust.trial import SLOWDOWNS
from gpugate.errors import OptionError, TrustError
from gpugate.measurement.settings import Settings
from gpugate.store.folder_lock import lock_folder
from gpugate.units import MOST_PROCESSES, MOST_SECONDS, parse_count, parse_seconds

if TYPE_CHECKING:
    from gpugate.commands.trust.report_files import TrustFile

DEFAULT_TRIALS, DEFAULT_PROCESSES = 40, 8
DEFAULT_FOLDER = "gpugate-trust"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 reported, 2 wrong options or a process failed, 130 interrupted"
    add = partial(parser.add_argument, action=_HowToMeasure)
    parser.set_defaults(how_to_measure=())
    add("paths", nargs="*", default=["perf_tests"], help="perf tests (default: perf_tests)")
    add("-k", dest="keyword", metavar="EXPR", help="only cases that pytest's -k would select")
    add("-m", dest="marker", metavar="EXPR", help="only cases that pytest's -m would select")
    add(
        "--trials",
        metavar="N",
        type=_whole_number(DEFAULT_TRIALS),
        default=DEFAULT_TRIALS,
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
        type=_whole_number(DEFAULT_PROCESSES),
        default=DEFAULT_PROCESSES,
        help="fresh processes that the trials are spread over (default: %(default)s)",
    )
    add(
        "--budget",
        metavar="SECONDS",
        type=_seconds,
        default=Settings.budget_s,
        help="time for sampling in each trial, building apart (default: %(default)s)",
    )
    add("--device", metavar="DEVICE", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument(
        "--output",
        metavar="DIR",
        type=Path,
        default=Path(DEFAULT_FOLDER),
        help="trials and report; trials that are there count, only what is missing is taken (default: %(default)s)",
    )
    parser.add_argument("--report-only", action="store_true", help="measure nothing: report on the trials in --output")


class _HowToMeasure(argparse.Action):
    """Stores the value, and that it was given: a report alone can make nothing of it."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        setattr(namespace, self.dest, value)
        if option is not None:
            namespace.how_to_measure += (option,)
        elif value is not self.default:  # which argparse stores in the same way
            namespace.how_to_measure += tuple(value)


def run(arguments: argparse.Namespace) -> int:
    """Takes what is missing, then reports.

    Raises TrustError where trials cannot be taken, kept or counted together, and OptionError for what a report alone
    cannot be told.
    """
    folder: Path = arguments.output
    if arguments.report_only and arguments.how_to_measure:
        given = ", ".join(dict.fromkeys(arguments.how_to_measure))
        raise OptionError(f"--report-only reports on every trial in --output and measures none: leave out {given}")
    words = _pytest_words(arguments)
    if arguments.report_only and not folder.is_dir():
        raise TrustError(f"--output {folder} is no folder: give the one that the trials are in")
    with lock_folder(folder, TrustError, f"--output {folder}"):
        before = read_all(folder)
        try:
            if not arguments.report_only:
                _take_what_is_missing(arguments, before, words)
        except (KeyboardInterrupt, TrustError):
            taken = read_all(folder)
            if len(taken.trials) > len(before.trials):
                _report(folder, taken)
                print("the same command goes on from there", file=sys.stderr)
            raise
        _report(folder, read_all(folder))
    return 0


def _pytest_words(arguments: argparse.Namespace) -> list[str]:
    from gpugate.session.options import device_name

    try:
        device = device_name(arguments.device)
    except OptionError as error:
        raise OptionError(str(error).replace("--perf-device", "--device")) from None
    words = [*arguments.paths, "--perf-device", device, "-p", "gpugate.plugin", "-p", "no:cacheprovider", "-q"]
    words += ["-k", arguments.keyword] if arguments.keyword else []
    return words + (["-m", arguments.marker] if arguments.marker else [])


def _take_what_is_missing(arguments: argparse.Namespace, taken: Taken, words: list[str]) -> None:
    """One process after another, until none of the selected cases lacks a trial."""
    from gpugate.commands.trust.fresh_worker import run_worker

    selected: Collection[str] | None = None  # not known before a process has collected the tests
    while True:
        plan = _plan(arguments, taken)
        if selected is not None and not any(missing(plan, case_id) for case_id in selected):
            return
        print(f"process {plan.process}: {len(taken.trials)} trials so far", file=sys.stderr)
        output = Path(plan.output)
        try:
            run_worker(plan, words)
            selected = trials_file.read(output).case_ids
        finally:
            _forget_if_empty(output)
        taken = read_all(arguments.output)


def _plan(arguments: argparse.Namespace, taken: Taken) -> Plan:
    process = taken.last_process + 1
    return Plan(
        output=str(trials_path(arguments.output, process)),
        process=process,
        processes=arguments.processes,
        budget_s=arguments.budget,
        aa_trials=arguments.trials,
        slowdowns=arguments.slowdowns,
        earlier=taken.conditions,
        taken=counted(taken.trials),
    )


def _forget_if_empty(output: Path) -> None:
    if output.exists() and not trials_file.read(output).trials:
        output.unlink()


def _report(folder: Path, taken: Taken) -> None:
    """Writes the files, then prints the tables. Raises TrustError for no trials, and for what cannot be written."""
    if not taken.trials:
        raise TrustError(f"{folder} holds no trials to report on: run without --report-only")
    from gpugate.commands.trust.plot import PlotError
    from gpugate.commands.trust.report_files import reported, write_report

    made = reported(taken)
    try:
        write_report(folder, made)
    except PlotError as error:
        print(error, file=sys.stderr)
    finally:
        _print(made)
    print(f"trials and report are in {folder}")


def _print(made: TrustFile) -> None:
    from gpugate.commands.trust.our_rule import ENOUGH_PROCESSES
    from gpugate.commands.trust.report import text
    from gpugate.report.terminal import stdout_takes_colour

    sys.stdout.write(text(made.report, colour=stdout_takes_colour()))
    for reason, skipped in groupby(sorted(made.skipped, key=made.skipped.__getitem__), key=made.skipped.__getitem__):
        print(f"not measured: {', '.join(skipped)}: {reason}")
    if made.report.processes < ENOUGH_PROCESSES:
        told = "1 process says" if made.report.processes == 1 else f"{made.report.processes} processes say"
        print(f"{told} little of a gate, which needs {ENOUGH_PROCESSES}: take more trials")


def _whole_number(example: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = parse_count(text)
        if value is None:
            allowed = f"a whole number from 1 to {MOST_PROCESSES}"
            raise argparse.ArgumentTypeError(f"it is {reprlib.repr(text)}: give {allowed}, such as {example}")
        return value

    return number


def _slowdowns(text: str) -> tuple[float, ...]:
    named = {f"{100 * slowdown:g}": slowdown for slowdown in SLOWDOWNS[1:]}
    asked = [word.strip() for word in text.split(",")]
    if unknown := [word for word in asked if word not in named]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not seeded: give some of {_percents(SLOWDOWNS[1:])}")
    return tuple(named[word] for word in named if word in asked)


def _percents(slowdowns: Iterable[float]) -> str:
    return ",".join(f"{100 * slowdown:g}" for slowdown in slowdowns)


def _seconds(text: str) -> float:
    value = parse_seconds(text)
    if value is None:
        allowed = f"seconds above 0, {MOST_SECONDS:g} at most"
        raise argparse.ArgumentTypeError(f"it is {reprlib.repr(text)}: give {allowed}, such as {Settings.budget_s:g}")
    return value
