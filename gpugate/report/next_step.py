"""The next step of a verdict in words: the command to run, as this session was started."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from gpugate.results.verdict import NextStep, Verdict
from gpugate.units import SHORT_COMMIT

if TYPE_CHECKING:  # every pytest run with gpugate installed imports this module
    from gpugate.results.run import RunResult

RECORD = '--update-baselines="..."'
BASELINES = "--perf-baselines"
MOST_NAMED = 3  # cases by a command for all that were measured

# Of two lines the first is a command alone: an interactive zsh takes no comment behind one.
_IF_INTENDED = '\nif intended, once it was measured by three processes: gpugate accept --case {case} --reason "..."'
_WORDS: Mapping[NextStep, str] = {  # one command or one action
    NextStep.REPEAT: "{again}",
    NextStep.MEASURE_LONGER: "{again} --perf-budget 30",
    # On a noisy or shared CPU a longer measurement does not narrow the interval.
    NextStep.FREE_CORES: "end the other work on this machine, then {again}",
    NextStep.TRACE: "{rerun} --torch-trace",
    NextStep.RECORD: "{record}",
    NextStep.FIND_COMMIT: "{threads}gpugate bisect {case} --good {commit}{paths}" + _IF_INTENDED,
    NextStep.ACCEPT: "{again}" + _IF_INTENDED,
    NextStep.RAISE_QUOTA: "raise the quota of CPU time of this process, then {again}",
    NextStep.COOL_MACHINE: "wait until this machine is idle and cool, then {again}",
    NextStep.USE_CUDA: "run it on a CUDA device",
    # Other work slows the yardsticks by a few times at most, and a right size then looks wrong.
    NextStep.CHECK_SIZE: "compare Size.flops and Size.bytes with what a step does; if they agree, end the other work on"
    " this machine, then {again}",
    NextStep.DECLARE_ENGAGEMENT: "let Side.engaged return None where the side did what it is for, and else the reason",
}


def describe_next_step(verdict: Verdict, run: RunResult, case_ids: Sequence[str] = ()) -> str:
    """The next step of a verdict, for `case_ids` or its own case, with the command that its session was started by;
    empty for no step, and in a session that put a fault in on purpose."""
    step, measured = verdict.next_step, run.cases.get(verdict.case_id)
    if step is None or run.mutated:
        return ""
    # The ids of a sweep's points begin as its own does.
    case_ids = case_ids or [verdict.case_id.rpartition("/")[0] if verdict.check == "knee" else verdict.case_id]
    rerun = _describe_rerun(run, case_ids)
    again = f"{rerun} --gate" if run.gate else rerun
    threads = run.command.partition("pytest")[0]
    uncommitted = step is NextStep.FIND_COMMIT and run.provenance is not None and run.provenance.changes is not None
    first = "commit this code, then " if uncommitted else ""
    return first + _WORDS[step].format(
        rerun=rerun,
        again=again,
        record=describe_recording(run, case_ids),
        case=case_ids[0],
        threads=threads,
        paths=_own_paths(run.command),
        commit=measured.recorded_code.commit[:SHORT_COMMIT] if measured and measured.recorded_code else "",
    )


def describe_recording(run: RunResult, case_ids: Sequence[str]) -> str:
    """The command that records these cases, as their session was started."""
    # No record of a user's own inputs may stand among those of the inputs that ship.
    elsewhere = f" {BASELINES}=DIR" if run.chosen_inputs and BASELINES not in run.command else ""
    return f"{_describe_rerun(run, case_ids)}{elsewhere} {RECORD}"


def describe_threads(device_kind: str) -> str:
    """`OMP_NUM_THREADS=1 `, as this process has it, before a command that measures a CPU; empty where it is not set."""
    threads = os.environ.get("OMP_NUM_THREADS") if device_kind == "cpu" else None
    return "" if threads is None else f"OMP_NUM_THREADS={shlex.quote(threads)} "


def _describe_rerun(run: RunResult, case_ids: Sequence[str]) -> str:
    return run.command + _selection(run, list(dict.fromkeys(case_ids)))


def _selection(run: RunResult, case_ids: Sequence[str]) -> str:
    """The option that selects these cases alone; that of the run where they are all that it measured.

    `-k` also selects a name that contains another one: brackets, which stand around a parameter, end it on both sides.
    """
    measured = {case.case_id for case in run.cases.values() if case.measurement is not None}
    if run.selection is not None and len(case_ids) > MOST_NAMED and measured.issubset(case_ids):
        return run.selection
    is_ambiguous = {one: any(one in other for other in run.cases.keys() - {one}) for one in run.cases}
    return f' -k "{" or ".join(f"[{one}]" if is_ambiguous.get(one) else one for one in case_ids)}"'


def _own_paths(command: str) -> str:
    """The perf tests of the session, where `gpugate bisect` does not find them by itself."""
    words = shlex.split(command.partition("pytest")[2])
    paths = list(takewhile(lambda word: not word.startswith("-"), words))
    return "" if paths == ["perf_tests"] else "".join(f" --path {shlex.quote(path)}" for path in paths)
