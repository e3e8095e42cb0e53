"""A few warmed-up steps of each side of a case, alone on the device, for a profiler to look at."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from gpugate.faults.fault import Fault
from gpugate.faults.mutated import mutated
from gpugate.measurement.cold_inputs import make_inputs
from gpugate.measurement.counters import FLUSH_STEPS
from gpugate.measurement.device_timer import timer_for
from gpugate.measurement.settings import WARM_UP_S
from gpugate.measurement.sides import BuiltSide, blamed_on, build_side, release, synchronize
from gpugate.measurement.time_limit import BUILD_SHARE
from gpugate.measurement.warm_up import least_block_ms, warm_up
from gpugate.profiling.capture_index import SideLabel
from gpugate.workload import Case, Context

MOST_STEPS, FEWEST_STEPS, PROFILED_MS = 5, 2, 500.0


@dataclass(frozen=True)
class Window:
    """What is profiled at once: `steps` steps of `items` items each of one side."""

    case_id: str
    label: SideLabel
    side: str
    steps: int
    items: int


Profile = Callable[[Window], AbstractContextManager[object]]
Step = Callable[[int], AbstractContextManager[object]]


def profile_sides(
    case: Case, context: Context, fault: Fault | None, profile: Profile, step: Step, most_steps: int = MOST_STEPS
) -> None:
    """Builds, warms up, profiles and closes one side after the other.

    `profile(window)` is around the steps of a side and waits for the device behind them; `step(items)` is around each
    of them. Raises SideError, naming the
    side, for one that cannot be built or run.
    """
    if fault is not None:
        case = mutated(case, fault, context.device)
    sides: tuple[tuple[SideLabel, str], ...] = (
        ("reference", case.reference_name),
        ("optimized", case.optimization.name),
    )
    try:
        with blamed_on(f"inputs of {case.workload.name}", "being made", BUILD_SHARE):
            inputs = make_inputs(case.workload, context, 0, random.Random(case.id)).timed  # noqa: S311
        for label, name in sides:
            side = build_side(name, case.builder(name), context, inputs[0])
            try:
                steps = _warmed_up(side, case, inputs, most_steps)
                _run(side, inputs, Window(case.id, label, name, steps, case.size.items), profile, step)
            finally:
                side.close()
                del side
                release(context.device)
    finally:
        release(context.device)


def _warmed_up(side: BuiltSide, case: Case, inputs: Sequence[Any], most_steps: int) -> int:
    """How many steps are worth looking at: fewer where they are long, since they only repeat each other."""
    kind, timer = side.device.type, timer_for(side.device, case.workload.timing)
    warm_up(side, inputs, timer.time_ms, least_block_ms(side), WARM_UP_S[kind])
    step_ms = side.timed_block(inputs, timer.time_ms)
    return min(most_steps, max(FEWEST_STEPS, int(PROFILED_MS / step_ms)))


def _run(side: BuiltSide, inputs: Sequence[Any], window: Window, profile: Profile, step: Step) -> None:
    """Such steps as the counting pass runs, so that its counters are those of the profile; at most MOST_STEPS."""
    side.flags.apply()
    with blamed_on(side.name, "being profiled"):
        side.run_steps(inputs, FLUSH_STEPS)
        synchronize(side.device)
        with profile(window):
            for offset in range(window.steps):
                with step(window.items):
                    side.side.step(inputs[(side.next_input + offset) % len(inputs)])
            if side.side.works_ahead:
                side.side.finish()
        side.side.finish()
        synchronize(side.device)
