"""Outputs of the baseline, computed before any optimization is built, and the comparison of other outputs with them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from gpugate.errors import SideError, SpoiledProcessError
from gpugate.measurement.cold_inputs import HOT_SETS, Inputs, check_untouched
from gpugate.measurement.difference import differences, problem_with
from gpugate.measurement.pairing import BothSides
from gpugate.measurement.record import Difference
from gpugate.measurement.sides import BuiltSide, build_side, release
from gpugate.workload import BASELINE, TOLERANCE_BY_DTYPE, Case, Context, no_engagement_problem
from gpugate.workload.parts import Parts, byte_size, bytes_of

SAME_BASELINE_L2 = 1e-4  # two builds of a baseline in FP32 may pick other algorithms, never another model
EXPECTED_BYTES, EXPECTED_SHARE = 2**28, 0.5  # of the timed sets' outputs, and of the budget to compute them


@dataclass(frozen=True)
class Expected:
    """The baseline's outputs on the host: for every fresh input set, and for timed sets by the number of the content.

    Some timed sets have none where the outputs are large or take long.
    """

    fresh: Sequence[Parts]
    timed: Mapping[int, Parts]


def expected_outputs(case: Case, context: Context, inputs: Inputs, budget_s: float, draw: random.Random) -> Expected:
    """Builds a baseline, computes its outputs for all fresh sets and for timed ones, at random and at least HOT_SETS of
    them, as many as EXPECTED_BYTES and EXPECTED_SHARE of the budget allow, and closes it.

    Raises SideError as `outputs_of`.
    """
    order = draw.sample(range(len(inputs.timed)), len(inputs.timed))
    with closing(build_side(BASELINE, case.workload.baseline, context, inputs.fresh[0], inputs.restore)) as baseline:
        fresh = outputs_of(baseline, inputs).fresh
        timed: dict[int, Parts] = {}
        held_bytes, until = 0, perf_counter() + EXPECTED_SHARE * budget_s
        for number in order:
            output = _baseline_output(baseline, inputs.timed[number])
            timed[inputs.content_of(number)] = output
            held_bytes += byte_size(output)
            if len(timed) >= HOT_SETS and (held_bytes > EXPECTED_BYTES or perf_counter() > until):
                break
        check_untouched(inputs, BASELINE)
    del baseline
    release(context.device)
    return Expected(fresh, timed)


def outputs_of(baseline: BuiltSide, inputs: Inputs) -> Expected:
    """Computes the outputs of a live baseline for the fresh inputs.

    Raises SideError when the baseline writes to its inputs, returns an output that cannot be compared, or returns
    another output for the same input.
    """
    fresh = [_baseline_output(baseline, one) for one in inputs.fresh]
    again = _baseline_output(baseline, inputs.fresh[0])
    check_untouched(inputs, BASELINE)
    problem = repeat_problem(again, fresh[0], SAME_BASELINE_L2)
    if problem is not None:
        raise SideError(BASELINE, "computing an output", ValueError(problem))
    return Expected(fresh, {})


def repeat_problem(again: Parts, before: Parts, tolerated: float) -> str | None:
    """Returns why a side cannot be compared whose two outputs for one input differ; None where they agree."""
    off = _error_of(again, before)
    if off <= tolerated:
        return None
    return (
        f"it gives another output for the same input (relative L2 error {off:.2g} from call to call): a step's output "
        "must depend on its input alone, and not on an iterator, random numbers or weights that the step trains"
    )


def _error_of(output: Parts, expected: Parts) -> float:
    """Computes the largest relative L2 error over all parts, also of parts with NaN."""
    return max(one.relative_l2 for one in differences(output, expected, "fresh inputs", nan_is_equal=True))


def hidden_state_problem(optimized: BuiltSide, inputs: Inputs, tolerated: float) -> str | None:
    """Calls `repeat_problem` for a side with a wrong output; None where the output is wrong in the same way every time.

    The first of three outputs does not count: a side that returns the output of the step before has no state of this
    kind.
    """
    _, before, again = (optimized.output_for(inputs.fresh[-1]) for _ in range(3))
    return None if problem_with(again, before, nan_is_equal=True) else repeat_problem(again, before, tolerated)


def _baseline_output(baseline: BuiltSide, inputs: Any) -> Parts:
    output = baseline.output_for(inputs, expected=True)
    problem = problem_with(output, output)
    if problem is not None:
        raise SideError(BASELINE, "computing an output", ValueError(problem))
    return {name: part.cpu() if isinstance(part, torch.Tensor) else part for name, part in output.items()}


def check_baseline_unchanged(case: Case, context: Context, inputs: Inputs, expected: Expected) -> None:
    """Raises SideError unless a baseline built now gives the same output as before the optimization was built."""
    with closing(build_side(BASELINE, case.workload.baseline, context, inputs.fresh[0], inputs.restore)) as baseline:
        check_same_baseline(case, baseline, inputs, expected)
    del baseline
    release(context.device)


def check_same_baseline(case: Case, baseline: BuiltSide, inputs: Inputs, expected: Expected) -> None:
    """Checks like `check_baseline_unchanged`, with a live baseline that was built after the optimization."""
    again = _baseline_output(baseline, inputs.fresh[0])
    error, allowed = _error_of(again, expected.fresh[0]), _same_baseline_l2(baseline, again)
    if not error <= allowed:
        off = f"the baseline's outputs are now {error:.1e} off its first ones, and {allowed:.0e} is allowed"
        problem = ValueError(f"{off}: build from a copy of the model")
        raise SpoiledProcessError(case.optimization.name, "being measured", problem)


def _same_baseline_l2(baseline: BuiltSide, output: Parts) -> float:
    """The relative L2 error that other algorithms cause, by the narrowest type of the model's weights and outputs."""
    weights = [] if baseline.side.model is None else baseline.side.model.parameters()
    types = {part.dtype for part in (*weights, *output.values()) if isinstance(part, torch.Tensor)}
    narrow = [TOLERANCE_BY_DTYPE[str(one).removeprefix("torch.")] for one in types & {torch.float16, torch.bfloat16}]
    return max((one.relative_l2 for one in narrow), default=SAME_BASELINE_L2)


def compare_fresh(both: BothSides, inputs: Inputs, expected: Expected) -> tuple[list[Difference], bool]:
    """Computes the differences for inputs that no earlier session used, and compares the bits of both sides.

    Bits are compared only for an optimized side without `Side.engaged`, which may do the same work as the reference;
    else the second value is False.
    """
    optimized = [both.optimized.output_for(one) for one in inputs.fresh]
    check_untouched(inputs, both.optimized.name)
    found = [
        difference
        for output, wanted in zip(optimized, expected.fresh, strict=True)
        for difference in differences(output, wanted, "fresh inputs")
    ]
    if both.optimized.side.engaged is not no_engagement_problem:
        return found, False
    # Outputs are computed one by one, up to the first that differs: long steps are dear.
    theirs = (both.reference.output_for(one) for one in inputs.fresh)
    same_bits = all(map(_same_bits, optimized, theirs))
    check_untouched(inputs, both.reference.name)
    return found, same_bits


def compare_timed(
    optimized: BuiltSide,
    inputs: Inputs,
    expected: Expected,
    time_ms: Callable[[Callable[[], None]], float],
    draw: random.Random,
) -> list[Difference]:
    """Runs a timed block that ends after a random step, and compares that step's output with the baseline's.

    The time is no sample. The side cannot distinguish this block from any other, unless none of its steps reads a set
    whose output is expected: the block is longer then.
    """
    count, most = len(inputs.timed), optimized.steps_per_block
    first = optimized.next_input + optimized.side.stock_steps
    ends = [
        steps for steps in range(1, most + count) if inputs.content_of((first + steps - 1) % count) in expected.timed
    ]
    fitting = [steps for steps in ends if steps <= most]
    optimized.timed_block(inputs.timed, time_ms, steps=draw.choice(fitting) if fitting else ends[0])
    last = optimized.last_input
    output = optimized.parts_of(optimized.last_output, inputs.timed[last])
    return differences(output, expected.timed[inputs.content_of(last)], "timed steps")


def _same_bits(ours: Parts, theirs: Parts) -> bool:
    if problem_with(ours, theirs, nan_is_equal=True) is not None:
        return False
    tensors = [(part, theirs[name]) for name, part in ours.items() if isinstance(part, torch.Tensor)]
    return all(torch.equal(bytes_of(part), bytes_of(other).to(part.device)) for part, other in tensors)
