"""The autopsy of a case: one side against another state, the terms of the difference, and the likely cause. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from gpugate import units
from gpugate.explaining.cause import likely_cause, list_changed_layers
from gpugate.explaining.state import (
    LEAST_MS,
    PartChange,
    State,
    account,
    change,
    first_longer_stage,
    list_changed_parts,
    write_signed,
)
from gpugate.measurement.record import Counters, Measurement, StepProfile
from gpugate.results.autopsy import Autopsy
from gpugate.results.case import CaseResult, summarize_decider
from gpugate.results.duet import DuetProcess
from gpugate.results.reason import ReasonCode
from gpugate.results.summary import sm_clock_mhz, summarize
from gpugate.results.verdict import Outcome
from gpugate.workload.counter_names import COMPILER_COUNTERS, COUNTER_NAMES, CPU_COUNTERS

RECORDED, BASE, IN_TURNS = "what was recorded", "the base", "the recorded code in turns"
MOST_NAMED = 5
OTHER_PACE = 0.05
MOVED = 0.005  # of a step: what moved less needs no explanation
LEAST_COUNT, LEAST_CORES = 1.0, 0.3  # of page faults and switches in a step, and of cores: a change of less is chance
PER_STEP = tuple(name for name in COUNTER_NAMES if name in CPU_COUNTERS.difference(COMPILER_COUNTERS))


def explain(result: CaseResult, profile: StepProfile | None) -> Autopsy | None:
    """Compares the optimized side with the recorded code, where the duet with that decided; else with its record, whose
    profile is `profile`; without a record, with the reference of this run. None for a case without times.

    A step takes longer by the change that the verdict names, which several processes may have measured."""
    decided = _find_deciding_duet(result)
    if decided is not None:
        process, ratio = decided
        return explain_duet(process.measured[result.case_id], process.swapped, ratio, IN_TURNS)
    now, then, found = optimized_side(result), recorded_side(result, profile), _find_deciding_process(result)
    if now is None or found is None:
        return None
    if then is not None:
        changes = (one.numbers.get("wall_change") for one in result.verdicts)
        change = next((float(one) for one in changes if one is not None), None)
        return autopsy(then, now, RECORDED, None if change is None else 1 + change)
    reference = _measured_side(found, "reference")
    return autopsy(reference, now, f"{result.compared_with}, which it is compared with")


def explain_duet(found: Measurement, swapped: bool, ratio: float, against: str = BASE) -> Autopsy:
    """Compares the head's side in one process of a duet with the base's; `ratio` is that of their times in the whole
    duet. Raises ValueError for a measurement without pairs."""
    base, head = _measured_side(found, "reference"), _measured_side(found, "optimized")
    base, head = (head, base) if swapped else (base, head)
    return autopsy(replace(base, step_ms=head.step_ms / ratio), head, against)


def _find_deciding_duet(result: CaseResult) -> tuple[DuetProcess, float] | None:
    """The first process of the duet that found the code slower, and the ratio of the times in the whole duet; None
    without one, and where an output is wrong."""
    slower = [one.reasons[0] for one in result.verdicts if one.code is ReasonCode.CODE_SLOWER]
    if not slower or any(one.outcome is Outcome.WRONG for one in result.verdicts):
        return None
    processes = result.recorded_code.processes if result.recorded_code is not None else ()
    measured = ((one, one.measured.get(result.case_id)) for one in processes)
    ratio = 1 + float(slower[0].facts["change"])
    return next(((process, ratio) for process, found in measured if found is not None and found.pairs), None)


def optimized_side(result: CaseResult) -> State | None:
    """The optimized side as the process has it whose speedup decided about the case, with what is wrong in any of the
    processes; None where the case has no times."""
    found = _find_deciding_process(result)
    if found is None:
        return None
    checks = (one.step_checks for one in result.processes if one.step_checks is not None)
    return replace(
        _measured_side(found, "optimized"),
        not_engaged=next((one.not_engaged for one in result.processes if one.not_engaged is not None), None),
        wrong=next((one.reason for one in result.verdicts if one.outcome is Outcome.WRONG), None),
        resembles=next((one.resembles for one in checks if one.resembles), ""),
        reference_ms=summarize(found).reference_ms.median,
        reference_counters=found.reference_counters,
    )


def _find_deciding_process(result: CaseResult) -> Measurement | None:
    decider = summarize_decider(result)
    return next((one for one in result.timed if result.summarize(one) == decider), None)


def _measured_side(found: Measurement, side: Literal["reference", "optimized"]) -> State:
    is_reference, summary = side == "reference", summarize(found)
    return State(
        step_ms=(summary.reference_ms if is_reference else summary.optimized_ms).median,
        counters=found.reference_counters if is_reference else found.optimized_counters,
        profile=found.reference_profile if is_reference else found.optimized_profile,
        sm_clock_mhz=sm_clock_mhz(found.pairs),
        steps_per_block=statistics.median(
            one.reference_steps_per_block if is_reference else one.optimized_steps_per_block for one in found.instances
        ),
    )


def recorded_side(result: CaseResult, profile: StepProfile | None) -> State | None:
    """The optimized side as its baseline has it, with the profile that is stored beside; None without a baseline."""
    then = result.remembered
    if then is None:
        return None
    times = then.current
    return State(
        times.optimized_ms,
        then.optimized_counters,
        profile,
        times.sm_clock_mhz,
        times.optimized_steps_per_block,
        reference_ms=times.reference_ms,
    )


def autopsy(then: State, now: State, against: str, ratio: float | None = None) -> Autopsy:
    """Compares the state of a side with an earlier state. On a CPU, earlier times are scaled to the present pace: by
    the time of the reference, or to the `ratio` of both steps that a verdict names.
    """
    measured_ms = then.step_ms
    then, now = (state.within_its_step() for state in (then.in_the_pace_of(now, ratio), now))
    cause = likely_cause(then, now)
    lines = (*_pace(measured_ms, then), *_lines(then, now), *_cpu(then, now))
    return Autopsy(against, cause.kind, cause.words, lines)


def _pace(measured_ms: float, then: State) -> Iterator[str]:
    if abs(then.step_ms / measured_ms - 1) >= OTHER_PACE:
        scaled = f"the earlier {units.milliseconds(measured_ms)} are scaled to {units.milliseconds(then.step_ms)}"
        yield f"the machine's pace changed, by the time of the reference: {scaled}"


def _lines(then: State, now: State) -> Iterator[str]:
    yield f"a step: {change(then.step_ms, now.step_ms)}"
    found = account(then, now)
    if found is None:
        yield "the parts of the difference are unknown: both states need a step profile"
        return
    words = ", ".join(f"{name} {write_signed(ms)}" for name, ms in found.items() if abs(ms) >= LEAST_MS)
    yield f"where it went: {words or 'nowhere'}"
    moves = list_changed_parts(then, now)
    names = units.shorten_names([move.name for move in moves])
    moves = [replace(move, name=name) for move, name in zip(moves, names, strict=True)]
    longer = [move for move in moves if abs(move.ms) >= LEAST_MS and not (move.is_new or move.is_gone)]
    both = [f"{move.name} {write_signed(move.ms)}" for move in longer]
    yield from _list_names("moved most", both[:MOST_NAMED])  # how many moved less says nothing
    if stage := first_longer_stage(then, now):
        yield f"first stage that takes longer: {stage}"
    yield from _list_names("new", [_whole(move) for move in moves if move.is_new])
    yield from _list_names("gone", [_whole(move) for move in moves if move.is_gone])
    if then.profile and now.profile and then.profile.layers and now.profile.layers:
        gone, new = list_changed_layers(then.profile, now.profile)
        yield from _list_names("new layers", new)
        yield from _list_names("layers gone", gone)


def _cpu(then: State, now: State) -> Iterator[str]:
    """Yields the changed CPU counters of each side whose time changed."""
    if abs(now.step_ms / then.step_ms - 1) >= MOVED:
        yield from _changed_counts("per step", then.counters, now.counters)
        yield from _changed_counts("torch.compile", then.counters, now.counters, COMPILER_COUNTERS)
    if now.left_by_its_reference(then):
        yield from _changed_counts("per step of the reference", then.reference_counters, now.reference_counters)


def _changed_counts(title: str, then: Counters, now: Counters, names: Sequence[str] = PER_STEP) -> Iterator[str]:
    """Yields the changed counters in one line; a counter without an earlier value appears with its present value."""
    words = []
    for name in (name for name in names if name in now):
        least = LEAST_CORES if name == "other_cores" else LEAST_COUNT
        if abs(now[name] - then.get(name, 0.0)) >= least:
            before = f"{then[name]:g} -> " if name in then else ""
            words.append(f"{name.replace('_', ' ')} {before}{now[name]:g}")
    if words:
        yield f"{title}: {', '.join(words)}"


def _list_names(title: str, words: Sequence[str]) -> Iterator[str]:
    if words:
        more = f"; {len(words) - MOST_NAMED} more" if len(words) > MOST_NAMED else ""
        yield f"{title}: {'; '.join(words[:MOST_NAMED])}{more}"


def _whole(move: PartChange) -> str:
    return f"{move.name} {units.milliseconds(abs(move.ms))}"
