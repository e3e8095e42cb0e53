"""The console command `gpugate`, also `python -m gpugate`. Each subcommand is a module of its name, imported on use.

A subcommand is one line in `COMMANDS` and a module with two functions: `add_arguments(parser)` and `run(arguments)`,
which returns the exit status. A GpugateError that `run` raises is printed as one sentence, with status 2.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module

from gpugate import __version__
from gpugate.errors import GpugateError
from gpugate.report.visible_text import VisibleStream

READER_LEFT = 1  # the status of Python itself when its standard output is a closed pipe
USAGE_ERROR = 2
INTERRUPTED = 130  # the status that a shell reports for a program that Ctrl-C ended


# Each subcommand with its line in `gpugate --help`.
COMMANDS = {
    "init": "writes the two files of a first workload and its test to a folder",
    "doctor": "examines this machine, and lists reasons not to trust a gate run here",
    "compare": "measures two versions of the code in turns, and lists the cases that became slower or faster",
    "bisect": "searches the commit that made a case slower, by comparisons with an earlier commit",
    "replay": "decides stored runs again, and lists the verdicts that change",
    "verdict": "prints the result of a stored night or of its shards; exit status: 0 green, 1 red, 2 no finished gate",
    "plan": "plans which GPU of a host measures which cases of a night, and prints the time that the night takes",
    "accept": "makes stored runs the records of their cases, or of one case, without measuring again",
    "history": "shows the trend of each case over many nights, and the nights on which its level changed",
    "store": "adds the runs in folders to the store of all runs",
    "profile": "summarizes the measured steps of an Nsight Systems report: kernels, copies, waits, idle times, ranges",
    "diff": "compares two stored runs: the change of each case, and its likely cause",
}


def main(words: Sequence[str] | None = None) -> int:
    """Runs the subcommand that `words` (default: the command line) name and returns its exit status."""
    words = sys.argv[1:] if words is None else words
    try:
        parser = _parser(words)
    except KeyboardInterrupt:  # while the command's module is imported
        print("gpugate: interrupted", file=sys.stderr)
        return INTERRUPTED
    return run_command(parser, words)


def run_command(parser: argparse.ArgumentParser, words: Sequence[str] | None) -> int:
    """Calls the default `run` of the parser with the options in `words` and returns the exit status.

    The default `program` of the parser begins the sentence of an error. Where the reader of standard output closes the
    pipe early, as `head` does, the command ends without a message.
    """
    try:
        try:
            return _run(parser.parse_args(words))
        finally:
            sys.stdout.flush()  # here, where the error is caught
    except BrokenPipeError:
        # Python flushes once more when it ends: https://docs.python.org/3/library/signal.html#note-on-sigpipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_LEFT


def _run(arguments: argparse.Namespace) -> int:
    with redirect_stdout(VisibleStream(sys.stdout)), redirect_stderr(VisibleStream(sys.stderr)):
        try:
            return int(arguments.run(arguments))
        except GpugateError as error:
            print(f"{arguments.program}: {error}", file=sys.stderr)
            return USAGE_ERROR
        except KeyboardInterrupt as interrupt:
            print(": ".join([arguments.program, "interrupted", *interrupt.args]), file=sys.stderr)
            return INTERRUPTED


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """All subcommands by name, with the options of those that are named: no other module is imported."""
    parser = argparse.ArgumentParser(prog="gpugate", description="Does a GPU optimization still pay?")
    parser.add_argument("--version", action="version", version=f"gpugate {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        own = commands.add_parser(name, help=text, description=text)
        if name in words:
            module = import_module(f"gpugate.commands.{name}")
            module.add_arguments(own)
            own.set_defaults(run=module.run, program=own.prog)
    return parser
