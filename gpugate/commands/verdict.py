"""`gpugate verdict NIGHT`: the exit status of a stored gate, for scripts and schedulers.

The exit status of pytest alone is no evidence: a step that calls `os._exit(0)` ends pytest with status 0 before
anything is judged.
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path

from gpugate.errors import GpugateError
from gpugate.judging.decide_again import decide_again, find_changes
from gpugate.report.view import tally
from gpugate.results.run import RunResult
from gpugate.session.held_verdicts import list_red
from gpugate.store import run_file
from gpugate.store.night_files import run_path
from gpugate.store.run_file import RunFileError
from gpugate.units import list_names

GREEN, RED = 0, 1
MOST_PRINTED = 10  # problems in one line


class NoVerdictError(GpugateError):
    """A stored run has no verdict for the whole run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "night", metavar="NIGHT", type=Path, help="a folder of --perf-report, or a file that --perf-json wrote"
    )
    parser.epilog = (
        "Exit status: 0 for a green gate, 1 for a red one, 2 where NIGHT is missing, unreadable, interrupted, a "
        "recording, a run without --gate or with --perf-mutate, or of an earlier run than the last."
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints one sentence and returns GREEN or RED. The held verdicts decide, whatever exit status the file has.

    Raises RunFileError for a file that cannot be read and for a run that is no night, and NoVerdictError for a run that
    was interrupted or was no gate.
    """
    path = run_path(arguments.night)
    stored = run_file.read(path)
    run_file.refuse_no_night(path, stored)
    if stored.interrupted:
        raise NoVerdictError(f"{path} was interrupted, so it has no verdict: measure again")
    if stored.recording or not stored.gate:
        raise NoVerdictError(f"{path} was measured without --gate, so it has no verdict: measure with it")
    if stored.exit_status is None:
        raise NoVerdictError(f"{path} has no exit status, so its run did not end: measure again")
    red = [*list_red(stored), *stored.problems, *_describe_other_verdicts(path, stored)]
    green = stored.exit_status == 0 and not red
    said = f"{path} is {'green' if green else f'red, with exit status {stored.exit_status}'}: {tally(stored)}"
    more = [f"{len(red) - MOST_PRINTED} more problems"] if len(red) > MOST_PRINTED else []
    print(said, *red[:MOST_PRINTED], *more, sep="; ")
    return GREEN if green else RED


def _describe_other_verdicts(path: Path, stored: RunResult) -> list[str]:
    """A sentence about cases whose stored verdicts are not those that their measurements give; none for a run of
    another version of gpugate, whose rules may differ."""
    with suppress(RunFileError):
        changes = find_changes(stored, decide_again(run_file.read_to_decide_again(path)))
        cases = list(dict.fromkeys(change.case_id for change in changes))
        return [f"the measurements of {list_names(cases, MOST_PRINTED)} give other verdicts"] if cases else []
    return []
