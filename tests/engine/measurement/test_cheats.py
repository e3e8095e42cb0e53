"""Sides that are fast because they do not do the work: each is caught, by name."""

import gc
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpugate.measurement.outputs import Expected
from gpugate.measurement.record import Measurement, StepChecks
from gpugate.measurement.sides import build_side
from gpugate.measurement.step_checks import KNOWN_BLOCKS, NewInputs
from gpugate.results.verdict import Outcome
from gpugate.workload import BASELINE, TOLERANCE_BY_DTYPE, Build, Context, Side, Tolerance
from tests.support.bench import CPU, Bench, bench, other_kernels, product, quick_collections
from tests.support.judged_cases import judge_equivalence

__all__ = ["bench", "quick_collections"]  # fixtures
WORK_MS, CHEAT_MS = 3.0, 0.1  # of a step that computes, and of one that does not
FEW = {"budget_s": 0.5}


def found(bench: Bench, build: Build) -> Measurement:
    """The cheat measured against an honest reference of WORK_MS a step."""
    return bench.measure(bench.case(build, bench.side(BASELINE, WORK_MS)), **FEW)


def wrong(measured: Measurement) -> str:
    verdict = judge_equivalence(measured, TOLERANCE_BY_DTYPE["float32"])
    assert verdict.outcome is Outcome.WRONG
    return verdict.reason


def checks(measured: Measurement) -> StepChecks:
    assert measured.step_checks is not None
    return measured.step_checks


def resemblance(measured: Measurement) -> str:
    wrong(measured)
    return checks(measured).resembles


def remembering(bench: Bench, key: Callable[[torch.Tensor], Any]) -> Build:
    """A side that computes the output of an input once, and finds it by `key` from then on."""
    outputs: dict[Any, torch.Tensor] = {}

    def step(inputs: torch.Tensor) -> torch.Tensor:
        known = key(inputs)
        if known not in outputs:
            bench.now_ms += WORK_MS - CHEAT_MS
            outputs[known] = other_kernels(inputs)
        return outputs[known]

    return bench.side("fast", CHEAT_MS, step)


@pytest.mark.parametrize(
    "key",
    [torch.Tensor.data_ptr, id, lambda inputs: (inputs.data_ptr(), inputs._version)],
    ids=["data_ptr", "id", "data_ptr and version"],
)
def test_outputs_remembered_by_the_address_of_their_input(bench: Bench, key: Callable[[torch.Tensor], Any]) -> None:
    assert resemblance(found(bench, remembering(bench, key))) == "other input"


def test_outputs_that_the_reference_left_behind(bench: Bench) -> None:
    """The reference keeps its outputs where the optimized side finds them by the address of the input."""
    left: dict[int, torch.Tensor] = {}

    def keeping(inputs: torch.Tensor) -> torch.Tensor:
        left[inputs.data_ptr()] = product(inputs)
        return left[inputs.data_ptr()]

    def taking(inputs: torch.Tensor) -> torch.Tensor:
        return left.get(inputs.data_ptr(), product(inputs))

    case = bench.case(bench.side("fast", CHEAT_MS, taking), bench.side(BASELINE, WORK_MS, keeping))
    assert resemblance(bench.measure(case, **FEW)) == "other input"


def tabled(bench: Bench, table: Callable[[], dict[float, torch.Tensor]]) -> Build:
    """A side that looks the outputs of known inputs up in a table, and keeps no further ones."""

    def build(context: Context) -> Side:
        known = table()

        def step(inputs: torch.Tensor) -> torch.Tensor:
            output = known.get(float(inputs[0, 0]))
            bench.now_ms += WORK_MS if output is None else CHEAT_MS
            return other_kernels(inputs) if output is None else output.clone()

        return Side(step)

    return build


def rounds(known: float, new: float, *later: float) -> Iterator[float]:
    """The times of the blocks of each round: untimed and new inputs, then timed ones; `later` are those of a disturbed
    moment."""
    return cycle((known, new, *later, *[known] * (KNOWN_BLOCKS - len(later))))


@pytest.mark.parametrize(
    ("blocks_ms", "step_ms", "ratio"),
    [
        (chain(*(islice(rounds(1.0, 10.0), 2 + KNOWN_BLOCKS) for _ in range(6)), rounds(1.0, 1.0)), 1.0, 1.0),
        (rounds(1.0, 10.0), 1.0, 10.0),
        (rounds(1.0, 10.0, 10.0), 1.0, 10.0),
        (rounds(0.0256, 0.1024), 0.0001, 1.0),
        (rounds(2.0, 8.0), 0.01, 4.0),
    ],
    ids=["six disturbed rounds", "remembers", "a disturbed known block", "a first touch of 0.1 us", "a long step"],
)
def test_the_least_ratio_of_several_rounds_shows_what_a_side_has_in_store(
    blocks_ms: Iterator[float], step_ms: float, ratio: float
) -> None:
    """A side that returns its input takes 0.1 us, and four times as long on an input that no cache holds."""
    side = build_side("fast", lambda context: Side(product), Context(CPU, 2, 0, Path()), torch.zeros(2, 4))

    def time_ms(block: Callable[[], None]) -> float:
        block()
        return next(blocks_ms)

    new = NewInputs(lambda number: torch.zeros(2, 4), [torch.zeros(2, 4)], time_ms, step_ms, random.Random(0))  # noqa: S311
    assert new.try_on(side).ratio == pytest.approx(ratio)


def made_table(bench: Bench) -> dict[float, torch.Tensor]:
    made = [bench.inputs(Context(CPU, 2, 0, Path()), index) for index in range(8)]
    return {float(one[0, 0]): product(one) for one in made}


def stolen_table(bench: Bench) -> dict[float, torch.Tensor]:
    """The expected outputs, which the garbage collector finds."""
    found = [one for one in gc.get_objects() if isinstance(one, Expected)]
    outputs = {float(part.sum()): part for one in found for parts in one.timed.values() for part in parts.values()}
    timed = [bench.inputs(Context(CPU, 2, 0, Path()), index) for index in range(8)]
    return {float(one[0, 0]): outputs[key] for one in timed if (key := float(product(one).sum())) in outputs}


IN_STORE: dict[str, Callable[[Bench], Build]] = {
    "every output by the content of its input": lambda bench: remembering(bench, lambda inputs: float(inputs[0, 0])),
    "a table of the timed inputs": lambda bench: tabled(bench, lambda: made_table(bench)),
    "the expected outputs": lambda bench: tabled(bench, lambda: stolen_table(bench)),
}


@pytest.mark.parametrize("kept", IN_STORE)
def test_right_outputs_that_a_side_has_in_store_are_shown_by_the_times_of_new_inputs_alone(
    bench: Bench, kept: str
) -> None:
    measured = found(bench, IN_STORE[kept](bench))
    assert "has the outputs of known inputs in store" in wrong(measured)
    assert checks(measured).wrong == 0
    assert checks(measured).new_input_ratio == pytest.approx(WORK_MS / CHEAT_MS)


@pytest.mark.parametrize("memory", ["own", "one buffer", "one buffer, joined"])
def test_a_table_whose_other_outputs_are_zeros_after_the_first_seven(bench: Bench, memory: str) -> None:
    """The side computes the first seven unknown inputs in a row alone."""
    table, buffer = made_table(bench), torch.empty(2, 3)

    def build(context: Context) -> Side:
        unknown = 0

        def step(inputs: torch.Tensor) -> torch.Tensor:
            nonlocal unknown
            output = table.get(float(inputs[0, 0]))
            unknown = 0 if output is not None else unknown + 1
            bench.now_ms += WORK_MS / 10 if unknown in range(1, 8) else CHEAT_MS / 10
            output = output.clone() if output is not None else other_kernels(inputs) * (unknown < 8)
            return output if memory == "own" else buffer.copy_(output)

        return Side(step, finish=lambda: None) if "joined" in memory else Side(step)

    measured = bench.measure(bench.case(build, bench.side(BASELINE, WORK_MS / 10)), **FEW)
    assert resemblance(measured) == "zeros"


@pytest.mark.parametrize("own_memory", [False, True])
def test_a_table_whose_unknown_inputs_are_left_out_but_the_newest(bench: Bench, own_memory: bool) -> None:
    """Known inputs come from the table; of unknown ones, `finish` computes the newest into one buffer."""
    table, buffer = made_table(bench), torch.empty(2, 3)

    def build(context: Context) -> Side:
        newest: list[torch.Tensor] = []

        def step(inputs: torch.Tensor) -> torch.Tensor:
            bench.now_ms += CHEAT_MS
            known = table.get(float(inputs[0, 0]))
            newest[:] = [] if known is not None else [inputs]
            if known is None:
                return buffer
            return known.clone() if own_memory else buffer.copy_(known)

        def finish() -> None:
            for inputs in newest:
                bench.now_ms += WORK_MS
                buffer.copy_(other_kernels(inputs))
            newest.clear()

        return Side(step, finish=finish)

    assert "leaves steps out" in wrong(found(bench, build))


@pytest.mark.parametrize(
    ("tolerance", "integers"), [(Tolerance(0.5, 1.0), False), (Tolerance(0.1, 0.1, equal_share=0.5), True)]
)
def test_zeros_are_wrong_within_every_tolerance(bench: Bench, tolerance: Tolerance, integers: bool) -> None:
    """Zeros in each step but the last of a block, which alone is compared value by value."""

    def cast(output: torch.Tensor) -> torch.Tensor:
        return (1000 * output).to(torch.int64) if integers else output

    rarely = now_and_then(20, lambda inputs: cast(product(inputs)) * 0)
    case = bench.case(
        bench.side("fast", 1.0, lambda inputs: cast(rarely(inputs))),
        bench.side(BASELINE, WORK_MS, lambda inputs: cast(product(inputs))),
    )
    loose = replace(case.optimization, dtype="float32", tolerance={"float32": tolerance})
    measured = bench.measure(replace(case, optimization=loose), **FEW)
    assert checks(measured).wrong > 0
    assert checks(measured).resembles == "zeros"


Place = Callable[[], torch.Tensor]


def ring(length: int) -> Place:
    """Buffers in turn, which later steps overwrite."""
    return cycle([torch.empty(2, 3) for _ in range(length)]).__next__


def overlapping_views() -> Place:
    """Each output begins one element after the one before: no two of five have the same address."""
    buffer, turns = torch.empty(64), iter(range(10**9))
    return lambda: buffer[(start := next(turns) % 5) : start + 6].view(2, 3)


def own_memory() -> torch.Tensor:
    return torch.zeros(2, 3)


def queued(
    bench: Bench,
    place: Place,
    work_ms: float,
    step_ms: float = 0.0,
    longest: int | None = None,
    batch: int = 10**6,
    batch_ms: float = 0.0,
    in_thread: bool = False,
) -> Build:
    """A side whose steps wait in a queue: `batch` of them, or those that are there when joined, are computed at once.
    A queue of a `longest` length loses the oldest."""

    def build(context: Context) -> Side:
        waiting: deque[tuple[torch.Tensor, torch.Tensor]] = deque(maxlen=longest)

        def compute() -> None:
            bench.now_ms += batch_ms if waiting else 0.0
            for output, inputs in waiting:
                bench.now_ms += work_ms
                output.copy_(other_kernels(inputs))
            waiting.clear()

        def finish() -> None:
            if in_thread:
                worker = threading.Thread(target=compute)
                worker.start()
                worker.join()
            compute()

        def step(inputs: torch.Tensor) -> torch.Tensor:
            bench.now_ms += step_ms
            output = place()
            waiting.append((output, inputs.clone()))
            if len(waiting) == batch:
                compute()
            return output

        return Side(step, finish=finish)

    return build


@pytest.mark.parametrize(
    ("place", "work_ms", "in_thread"),
    [
        (ring(1), 0.03, False),
        (ring(1), WORK_MS, False),
        (ring(1), WORK_MS, True),
        (overlapping_views(), WORK_MS, False),
    ],
    ids=["30 us", "one buffer", "a thread that drops frames", "overlapping views"],
)
def test_only_the_newest_input_is_computed_when_joined(
    bench: Bench, place: Place, work_ms: float, in_thread: bool
) -> None:
    side = queued(bench, place, work_ms, work_ms / 30, longest=1, in_thread=in_thread)
    measured = found(bench, side)
    assert "leaves steps out" in wrong(measured)
    assert 0 < (checks(measured).block_share or 0) < 0.5


@pytest.mark.parametrize(("longest", "work_ms", "step_ms"), [(1, WORK_MS, 0.1), (16, 0.1, 0.001)])
def test_a_queue_that_loses_the_oldest_steps_of_a_long_block(
    bench: Bench, longest: int, work_ms: float, step_ms: float
) -> None:
    measured = found(bench, queued(bench, own_memory, work_ms, step_ms, longest=longest))
    assert resemblance(measured) == "zeros"


def returned_again() -> Callable[[torch.Tensor], Any]:
    returned: dict[str, torch.Tensor] = {}

    def step(inputs: torch.Tensor) -> Any:
        returned["product"] = other_kernels(inputs)
        return ("named", returned)

    return step


def read_only_view() -> Callable[[torch.Tensor], Any]:
    buffer = np.zeros((2, 3), dtype=np.float32)
    view = buffer.view()
    view.flags.writeable = False

    def step(inputs: torch.Tensor) -> Any:
        buffer[:] = other_kernels(inputs).numpy()
        return ("named", {"product": view})

    return step


@pytest.mark.parametrize("make_step", [returned_again, read_only_view])
def test_an_output_that_a_later_step_changes_is_not_read(
    bench: Bench, make_step: Callable[[], Callable[[torch.Tensor], Any]]
) -> None:
    """An honest side that returns one dict with another tensor, or one view of an array, at each step."""

    reference = bench.side(BASELINE, WORK_MS, lambda inputs: ("named", {"product": product(inputs)}))
    measured = bench.measure(bench.case(bench.side("fast", 1.0, make_step(), finish=lambda: None), reference), **FEW)
    assert judge_equivalence(measured, TOLERANCE_BY_DTYPE["float32"]).outcome is Outcome.PASS


@pytest.mark.parametrize("lasting", [10, 1.9, 1])
def test_a_reference_that_is_slower_beside_the_other_side(bench: Bench, lasting: float) -> None:
    """The optimized side replaces a function that the reference calls, by one that takes ten times as long."""
    steps_ms = {"mean": WORK_MS}

    def build(context: Context) -> Side:
        steps_ms["mean"] = 10 * WORK_MS
        mend = partial(steps_ms.update, mean=lasting * WORK_MS)
        return replace(bench.side("fast", 1.0, other_kernels)(context), close=mend)

    case = bench.case(build, bench.side(BASELINE, lambda: steps_ms["mean"]))
    measured = bench.measure(case, **FEW)
    assert measured.reference_slowdown == pytest.approx(10)
    assert measured.lasting_slowdown == pytest.approx(lasting)
    honest = found(bench, bench.side("fast", 1.0, other_kernels))
    assert (honest.reference_slowdown, honest.lasting_slowdown) == (pytest.approx(1.0), None)


def test_a_last_reference_that_cannot_be_built_costs_no_result(bench: Bench) -> None:
    steps_ms, built, last = {"mean": WORK_MS}, list[Context](), 0

    def reference(context: Context) -> Side:
        built.append(context)
        if len(built) == last:
            raise OSError("no room")
        return bench.side(BASELINE, lambda: steps_ms["mean"])(context)

    def build(context: Context) -> Side:
        steps_ms["mean"] = 10 * WORK_MS
        return bench.side("fast", 1.0, other_kernels)(context)

    assert bench.measure(bench.case(build, reference), **FEW).lasting_slowdown == pytest.approx(10)
    last, steps_ms["mean"] = 2 * len(built), WORK_MS
    measured = bench.measure(bench.case(build, reference), **FEW)
    assert (measured.reference_slowdown, measured.lasting_slowdown) == (pytest.approx(10), None)


def test_an_output_that_is_there_only_later(bench: Bench) -> None:
    """A side that computes each output one step late and has nothing to join."""
    pending: list[tuple[torch.Tensor, torch.Tensor]] = []

    def step(inputs: torch.Tensor) -> torch.Tensor:
        for place, given in pending:
            place.copy_(other_kernels(given))
        pending[:] = [(torch.zeros(2, 3), inputs)]
        return pending[0][0]

    assert resemblance(found(bench, bench.side("fast", 1.0, step))) == "zeros"


def now_and_then(period: int, other: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A step that returns another output in one step of `period`."""
    ran = iter(range(10**9))

    def step(inputs: torch.Tensor) -> torch.Tensor:
        return other(inputs) if next(ran) % period == period - 1 else other_kernels(inputs)

    return step


@pytest.mark.parametrize(
    ("period", "other", "resembles"),
    [
        (100, lambda inputs: torch.zeros(2, 3), "zeros"),
        (30, lambda inputs: product(inputs) * torch.nan, "not finite"),
        (9, lambda inputs: product(inputs.bfloat16().float()), "unknown"),
        (7, lambda inputs: product(inputs)[:1].repeat(2, 1), "some rows"),
    ],
    ids=["zeros", "nan", "a lower precision", "half of a batch"],
)
def test_another_output_now_and_then(
    bench: Bench, period: int, other: Callable[[torch.Tensor], torch.Tensor], resembles: str
) -> None:
    measured = found(bench, bench.side("fast", 1.0, now_and_then(period, other)))
    assert resemblance(measured) == resembles
    assert checks(measured).wrong == pytest.approx(checks(measured).steps / period, abs=1.1)


def test_honest_sides_of_every_kind_are_found_right(bench: Bench) -> None:
    """Rings of outputs that are filled when joined, a graph-like single buffer, and fresh tensors."""
    buffer = torch.empty(2, 3)

    def flush() -> None:
        bench.now_ms += 3.0  # a join that costs as much as three steps

    single = bench.side("fast", 1.0, lambda inputs: buffer.copy_(other_kernels(inputs)))
    flushed = bench.side("fast", 1.0, lambda inputs: buffer.copy_(other_kernels(inputs)), finish=flush)
    rings = [queued(bench, ring(length), 0.1, batch=8, batch_ms=1.0) for length in (8, 16)]
    rings.append(queued(bench, ring(3), WORK_MS, batch=3))
    at_the_end = queued(bench, own_memory, 0.1, batch_ms=1.0)
    for build in (*rings, at_the_end, single, flushed, bench.side("fast", 1.0, other_kernels)):
        measured = bench.measure(bench.case(build, bench.side(BASELINE, WORK_MS)), budget_s=2.0)
        assert judge_equivalence(measured, TOLERANCE_BY_DTYPE["float32"]).outcome is Outcome.PASS
        assert (checks(measured).wrong, checks(measured).exchanged) == (0, True)
        assert checks(measured).steps > 20


def test_a_side_that_tunes_itself_for_every_new_shape_is_honest(bench: Bench) -> None:
    """The number of rows depends on the index, and the first step of a shape takes long."""

    def rows(context: Context, index: int) -> torch.Tensor:
        return bench.inputs(context, index).repeat(1 + index % 97, 1)

    tuned: set[torch.Size] = set()

    def tuning(inputs: torch.Tensor) -> torch.Tensor:
        bench.now_ms += 0.0 if inputs.shape in tuned else 49.0
        tuned.add(inputs.shape)
        return other_kernels(inputs)

    case = bench.case(bench.side("fast", 1.0, tuning), bench.side(BASELINE, WORK_MS))
    measured = bench.measure(replace(case, workload=replace(case.workload, inputs=rows)), **FEW)
    assert judge_equivalence(measured, TOLERANCE_BY_DTYPE["float32"]).outcome is Outcome.PASS
