"""New inputs: a side that has the outputs of known inputs in store needs longer on others, or gives wrong outputs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from gpugate.measurement.cold_inputs import same_form
from gpugate.measurement.outputs import Expected
from gpugate.measurement.record import StepChecks
from gpugate.measurement.settings import REMEMBERS
from gpugate.measurement.sides import BuiltSide, blame, pause_garbage_collection, synchronize
from gpugate.measurement.sketch import Sketch
from gpugate.measurement.step_checks import LOST_SHARE, CheckedSteps, most_held_bytes, run_block, without_overwritten
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
