"""The checking pass: every step of an unannounced stretch is compared with the baseline, at the cost of a few sums.

One output of each build is compared value by value (`gpugate.measurement.outputs`). This pass finds a side that is
right in that step and does not do the work of other steps: it caches outputs, leaves steps out, or returns zeros now
and then. The pass runs after all times are taken.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter, process_time_ns
from typing import Any

import torch

from gpugate.measurement.cold_inputs import Inputs, byte_size, exchange, exchange_used
from gpugate.measurement.counters import kernels_by_join
from gpugate.measurement.difference import form_problem
from gpugate.measurement.outputs import Expected
from gpugate.measurement.record import Resemblance, StepChecks
from gpugate.measurement.settings import REMEMBERS
from gpugate.measurement.sides import BuiltSide, blame, pause_garbage_collection, synchronize
from gpugate.workload import Tolerance, nothing_to_join

SUMS = 64
# The sums estimate an error that is spread over the output within 10 %. An error in one part alone appears four times
# as large as it is in 1 of 16,000 steps.
SURE = 4.0
FEWEST_STEPS, MOST_STEPS = 4, 1000
CHECKED_SHARE = 0.1  # of the budget
MOST_HELD, HELD_BYTES = 8, 2**28  # outputs that `Side.finish` completes, and new inputs
STRETCH_MS = 2000.0
NEW_INPUTS_MS, MOST_NEW_INPUTS, MAKING_S = 2.0, 256, 0.3
# Busy programs on every core made up to 0.42 of the rounds of an honest side too long: eight in a row are one in 1000.
NEW_INPUTS_ROUNDS = 8
JOINED_STEPS, FEWEST_JOINED = 8, 4  # as many on each of HOT_SETS input sets
JOINED_ROUNDS = 3
LEAST_CPU_MS = 0.5  # of a step; below it, the join takes most of the step's CPU time


class Sketch:
    """Sums of an output's values with random signs, over 64 parts: their norm estimates the norm of the output.

    The tug-of-war sketch: for independent signs, E ||sums||^2 = ||values||^2 (Alon, Matias and Szegedy, The space
    complexity of approximating the frequency moments, 1996). No side knows the signs.
    """

    def __init__(self, draw: random.Random) -> None:
        self._generator = torch.Generator().manual_seed(draw.randrange(2**62))
        self._signs: dict[tuple[int, str], torch.Tensor] = {}

    def __call__(self, output: torch.Tensor) -> torch.Tensor:
        """float64 [64] on the output's device, computed in stream order without waiting."""
        values = output.detach().resolve_conj().resolve_neg()
        values = (torch.view_as_real(values) if values.is_complex() else values).reshape(-1)
        wide = torch.float64 if values.dtype in (torch.float64, torch.int64) else torch.float32
        signs = self._signs_of(values.numel(), values.device)
        padded = torch.nn.functional.pad(values.to(wide), (0, signs.numel() - values.numel()))
        return (padded * signs).view(SUMS, -1).sum(1, dtype=torch.float64)

    def _signs_of(self, count: int, device: torch.device) -> torch.Tensor:
        """int8 [count, rounded up to whole parts], each -1 or 1."""
        on_host = self._signs.get((count, "cpu"))
        if on_host is None:
            length = -(-count // SUMS) * SUMS
            drawn = torch.randint(0, 2, (length,), generator=self._generator, dtype=torch.int8)
            on_host = self._signs[count, "cpu"] = drawn * 2 - 1
        return self._signs.setdefault((count, str(device)), on_host.to(device) if device.type != "cpu" else on_host)


@dataclass(frozen=True)
class _Step:
    """The output of one step as sums, or the problem with it; the contents of its input and of the input before."""

    content: int
    content_before: int | None
    sums: torch.Tensor | None
    problem: str = ""


def check_steps(
    side: BuiltSide,
    inputs: Inputs,
    expected: Expected,
    tolerance: Tolerance,
    budget_s: float,
    step_ms: float | None,
    draw: random.Random,
) -> StepChecks:
    """Runs the optimized side in stretches of random length and compares the sums of every output.

    The contents of the input sets change places before and during the pass. As many steps run as fit into CHECKED_SHARE
    of the budget at `step_ms` each. An output that `Side.finish` completes is read afterwards, unless a later step has
    returned the same memory. Raises SideError for a step that fails.
    """
    sketch, steps, until = Sketch(draw), list[_Step](), perf_counter() + 2 * CHECKED_SHARE * budget_s
    most = max(FEWEST_STEPS, min(MOST_STEPS, int(1e3 * CHECKED_SHARE * budget_s / (step_ms or 1.0))))
    exchange(inputs, range(len(inputs.timed)), draw)
    ran = stretches = 0
    longest = _longest_stretch(expected, step_ms)
    with blame(side.name, "running the steps that are compared"):
        side.flags.apply()
        side.take_stock(inputs.timed)
    while ran < FEWEST_STEPS or (ran < most and perf_counter() < until):
        length = draw.randint(1, longest)
        with blame(side.name, "running the steps that are compared"):
            side.flags.apply()
            steps += _run_stretch(side, inputs, expected, length, sketch)
            synchronize(side.device)
        exchange_used(inputs, side.next_input, length, draw)
        ran += length
        stretches += 1
    checks = _compare(steps, expected, sketch, tolerance, bool(inputs.contents))
    return replace(checks, overwritten=2 * (ran - len(steps)) > ran - stretches)


def _longest_stretch(expected: Expected, step_ms: float | None) -> int:
    """Computes the most steps of a stretch: their outputs must fit into HELD_BYTES and their time into STRETCH_MS."""
    size = expected.timed[0].numel() * expected.timed[0].element_size()
    return max(1, min(MOST_HELD, HELD_BYTES // max(1, size), int(STRETCH_MS / (step_ms or 1.0))))


def _run_stretch(side: BuiltSide, inputs: Inputs, expected: Expected, length: int, sketch: Sketch) -> Iterator[_Step]:
    """Runs `length` steps and their join; yields the steps whose output can be read."""
    deferred = side.side.finish is not nothing_to_join
    kept: dict[int, tuple[int, int | None, Any]] = {}
    before = None
    for number in range(length):
        content = inputs.content_of(side.next_input)
        output = side.side.step(inputs.timed[side.next_input])
        side.next_input = (side.next_input + 1) % len(inputs.timed)
        if not deferred:
            yield _read_step(output, content, before, expected, sketch)
        elif isinstance(output, torch.Tensor) and not side.side.works_ahead and type(output) is torch.Tensor:
            kept[output.data_ptr()] = content, before, output
        else:
            kept = {number: (content, before, output)}
        before = content
    side.side.finish()
    synchronize(side.device)
    for content, previous, output in kept.values():
        yield _read_step(output, content, previous, expected, sketch)


def _read_step(output: Any, content: int, before: int | None, expected: Expected, sketch: Sketch) -> _Step:
    problem = form_problem(output, expected.timed[content])
    return _Step(content, before, None if problem else sketch(output), problem or "")


def _compare(
    steps: Sequence[_Step], expected: Expected, sketch: Sketch, tolerance: Tolerance, exchanged: bool
) -> StepChecks:
    known: dict[int, tuple[torch.Tensor, float]] = {}

    def close(sums: torch.Tensor, content: int) -> bool:
        if content not in known:
            wanted = expected.timed[content]
            exact = wanted.to(torch.complex128 if wanted.is_complex() else torch.float64)
            known[content] = sketch(wanted).cpu(), float(exact.norm())
        wanted_sums, norm = known[content]
        return float((sums - wanted_sums).norm()) <= SURE * tolerance.relative_l2 * norm

    ours = [None if step.sums is None else step.sums.cpu() for step in steps]
    wrong = [
        number
        for number, (step, sums) in enumerate(zip(steps, ours, strict=True))
        if sums is None or not close(sums, step.content)
    ]
    if not wrong:
        return StepChecks(len(steps), exchanged=exchanged)
    first, sums = steps[wrong[0]], ours[wrong[0]]
    return StepChecks(
        len(steps),
        len(wrong),
        wrong[0] + 1,
        _resemblance(first, sums, len(expected.timed), close),
        first.problem,
        exchanged,
    )


def _resemblance(
    step: _Step, sums: torch.Tensor | None, contents: int, close: Callable[[torch.Tensor, int], bool]
) -> Resemblance:
    """Classifies the output of a wrong step."""
    if sums is None:
        return "unreadable"
    if not bool(sums.any()):
        return "zeros"
    if not bool(sums.isfinite().all()):
        return "not finite"
    if step.content_before is not None and close(sums, step.content_before):
        return "step before"
    return "other input" if any(close(sums, content) for content in range(contents)) else "unknown"


def time_on_new_inputs(
    side: BuiltSide, make_input: Callable[[int], Any], time_ms: Callable[[Callable[[], None]], float], step_ms: float
) -> float:
    """Measures the time of a block over new inputs, over its time on the same inputs again.

    A side that caches outputs by content needs many times as long at first. A block lasts NEW_INPUTS_MS or one step.
    Other work of the machine lengthens some blocks: the least ratio of up to NEW_INPUTS_ROUNDS rounds counts, and a
    ratio no larger than REMEMBERS ends the rounds. A round makes its inputs within MAKING_S and HELD_BYTES. Raises
    SideError for a step that fails.
    """
    count = max(1, min(MOST_NEW_INPUTS, int(NEW_INPUTS_MS / max(step_ms, 1e-3))))
    ratios, made = list[float](), 0
    while len(ratios) < NEW_INPUTS_ROUNDS and min(ratios, default=math.inf) > REMEMBERS:
        new, until = list[Any](), perf_counter() + MAKING_S
        while not new or (len(new) < count and perf_counter() < until and len(new) * byte_size(new[0]) < HELD_BYTES):
            new.append(make_input(made))
            made += 1
        side.flags.apply()
        with blame(side.name, "running steps on new inputs"), pause_garbage_collection():
            synchronize(side.device)
            first_ms = time_ms(partial(_block_over, side, new))
            ratios.append(first_ms / max(time_ms(partial(_block_over, side, new)), 1e-6))
    return min(ratios)


def _block_over(side: BuiltSide, new: Sequence[Any]) -> None:
    for inputs in new:
        side.side.step(inputs)
    side.side.finish()


def block_work_share(side: BuiltSide, inputs: Sequence[Any], budget_s: float, step_ms: float) -> float | None:
    """Measures the work of a step in a block that is joined once, over the work of a step that is joined by itself.

    Work is the CPU time of all threads of this process, on a GPU the number of kernels and copies, both without the
    cost of an empty join. A side that computes only some of a block's steps, in `finish` or on a thread, does a
    fraction of the work. None for a side that has nothing to join or works ahead, and where a step takes less than
    LEAST_CPU_MS of CPU time. Raises SideError for a step that fails.
    """
    if side.side.works_ahead or side.side.stock_steps or side.side.finish is nothing_to_join:
        return None
    fitting = int(1e3 * CHECKED_SHARE * budget_s / (2 * JOINED_ROUNDS * step_ms))
    steps, rounds = (JOINED_STEPS, JOINED_ROUNDS) if fitting >= JOINED_STEPS else (FEWEST_JOINED, 1)
    if side.device.type == "cuda":
        with blame(side.name, "running steps one by one and in a block"):
            counted = kernels_by_join(side, inputs, steps)  # cuda only
        alone, block, join = (count / steps for count in counted)  # cuda only
        return (block - join / steps) / (alone - join) if alone > join else None  # cuda only
    found = [[_cpu_ms(side, inputs, lengths) for lengths in ([1] * steps, [steps], [0] * steps)] for _ in range(rounds)]
    alone_ms, block_ms, join_ms = (statistics.median(column) / steps for column in zip(*found, strict=True))
    step_alone_ms = alone_ms - join_ms
    return (block_ms - join_ms / steps) / step_alone_ms if step_alone_ms >= LEAST_CPU_MS else None


def _cpu_ms(side: BuiltSide, inputs: Sequence[Any], lengths: Sequence[int]) -> float:
    """Measures the CPU time of blocks of these lengths; a block of no steps is a join alone."""
    with blame(side.name, "running steps one by one and in a block"):
        side.flags.apply()
        started = process_time_ns()
        for length in lengths:
            side.run_steps(inputs, length)
        return max(0.0, (process_time_ns() - started) / 1e6)
