"""Inputs and outputs that programs have, measured on a GPU: written to, of several parts and types, of many shapes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gpugate.measurement.progress import silent
from gpugate.measurement.record import Measurement
from gpugate.measurement.run import measure
from gpugate.measurement.settings import Settings
from gpugate.results.verdict import Outcome
from gpugate.workload import TOLERANCE_BY_DTYPE, Case, Context, DeviceKind, Optimization, Side, Size, Workload
from tests.support.judged_cases import judge_equivalence

ROWS, COLUMNS = 512, 1024
Step = Callable[[Any], Any]


def drawn(context: Context, index: int, rows: int = ROWS) -> torch.Tensor:
    return torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(index)).to(context.device)


def measured(baseline: Step, fast: Step, inputs: Callable[[Context, int], Any], **more: Any) -> Measurement:
    optimization = Optimization("fast", lambda context: Side(fast), {"cuda": 0.01}, dtype="bfloat16")
    size: dict[DeviceKind, Size] = {"cuda": Size(ROWS, 1e6, 1e6)}
    workload = Workload("parts", lambda context: Side(baseline), inputs, size, (optimization,), **more)
    torch.cuda.set_device(0)
    context = Context(torch.device("cuda", 0), ROWS, 0, None)  # type: ignore[arg-type]  # no side looks for a cache
    return measure(Case(workload, optimization, "cuda"), context, Settings(budget_s=1.0), silent)


def outcome(found: Measurement) -> Outcome:
    return judge_equivalence(found, TOLERANCE_BY_DTYPE["bfloat16"]).outcome


def pair(context: Context, index: int) -> dict[str, torch.Tensor]:
    return {"x": drawn(context, index), "residual": drawn(context, index + 10**7)}


def normalize(given: dict[str, torch.Tensor]) -> torch.Tensor:
    x, residual = given["x"], given["residual"].add_(given["x"])
    return x.copy_(torch.nn.functional.rms_norm(residual, (COLUMNS,)))


def normalize_by_hand(given: dict[str, torch.Tensor]) -> torch.Tensor:
    x, residual = given["x"], given["residual"].add_(given["x"])
    return torch.mul(residual, residual.square().mean(1, keepdim=True).rsqrt(), out=x)


def without_residual(given: dict[str, torch.Tensor]) -> torch.Tensor:
    return given["x"].copy_(torch.nn.functional.rms_norm(given["residual"] + given["x"], (COLUMNS,)))


@pytest.mark.parametrize(("fast", "wanted"), [(normalize_by_hand, Outcome.PASS), (without_residual, Outcome.WRONG)])
def test_a_step_that_writes_to_its_inputs(fast: Step, wanted: Outcome) -> None:
    found = measured(normalize, fast, pair, writes_inputs=True)
    assert outcome(found) is wanted
    assert {one.part for one in found.differences} == {"", "input.x", "input.residual"}


def test_an_output_on_the_host_is_compared_with_one_on_the_device() -> None:
    found = measured(lambda x: x.cpu().square(), torch.square, drawn)
    assert outcome(found) is Outcome.PASS
    assert not found.inert, "the copy to the host is gone"


def several(x: torch.Tensor) -> dict[str, Any]:
    logits = x.masked_fill(x > 3, float("-inf"))
    return {
        "logits": logits,
        "ids": x.argmax(1),
        "small": (x.to(torch.float8_e4m3fn), None),
        "phase": torch.fft.rfft(x),
    }


def wrong_now_and_then(change: Callable[[dict[str, Any]], Any]) -> Step:
    ran = iter(range(10**9))

    def step(x: torch.Tensor) -> dict[str, Any]:
        output = several(x)
        if next(ran) % 9 == 8:
            change(output)
        return output

    return step


@pytest.mark.parametrize(
    ("fast", "wanted"),
    [
        (several, Outcome.PASS),
        (wrong_now_and_then(lambda output: output["ids"][7].add_(1)), Outcome.WRONG),
        (wrong_now_and_then(lambda output: output["phase"].imag.mul_(1.5)), Outcome.WRONG),
        (wrong_now_and_then(lambda output: output["logits"].copy_(output["logits"].roll(1, 0))), Outcome.WRONG),
    ],
    ids=["right", "an id", "an imaginary part", "places of infinity"],
)
def test_an_output_of_several_parts_and_types(fast: Step, wanted: Outcome) -> None:
    assert outcome(measured(several, fast, drawn)) is wanted


def test_shapes_are_seen_before_they_are_timed_and_the_limit_of_recompilations_is_reported() -> None:
    compiled = torch.compile(lambda x: torch.sin(x) + x, dynamic=False, backend="eager")
    found = measured(
        lambda x: torch.sin(x) + x, compiled, lambda context, index: drawn(context, index, ROWS + index % 12)
    )
    assert outcome(found) is Outcome.PASS
    assert found.optimized_cost.first_sights_s > found.reference_cost.first_sights_s
    assert found.optimized_counters["recompilations"] >= 7
    assert "compiled_graphs" in found.reference_counters
    assert found.reference_counters["compiled_graphs"] == 0
    assert "limit of recompilations" in str(found.not_engaged)
