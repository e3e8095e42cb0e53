"""A build of both sides of a case: the unit of replication for effects that pairs cannot show.

The side that is built first is timed before the other one is built, and again beside it. A side can slow the reference
by any function that both call, or by threads that never rest. No list of functions shows that, and the reference's own
time does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from gpugate.errors import SideError
from gpugate.machine.processes import list_descendants
from gpugate.measurement.cold_inputs import Inputs, check_untouched
from gpugate.measurement.settings import BLOCK_MS, SLOWED
from gpugate.measurement.sides import BuiltSide, build_side, fingerprint, release
from gpugate.measurement.warm_up import MAX_STEPS_PER_BLOCK
from gpugate.workload import Case, Context

TRIES = 8
TimeMs = Callable[[Callable[[], None]], float]


@dataclass
class BothSides:
    """The reference and the optimized side, built one after the other and closed together."""

    reference: BuiltSide
    optimized: BuiltSide
    reference_built_first: bool
    build_s: float
    _reference_fingerprint: str
    reference_alone: tuple[int, float] | None = None  # steps of a block, and ms of a step, before the other was built

    def check_apart(self) -> None:
        """Raises SideError when the optimization changed the model that the reference runs."""
        if fingerprint(self.reference.side.model) != self._reference_fingerprint:
            problem = ValueError("it changed the reference's model: copy the model before changing it")
            raise SideError(self.optimized.name, "being built or run", problem)

    def close(self) -> None:
        """Closes and frees the side that was built last before the other one.

        Allocators hand out first the memory that was freed last. So the side that is built first always gets the same
        memory, and building in the other order swaps the memory of both sides: the choice of pinned buffers made up to
        19 % of a pipeline's time.
        """
        names = ("reference", "optimized")
        with ExitStack() as stack:  # it closes in reverse order, and the second side where closing the first fails
            stack.callback(release, self.reference.device)
            for name in names if self.reference_built_first else names[::-1]:
                stack.callback(self._close_side, name)

    def _close_side(self, name: str) -> None:
        self.__dict__.pop(name).close()


def build_both(
    case: Case,
    context: Context,
    inputs: Inputs,
    reference_first: bool,
    time_ms: TimeMs | None = None,
) -> BothSides:
    """Builds both sides in the given order, which decides their placement in memory, and notes the workers of each.
    With `time_ms`, the side that is built first is timed alone.

    Raises SideError when a side cannot be built, writes to its inputs or changes the other's model; a side that was
    built by then is closed.
    """
    started = perf_counter()

    names = (case.reference_name, case.optimization.name)
    built, before, alone, known = {}, "", None, list_descendants()
    with ExitStack() as undo:
        for name in names if reference_first else names[::-1]:
            built[name] = build_side(name, case.builder(name), context, inputs.timed[0], inputs.restore)
            built[name].workers = list_descendants() - known
            known |= built[name].workers
            undo.callback(built[name].close)
            if time_ms is not None and len(built) == 1 and can_repeat(built[name]):
                alone = time_alone(built[name], inputs.fresh, time_ms)
            check_untouched(inputs, name)
            if name == case.reference_name:
                before = fingerprint(built[name].side.model)
        reference, optimized = (built[name] for name in names)
        both = BothSides(reference, optimized, reference_first, perf_counter() - started, before, alone)
        both.check_apart()
        undo.pop_all()
    return both


def can_repeat(side: BuiltSide) -> bool:
    """True for a side whose steps on one input are all alike: they write to no input, and do not read ahead."""
    return not (side.restore or side.side.works_ahead or side.side.stock_steps)


def time_alone(side: BuiltSide, inputs: Sequence[Any], time_ms: TimeMs) -> tuple[int, float]:
    """Finds the steps that fill a block over these inputs; returns them with the milliseconds of a step of such a
    block, the shorter one of two."""
    steps, step_ms = 1, _time_on(side, inputs, time_ms, 1)
    while step_ms * steps < BLOCK_MS[side.device.type] and steps < MAX_STEPS_PER_BLOCK:
        steps *= 2
        step_ms = _time_on(side, inputs, time_ms, steps)
    return steps, min(step_ms, _time_on(side, inputs, time_ms, steps))


def _time_on(side: BuiltSide, inputs: Sequence[Any], time_ms: TimeMs, steps: int) -> float:
    """Measures the milliseconds of a step in a block of `steps` steps over other inputs than the timed ones."""
    next_input, side.next_input = side.next_input, 0
    step_ms = side.timed_block(inputs, time_ms, steps)
    side.next_input = next_input
    return step_ms


def find_slowdown(
    reference: BuiltSide,
    run_other: Callable[[], object],
    inputs: Sequence[Any],
    time_ms: TimeMs,
    alone: tuple[int, float],
) -> float:
    """Measures the reference's time of a step, each time after a block of the other side, over its time `alone`: the
    least of up to TRIES tries, which end at a ratio no larger than SLOWED."""
    steps, alone_ms = alone
    tries: list[float] = []
    while len(tries) < TRIES and min(tries, default=math.inf) > SLOWED:
        run_other()
        tries.append(_time_on(reference, inputs, time_ms, steps) / alone_ms)
    return min(tries)
