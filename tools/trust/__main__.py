"""`python -m tools.trust`: trials of `gpugate compare . .` with a slowdown in the head's sides, and their alarms."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from gpugate.commands.cli import run_command
from gpugate.errors import CompareError, OptionError
from gpugate.faults.fault import KINDS
from gpugate.results.duet import BUDGET_S
from gpugate.session.options import device_name, seconds, whole_number
from gpugate.store.json_file import write_atomically
from gpugate.store.writable_folder import lock_folder
from tools.trust.duet_report import markdown
from tools.trust.duets import FILE, DuetOrders, DuetTrial, TrustError, read_duets, take_duets

DEFAULT_TRIALS = 40
REPORT = "trust.md"  # in the folder of the trials
_PERCENT = re.compile(r"\d+(\.\d+)?")


def main(words: Sequence[str] | None = None) -> int:
    """Runs the tool with the options in `words` (default: the command line) and returns its exit status."""
    about = "the false alarms of gpugate compare on this machine, and the slowdowns that it misses"
    parser = argparse.ArgumentParser(prog="python -m tools.trust", description=about)
    parser.epilog = "exit status: 0 reported, 2 wrong options or a process failed, 130 interrupted"
    add = parser.add_argument
    add("paths", nargs="*", default=["perf_tests"], help="perf tests (default: perf_tests)")
    add("-k", metavar="EXPR", help="only cases that pytest's -k would select")
    add("-m", metavar="EXPR", help="only cases that pytest's -m would select")
    add("--trials", metavar="N", default=str(DEFAULT_TRIALS), help="of each slowdown (default: %(default)s)")
    add("--slowdowns", metavar="PERCENT", default="0,5", help="comma-separated, 0 is A/A (default: %(default)s)")
    add("--budget", metavar="SECONDS", default=f"{BUDGET_S:g}", help="a process of a trial (default: %(default)s)")
    add("--busy-cores", metavar="N", help="other programs keep N cores busy meanwhile (default: none)")
    add("--device", metavar="DEVICE", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    folder_help = "trials and report; trials that are there count, only what is missing is taken (default: %(default)s)"
    add("--output", metavar="DIR", type=Path, default=Path("gpugate-trust"), help=folder_help)
    add("--report-only", action="store_true", help="measure nothing: report on the trials in --output")
    parser.set_defaults(run=run, program=parser.prog)
    return run_command(parser, words)


def run(arguments: argparse.Namespace) -> int:
    """Takes what is missing, then reports.

    Raises TrustError where trials cannot be taken, kept or counted together, CompareError where a process measures no
    case, and OptionError for a value that cannot be used.
    """
    folder, orders = arguments.output, _orders(arguments)
    if arguments.report_only and not folder.is_dir():
        raise TrustError(f"--output {folder} is no folder: give the one that the trials are in")
    with lock_folder(folder, TrustError, f"--output {folder}"):
        before = len(read_duets(folder))
        try:
            if not arguments.report_only:
                take_duets(orders, folder)
        except (KeyboardInterrupt, TrustError, CompareError):
            if len(read_duets(folder)) > before:
                _report(folder)
                print("the same command goes on from there", file=sys.stderr)
            raise
        _report(folder)
    return 0


def _orders(arguments: argparse.Namespace) -> DuetOrders:
    words = [*arguments.paths, "--perf-device", device_name(arguments.device), "-q"]
    words += ["-p", "gpugate.plugin", "-p", "no:cacheprovider"]
    words += [word for option in "km" if (value := getattr(arguments, option)) for word in (f"-{option}", value)]
    busy = arguments.busy_cores
    return DuetOrders(
        trials=whole_number("--trials", arguments.trials, DEFAULT_TRIALS),
        slow_percents=_slow_percents(arguments.slowdowns),
        budget_s=seconds("--budget", arguments.budget),
        busy_cores=0 if busy is None else whole_number("--busy-cores", busy, 1),
        words=words,
    )


def _report(folder: Path) -> None:
    """Writes the report and prints it. Raises TrustError for no trials, and for a file that cannot be written."""
    trials = read_duets(folder)
    if not any(trial.case_ids for trial in trials):
        raise TrustError(f"{folder} contains no trials to report: run without --report-only")
    try:
        write_report(folder, trials)
    finally:
        print(markdown(trials, _name_machine(trials)))
    print(f"trials and report are in {folder}")


def write_report(folder: Path, trials: Sequence[DuetTrial]) -> None:
    """Writes the report of the trials of a folder. Raises TrustError for a file that cannot be written."""
    with FILE.writing(folder / REPORT):
        write_atomically(folder / REPORT, markdown(trials, _name_machine(trials)))


def _name_machine(trials: Sequence[DuetTrial]) -> str:
    environment = trials[0].conditions.environment
    facts = {"driver": environment.driver, "torch": environment.packages.get("torch")}
    return ", ".join([environment.device_name, *(f"{name} {value}" for name, value in facts.items() if value)])


def _slow_percents(text: str) -> tuple[float, ...]:
    """The percentages that `text` names, ascending. Raises OptionError for one that is no percentage of a fault."""
    largest = KINDS["slow"].largest
    words = [word.strip() for word in text.split(",")]
    found = {float(word) if _PERCENT.fullmatch(word) else -1.0 for word in words}
    if not all(0 <= percent <= largest for percent in found):
        raise OptionError(f"--slowdowns is {text!r}: give percentages from 0 to {largest:g}, such as 0,3,5")
    return tuple(sorted(found))


if __name__ == "__main__":
    sys.exit(main())
