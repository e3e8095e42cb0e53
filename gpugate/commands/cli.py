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
    "init": "the two files of a first workload and its test, written to a folder",
    "doctor": "this machine, and reasons not to trust a gate run here",
    "compare": (
        "the cases that are slower or faster in one version of the code than in another, measured live and in turns"
    ),
    "bisect": "the commit from which on a case is slower, by duets against an earlier commit",
    "replay": "decides stored runs again: the verdicts that change",
    "verdict": (
        "the result of a stored night, or of its shards, as an exit status: 0 green, 1 red, 2 no gate that ended"
    ),
    "plan": "the cases of a night on several GPUs or shards, and the time that the night takes",
    "accept": "records of stored runs, without measuring again: the new normal of their cases, or of one case",
    "history": "the trend of each case over many nights, and the nights on which its level changed, also as charts",
    "store": "the store of all runs: adds the runs of folders",
    "profile": "summary of the measured steps in an Nsight Systems report: kernels, copies, waits, idle gaps, ranges",
    "diff": "the change of every case between two stored runs, and the likely cause",
}


def main(words: Sequence[str] | None = None) -> int:
    """Runs the subcommand that `words` (default: the command line) name and returns its exit status."""
    words = sys.argv[1:] if words is None else words
    return run_command(_parser(words), words)


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
