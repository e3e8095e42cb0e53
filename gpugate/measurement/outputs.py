"""Outputs of the baseline, computed before any optimization is built, and the comparison of other outputs with them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch

from gpugate.errors import SideError
from gpugate.measurement.both_sides import BothSides
from gpugate.measurement.cold_inputs import Inputs, check_untouched
from gpugate.measurement.difference import difference, problem_with
from gpugate.measurement.record import Difference, Mismatch
from gpugate.measurement.sides import BuiltSide, build_side, release
from gpugate.workload import BASELINE, Case, Context, no_engagement_problem

SAME_BASELINE_L2 = 1e-4  # two builds of the baseline may pick other algorithms, never another model


@dataclass(frozen=True)
class Expected:
    """The baseline's output for every input set, on the host."""

    fresh: Sequence[torch.Tensor]
    timed: Sequence[torch.Tensor]


def expected_outputs(case: Case, context: Context, inputs: Inputs) -> Expected:
    """Builds a baseline, computes its output for every input set, and closes it. Raises SideError as `outputs_of`."""
    with closing(build_side(BASELINE, case.workload.baseline, context, inputs.fresh[0])) as baseline:
        found = outputs_of(baseline, inputs, inputs.timed)
    del baseline
    release(context.device)
    return found


def outputs_of(baseline: BuiltSide, inputs: Inputs, timed: Sequence[Any] = ()) -> Expected:
    """Computes the outputs of a live baseline for the fresh inputs and the sets `timed`.

    Raises SideError when the baseline writes to its inputs, returns an output that cannot be compared, or returns
    another output for the same input.
    """
    groups = inputs.fresh, timed, inputs.fresh[:1]
    of_fresh, of_timed, (again,) = [[_baseline_output(baseline, one) for one in group] for group in groups]
    check_untouched(inputs, BASELINE)
    problem = repeat_problem(again, of_fresh[0], SAME_BASELINE_L2)
    if problem is not None:
        raise SideError(BASELINE, "computing an output", ValueError(problem))
    return Expected(of_fresh, of_timed)


def repeat_problem(again: torch.Tensor, before: torch.Tensor, tolerated: float) -> str | None:
    """Returns why a side cannot be compared whose two outputs for one input differ; None where they agree."""
    off = difference(again, before, "fresh inputs").relative_l2
    if off <= tolerated:
        return None
    return (
        f"it gives another output for the same input (relative L2 error {off:.2g} from call to call): a step's output "
        "must depend on its input alone, and not on an iterator, random numbers or weights that the step trains"
    )


def hidden_state_problem(optimized: BuiltSide, inputs: Inputs, tolerated: float) -> str | None:
    """Calls `repeat_problem` for a side with a wrong output; None where the output is wrong in the same way every time.

    The first of three outputs does not count: a side that returns the output of the step before has no state of this
    kind.
    """
    _, before, again = (optimized.output_for(inputs.fresh[-1]) for _ in range(3))
    return None if problem_with(again, before) else repeat_problem(again, before, tolerated)


def _baseline_output(baseline: BuiltSide, inputs: Any) -> torch.Tensor:
    output = baseline.output_for(inputs, expected=True)
    problem = problem_with(output, output)
    if problem is not None:
        raise SideError(BASELINE, "computing an output", ValueError(problem))
    return output.cpu()


def check_baseline_unchanged(case: Case, context: Context, inputs: Inputs, expected: Expected) -> None:
    """Raises SideError unless a baseline built now gives the same output as before the optimization was built."""
    with closing(build_side(BASELINE, case.workload.baseline, context, inputs.fresh[0])) as baseline:
        again = _baseline_output(baseline, inputs.fresh[0])
    del baseline
    release(context.device)
    _check_same(case, again, expected)


def check_same_baseline(case: Case, baseline: BuiltSide, inputs: Inputs, expected: Expected) -> None:
    """Checks like `check_baseline_unchanged`, with a live baseline that was built after the optimization."""
    _check_same(case, _baseline_output(baseline, inputs.fresh[0]), expected)


def _check_same(case: Case, output: torch.Tensor, expected: Expected) -> None:
    if not difference(output, expected.fresh[0], "fresh inputs").relative_l2 <= SAME_BASELINE_L2:
        problem = ValueError("the baseline gives other outputs since then: build from a copy of the model")
        raise SideError(case.optimization.name, "being measured", problem)


def compare_fresh(both: BothSides, inputs: Inputs, expected: Expected) -> tuple[list[Difference], bool]:
    """Computes the differences for inputs that no earlier session used, and compares the bits of both sides.

    Bits are compared only for an optimized side without `Side.engaged`, which may do the same work as the reference;
    else the second value is False.
    """
    optimized = [both.optimized.output_for(one) for one in inputs.fresh]
    check_untouched(inputs, both.optimized.name)
    found = [
        difference(output, before, "fresh inputs") for output, before in zip(optimized, expected.fresh, strict=True)
    ]
    if both.optimized.side.engaged is not no_engagement_problem:
        return found, False
    # Outputs are computed one by one, up to the first that differs: long steps are dear.
    theirs = (both.reference.output_for(one) for one in inputs.fresh)
    same_bits = all(map(_same_bits, optimized, theirs))
    check_untouched(inputs, both.reference.name)
    return found, same_bits


def mismatch(optimized: BuiltSide, inputs: Inputs, expected: Expected) -> Mismatch:
    """Compares the last fresh output with the output of the step before, and row by row."""
    *_, before, last = expected.fresh
    *_, output = (optimized.output_for(one) for one in inputs.fresh[-2:])
    if problem_with(output, last) is not None:
        return Mismatch(None, None)
    off = difference(output, before, "fresh inputs").relative_l2
    return Mismatch(off if math.isfinite(off) else None, _rows_right(output.detach().cpu(), last))


def _rows_right(output: torch.Tensor, expected: torch.Tensor) -> float | None:
    """Computes the share of rows that are ten times closer than the whole; None for an output of a single row."""
    if output.dim() == 0 or len(output) < 2:
        return None
    out, ref = output.double(), expected.double()
    error, norm = (one.reshape(len(one), -1).norm(dim=1) for one in (out - ref, ref))
    return float((error * norm.norm() < 0.1 * error.norm() * norm).double().mean())


def compare_timed(
    optimized: BuiltSide,
    inputs: Inputs,
    expected: Expected,
    time_ms: Callable[[Callable[[], None]], float],
    draw: random.Random,
) -> Difference:
    """Runs a timed block that ends after a random step, and compares that step's output with the baseline's.

    The time is no sample. The side cannot distinguish this block from any other.
    """
    optimized.timed_block(inputs.timed, time_ms, steps=draw.randint(1, optimized.steps_per_block))
    content = inputs.content_of(optimized.last_input)
    return difference(optimized.last_output, expected.timed[content], "timed steps")


def _same_bits(ours: Any, theirs: object) -> bool:
    return isinstance(theirs, torch.Tensor) and problem_with(ours, theirs) is None and torch.equal(ours, theirs)
