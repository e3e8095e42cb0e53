"""Whole measurements of the inputs and outputs that programs have: of many shapes, written to, of several parts."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gpugate.errors import SideError
from gpugate.measurement import cold_inputs, outputs
from gpugate.measurement.record import Measurement
from gpugate.measurement.step_checks import compare_new
from gpugate.results.verdict import Outcome, Verdict
from gpugate.workload import BASELINE, TOLERANCE_BY_DTYPE, Case, Context, Side, Tolerance
from gpugate.workload.parts import output_parts
from tests.support.bench import Bench, bench, other_kernels, product, quick_collections
from tests.support.judged_cases import judge_equivalence

__all__ = ["bench", "quick_collections"]  # fixtures
FLOAT32 = TOLERANCE_BY_DTYPE["float32"]
FEW = {"budget_s": 0.5}


@pytest.fixture(autouse=True)
def few_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_inputs, "MAX_SETS", 64)


def case_of(bench: Bench, optimized: Callable[[Any], Any], baseline: Callable[[Any], Any], **workload: Any) -> Case:
    """A case whose steps take 1 and 3 ms on the made-up clock."""
    case = bench.case(bench.side("fast", 1.0, optimized), bench.side(BASELINE, 3.0, baseline))
    return replace(case, workload=replace(case.workload, **workload))


def judged(measured: Measurement, tolerance: Tolerance = FLOAT32) -> Verdict:
    return judge_equivalence(measured, tolerance)


def rows(bench: Bench) -> Callable[[Context, int], torch.Tensor]:
    return lambda context, index: bench.inputs(context, index).repeat(1 + index % 7, 1)


def lengths(bench: Bench) -> Callable[[Context, int], tuple[torch.Tensor, torch.Tensor]]:
    """A tensor of one shape, of which a second tensor says how many rows count."""
    return lambda context, index: (bench.inputs(context, index).repeat(7, 1), torch.tensor(1 + index % 7))


@pytest.mark.parametrize(("inputs", "side_that_tunes"), [(rows, "fast"), (lengths, BASELINE)])
def test_every_shape_is_seen_before_it_is_timed_and_counts_as_start_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, side_that_tunes: str, inputs: Any
) -> None:
    """One side takes 1 s at the first sight of a shape, as a compiler does; all else is alike."""
    monkeypatch.setattr(cold_inputs, "most_cached_bytes", lambda device: 1024)

    def tuning(name: str, step_ms: float) -> Callable[[Context], Side]:
        def build(context: Context) -> Side:
            known: set[int] = set()

            def step(given: Any) -> torch.Tensor:
                whole, length = given if isinstance(given, tuple) else (given, len(given))
                bench.now_ms += step_ms if int(length) in known or name != side_that_tunes else 1000.0 + step_ms
                known.add(int(length))
                return other_kernels(whole) if name == "fast" else product(whole)

            return Side(step)

        return build

    case = bench.case(tuning("fast", 1.0), tuning(BASELINE, 3.0))
    case = replace(case, workload=replace(case.workload, inputs=inputs(bench), cold=True))
    measured = bench.measure(case, budget_s=10.0)
    assert {round(pair.reference_ms / pair.optimized_ms, 6) for pair in measured.pairs} == {3.0}
    costs = {"fast": measured.optimized_cost, BASELINE: measured.reference_cost}
    sights_s = {name: cost.first_sights_s for name, cost in costs.items()}
    # Of seven shapes one was in the first step, and at most three in the comparison of fresh outputs.
    assert 3.0 <= round(sights_s[side_that_tunes], 3) <= 6.0
    assert sum(sights_s.values()) == pytest.approx(sights_s[side_that_tunes])
    assert costs[side_that_tunes].compile_s == pytest.approx(1.0 + sights_s[side_that_tunes], abs=0.01)


def test_the_outputs_of_tiny_inputs_are_expected_for_as_many_sets_as_fit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "EXPECTED_BYTES", 5 * 2 * 3 * 4)
    measured = bench.measure(case_of(bench, other_kernels, product, cold=True), **FEW)
    assert judged(measured).outcome is Outcome.PASS
    assert measured.step_checks is not None
    assert measured.step_checks.steps > 20
    assert [one.when for one in measured.differences][3:] == ["timed steps"] * len(measured.instances)
    wrong = bench.measure(case_of(bench, lambda inputs: product(inputs) + 1, product, cold=True), **FEW)
    assert wrong.step_checks is not None
    assert wrong.step_checks.resembles == "unknown", "the output for the input before is not expected"


@pytest.mark.parametrize(("budget_s", "sets"), [(2.0, 3), (0.1, 2)])
def test_expected_outputs_take_half_of_the_budget_and_are_at_least_two(
    bench: Bench, budget_s: float, sets: int
) -> None:
    """A baseline's step of 0.4 s: the first one, three fresh sets and one of them again, then timed sets."""

    def slow(inputs: torch.Tensor) -> torch.Tensor:
        bench.log.append("step")
        return product(inputs)

    case = bench.case(bench.side("fast", 1.0, other_kernels), bench.side(BASELINE, 400.0, slow))
    measured = bench.measure(replace(case, workload=replace(case.workload, cold=True)), budget_s=budget_s)
    assert bench.log[: bench.log.index(f"close {BASELINE}")] == [f"build {BASELINE}", *["step"] * (1 + 3 + 1 + sets)]
    assert judged(measured).outcome is Outcome.PASS


@dataclass
class Batch:
    pixels: torch.Tensor
    weight: float = 2.0


def test_inputs_in_objects_change_places_and_a_write_to_one_names_it(bench: Bench) -> None:
    kept: dict[int, torch.Tensor] = {}

    def remembering(batch: Batch) -> torch.Tensor:
        return kept.setdefault(batch.pixels.data_ptr(), other_kernels(batch.pixels).clone())

    def batches(context: Context, index: int) -> Batch:
        return Batch(bench.inputs(context, index))

    measured = bench.measure(case_of(bench, remembering, lambda batch: product(batch.pixels), inputs=batches), **FEW)
    assert measured.step_checks is not None
    assert (measured.step_checks.resembles, measured.step_checks.exchanged) == ("other input", True)
    writing = case_of(bench, remembering, lambda batch: product(torch.relu_(batch.pixels)), inputs=batches)
    words = r"baseline failed while running its steps: ValueError: it wrote to .*\(pixels\)"
    with pytest.raises(SideError, match=words):
        bench.measure(writing, **FEW)


def test_inputs_that_can_be_read_only_once_are_refused(bench: Bench) -> None:
    words = r"inputs\(context, 0\) returned a generator in rows, which can be read only once"
    with pytest.raises(SideError, match=words):
        bench.measure(case_of(bench, product, product, inputs=lambda *given: {"rows": (part for part in range(4))}))


Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def add_to_residual(inputs: Triple) -> torch.Tensor:
    x, residual, mask = inputs
    residual.add_(x * mask)
    return x.copy_(residual / residual.square().mean().sqrt())


def triple(bench: Bench) -> Callable[[Context, int], Triple]:
    """An input, a residual that is written to, and an expanded mask, which torch cannot write to."""
    return lambda context, index: (
        bench.inputs(context, index),
        bench.inputs(context, index + 500),
        torch.ones(1, 1).expand(2, 4),
    )


def test_steps_that_write_to_their_inputs_begin_with_the_same_contents(bench: Bench) -> None:
    """A step takes ten times as long on contents that no step has written yet, as sorting in place does."""
    drawn = {float(bench.inputs(Context(torch.device("cpu"), 2, 0, None), index + 500)[0, 0]) for index in range(1024)}  # type: ignore[arg-type]
    begins: list[float] = []

    def fast(inputs: Triple) -> torch.Tensor:
        begins.append(float(inputs[1][0, 0]))
        bench.now_ms += 9.0 if begins[-1] in drawn else 0.0
        return add_to_residual(inputs)

    case = case_of(bench, fast, add_to_residual, inputs=triple(bench), writes_inputs=True)
    measured = bench.measure(case, **FEW)
    assert judged(measured).outcome is Outcome.PASS
    assert {one.part for one in measured.differences} == {"", "input[0]", "input[1]", "input[2]"}
    timed = [one for one in begins if one in drawn]
    assert len(timed) > 0.9 * len(begins), "only steps that are not timed read what a step before wrote"


def test_what_a_step_writes_to_its_inputs_is_compared(bench: Bench) -> None:
    def without_residual(inputs: Triple) -> torch.Tensor:
        return add_to_residual((inputs[0], inputs[1].clone(), inputs[2]))

    case = case_of(bench, without_residual, add_to_residual, inputs=triple(bench), writes_inputs=True)
    verdict = judged(bench.measure(case, **FEW))
    assert (verdict.outcome, verdict.reasons[0].facts["when"]) == (Outcome.WRONG, "input[1] of fresh inputs")


def test_a_step_that_replaces_a_tensor_of_its_input_is_refused(bench: Bench) -> None:
    def growing(given: list[torch.Tensor]) -> torch.Tensor:
        given.append(product(given[0]))
        return given[-1]

    case = case_of(
        bench, growing, growing, inputs=lambda context, index: [bench.inputs(context, index)], writes_inputs=True
    )
    with pytest.raises(SideError, match="inputs failed while being restored: ValueError: a step added, removed or rep"):
        bench.measure(case, **FEW)


MASK = torch.tensor([[True, False, False], [False, False, True]])


def masked(inputs: torch.Tensor) -> torch.Tensor:
    return product(inputs).masked_fill(MASK, -math.inf)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (lambda x: {"a": product(x), "b": product(x)}, lambda x: {"a": product(x), "b": product(x) + 1}),
        (lambda x: (1e9 * product(x)).long(), lambda x: (1e9 * product(x)).long() + MASK),
        (lambda x: torch.complex(product(x), product(x)), lambda x: torch.complex(product(x), 1.001 * product(x))),
        (masked, lambda x: product(x).masked_fill(MASK.roll(1), -math.inf)),
        (masked, lambda x: masked(x) * 1.001),
        (lambda x: product(x).to(torch.float8_e5m2), lambda x: (1.5 * product(x)).to(torch.float8_e5m2)),
    ],
    ids=["a part", "an integer", "an imaginary part", "a place of infinity", "beside infinity", "fp8"],
)
def test_the_wrong_step_of_eleven_is_found_in_outputs_of_every_kind(bench: Bench, right: Any, wrong: Any) -> None:
    given = [bench.inputs(Context(torch.device("cpu"), 2, 0, Path()), number) for number in range(11)]
    pairs = [
        (output_parts((wrong if number == 7 else right)(x)), output_parts(right(x))) for number, x in enumerate(given)
    ]
    found = compare_new(pairs, FLOAT32)
    assert (found.steps, found.wrong, found.first_wrong) == (11, 1, 8)
