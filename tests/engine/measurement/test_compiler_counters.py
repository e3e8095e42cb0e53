"""The counts of torch.compile, by side and build, and torch's limit of recompilations."""

from collections.abc import Iterator

import pytest
import torch
import torch._dynamo
from torch import Tensor

from gpugate.measurement.host_counters import CompilerCounters


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def double(inputs: Tensor) -> Tensor:
    return inputs.sin() * 2


def broken(inputs: Tensor) -> Tensor:
    inputs = inputs.sin()
    torch._dynamo.graph_break()
    return inputs.cos()


def looping(inputs: Tensor) -> Tensor:
    for _ in range(2):
        inputs = inputs.sin()
        torch._dynamo.graph_break()
    return inputs


def fail(graph: object, inputs: object) -> None:
    raise RuntimeError("this backend compiles nothing")


def run(function: object, *lengths: int, backend: object = "eager") -> None:
    compiled = torch.compile(function, backend=backend, dynamic=False)  # type: ignore[call-overload]
    for length in lengths:
        compiled(torch.ones(length))


def counters(graphs: int, breaks: int = 0, recompilations: int = 0, eager: int = 0) -> dict[str, float]:
    names = ("compiled_graphs", "graph_breaks", "recompilations", "eager_frames")
    return dict(zip(names, map(float, (graphs, breaks, recompilations, eager)), strict=True))


def test_graphs_breaks_recompilations_and_eager_frames_are_counted() -> None:
    found = CompilerCounters()
    with found.count():
        run(double, 2, 3, 4)
    assert found.counters() == counters(3, recompilations=2)
    with found.count():
        run(broken, 2)
        run(looping, 2)
    assert found.counters() == counters(5, 1, 2, 1)
    assert found.limit_problem is None
    with found.count():
        pass
    assert found.counters() == counters(5, 1, 2, 1)


def test_a_function_that_torch_failed_to_compile_in_silence_is_counted() -> None:
    found = CompilerCounters()
    with found.count(), torch._dynamo.config.patch(suppress_errors=True):
        run(double, 2, backend=fail)
    assert found.counters()["eager_frames"] == 1


def test_sides_that_compile_the_same_function_have_counts_of_their_own() -> None:
    sides = CompilerCounters(), CompilerCounters()
    for side, backend in zip(sides, ("eager", "aot_eager"), strict=True):
        with side.count():
            run(double, 2, 3, backend=backend)
    assert [side.counters() for side in sides] == [counters(2, recompilations=1)] * 2
