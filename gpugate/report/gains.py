"""The findings of a run about its optimizations: how many gain, also over whole runs. Pure."""

from __future__ import annotations

from gpugate import units
from gpugate.judging.evidence import WIDEST_HALF_WIDTH
from gpugate.judging.machine_state import busy_cores
from gpugate.measurement.whole_run import whole_run
from gpugate.report.machine import describe_load
from gpugate.report.next_step import advised_step, describe_next_step
from gpugate.report.rows import worst_of
from gpugate.results.case import CaseResult, decider
from gpugate.results.run import RunResult
from gpugate.results.series import sweeps
from gpugate.results.verdict import NextStep, Outcome

MOST_NAMED = 3  # optimizations by name
NO_EVIDENCE = (Outcome.ENV_INVALID, Outcome.WRONG, Outcome.NOT_ENGAGED)  # such times are no evidence of a gain


def describe_gains(run: RunResult) -> list[str]:
    """The findings of the run about its optimizations in one or two sentences; none without a time that is evidence."""
    found = {
        f"{case.workload}/{case.optimization}": one.summary.speedup
        for case in run.cases.values()
        if (one := decider(case)) and worst_of(case) not in NO_EVIDENCE and not _has_no_result(case)
    }
    if not found:
        return []
    gains = {name: speedup for name, speedup in found.items() if speedup.low > 1}
    losses = [name for name, speedup in found.items() if speedup.high < 1]
    verb = "gains" if 1 in (len(gains), len(found)) else "gain"
    words = f"{len(gains)} of {units.number_of(len(found), 'optimization')} {verb} here"
    if gains:
        best = max(gains, key=lambda name: gains[name].low)
        most = ", most of all " if len(gains) > 1 else ": "
        words += f"{most}{best}, {units.ratio(gains[best].median)}"
    if losses:
        words += f"; slower than the reference: {len(losses)}, {units.list_names(losses, MOST_NAMED)}"
    knees = [
        f"{sweep.workload} is best with {sweep.parameter} {sweep.knee}" for sweep in sweeps(run.cases) if sweep.knee
    ]
    return [words + _describe_undecided(run) + _describe_other_work(run), *knees]


def _has_no_result(case: CaseResult) -> bool:
    """True for times that are impossible, or beside a slowed reference."""
    return any(one.next_step in (NextStep.CHECK_SIZE, NextStep.KEEP_APART) for one in case.verdicts)


def _describe_other_work(run: RunResult) -> str:
    """The end of the sentence on a CPU whose cores other processes used: a speedup of such times is no evidence."""
    on_cpu = (case.measurement for case in run.cases.values() if case.device_kind == "cpu" and case.measurement)
    busy = [one for one in on_cpu if busy_cores(one) is not None]
    step = "repeat the run on idle cores before you rely on a speedup"
    return "".join(f"; {load}: {step}" for load in describe_load(busy))


def _describe_undecided(run: RunResult) -> str:
    """The end of the sentence; with the command that measures longer, where that is the step of all of them."""
    found = [one for case in run.cases.values() for one in case.verdicts if one.outcome is Outcome.UNDECIDED]
    if not found:
        return ""
    verb, which = ("is", "its interval is") if len(found) == 1 else ("are", "their intervals are")
    words = f"; {len(found)} {verb} UNDECIDED: {which} wider than +-{units.percent(WIDEST_HALF_WIDTH)}"
    if any(advised_step(verdict, run) is not NextStep.MEASURE_LONGER for verdict in found):
        return words
    return f"{words}, and `{describe_next_step(found, run)}` measures longer"


def whole_runs(run: RunResult) -> list[str]:
    """The time of a run from its start to its end, with its start-up, one line a case; empty where no run has an end.

    `net/fast: 600 items in 1.6 s instead of 19.8 s, 12.4x; start-up 0.9 s and 0.4 s`; see
    `gpugate.measurement.whole_run`.
    """
    return [line for case in run.cases.values() if (line := _whole_run(case)) is not None]


def _whole_run(case: CaseResult) -> str | None:
    found = case.measurement
    whole = whole_run(case.size, found) if found is not None else None
    if found is None or whole is None:
        return None
    return (
        f"{case.workload}/{case.optimization}: {case.size.whole_run_items:,} items in {whole.optimized_s:.1f} s "
        f"instead of {whole.reference_s:.1f} s, {units.ratio(whole.speedup)}; start-up "
        f"{found.optimized_cost.compile_s:.1f} s and {found.reference_cost.compile_s:.1f} s"
    )
