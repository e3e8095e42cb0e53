"""The checking passes: outputs of unannounced steps are compared with the baseline's, at the cost of a few sums.

One output of each build is compared value by value (`gpugate.measurement.outputs`). These passes find a side that is
right in that step and does not do the work of other steps: it caches outputs, leaves steps out, or returns zeros now
and then. They run after all times are taken.
"""

from __future__ import annotations

import math
import random
import resource
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from time import clock_gettime_ns, perf_counter, process_time_ns
from typing import Any

import numpy as np
import torch

from gpugate.machine.processes import list_descendants
from gpugate.measurement.cold_inputs import Inputs, exchange, exchange_used
from gpugate.measurement.counters import kernels_by_join
from gpugate.measurement.difference import are_finite, form_problem
from gpugate.measurement.outputs import Expected
from gpugate.measurement.record import Resemblance, StepChecks
from gpugate.measurement.settings import REMEMBERS
from gpugate.measurement.sides import BuiltSide, blame, pause_garbage_collection, spoil_new_memory, synchronize
from gpugate.measurement.sketch import Kind, Sketch, Sums
from gpugate.parts import PLAIN_TENSORS, VALUES, Parts, byte_size, list_tensors
from gpugate.workload import Tolerance, nothing_to_join

FEWEST_STEPS, MOST_STEPS = 4, 1000  # that are compared
CHECKED_SHARE = 0.1  # of the budget
SHORT_STRETCH, LONG_STRETCH = 8, 5000  # a side gains nothing by the loss of steps beyond those of a timed block
STRETCH_MS = 2000.0
MOST_READ, LOST_SHARE = 64, 0.1  # of the outputs of a stretch that `Side.finish` completes; how many may be overwritten
HELD_BYTES, HELD_SHARE = (
    2**28,
    8,
)  # of outputs until they are joined, or of new inputs; on a GPU, an eighth of what is free
NEW_INPUTS_MS, MOST_NEW_INPUTS, MAKING_S = 2.0, 256, 0.3
MOST_COMPARED = 8  # of the outputs on new inputs, in a round
LEAST_WORK_MS = 0.005  # of a step that computes; the first touch of an input's objects alone takes less
# Busy programs on every core made up to 0.42 of the rounds of an honest side too long: eight in a row are one in 1000.
NEW_INPUTS_ROUNDS = 8
JOINED_STEPS, FEWEST_JOINED, MOST_JOINED = 8, 4, 4096  # as many on each of HOT_SETS input sets
JOINED_ROUNDS = 3
TOLD_MS = 4.0  # of CPU time, for steps that are joined one by one: noise is then a small part
WAKE_MS, LEAST_ALONE_SHARE = 0.04, 0.2  # the most CPU time to wake a worker for one step, and the least that is work


@dataclass(frozen=True)
class _Step:
    """The output of one step as sums, or the problem with it; the contents of its input and of the input before."""

    content: int
    content_before: int | None
    sums: Sums | None
    problem: str = ""


@dataclass
class _Checked:
    """The steps that were read, with the sketch of their outputs and the outputs that are expected."""

    expected: Expected
    sketch: Sketch
    steps: list[_Step] = field(default_factory=list)

    def read(self, output: Parts, content: int, before: int | None = None) -> None:
        problem = form_problem(output, self.expected.timed[content])
        self.steps.append(_Step(content, before, None if problem else self.sketch(output), problem or ""))

    def compare(self) -> StepChecks:
        """Compares the sums of all steps with those of the expected outputs."""

        @cache
        def known(content: int) -> tuple[Sums, Mapping[tuple[str, Kind], float]]:
            wanted = self.expected.timed[content]
            return self.sketch(wanted), self.sketch.limits(wanted)

        def close(sums: Sums, content: int) -> bool:
            wanted, limits = known(content)
            return all(bool((found - wanted[key].cpu()).norm() <= limits[key]) for key, found in sums.items())

        ours = [step.sums and {key: sums.cpu() for key, sums in step.sums.items()} for step in self.steps]
        wrong = [
            number
            for number, (step, sums) in enumerate(zip(self.steps, ours, strict=True))
            if sums is None or not close(sums, step.content)
        ]
        if not wrong:
            return StepChecks(len(self.steps))
        first, sums = self.steps[wrong[0]], ours[wrong[0]]
        resembles = _resemblance(first, sums, [*self.expected.timed], close)
        return StepChecks(len(self.steps), len(wrong), wrong[0] + 1, resembles, first.problem)


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


def check_steps(
    side: BuiltSide,
    inputs: Inputs,
    expected: Expected,
    tolerance: Tolerance,
    budget_s: float,
    step_ms: float | None,
    draw: random.Random,
) -> StepChecks:
    """Runs the optimized side in stretches of random length, up to that of a timed block, and compares outputs.

    The contents of the input sets change places before and during the pass. As many steps run as fit into CHECKED_SHARE
    of the budget at `step_ms` each, over the sets whose output is expected. Where `Side.finish` completes outputs, up
    to MOST_READ of a stretch are read afterwards, at random. Raises SideError for a step that fails.
    """
    parts = [pair for output in expected.timed.values() for pair in output.items()]
    special = {name for name, part in parts if isinstance(part, torch.Tensor) and not bool(are_finite(part).all())}
    checked = _Checked(expected, Sketch(draw, tolerance, special))
    until, fitting = perf_counter() + 2 * CHECKED_SHARE * budget_s, int(1e3 * CHECKED_SHARE * budget_s / (step_ms or 1))
    exchange(inputs, range(len(inputs.timed)), draw)
    ran = lost = 0
    before: list[int] = []
    longest = _longest_stretch(side, expected, step_ms)
    with blame(side.name, "running the steps that are compared"):
        side.flags.apply()
        side.take_stock(inputs.timed)
    while ran < FEWEST_STEPS or (ran < fitting and len(checked.steps) < MOST_STEPS and perf_counter() < until):
        length = draw.choice([draw.randint(1, min(longest, SHORT_STRETCH)), draw.randint(1, longest), longest])
        order = _next_sets(side, inputs, expected, length)
        if side.restore is not None:
            side.restore([inputs.timed[number] for number in order])
        spoiled = spoil_new_memory(side.output_bytes, side.device)
        with blame(side.name, "running the steps that are compared"), spoiled:
            side.flags.apply()
            lost += _run_stretch(side, inputs, order, checked, draw)
            synchronize(side.device)
        exchange_used(inputs, [*order, *before], draw)
        before = order
        ran += len(order)
    overwritten = lost > LOST_SHARE * len(checked.steps)
    return replace(checked.compare(), exchanged=bool(inputs.contents), overwritten=overwritten)


def _longest_stretch(side: BuiltSide, expected: Expected, step_ms: float | None) -> int:
    """Computes the most steps of a stretch: those of a timed block, as far as the outputs that `Side.finish` completes
    fit into memory and the time into STRETCH_MS."""
    most = [max(SHORT_STRETCH, side.steps_per_block), int(STRETCH_MS / (step_ms or 1.0))]
    if side.side.finish is nothing_to_join:
        most.append(MOST_STEPS // 4)
    else:
        size = max(1, byte_size(next(iter(expected.timed.values()))))
        most += [LONG_STRETCH, _most_held_bytes(side.device) // size]
    if side.restore is not None:
        most.append(len(expected.timed))  # a set that was written to is not read again
    return max(1, min(most))


def _most_held_bytes(device: torch.device) -> int:
    return HELD_BYTES if device.type == "cpu" else torch.cuda.mem_get_info(device)[0] // HELD_SHARE  # cuda only


def _next_sets(side: BuiltSide, inputs: Inputs, expected: Expected, length: int) -> list[int]:
    """Lists the sets of the next `length` steps, in their order and from the side's next one on."""
    count = len(inputs.timed)
    around = [(side.next_input + step) % count for step in range(count)]
    known = [number for number in around if inputs.content_of(number) in expected.timed]
    return [known[step % len(known)] for step in range(length)]


def _run_stretch(side: BuiltSide, inputs: Inputs, order: Sequence[int], checked: _Checked, draw: random.Random) -> int:
    """Runs a step on each of the sets, and their join, and reads outputs; returns the number of outputs that it wanted
    to read and that later steps had overwritten."""
    given, contents = [inputs.timed[number] for number in order], [inputs.content_of(number) for number in order]
    befores = [None, *contents]
    side.next_input = (order[-1] + 1) % len(inputs.timed)
    if side.side.finish is nothing_to_join:
        for one, content, before in zip(given, contents, befores, strict=False):
            checked.read(side.parts_of(side.side.step(one), one), content, before)
        return 0
    outputs: list[Any] = []
    _run_block(side, given, outputs)
    synchronize(side.device)
    last = len(order) - 1
    wanted = [] if side.side.works_ahead else draw.sample(range(last), min(last, MOST_READ))
    readable = _without_overwritten(outputs, [*wanted, last])
    for place in sorted(readable):
        checked.read(side.parts_of(outputs[place], given[place]), contents[place], befores[place])
    return len(wanted) + 1 - len(readable)


def _run_block(side: BuiltSide, given: Sequence[Any], outputs: list[Any]) -> None:
    """Runs a step on each input and one join, as a timed block does, and adds the outputs as the steps return them."""
    step = side.side.step
    for one in given:
        outputs.append(step(one))
    side.side.finish()


def _without_overwritten(outputs: Sequence[Any], places: Sequence[int]) -> list[int]:
    """Lists those of the places whose output shares no memory with the output of a later step."""
    found = [(place, *ends) for place, output in enumerate(outputs) for ends in _list_memory(output)]
    number, start, end = np.array(found, dtype=np.int64).reshape(-1, 3).T

    def is_overwritten(place: int) -> bool:
        later, mine = number > place, _list_memory(outputs[place])
        return any(bool((later & (start < high) & (end > low)).any()) for low, high in mine)

    return [place for place in places if not is_overwritten(place)]


def _list_memory(output: Any) -> Iterator[tuple[int, int]]:
    """Yields the first address and the end of each dense tensor, and those of an object that a side can return again
    with other tensors in it."""
    if type(output) is not torch.Tensor and not isinstance(output, (tuple, *VALUES)):
        yield id(output), id(output) + 1
    for tensor in [output] if type(output) is torch.Tensor else list_tensors(output):
        dense = type(tensor) in PLAIN_TENSORS and tensor.layout is torch.strided and not tensor.is_nested
        if dense and tensor.numel() and not tensor.is_meta:
            steps = zip(tensor.shape, tensor.stride(), strict=True)
            span = 1 + sum((size - 1) * stride for size, stride in steps)
            yield tensor.data_ptr(), tensor.data_ptr() + span * tensor.element_size()


@dataclass(frozen=True)
class NewInputs:
    """Input sets that no step has read, made by `make` from a number, beside the timed sets.

    `time_ms` times a block, and a step of the optimized side takes `step_ms`.
    """

    make: Callable[[int], Any]
    timed: Sequence[Any]
    time_ms: Callable[[Callable[[], None]], float]
    step_ms: float
    draw: random.Random

    def try_on(self, side: BuiltSide) -> tuple[float, list[tuple[Any, Parts]]]:
        """Measures the time of a block over new inputs, over that of a block over as many timed inputs, and returns
        some new inputs with the side's outputs.

        A side that has outputs of known inputs in store needs many times as long. The ratio is at most 1 where a step
        on a new input takes less than LEAST_WORK_MS longer, since no work was saved. A block lasts NEW_INPUTS_MS or one
        step. Other work of the machine lengthens some blocks: the least ratio of up to NEW_INPUTS_ROUNDS rounds counts,
        and a ratio no larger than REMEMBERS ends the rounds. Raises SideError for a step that fails.
        """
        ratios, made, pairs = list[float](), 0, list[tuple[Any, Parts]]()
        while len(ratios) < NEW_INPUTS_ROUNDS and min(ratios, default=math.inf) > REMEMBERS:
            new = self._make_block(side, made)
            made += len(new)
            known = [self.timed[number % len(self.timed)] for number in range(len(new))]
            side.flags.apply()
            self._time(side, known)  # allocators then have the memory for as many outputs
            new_ms, found = self._time(side, new, MOST_COMPARED)
            known_ms, _ = self._time(side, known)
            pairs += found
            longer = new_ms - known_ms >= LEAST_WORK_MS * len(new)
            ratios.append(new_ms / max(known_ms, 1e-6) if longer else 1.0)
        return min(ratios), pairs

    def _make_block(self, side: BuiltSide, first: int) -> list[Any]:
        """Makes the inputs of a block within MAKING_S; they and their outputs fit into memory."""
        count = max(1, min(MOST_NEW_INPUTS, int(NEW_INPUTS_MS / max(self.step_ms, 1e-3))))
        new, until = [self.make(first)], perf_counter() + MAKING_S
        size = byte_size(new[0]) + sum(side.output_bytes)
        while len(new) < min(count, _most_held_bytes(side.device) // max(1, size)) and perf_counter() < until:
            new.append(self.make(first + len(new)))
        return new

    def _time(self, side: BuiltSide, given: Sequence[Any], copied: int = 0) -> tuple[float, list[tuple[Any, Parts]]]:
        """Times a block, and copies up to `copied` of its outputs, each with its input."""
        outputs: list[Any] = []
        with blame(side.name, "running steps on new inputs"), pause_garbage_collection():
            synchronize(side.device)
            took_ms = self.time_ms(partial(_run_block, side, given, outputs))
            places = self.draw.sample(range(len(given)), min(len(given), copied))
            found = _without_overwritten(outputs, places)
            return took_ms, [(given[place], side.copy_parts(outputs[place], given[place])) for place in found]


def compare_new(pairs: Sequence[tuple[Parts, Parts]], tolerance: Tolerance, draw: random.Random) -> StepChecks:
    """Compares the sums of outputs on new inputs with those of the reference's outputs, which come second in a pair."""
    expected = Expected((), {number: wanted for number, (_, wanted) in enumerate(pairs)})
    checked = _Checked(expected, Sketch(draw, tolerance, {name for _, wanted in pairs for name in wanted}))
    for number, (output, _) in enumerate(pairs):
        checked.read(output, number)
    return checked.compare()


def block_work_share(side: BuiltSide, inputs: Sequence[Any], budget_s: float, step_ms: float) -> float | None:
    """Measures the work of a step in a block that is joined once, over the work of a step that is joined by itself.

    Work is the CPU time of this process and its workers, on a GPU the number of kernels and copies, both without the
    cost of an empty join. A side that computes only some of a block's steps, in `finish` or on a thread, does a
    fraction of the work. To wake a worker for a single step may cost WAKE_MS, but no more than the rest of
    LEAST_ALONE_SHARE. None for a side that has nothing to join or works ahead. Raises SideError for a step that fails.
    """
    if side.side.works_ahead or side.side.stock_steps or side.side.finish is nothing_to_join:
        return None
    fitting = int(1e3 * CHECKED_SHARE * budget_s / (2 * JOINED_ROUNDS * step_ms))
    steps, rounds = (JOINED_STEPS, JOINED_ROUNDS) if fitting >= JOINED_STEPS else (FEWEST_JOINED, 1)
    if side.device.type == "cuda":
        with blame(side.name, "running steps one by one and in a block"):
            counted = kernels_by_join(side, inputs, steps)  # cuda only
        alone, block, join = (count / steps for count in counted)  # cuda only
        return max(0.0, block - join / steps) / (alone - join) if alone > join else None  # cuda only
    workers = list_descendants()

    def cpu_ms(lengths: Sequence[int]) -> float:
        return _cpu_ms(side, inputs, lengths, workers)

    while cpu_ms([1] * steps) < TOLD_MS and 4 * steps <= min(fitting, MOST_JOINED):
        steps *= 4
    found = [[cpu_ms(lengths) for lengths in ([1] * steps, [steps], [0] * steps)] for _ in range(rounds)]
    alone_ms, block_ms, join_ms = (statistics.median(column) / steps for column in zip(*found, strict=True))
    step_ms = max(alone_ms - join_ms - WAKE_MS, LEAST_ALONE_SHARE * (alone_ms - join_ms))
    return max(0.0, block_ms - join_ms / steps) / step_ms if step_ms > 0 else None


def _cpu_ms(side: BuiltSide, inputs: Sequence[Any], lengths: Sequence[int], workers: Collection[int]) -> float:
    """Measures the CPU time of blocks of these lengths; a block of no steps is a join alone."""
    with blame(side.name, "running steps one by one and in a block"):
        side.flags.apply()
        started = process_time_ns() + worker_cpu_ns(workers)
        for length in lengths:
            side.run_steps(inputs, length)
        return max(0.0, (process_time_ns() + worker_cpu_ns(workers) - started) / 1e6)


def worker_cpu_ns(workers: Collection[int]) -> int:
    """Sums the CPU time of running worker processes, and of all child processes that have ended, in nanoseconds."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total_ns = round(1e9 * (ended.ru_utime + ended.ru_stime))
    for worker in workers:
        with suppress(OSError):  # it has ended since
            total_ns += clock_gettime_ns((~worker << 3) | 2)  # Linux's CPU clock of another process
    return total_ns
