"""Sides that do not do the work are caught by a GPU's clock, memory and streams too, and honest ones are not."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gpugate.errors import SideError
from gpugate.measurement.progress import silent
from gpugate.measurement.record import Measurement
from gpugate.measurement.run import measure
from gpugate.measurement.settings import Settings
from gpugate.measurement.sides import build_side
from gpugate.results.verdict import Outcome
from gpugate.workload import TOLERANCE_BY_DTYPE, Build, Case, Context, Optimization, Side, Size, Workload
from tests.support.judged_cases import judge_equivalence

pytestmark = pytest.mark.alone
ROWS = 2048


def inputs(context: Context, index: int) -> torch.Tensor:
    return torch.randn(ROWS, ROWS, generator=torch.Generator().manual_seed(index)).to(context.device)


def weight(context: Context) -> torch.Tensor:
    drawn = torch.randn(ROWS, ROWS, generator=torch.Generator().manual_seed(7))
    return drawn.to(context.device).div(ROWS**0.5)


def baseline(context: Context) -> Side:
    weights = weight(context)
    return Side(lambda x: x @ weights)


def remembering(key: Callable[[torch.Tensor], float]) -> Build:
    def build(context: Context) -> Side:
        weights, outputs = weight(context), dict[float, torch.Tensor]()

        def step(x: torch.Tensor) -> torch.Tensor:
            known = key(x)
            if known not in outputs:
                outputs[known] = x @ weights
            return outputs[known]

        return Side(step)

    return build


def newest_alone(context: Context) -> Side:
    weights, buffer, newest = weight(context), torch.empty(ROWS, ROWS, device=context.device), list[torch.Tensor]()

    def step(x: torch.Tensor) -> torch.Tensor:
        newest[:] = [x]
        return buffer

    def finish() -> None:
        for x in newest:
            torch.mm(x, weights, out=buffer)
        newest.clear()
        torch.cuda.synchronize(context.device)

    return Side(step, finish=finish)


def queued(context: Context) -> Side:
    """An honest one: each step has an output of its own, and `finish` computes them all."""
    weights, waiting = weight(context), list[tuple[torch.Tensor, torch.Tensor]]()

    def step(x: torch.Tensor) -> torch.Tensor:
        waiting.append((torch.empty_like(x), x))
        return waiting[-1][0]

    def finish() -> None:
        for output, x in waiting:
            torch.mm(x, weights, out=output)
        waiting.clear()

    return Side(step, finish=finish)


def unjoined(context: Context) -> Side:
    """A side that computes on a stream of its own, which it never joins."""
    weights, stream = weight(context), torch.cuda.Stream(context.device)

    def step(x: torch.Tensor) -> torch.Tensor:
        output = torch.zeros_like(x)
        stream.wait_stream(torch.cuda.current_stream(context.device))
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000)
            torch.mm(x, weights, out=output)
        return output

    return Side(step)


def graphed(context: Context) -> Side:
    """An honest one: a CUDA graph over a static input, with one output that every replay fills."""
    weights, static = weight(context), torch.empty(ROWS, ROWS, device=context.device)
    output, stream, graph = torch.empty_like(static), torch.cuda.Stream(context.device), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        torch.mm(static, weights, out=output)
    torch.cuda.synchronize(context.device)
    with torch.cuda.graph(graph, stream=stream):
        torch.mm(static, weights, out=output)

    def step(x: torch.Tensor) -> torch.Tensor:
        static.copy_(x)
        graph.replay()
        return output

    def free() -> None:
        weights.resize_(0)

    return Side(step, close=free)  # the graph does not keep its weights alive


def streamed(context: Context) -> Side:
    """An honest one: two streams in turn, joined by `finish`."""
    weights = weight(context)
    streams = [torch.cuda.Stream(context.device) for _ in range(2)]
    places = [torch.empty(ROWS, ROWS, device=context.device) for _ in streams]
    turns = iter(range(10**9))

    def step(x: torch.Tensor) -> torch.Tensor:
        turn = next(turns) % len(streams)
        streams[turn].wait_stream(torch.cuda.current_stream(context.device))
        with torch.cuda.stream(streams[turn]):
            torch.mm(x, weights, out=places[turn])
        return places[turn]

    def finish() -> None:
        for stream in streams:
            torch.cuda.current_stream(context.device).wait_stream(stream)

    return Side(step, finish=finish)


def measured(build: Build) -> Measurement:
    size = Size(ROWS, 2.0 * ROWS**3, 12.0 * ROWS**2)
    fast = Optimization("fast", build, {"cuda": 0.01})
    workload = Workload("products", baseline, inputs, {"cuda": size}, (fast,))
    device = torch.device("cuda", 0)
    torch.cuda.set_device(0)
    context = Context(device, ROWS, 0, None)  # type: ignore[arg-type]  # no side looks for a cache
    return measure(Case(workload, fast, "cuda"), context, Settings(budget_s=1.0), silent)


def find_problem(build: Build) -> str:
    """The reason why the outputs of the side are WRONG, or the error that it ends with."""
    try:
        verdict = judge_equivalence(measured(build), TOLERANCE_BY_DTYPE["float32"])
    except SideError as error:
        return str(error)
    assert verdict.outcome is Outcome.WRONG
    return verdict.reason


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (remembering(torch.Tensor.data_ptr), "another input|outputs of known inputs in store"),
        (remembering(lambda x: float(x[0, 0])), "outputs of known inputs in store"),
        (newest_alone, "the side leaves steps out"),
        (unjoined, "steps are wrong|NaN|exceeds|it wrote to its inputs"),  # in memory that another tensor has by now
    ],
    ids=["by address", "by content", "newest alone", "unjoined stream"],
)
def test_a_side_that_does_not_do_the_work_is_wrong(build: Build, words: str) -> None:
    problem = find_problem(build)
    assert any(word in problem for word in words.split("|")), problem


@pytest.mark.parametrize("build", [graphed, streamed, queued], ids=["graph", "streams", "queue"])
def test_an_honest_side_is_right(build: Build) -> None:
    found = measured(build)
    assert judge_equivalence(found, TOLERANCE_BY_DTYPE["float32"]).outcome is Outcome.PASS
    assert found.step_checks is not None
    assert found.step_checks.exchanged
    assert found.step_checks.block_share in (None, 1.0)
    assert found.reference_slowdown == pytest.approx(1.0, abs=0.3)


def test_memory_that_a_side_never_wrote_holds_no_older_output() -> None:
    context = Context(torch.device("cuda"), items=1, seed=0, cache_dir=Path())
    ones = torch.ones(ROWS, device="cuda")
    reference = build_side("baseline", lambda context: Side(torch.clone), context, ones)
    lucky = build_side("fast", lambda context: Side(torch.empty_like), context, ones)
    for _ in range(3):
        reference.output_for(ones)
        assert bool(lucky.output_for(ones)[""].isnan().all())
