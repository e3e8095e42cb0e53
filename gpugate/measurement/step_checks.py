"""The checking pass: outputs of unannounced stretches of steps are compared with the baseline's.

One output of each build is compared in its own block (`gpugate.measurement.outputs`). This pass finds a side that is
right in that step and does not do the work of other steps: it caches outputs, leaves steps out, or returns zeros now
and then. The pass runs after all times are taken. It also measures the work of a step. A side that has the outputs of
known inputs in store needs longer on new ones, or gives wrong outputs. A side that leaves steps of a block out does a
fraction of the work of a step by itself.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import active_count
from time import perf_counter, process_time_ns
from typing import Any

import numpy as np
import torch

from gpugate.machine.processes import list_descendants, worker_cpu_ns
from gpugate.measurement.cold_inputs import Inputs, exchange, exchange_used, same_form
from gpugate.measurement.counters import kernels_by_join
from gpugate.measurement.difference import (
    form_problem,
    has_right_rows,
    is_close,
    most_held_bytes,
    numbers_of,
    place_for,
    problem_with,
)
from gpugate.measurement.outputs import Expected
from gpugate.measurement.record import Resemblance, StepChecks
from gpugate.measurement.settings import REMEMBERS
from gpugate.measurement.sides import BuiltSide, blame, pause_garbage_collection, spoil_new_memory, synchronize
from gpugate.workload import Tolerance, nothing_to_join
from gpugate.workload.parts import PLAIN_TENSORS, VALUES, Parts, byte_size, fields_of, map_tensors

FEWEST_STEPS, MOST_STEPS = 4, 1000  # that are compared
CHECKED_SHARE = 0.1  # of the budget
SHORT_STRETCH, LONG_STRETCH = 8, 5000  # a side gains nothing by the loss of steps beyond those of a timed block
STRETCH_MS = 2000.0
MOST_READ, LOST_SHARE = 64, 0.1  # of the outputs of a stretch that `Side.finish` completes; how many may be overwritten


class CheckedSteps:
    """Compares outputs of steps with those that are expected, by the number of the content of their input."""

    def __init__(self, expected: Mapping[int, Parts], tolerance: Tolerance) -> None:
        self.expected, self._tolerance = expected, tolerance
        self.found = StepChecks(0)

    def read(self, output: Parts, content: int, before: int = -1) -> None:
        """Compares the output of the next step; `before` is the content that the step before it read, -1 for none."""
        found = StepChecks(1)
        if not self._is_close(output, content):
            problem = form_problem(output, self.expected[content]) or ""
            is_first = self.found.wrong == 0
            resembles = "unreadable" if problem else self._resemblance(output, content, before) if is_first else ""
            found = StepChecks(1, 1, 1, resembles, problem)
        self.found = self.found.with_new(found)

    def _is_close(self, output: Parts, content: int) -> bool:
        return is_close(output, self.expected[content], self._tolerance)

    def _resemblance(self, output: Parts, content: int, before: int) -> Resemblance:
        """Classifies a wrong output."""
        wanted = self.expected[content]
        if not any(bool(numbers_of(part).any()) for part in output.values() if isinstance(part, torch.Tensor)):
            return "zeros"
        if problem_with(output, wanted, nan_is_equal=True):
            return "not finite"
        if before in self.expected and self._is_close(output, before):
            return "step before"
        if any(self._is_close(output, one) for one in self.expected):
            return "other input"
        tensors = ((output[name], part) for name, part in wanted.items() if isinstance(part, torch.Tensor))
        return "some rows" if any(has_right_rows(*pair) for pair in tensors) else "unknown"


def check_steps(
    side: BuiltSide,
    inputs: Inputs,
    expected: Expected,
    tolerance: Tolerance,
    budget_s: float,
    step_ms: float,
    draw: random.Random,
) -> StepChecks:
    """Runs the optimized side in stretches of random length, up to that of a timed block, and compares outputs.

    The contents of the input sets change places before and during the pass. As many steps run as fit into CHECKED_SHARE
    of the budget at `step_ms` each, over the sets whose output is expected. Where `Side.finish` completes outputs, up
    to MOST_READ of a stretch are read afterwards, at random. Raises SideError for a step that fails.
    """
    place = place_for(sum(map(byte_size, expected.timed.values())), side.device)
    known = {content: map_tensors(lambda one: one.to(place), parts) for content, parts in expected.timed.items()}
    checked = CheckedSteps(known, tolerance)
    until, fitting = perf_counter() + 2 * CHECKED_SHARE * budget_s, int(1e3 * CHECKED_SHARE * budget_s / step_ms)
    ran, lost, before, last = 0, 0, list[int](), inputs.content_of(side.last_input)
    exchange(inputs, range(len(inputs.timed)), draw)
    longest = _longest_stretch(side, expected, step_ms)
    with blame(side.name, "running the steps that are compared"):
        side.flags.apply()
        side.take_stock(inputs.timed)
    while ran < FEWEST_STEPS or (ran < fitting and checked.found.steps < MOST_STEPS and perf_counter() < until):
        length = draw.choice([draw.randint(1, min(longest, SHORT_STRETCH)), draw.randint(1, longest), longest])
        order = _next_sets(side, inputs, expected, length)
        if side.restore is not None:
            side.restore([inputs.timed[number] for number in order])
        spoiled = spoil_new_memory(side.output_bytes, side.device)
        with blame(side.name, "running the steps that are compared"), spoiled:
            side.flags.apply()
            lost += _run_stretch(side, inputs, order, last, checked, draw)
            synchronize(side.device)
        last = inputs.content_of(order[-1])
        exchange_used(inputs, [*order, *before], draw)
        before = order
        ran += len(order)
    overwritten = lost > LOST_SHARE * checked.found.steps
    return replace(checked.found, exchanged=bool(inputs.contents), overwritten=overwritten)


def _longest_stretch(side: BuiltSide, expected: Expected, step_ms: float) -> int:
    """Computes the most steps of a stretch: those of a timed block, as far as the outputs that `Side.finish` completes
    fit into memory and the time into STRETCH_MS."""
    most = [max(SHORT_STRETCH, side.steps_per_block), int(STRETCH_MS / step_ms)]
    if side.side.finish is nothing_to_join:
        most.append(MOST_STEPS // 4)
    else:
        size = max(1, byte_size(next(iter(expected.timed.values()))))
        most += [LONG_STRETCH, most_held_bytes(side.device) // size]
    if side.restore is not None:
        most.append(len(expected.timed))  # a set that was written to is not read again
    return max(1, min(most))


def _next_sets(side: BuiltSide, inputs: Inputs, expected: Expected, length: int) -> list[int]:
    """Lists the sets of the next `length` steps, in their order and from the side's next one on."""
    count = len(inputs.timed)
    around = [(side.next_input + step) % count for step in range(count)]
    known = [number for number in around if inputs.content_of(number) in expected.timed]
    return [known[step % len(known)] for step in range(length)]


def _run_stretch(
    side: BuiltSide, inputs: Inputs, order: Sequence[int], last: int, checked: CheckedSteps, draw: random.Random
) -> int:
    """Runs a step on each of the sets, and their join, and reads outputs; returns the number of outputs that it wanted
    to read and that later steps had overwritten. The step before read the content `last`."""
    given, contents = [inputs.timed[number] for number in order], [inputs.content_of(number) for number in order]
    befores = [last, *contents]
    side.next_input = (order[-1] + 1) % len(inputs.timed)
    if side.side.finish is nothing_to_join:
        size = max(1, byte_size(checked.expected[contents[0]]))
        at_once = max(1, most_held_bytes(side.device) // size)
        for start in range(0, len(given), at_once):
            _, copies = _run_block(side, given[start : start + at_once], range(at_once))
            for place, copy in copies.items():
                checked.read(copy, contents[start + place], befores[start + place])
        return 0
    outputs, _ = _run_block(side, given)
    synchronize(side.device)
    end = len(order) - 1
    wanted = [] if side.side.works_ahead else draw.sample(range(end), min(end, MOST_READ))
    readable = _without_overwritten(outputs, [*wanted, end])
    for place in sorted(readable):
        checked.read(side.parts_of(outputs[place], given[place]), contents[place], befores[place])
    return len(wanted) + 1 - len(readable)


def _run_block(
    side: BuiltSide, given: Sequence[Any], copied: Collection[int] = ()
) -> tuple[list[Any], dict[int, Parts]]:
    """Runs a step on each input and one join, as a timed block does. Returns the outputs as the steps return them; of a
    side without a join, copies of the outputs at the places `copied` instead.

    A copy is made in stream order, before a thread, another stream or a later step can change the output, and nothing
    waits for it: a step of a timed block does not begin on an idle device either.
    """
    step, joins = side.side.step, side.side.finish is not nothing_to_join
    outputs, copies = list[Any](), dict[int, Parts]()
    for place, one in enumerate(given):
        output = step(one)
        if joins:
            outputs.append(output)
        elif place in copied:
            copies[place] = side.copy_parts(output, one)
    side.side.finish()
    return outputs, copies


def _without_overwritten(outputs: Sequence[Any], places: Sequence[int]) -> list[int]:
    """Lists those of the places whose output shares no memory with the output of a later step."""
    found = [(place, *ends) for place, output in enumerate(outputs) for ends in _list_memory(output)]
    number, start, end = np.array(found, dtype=np.int64).reshape(-1, 3).T

    def is_overwritten(place: int) -> bool:
        later, mine = number > place, _list_memory(outputs[place])
        return any(bool((later & (start < high) & (end > low)).any()) for low, high in mine)

    return [place for place in places if not is_overwritten(place)]


def _list_memory(output: Any) -> Iterator[tuple[int, int]]:
    """Yields the first address and the end of each dense tensor and array, and those of each object that a side can
    return again with other tensors in it."""
    if type(output) in PLAIN_TENSORS:
        if output.layout is torch.strided and not output.is_nested and output.numel() and not output.is_meta:
            yield _ends(output.data_ptr(), output.element_size(), output.shape, output.stride())
    elif isinstance(output, np.ndarray):
        steps = [abs(stride) // max(1, output.itemsize) for stride in output.strides]
        yield _ends(output.__array_interface__["data"][0], output.itemsize, output.shape, steps)
    elif not isinstance(output, (torch.Tensor, *VALUES)):
        if not isinstance(output, tuple):
            yield id(output), id(output) + 1
        inside = output if isinstance(output, (list, tuple)) else fields_of(output).values()
        for one in output.values() if isinstance(output, Mapping) else inside:
            yield from _list_memory(one)


def _ends(start: int, size: int, shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    return start, start + size * (1 + sum((count - 1) * stride for count, stride in zip(shape, strides, strict=True)))


NEW_INPUTS_MS, MOST_NEW_INPUTS, MAKING_S = 2.0, 256, 0.3
MOST_COMPARED = 8  # of the outputs on new inputs, in a round
LEAST_WORK_MS = 0.005  # of a step that computes; the first touch of an input's objects alone takes less
# A block of one step may be shorter than the 7 ms for which another program keeps a core: busy programs on every core
# made up to 0.42 of the rounds of an honest side too long. Eight in a row were one in 1000, and CI saw such a run.
NEW_INPUTS_ROUNDS = 32
# Other work that lengthens the only block on timed inputs would end the rounds, and hide what a side has in store.
KNOWN_BLOCKS = 3


@dataclass
class Tried:
    """The times of a side on new and on timed inputs, and pairs of a new input and the output on it."""

    ratios: list[float] = field(default_factory=list)  # of each round
    pairs: list[tuple[Any, Parts]] = field(default_factory=list)
    wanted: int = 0  # outputs, of which later steps overwrote some

    @property
    def ratio(self) -> float:
        return min(self.ratios, default=math.inf)

    @property
    def overwritten(self) -> bool:
        return self.wanted - len(self.pairs) > LOST_SHARE * self.wanted

    def add(self, steps: int, new_ms: float, known_ms: float, found: Sequence[tuple[Any, Parts]]) -> None:
        """Adds the times of two blocks of `steps` steps, and the outputs that could be read."""
        longer = new_ms - known_ms >= LEAST_WORK_MS * steps
        self.ratios.append(new_ms / max(known_ms, 1e-9) if longer else 1.0)
        self.pairs += found
        self.wanted += min(steps, MOST_COMPARED)


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

    def try_on(self, side: BuiltSide) -> Tried:
        """Times blocks over new inputs and over as many timed ones, and copies some outputs on new inputs.

        A side that has outputs of known inputs in store needs many times as long on others. A step on a new input that
        takes less than LEAST_WORK_MS longer saved no work. A block lasts NEW_INPUTS_MS or one step. Other work of the
        machine lengthens some blocks: in a round the shortest of KNOWN_BLOCKS blocks on timed inputs counts. Of up to
        NEW_INPUTS_ROUNDS rounds the least ratio counts, and a ratio no larger than REMEMBERS ends them. Raises
        SideError for a step that fails.
        """
        tried = Tried()
        while len(tried.ratios) < NEW_INPUTS_ROUNDS and tried.ratio > REMEMBERS:
            new = self._make_block(side, len(tried.ratios) * MOST_NEW_INPUTS)
            first = self.draw.randrange(len(self.timed))
            known = [self.timed[(first + number) % len(self.timed)] for number in range(len(new))]
            side.flags.apply()
            self._time(side, known)  # allocators then have the memory for as many outputs
            new_ms, found = self._time(side, new)
            known_ms = min(self._time(side, known)[0] for _ in range(KNOWN_BLOCKS))
            tried.add(len(new), new_ms, known_ms, found)
        return tried

    def _make_block(self, side: BuiltSide, first: int) -> list[Any]:
        """Makes the inputs of a block within MAKING_S, of the form of the timed ones; they and their outputs fit into
        memory."""
        count = max(1, min(MOST_NEW_INPUTS, int(NEW_INPUTS_MS / max(self.step_ms, 1e-3))))
        made, until = [self.make(first)], perf_counter() + MAKING_S
        most = min(count, most_held_bytes(side.device) // max(1, byte_size(made[0]) + sum(side.output_bytes)))
        while len(made) < most and perf_counter() < until:
            made.append(self.make(first + len(made)))
        return [one for one in made if same_form(one, self.timed[0])] or [self.make(0)]  # which is of that form

    def _time(self, side: BuiltSide, given: Sequence[Any]) -> tuple[float, list[tuple[Any, Parts]]]:
        """Times a block, and copies some of its outputs that no later step overwrote, each with its input."""
        last, ran = len(given) - 1, list[tuple[list[Any], dict[int, Parts]]]()
        places = [last, *self.draw.sample(range(last), min(last, MOST_COMPARED - 1))]
        with blame(side.name, "running steps on new inputs"), pause_garbage_collection():
            synchronize(side.device)
            took_ms = self.time_ms(lambda: ran.append(_run_block(side, given, places)))
            ((outputs, copies),) = ran
            for place in _without_overwritten(outputs, places) if outputs else ():
                copies[place] = side.copy_parts(outputs[place], given[place])
            return took_ms, [(given[place], copies[place]) for place in sorted(copies)]


def compare_new(pairs: Sequence[tuple[Parts, Parts]], tolerance: Tolerance) -> StepChecks:
    """Compares outputs on new inputs with the reference's outputs, which come second in a pair."""
    checked = CheckedSteps({number: wanted for number, (_, wanted) in enumerate(pairs)}, tolerance)
    for number, (output, _) in enumerate(pairs):
        checked.read(output, number)
    return checked.found


JOINED_GROUPS, FEWEST_GROUPS, MOST_GROUPS = 8, 4, 4096  # as many on each of HOT_SETS input sets
JOINED_ROUNDS = 3
LONGEST_BLOCK = {"cpu": 100_000, "cuda": 512}  # steps; a timed block shows each gain of more than twice
MOST_KEPT = 64  # outputs that a side can keep in memory of its own and overwrite all the same
TOLD_MS = 4.0  # of CPU time, for groups that are joined one by one: noise is then a small part
WAKE_MS, LEAST_ALONE_SHARE = 0.04, 0.2  # the most CPU time to wake a worker for a group, and the least that is work


def block_work_share(side: BuiltSide, inputs: Sequence[Any], budget_s: float, step_ms: float) -> float | None:
    """Measures the work of a step in a block that is joined once, over its work in groups that are joined one by one.

    A group has as many steps as the side keeps outputs apart: one for a single buffer, and whole batches for a side
    that computes batches into a ring of buffers. Work is the CPU time of this process and its workers, on a GPU the
    number of kernels and copies, both without the cost of an empty join. A side that computes only some of a block's
    steps, in `finish` or on a thread, does a fraction of the work. To wake the workers for a group may cost WAKE_MS for
    each thread, but no more than the rest of LEAST_ALONE_SHARE. None for a side that has nothing to join or works
    ahead. Raises SideError for a step that fails.
    """
    if side.side.works_ahead or side.side.stock_steps or side.side.finish is nothing_to_join:
        return None
    side.next_input, size = 0, _count_kept(side, inputs)
    longest = LONGEST_BLOCK[side.device.type] if side.restore is None else 0
    fitting = int(1e3 * CHECKED_SHARE * budget_s / (2 * JOINED_ROUNDS * step_ms * size))
    groups, rounds = (JOINED_GROUPS, JOINED_ROUNDS) if fitting >= JOINED_GROUPS else (FEWEST_GROUPS, 1)
    if side.device.type == "cuda":
        with blame(side.name, "running steps in groups and in a block"):
            steps = max(size * groups, min(side.steps_per_block, longest))  # cuda only
            alone, block, join = kernels_by_join(side, inputs, [size] * groups, steps)  # cuda only
        return _share(alone / groups, block * size / steps, join / groups)  # cuda only
    workers = list_descendants()

    def cpu_ms(lengths: Sequence[int]) -> float:
        """Measures the CPU time of blocks of these lengths; a block of no steps is a join alone."""
        with blame(side.name, "running steps in groups and in a block"):
            side.flags.apply()
            started_ns = process_time_ns() + worker_cpu_ns(workers)
            for length in lengths:
                side.run_steps(inputs, length)
            return max(0.0, (process_time_ns() + worker_cpu_ns(workers) - started_ns) / 1e6)

    most = groups if side.restore is not None else min(fitting, MOST_GROUPS)  # a set is not written to for long
    while 4 * groups <= most and cpu_ms([size] * groups) < TOLD_MS:
        groups *= 4
    steps = max(size * groups, min(side.steps_per_block, longest))
    found = [[cpu_ms(each) for each in ([size] * groups, [steps], [0] * groups)] for _ in range(rounds)]
    alone_ms, block_ms, join_ms = map(statistics.median, zip(*found, strict=True))
    return _share(alone_ms / groups, block_ms * size / steps, join_ms / groups, WAKE_MS * active_count())


def _share(alone: float, block: float, join: float, wake: float = 0.0) -> float | None:
    """Divides the work of a group in a block by that of a group that is joined by itself; None where that is 0. An
    empty join may cost more than one that has work, so at most half of the work of a group counts as join."""
    work = alone - min(join, alone / 2)
    work = max(work - wake, LEAST_ALONE_SHARE * work)
    return block / work if work > 0 else None


def _count_kept(side: BuiltSide, inputs: Sequence[Any]) -> int:
    """Counts the last outputs of a block that share no memory with each other, up to MOST_KEPT."""
    count = 2 * MOST_KEPT if side.restore is None else len(inputs)
    with blame(side.name, "running steps in groups and in a block"):
        side.flags.apply()
        outputs, _ = _run_block(side, [inputs[number % len(inputs)] for number in range(count)])
        synchronize(side.device)
    kept = _without_overwritten(outputs, range(count - 1, max(0, count - MOST_KEPT) - 1, -1))
    return next((number for number, place in enumerate(kept) if place != count - 1 - number), len(kept))
