"""The checking pass: every step of an unannounced stretch is compared with the baseline, at the cost of a few sums.

One output of each build is compared value by value (`gpugate.measurement.outputs`). This pass finds a side that is
right in that step and does not do the work of other steps: it caches outputs, leaves steps out, or returns zeros now
and then. The pass runs after all times are taken.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from time import perf_counter, process_time_ns
from typing import Any, Literal

import torch

from gpugate.measurement.cold_inputs import Inputs, exchange, exchange_used
from gpugate.measurement.counters import kernels_by_join
from gpugate.measurement.difference import are_finite, codes_of, form_problem, is_discrete, numbers_of, readable
from gpugate.measurement.outputs import Expected
from gpugate.measurement.record import Resemblance, StepChecks
from gpugate.measurement.settings import REMEMBERS
from gpugate.measurement.sides import BuiltSide, blame, pause_garbage_collection, spoil_new_memory, synchronize
from gpugate.parts import Parts, byte_size
from gpugate.workload import Tolerance, nothing_to_join

Kind = Literal["numbers", "hashes"]
Sums = dict[tuple[str, Kind], torch.Tensor]
SUMS, HASHES = 64, 2**16
# The sums estimate an error that is spread over the output within 10 %. An error in one part alone appears four times
# as large as it is in 1 of 16,000 steps.
SURE = 4.0
FEWEST_STEPS, MOST_STEPS = 4, 1000
CHECKED_SHARE = 0.1  # of the budget
MOST_HELD, HELD_BYTES = 8, 2**28  # outputs that `Side.finish` completes, and new inputs
STRETCH_MS = 2000.0
NEW_INPUTS_MS, MOST_NEW_INPUTS, MAKING_S = 2.0, 256, 0.3
LEAST_WORK_MS = 0.005  # of a step that computes; the first touch of an input's objects alone takes less
# Busy programs on every core made up to 0.42 of the rounds of an honest side too long: eight in a row are one in 1000.
NEW_INPUTS_ROUNDS = 8
JOINED_STEPS, FEWEST_JOINED = 8, 4  # as many on each of HOT_SETS input sets
JOINED_ROUNDS = 3
LEAST_CPU_MS = 0.5  # of a step; below it, the join takes most of the step's CPU time


class Sketch:
    """Sums of an output's values with random signs, over 64 parts: their norm estimates the norm of the output.

    The tug-of-war sketch: for independent signs, E ||sums||^2 = ||values||^2 (Alon, Matias and Szegedy, The space
    complexity of approximating the frequency moments, 1996). No side knows the signs. Of what must be equal, integers
    and the places of infinity and NaN, hashes are summed. `special` names the parts that have such places.
    """

    def __init__(self, draw: random.Random, tolerance: Tolerance, special: Container[str] = ()) -> None:
        self._generator = torch.Generator().manual_seed(draw.randrange(2**62))
        self._signs: dict[tuple[int, str], torch.Tensor] = {}
        self._tolerance, self._special = tolerance, special

    def __call__(self, output: Parts) -> Sums:
        """float64 [64] for each tensor and kind of value, on the output's device, in stream order without waiting."""
        parts = [(name, part) for name, part in output.items() if isinstance(part, torch.Tensor)]
        found = ((name, kind, values) for name, part in parts for kind, values in self._values_of(name, part))
        return {(name, kind): self._sum(values) for name, kind, values in found}

    def _values_of(self, name: str, part: torch.Tensor) -> Iterator[tuple[Kind, torch.Tensor]]:
        """Yields the values to sum, in one dimension: floats, or hashes as int64."""
        if is_discrete(part) and self._tolerance.equal_share is not None:
            yield "hashes", _hash(codes_of(part))
            return
        values = readable(part)
        values = (torch.view_as_real(values) if values.is_complex() else values).reshape(-1)
        values = values.to(torch.float64 if values.dtype in (torch.float64, torch.int64) else torch.float32)
        if name in self._special:
            places = values.isnan() + 2 * values.isposinf() + 3 * values.isneginf()
            yield "hashes", _hash(places)
            values = torch.where(places == 0, values, 0.0)
        yield "numbers", values

    def _sum(self, values: torch.Tensor) -> torch.Tensor:
        signs = self._signs_of(values.numel(), values.device)
        padded = torch.nn.functional.pad(values, (0, signs.numel() - values.numel()))
        exact = torch.float64 if values.is_floating_point() else torch.int64
        return (padded * signs).view(SUMS, -1).sum(1, dtype=exact).double()

    def limits(self, expected: Parts) -> dict[tuple[str, Kind], float]:
        """Computes the largest norm of the difference of the sums of an output that is within the tolerance.

        Two hashes are uniform below HASHES: the mean square of their difference is HASHES^2 / 6.
        """
        found: dict[tuple[str, Kind], float] = {}
        for name, part in expected.items():
            if isinstance(part, torch.Tensor):
                share = self._tolerance.equal_share if is_discrete(part) else None
                unequal = 0.0 if share is None else (1 - share) * part.numel()
                numbers = numbers_of(part)
                found[name, "hashes"] = SURE * HASHES * math.sqrt(unequal / 6)
                found[name, "numbers"] = SURE * self._tolerance.relative_l2 * float(numbers[numbers.isfinite()].norm())
        return found

    def _signs_of(self, count: int, device: torch.device) -> torch.Tensor:
        """int8 [count, rounded up to whole parts], each -1 or 1."""
        on_host = self._signs.get((count, "cpu"))
        if on_host is None:
            length = -(-count // SUMS) * SUMS
            drawn = torch.randint(0, 2, (length,), generator=self._generator, dtype=torch.int8)
            on_host = self._signs[count, "cpu"] = drawn * 2 - 1
        return self._signs.setdefault((count, str(device)), on_host.to(device) if device.type != "cpu" else on_host)


def _hash(codes: torch.Tensor) -> torch.Tensor:
    """Hashes integers to 0..HASHES - 1, as int64, by their product with an odd constant (Knuth's multiplicative
    hashing)."""
    wide = codes.to(torch.int64)
    return (((wide ^ (wide >> 32)) * 0x9E3779B1) >> 16) % HASHES


@dataclass(frozen=True)
class _Step:
    """The output of one step as sums, or the problem with it; the contents of its input and of the input before."""

    content: int
    content_before: int | None
    sums: Sums | None
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
    of the budget at `step_ms` each, over the sets whose output is expected. An output that `Side.finish` completes is
    read afterwards, unless a later step has returned the same memory. Raises SideError for a step that fails.
    """
    parts = [pair for output in expected.timed.values() for pair in output.items()]
    special = {name for name, part in parts if isinstance(part, torch.Tensor) and not bool(are_finite(part).all())}
    sketch, steps, until = (
        Sketch(draw, tolerance, special),
        list[_Step](),
        perf_counter() + 2 * CHECKED_SHARE * budget_s,
    )
    most = max(FEWEST_STEPS, min(MOST_STEPS, int(1e3 * CHECKED_SHARE * budget_s / (step_ms or 1.0))))
    exchange(inputs, range(len(inputs.timed)), draw)
    ran = stretches = 0
    before: list[int] = []
    longest = _longest_stretch(side, expected, step_ms)
    with blame(side.name, "running the steps that are compared"):
        side.flags.apply()
        side.take_stock(inputs.timed)
    while ran < FEWEST_STEPS or (ran < most and perf_counter() < until):
        order = _next_sets(side, inputs, expected, draw.randint(1, longest))
        if side.restore is not None:
            side.restore([inputs.timed[number] for number in order])
        spoiled = spoil_new_memory(side.output_bytes, side.device)
        with blame(side.name, "running the steps that are compared"), spoiled:
            side.flags.apply()
            steps += _run_stretch(side, inputs, expected, order, sketch)
            synchronize(side.device)
        exchange_used(inputs, [*order, *before], draw)
        before = order
        ran += len(order)
        stretches += 1
    checks = _compare(steps, expected, sketch, bool(inputs.contents))
    return replace(checks, overwritten=2 * (ran - len(steps)) > ran - stretches)


def _longest_stretch(side: BuiltSide, expected: Expected, step_ms: float | None) -> int:
    """Computes the most steps of a stretch: their outputs must fit into HELD_BYTES and their time into STRETCH_MS."""
    size = max(1, byte_size(next(iter(expected.timed.values()))))
    most = len(expected.timed) if side.restore is not None else MOST_HELD  # a set that was written to is not read again
    return max(1, min(MOST_HELD, most, HELD_BYTES // size, int(STRETCH_MS / (step_ms or 1.0))))


def _next_sets(side: BuiltSide, inputs: Inputs, expected: Expected, length: int) -> list[int]:
    """Lists the sets of the next `length` steps, in their order and from the side's next one on."""
    count = len(inputs.timed)
    around = [(side.next_input + step) % count for step in range(count)]
    known = [number for number in around if inputs.content_of(number) in expected.timed]
    return [known[step % len(known)] for step in range(length)]


def _run_stretch(
    side: BuiltSide, inputs: Inputs, expected: Expected, order: Sequence[int], sketch: Sketch
) -> Iterator[_Step]:
    """Runs a step on each of the sets, and their join; yields the steps whose output can be read."""
    deferred = side.side.finish is not nothing_to_join
    kept: dict[tuple[int, ...], tuple[int, int | None, Parts]] = {}
    before = None
    for place, number in enumerate(order):
        content, given = inputs.content_of(number), inputs.timed[number]
        output = side.parts_of(side.side.step(given), given)
        side.next_input = (number + 1) % len(inputs.timed)
        tensors = [part for part in output.values() if isinstance(part, torch.Tensor)]
        if not deferred:
            yield _read_step(output, content, before, expected, sketch)
        elif tensors and not side.side.works_ahead and all(type(part) is torch.Tensor for part in tensors):
            kept[tuple(part.data_ptr() for part in tensors)] = content, before, output
        else:
            kept = {(place,): (content, before, output)}
        before = content
    side.side.finish()
    synchronize(side.device)
    for content, previous, output in kept.values():
        yield _read_step(output, content, previous, expected, sketch)


def _read_step(output: Parts, content: int, before: int | None, expected: Expected, sketch: Sketch) -> _Step:
    problem = form_problem(output, expected.timed[content])
    return _Step(content, before, None if problem else sketch(output), problem or "")


def _compare(steps: Sequence[_Step], expected: Expected, sketch: Sketch, exchanged: bool) -> StepChecks:
    @cache
    def known(content: int) -> tuple[Sums, Mapping[tuple[str, Kind], float]]:
        wanted = expected.timed[content]
        return sketch(wanted), sketch.limits(wanted)

    def close(sums: Sums, content: int) -> bool:
        wanted, limits = known(content)
        return all(bool((found - wanted[key].cpu()).norm() <= limits[key]) for key, found in sums.items())

    ours = [step.sums and {key: sums.cpu() for key, sums in step.sums.items()} for step in steps]
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
        _resemblance(first, sums, [*expected.timed], close),
        first.problem,
        exchanged,
    )


def _resemblance(
    step: _Step, sums: Sums | None, contents: Sequence[int], close: Callable[[Sums, int], bool]
) -> Resemblance:
    """Classifies the output of a wrong step."""
    if sums is None:
        return "unreadable"
    if not any(bool(found.any()) for found in sums.values()):
        return "zeros"
    if not all(bool(found.isfinite().all()) for found in sums.values()):
        return "not finite"
    if step.content_before is not None and close(sums, step.content_before):
        return "step before"
    return "other input" if any(close(sums, content) for content in contents) else "unknown"


def time_on_new_inputs(
    side: BuiltSide, make_input: Callable[[int], Any], time_ms: Callable[[Callable[[], None]], float], step_ms: float
) -> float:
    """Measures the time of a block over new inputs, over its time on the same inputs again.

    A side that caches outputs by content needs many times as long at first. The ratio is at most 1 where a step on a
    new input takes less than LEAST_WORK_MS longer, since no work was saved. A block lasts NEW_INPUTS_MS or one step.
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
            again_ms = time_ms(partial(_block_over, side, new))
        longer = first_ms - again_ms >= LEAST_WORK_MS * len(new)
        ratios.append(first_ms / max(again_ms, 1e-6) if longer else 1.0)
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
