"""The autopsy of a case: its optimized side against another state, the terms of the difference, and a cause. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpugate import units
from gpugate.counter_names import COMPILER_COUNTERS, COUNTER_NAMES, CPU_COUNTERS
from gpugate.explaining.account import PartChange, account, first_longer_stage
from gpugate.explaining.cause import likely_cause, list_changed_layers, list_changed_parts
from gpugate.explaining.state import State
from gpugate.explaining.words import LEAST_MS, change, shorten_names, write_signed
from gpugate.measurement.record import Counters
from gpugate.results.autopsy import Autopsy

MOST_NAMED = 5
OTHER_PACE = 0.05
MOVED = 0.005  # of a step: what moved less needs no explanation
LEAST_COUNT, LEAST_CORES = 1.0, 0.3  # of page faults and switches in a step, and of cores: a change of less is chance
PER_STEP = tuple(name for name in COUNTER_NAMES if name in CPU_COUNTERS.difference(COMPILER_COUNTERS))
CLOCKS_UNKNOWN = "the SM clock of at least one state is unknown: the cost of a lower clock is counted under kernels"


def autopsy(then: State, now: State, against: str) -> Autopsy:
    """Compares the state of a side with an earlier state. On a CPU, earlier times are scaled to the present pace."""
    measured_ms = then.step_ms
    then, now = (state.within_its_step() for state in (then.in_the_pace_of(now), now))
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
    terms = {name.removesuffix("_ms").replace("_", " "): ms for name, ms in vars(found).items() if abs(ms) >= LEAST_MS}
    if not now.on_gpu and "kernels" in terms:  # of a CPU
        terms = {"operators": terms.pop("kernels"), **terms}
    words = ", ".join(f"{name} {write_signed(ms)}" for name, ms in terms.items())
    yield f"where it went: {words or 'nowhere'}"
    if now.on_gpu and not (then.sm_clock_mhz and now.sm_clock_mhz):
        yield CLOCKS_UNKNOWN
    moves = list_changed_parts(then, now)
    names = shorten_names([move.name for move in moves])
    moves = [replace(move, name=name) for move, name in zip(moves, names, strict=True)]
    longer = [move for move in moves if abs(move.ms) >= LEAST_MS and not (move.is_new or move.is_gone)]
    both = [f"{move.name} {write_signed(move.ms)}" for move in longer]
    yield from _list_names("moved most", both[:MOST_NAMED])  # how many moved less says nothing
    stage = first_longer_stage(then, now)
    if stage is not None:
        yield f"first stage that takes longer: {stage.name} {write_signed(stage.ms)}"
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
