"""Faults in how a side is built: pageable buffers, no CUDA graph, a graph break; and sides that cannot have them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gpugate.workload import Context, Side
from tests.engine.faults.test_fault_steps import identity, side_of

OUTPUT = torch.ones(1)


@pytest.mark.parametrize(
    "pin",
    [
        lambda: torch.empty(3, pin_memory=True),
        lambda: torch.empty_like(torch.ones(3), pin_memory=True),
        lambda: torch.ones(3).pin_memory(),
    ],
    ids=["empty", "empty_like", "pin_memory()"],
)
def test_what_asks_for_page_locked_memory_gets_pageable_memory(pin: Callable[[], torch.Tensor]) -> None:
    buffers: list[torch.Tensor] = []

    def build(context: Context) -> Side:
        buffers.append(pin())
        return identity(context)

    side_of("pageable", build)
    assert [buffer.is_pinned() for buffer in buffers] == [False]
    assert buffers[0].shape == (3,)


def test_a_side_that_pins_nothing_cannot_be_pageable() -> None:
    def build(context: Context) -> Side:
        torch.empty(3, pin_memory=False)
        return identity(context)

    with pytest.raises(ValueError, match="pageable needs page-locked buffers, and building this side makes none"):
        side_of("pageable", build)


@pytest.mark.parametrize("lazy", [False, True], ids=["captured while built", "captured at the first step"])
def test_a_side_that_honours_it_captures_no_graph(lazy: bool) -> None:
    captured: list[bool] = []

    def build(context: Context) -> Side:
        if not lazy:
            captured.append(context.capture_graphs)

        def step(inputs: torch.Tensor) -> torch.Tensor:
            if not captured:
                captured.append(context.capture_graphs)
            return inputs

        return Side(step)

    side = side_of("no-graph", build)
    first = side.step
    side.step(OUTPUT)
    assert captured == [False]
    assert side.step is not first, "later steps are the side's own"


def test_a_side_that_never_asks_for_graphs_cannot_show_their_absence() -> None:
    side = side_of("no-graph", identity)
    with pytest.raises(ValueError, match=r"reads Context\.capture_graphs, and this one never does"):
        side.step(OUTPUT)


def graphs_of(compile_it: Callable[[Any, Any], Callable[..., Any]], lazy: bool = False) -> int:
    """Graphs that a side with a graph break compiles, by what it calls torch.compile with."""
    graphs: list[object] = []

    def backend(graph: torch.fx.GraphModule, examples: object) -> Any:
        graphs.append(graph)
        return graph

    def build(context: Context) -> Side:
        made = [] if lazy else [compile_it(torch.nn.Linear(3, 3), backend)]

        def step(inputs: torch.Tensor) -> torch.Tensor:
            if not made:
                made.append(compile_it(torch.nn.Linear(3, 3), backend))
            return made[0](inputs)

        return Side(step)

    compile_whole = torch.compile
    side = side_of("graph-break", build)
    for _ in range(2):
        assert side.step(torch.ones(2, 3)).shape == (2, 3)
    assert torch.compile is compile_whole
    return len(graphs)


def as_decorator(model: torch.nn.Module, backend: Any) -> Callable[..., Any]:
    @torch.compile(backend=backend)
    def net(inputs: torch.Tensor) -> torch.Tensor:
        return model(inputs)

    return net


def in_place(model: torch.nn.Module, backend: Any) -> Callable[..., Any]:
    model.compile(backend=backend)
    return model


@pytest.mark.parametrize("lazy", [False, True], ids=["while built", "at the first step"])
@pytest.mark.parametrize(
    "compile_it",
    [lambda model, backend: torch.compile(model, backend=backend), as_decorator, in_place],
    ids=["module", "decorator", "in place"],
)
def test_whatever_is_compiled_breaks_in_two(compile_it, lazy: bool) -> None:
    assert graphs_of(compile_it, lazy) == 2


def test_a_side_may_compile_many_models() -> None:
    """Dynamo gives up on what it compiles too often, and would then run it as it is."""
    models = [torch.nn.Linear(3, 3) for _ in range(3)]

    def compile_all(_: Any, backend: Any) -> Callable[..., Any]:
        nets = [torch.compile(model, backend=backend) for model in models]
        return lambda inputs: sum(net(inputs) for net in nets)

    with torch._dynamo.config.patch(recompile_limit=1):
        assert graphs_of(compile_all) == 2 * len(models)
