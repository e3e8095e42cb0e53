"""torch.compile of a function whose compiled code belongs to one side alone; networks as they are, and compiled.

The sides of a network take float32 pictures [n, 3, h, w] and return float32 logits; converting the pictures to the
side's precision is part of the step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from gpugate.workload import Needs, Side

COMPILER = Needs(cpp_compiler=True, install="install a C++ compiler, such as g++")
NCHW, NHWC = torch.contiguous_format, torch.channels_last
_NUMBERS = itertools.count()


def compile_anew(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compiles a copy of the function, by the options of torch.compile.

    Dynamo keeps compiled code with the code object, finds it again for the next side, and gives up after eight
    compilations of one code object. By the name it also remembers which sizes varied before. A copy has a code object
    and a name of its own, so that each build compiles what it runs, as the first build did.
    """
    given = cast(FunctionType, function)
    code = given.__code__.replace(co_name=f"{given.__name__.strip('<>')}_{next(_NUMBERS)}")
    copy = FunctionType(code, given.__globals__, code.co_name, given.__defaults__, given.__closure__)
    copy.__kwdefaults__ = given.__kwdefaults__
    return torch.compile(copy, **options)


def compile_counted(
    function: Callable[..., Any], frozen: list[bool], patches: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compiles a copy of the function by Inductor, for one shape, with these changes of Inductor's configuration.

    `frozen` gets one entry for each graph that is compiled, True where its weights became constants.
    """
    import torch._inductor.config as inductor_config
    from torch._inductor.compile_fx import compile_fx

    def backend(graph: fx.GraphModule, examples: Sequence[Tensor]) -> Any:
        frozen.append(bool(inductor_config.freezing) and not torch.is_grad_enabled())
        return compile_fx(graph, examples, config_patches=patches)  # type: ignore[arg-type]  # a dict, which it copies

    return compile_anew(function, backend=backend, dynamic=False)


def miscount(frozen: Sequence[bool], wanted: int = 1) -> str | None:
    """The number of compiled graphs in words, unless it is the number that was wanted."""
    if len(frozen) == wanted:
        return None
    return f"{len(frozen)} graphs were compiled, not {wanted}: graph breaks or recompilations"


def eager(model: nn.Module, dtype: torch.dtype, layout: torch.memory_format) -> Side:
    """The eager side; converts `model` in place."""
    model = model.to(dtype=dtype, memory_format=layout)  # type: ignore[call-overload]

    @torch.inference_mode()
    def step(inputs: Tensor) -> Tensor:
        logits: Tensor = model(inputs.to(dtype=dtype, memory_format=layout))
        return logits.float()

    return Side(step, model, engaged=partial(_not_converted, model, dtype, layout))


def _not_converted(model: nn.Module, dtype: torch.dtype, layout: torch.memory_format) -> str | None:
    for name, weight in model.named_parameters():
        if weight.dtype != dtype:
            return f"{name} is {weight.dtype}, not {dtype}"
    return find_lost_layout(model, layout)


def find_lost_layout(model: nn.Module, layout: torch.memory_format) -> str | None:
    """The first filter of the model that lies in memory otherwise than in `layout`, in words; None where none does."""
    for name, weight in model.named_parameters():
        if weight.dim() == 4 and not weight.is_contiguous(memory_format=layout):
            return f"{name} is not in {layout}"
    return None


def compiled(model: nn.Module, example: Tensor, dtype: torch.dtype, layout: torch.memory_format) -> Side:
    """torch.compile with frozen weights, so that BatchNorm is folded; conversion of the batch is compiled with it.

    Converts `model` in place and compiles for pictures like `example`.
    """
    import torch._inductor.config as inductor_config

    model = model.to(dtype=dtype, memory_format=layout)  # type: ignore[call-overload]
    frozen: list[bool] = []

    def forward(inputs: Tensor) -> Tensor:
        logits: Tensor = model(inputs.to(dtype=dtype, memory_format=layout))
        return logits.float()

    step = torch.inference_mode()(compile_counted(forward, frozen))
    with inductor_config.patch(freezing=True):
        step(example)
    return Side(step, model, engaged=partial(_not_one_frozen_graph, frozen))


def _not_one_frozen_graph(frozen: Sequence[bool]) -> str | None:
    unfrozen = "the weights were not frozen: compiled without freezing or with gradients on"
    return miscount(frozen) or (None if all(frozen) else unfrozen)
