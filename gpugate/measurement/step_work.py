"""The work of a step, measured after all times are taken, on new inputs and in a block.

A side that has the outputs of known inputs in store needs longer on new ones, or gives wrong outputs. A side that
leaves steps of a block out does a fraction of the work of a step by itself.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from threading import active_count
from time import perf_counter, process_time_ns
from typing import Any

from gpugate.machine.processes import list_descendants, worker_cpu_ns
from gpugate.measurement.cold_inputs import same_form
from gpugate.measurement.counters import kernels_by_join
from gpugate.measurement.difference import most_held_bytes
from gpugate.measurement.outputs import Expected
from gpugate.measurement.record import StepChecks
from gpugate.measurement.settings import REMEMBERS
from gpugate.measurement.sides import BuiltSide, blame, pause_garbage_collection, synchronize
from gpugate.measurement.step_checks import (
    CHECKED_SHARE,
    LOST_SHARE,
    CheckedSteps,
    Sketch,
    run_block,
    without_overwritten,
)
from gpugate.parts import Parts, byte_size
from gpugate.workload import Tolerance, nothing_to_join

NEW_INPUTS_MS, MOST_NEW_INPUTS, MAKING_S = 2.0, 256, 0.3
MOST_COMPARED = 8  # of the outputs on new inputs, in a round
LEAST_WORK_MS = 0.005  # of a step that computes; the first touch of an input's objects alone takes less
# Busy programs on every core made up to 0.42 of the rounds of an honest side too long: eight in a row are one in 1000.
NEW_INPUTS_ROUNDS = 8
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
        """Times a block, and copies some of its outputs, each with its input: where no join completes them, as the
        steps return them, before a later step can overwrite them."""
        last, outputs, copies = len(given) - 1, list[Any](), dict[int, Parts]()
        places = [last, *self.draw.sample(range(last), min(last, MOST_COMPARED - 1))]

        def run() -> None:
            if side.side.finish is not nothing_to_join:
                run_block(side, given, outputs)
                return
            for place, one in enumerate(given):
                output = side.side.step(one)
                if place in places:
                    copies[place] = side.copy_parts(output, one)

        with blame(side.name, "running steps on new inputs"), pause_garbage_collection():
            synchronize(side.device)
            took_ms = self.time_ms(run)
            for place in without_overwritten(outputs, places) if outputs else ():
                copies[place] = side.copy_parts(outputs[place], given[place])
            return took_ms, [(given[place], copies[place]) for place in sorted(copies)]


def compare_new(pairs: Sequence[tuple[Parts, Parts]], tolerance: Tolerance, draw: random.Random) -> StepChecks:
    """Compares the sums of outputs on new inputs with those of the reference's outputs, which come second in a pair."""
    expected = Expected((), {number: wanted for number, (_, wanted) in enumerate(pairs)})
    checked = CheckedSteps(expected, Sketch(draw, tolerance, {name for _, wanted in pairs for name in wanted}))
    for number, (output, _) in enumerate(pairs):
        checked.read(output, number)
    return checked.compare()


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
        return _cpu_ms(side, inputs, lengths, workers)

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
    outputs: list[Any] = []
    count = 2 * MOST_KEPT if side.restore is None else len(inputs)
    with blame(side.name, "running steps in groups and in a block"):
        side.flags.apply()
        run_block(side, [inputs[number % len(inputs)] for number in range(count)], outputs)
        synchronize(side.device)
    kept = without_overwritten(outputs, range(count - 1, max(0, count - MOST_KEPT) - 1, -1))
    return next((number for number, place in enumerate(kept) if place != count - 1 - number), len(kept))


def _cpu_ms(side: BuiltSide, inputs: Sequence[Any], lengths: Sequence[int], workers: Collection[int]) -> float:
    """Measures the CPU time of blocks of these lengths; a block of no steps is a join alone."""
    with blame(side.name, "running steps in groups and in a block"):
        side.flags.apply()
        started = process_time_ns() + worker_cpu_ns(workers)
        for length in lengths:
            side.run_steps(inputs, length)
        return max(0.0, (process_time_ns() + worker_cpu_ns(workers) - started) / 1e6)
