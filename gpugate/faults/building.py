"""Faults in the build of a side: pageable buffers, no CUDA graph, a graph break."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from gpugate.workload import Build, Context, Side


class _PageableMemory(TorchFunctionMode):
    """A mode in which requests of page-locked memory get pageable memory; `requests` counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        arguments = dict(kwargs or {})
        if func is torch.Tensor.pin_memory:
            self.requests += 1
            return args[0].clone()
        if arguments.pop("pin_memory", False):
            self.requests += 1
        return func(*args, **arguments)


def use_pageable_memory(build: Build) -> Build:
    """Makes page-locked buffers pageable. Raises ValueError when the build pins no buffer."""

    def build_faulty(context: Context) -> Side:
        with _PageableMemory() as memory:
            side = build(context)
        if not memory.requests:
            raise ValueError("pageable needs page-locked buffers, and building this side makes none")
        return side

    return build_faulty


@dataclass(frozen=True)
class _WithoutGraphs(Context):
    """A context that records each read of `capture_graphs`."""

    reads: list[str] = field(default_factory=list)

    def __getattribute__(self, name: str) -> Any:
        if name == "capture_graphs":
            self.reads.append(name)
        return super().__getattribute__(name)


def disable_graphs(build: Build) -> Build:
    """Sets `Context.capture_graphs` to False. The first step raises ValueError when the side never read it."""

    def build_faulty(context: Context) -> Side:
        values = {each.name: getattr(context, each.name) for each in fields(context)}
        watched = _WithoutGraphs(**{**values, "capture_graphs": False})
        problem = "no-graph needs a side that reads Context.capture_graphs, and this one never does"
        return _check_first_step(build(watched), watched.reads, problem)

    return build_faulty


def break_graphs(build: Build) -> Build:
    """Adds a graph break to the end of everything that the side gives to `torch.compile`.

    The first step raises ValueError if the side compiled nothing. With `fullgraph=True`, torch itself raises an error
    at the break, in the first step.
    """

    def build_faulty(context: Context) -> Side:
        compiled: list[object] = []
        with _break_compiled_graphs(compiled):
            side = build(context)
        problem = "graph-break needs a side that calls torch.compile, and this one never does"
        return _check_first_step(side, compiled, problem, lambda: _break_compiled_graphs(compiled))

    return build_faulty


def _check_first_step(
    side: Side,
    happened: Sequence[object],
    problem: str,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Side:
    """Makes the first step, which runs inside `around`, raise ValueError where nothing has `happened` by its end: a
    side may capture or compile as late as there."""
    own_step = side.step

    def first_step(inputs: Any) -> Any:
        with around():
            output = own_step(inputs)
        if not happened:
            raise ValueError(problem)
        side.step = own_step
        return output

    side.step = first_step
    return side


@contextmanager
def _break_compiled_graphs(compiled: list[object]) -> Iterator[None]:
    compile_whole = torch.compile

    def compile_broken(model: Any = None, **how: Any) -> Any:
        if model is None:
            return partial(compile_broken, **how)  # `@torch.compile(...)`
        compiled.append(model)
        return compile_whole(_with_break(model), **how)

    torch.compile = compile_broken
    try:
        yield
    finally:
        torch.compile = compile_whole


def _with_break(model: Callable[..., Any]) -> Callable[..., Any]:
    def broken(*args: Any, **kwargs: Any) -> Any:
        output = model(*args, **kwargs)
        torch._dynamo.graph_break()
        # The clone gives the graph behind the break some work: torch compiles no empty graph.
        return _pytree.tree_map_only(torch.Tensor, torch.clone, output)

    # Dynamo keeps compiled code with the code object, at most 8 times: every model needs a code object of its own.
    broken.__code__ = broken.__code__.replace()
    return broken
