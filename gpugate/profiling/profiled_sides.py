"""A few warmed-up steps of each side of a case, alone on the device: in a range of Nsight, or traced by PyTorch."""

from __future__ import annotations

import gzip
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import record_function

from gpugate.faults.fault import Fault
from gpugate.faults.mutate import mutate
from gpugate.machine.torch_profiler import detach, run_profiler
from gpugate.measurement.cold_inputs import Inputs, make_inputs
from gpugate.measurement.counters import FLUSH_STEPS, MOST_COUNTED, fit_steps
from gpugate.measurement.device_timer import timer_for
from gpugate.measurement.settings import WARM_UP_S
from gpugate.measurement.sides import BuiltSide, blame, build_side, release, synchronize
from gpugate.measurement.time_limit import BUILD_SHARE
from gpugate.measurement.warm_up import least_block_ms, read_each_once, warm_up
from gpugate.profiling.export import DOMAIN, STEP, Capture, CaptureIndex, SideLabel, safe_name
from gpugate.session.options import Tool
from gpugate.store.json_file import write_atomically
from gpugate.workload import Case, Context

STEP_COLOUR, WINDOW_COLOUR = 0x76B900, 0x999999
KIND = "cuda"  # of device that the ranges of Nsight belong to
ENDING = ".trace.json.gz"


Profile = Callable[[Capture], AbstractContextManager[object]]
Step = Callable[[int], AbstractContextManager[object]]


def profile_sides(
    case: Case, context: Context, fault: Fault | None, profile: Profile, step: Step, most_steps: int = MOST_COUNTED
) -> None:
    """Builds, warms up, profiles and closes one side after the other.

    `profile(capture)` is around the steps of a side and waits for the device behind them; `step(items)` is around each
    of them. Raises SideError, naming the side, for one that cannot be built or run.
    """
    if fault is not None:
        case = mutate(case, fault, context.device)
    sides: tuple[tuple[SideLabel, str], ...] = (
        ("reference", case.reference_name),
        ("optimized", case.optimization.name),
    )
    try:
        with blame(f"inputs of {case.workload.name}", "being made", BUILD_SHARE):
            made = make_inputs(case.workload, context, 0, random.Random(case.id))  # noqa: S311
        inputs = made.timed
        for label, name in sides:
            side = build_side(name, case.builder(name), context, inputs[0], made.restore)
            try:
                steps = _warm_up_side(side, case, made, most_steps)
                _run(side, inputs, Capture(0, case.id, label, name, steps, case.size.items), profile, step)
            finally:
                side.close()
                del side
                release(context.device)
    finally:
        release(context.device)


def _warm_up_side(side: BuiltSide, case: Case, made: Inputs, most_steps: int) -> int:
    """Warms the side up; returns the number of steps to profile, fewer where they are long: steps only repeat."""
    kind, timer = side.device.type, timer_for(side.device, case.workload.timing)
    if made.ragged:
        read_each_once(side, made.timed, timer.time_ms, math.inf)
    warm_up(side, made.timed, timer.time_ms, least_block_ms(side), WARM_UP_S[kind])
    step_ms = side.timed_block(made.timed, timer.time_ms)
    return min(most_steps, fit_steps(step_ms))


def _run(side: BuiltSide, inputs: Sequence[Any], capture: Capture, profile: Profile, step: Step) -> None:
    """Profiles steps as the counting pass runs them, so that the counters of both agree.

    Of a side that works ahead the pass counts more steps.
    """
    side.flags.apply()
    with blame(side.name, "being profiled"):
        side.run_steps(inputs, FLUSH_STEPS)
        synchronize(side.device)
        with profile(capture):
            for offset in range(capture.steps):
                with step(capture.items):
                    side.side.step(inputs[(side.next_input + offset) % len(inputs)])
            if side.side.works_ahead:
                side.side.finish()
        side.side.finish()
        synchronize(side.device)


@contextmanager
def window_range(text: str, number: int) -> Iterator[None]:
    """The profiled part of one side. A started range, unlike a pushed one, is for all threads."""
    import nvtx

    domain: Any = nvtx.get_domain(DOMAIN)
    started = domain.start_range(domain.get_event_attributes(message=text, color=WINDOW_COLOUR, payload=number))
    try:
        yield
    finally:
        domain.end_range(started)


@contextmanager
def step_range(items: int) -> Iterator[None]:
    """One step of `items` items on the thread that runs it."""
    import nvtx

    with nvtx.annotate(STEP, color=STEP_COLOUR, domain=DOMAIN, payload=items):
        yield


def capture_sides(case: Case, context: Context, fault: Fault | None, tool: Tool, index: CaptureIndex) -> str:
    """Captures both sides, each in a range of the profiler that the index lists; returns, for the test's skip, why
    nothing is judged. Raises SideError."""
    if context.device.type != KIND:
        return f"--{tool} captures what a GPU does: run it on a machine with one, or try --torch-trace"

    @contextmanager
    def capture_range(capture: Capture) -> Iterator[None]:
        index.captures.append(capture)
        capture.number = len(index.captures)
        index.write()
        if tool == "ncu":  # cuda only: it saves all that a kernel could write, also what PyTorch only holds ready
            torch.cuda.empty_cache()
        try:
            with torch.cuda.profiler.profile():
                with window_range(capture.window, capture.number):
                    yield
                synchronize(context.device)
                capture.complete = True
        finally:
            index.write()

    steps = MOST_COUNTED if tool == "nsys" else 1  # ncu runs every kernel many times over
    profile_sides(case, context, fault, capture_range, step_range, steps)
    return f"captured under {tool}: timings are not judged"


def trace_sides(case: Case, context: Context, fault: Fault | None, folder: Path) -> str:
    """Traces both sides with PyTorch, each into a file of its own; returns, for the test's skip, why nothing is judged.
    Raises SideError."""
    device = context.device

    @contextmanager
    def trace_range(capture: Capture) -> Iterator[None]:
        path = folder / f"{safe_name(capture.case_id)}.{capture.label}{ENDING}"
        with run_profiler(device, record_shapes=True) as profiler:
            yield
            synchronize(device)
        trace = path.with_suffix("")
        profiler.export_chrome_trace(str(trace))
        write_atomically(path, gzip.compress(trace.read_bytes()))
        trace.unlink()
        detach(device)

    # A trace shows nothing of a range but its name.
    profile_sides(case, context, fault, trace_range, lambda items: record_function(f"step of {items} items"))
    return "traced: timings are not judged"
