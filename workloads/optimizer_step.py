"""The update of AdamW: its passes over parameters, gradients and moments.

AdamW reads a parameter, its gradient and two moments, and writes three of them back: 28 bytes for each parameter in one
pass. PyTorch's default on a GPU does each operation of the formula for all tensors at once, and writes every result to
memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from gpugate.workload import Context, Contract, Limit, Optimization, Side, Size, Workload
from workloads.parts.compiled import COMPILER, compile_anew
from workloads.parts.random_inputs import generator_of

# Of 61 million parameters on a GPU. In twice as many layers of two thirds of the width, the host's work for each tensor
# took as long as the kernels of the compiled update: 0.82 and 0.45 ms on an H200.
WIDTH, LAYERS = {"cuda": 1088, "cpu": 128}, {"cuda": 4, "cpu": 2}
WIDER = 3  # of the layer between the two products
BYTES_OF_PARAMETER = 28.0  # FP32: four values read, three written


def _shapes(kind: str) -> list[tuple[int, ...]]:
    """The parameters of a decoder: products with square and wide weights, and small vectors between them."""
    width = WIDTH[kind]
    return [*[(width, width)] * 4, *[(WIDER * width, width)] * 3, *[(width,)] * 2] * LAYERS[kind]


def optimizer_state(context: Context, index: int) -> dict[str, list[Tensor]]:
    """Parameters, gradients and both moments, float32, as an optimizer has them."""
    random, state = generator_of(context, index), dict[str, list[Tensor]]()
    for name in ("parameters", "gradients", "means", "squares"):
        drawn = [torch.randn(shape, device=context.device, generator=random) for shape in _shapes(context.device.type)]
        state[name] = [values.square() for values in drawn] if name == "squares" else drawn
    return state


def _update(state: dict[str, list[Tensor]], steps: list[Tensor], **choice: bool) -> list[Tensor]:
    parameters, gradients, means, squares = state.values()
    rates = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 1e-2}
    words: dict[str, Any] = {**rates, **choice, "amsgrad": False, "maximize": False}
    adamw(parameters, gradients, means, squares, [], steps, **words)
    return parameters


def _optimizer(context: Context, update: Callable[..., list[Tensor]], *, steps_on_device: bool) -> Side:
    """The optimizer after a million steps, when its corrections of the moments are 1: only inputs decide a step."""
    device = context.device if steps_on_device else None
    steps = [torch.tensor(1e6, device=device) for _ in _shapes(context.device.type)]
    return Side(torch.no_grad()(lambda state: update(state, steps)))


def default_update(context: Context) -> Side:
    """`torch.optim.AdamW(parameters)`: all tensors at once on a GPU, tensor by tensor on a CPU."""
    on_gpu = context.device.type == "cuda"
    return _optimizer(context, partial(_update, foreach=on_gpu), steps_on_device=False)


def loop_update(context: Context) -> Side:
    """Tensor by tensor, which older programs ask for: every operation of every tensor is a launch."""
    return _optimizer(context, partial(_update, foreach=False), steps_on_device=False)


def fused_update(context: Context) -> Side:
    """One kernel for many tensors, which reads and writes each value once."""
    return _optimizer(context, partial(_update, foreach=False, fused=True), steps_on_device=True)


def compiled_update(context: Context) -> Side:
    """The default's formula, fused by torch.compile into one pass."""

    def update(state: dict[str, list[Tensor]], steps: list[Tensor]) -> list[Tensor]:
        return _update(state, steps, foreach=True, capturable=True)

    return _optimizer(context, compile_anew(update, dynamic=False, fullgraph=True), steps_on_device=True)


def optimizer_size(kind: str) -> Size:
    """FLOPs: 13 per parameter. Bytes: BYTES_OF_PARAMETER."""
    parameters = sum(torch.Size(shape).numel() for shape in _shapes(kind))
    return Size(items=parameters, flops=13.0 * parameters, bytes=BYTES_OF_PARAMETER * parameters)


def _contract(*limits: Limit) -> dict[str, Contract]:
    return {"cuda": Contract(limits=limits)}


ONE_PASS = Limit("kernels", at_most_of_reference=0.5)
NEAR_A_COPY = Limit("copy_share", at_least=0.5)  # a step of 0.5 ms begins on an idle GPU: 0.54 on an H200
NO_COPIES = Limit("peak_bytes", at_most_of_reference=0.05)
WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "optimizer-step",
        default_update,
        optimizer_state,
        {kind: optimizer_size(kind) for kind in ("cuda", "cpu")},
        (
            Optimization(
                "loop",
                loop_update,
                {"cuda": 0.44},
                contract=_contract(Limit("peak_bytes", at_most_of_reference=0.3)),
                why="a launch for every operation of every tensor, with the memory of one tensor at a time",
            ),
            Optimization(
                "fused",
                fused_update,
                {"sm_90": 2.0, "cuda": 1.5, "cpu": 1.5},
                contract=_contract(ONE_PASS, NO_COPIES, NEAR_A_COPY),
            ),
            Optimization(
                "compiled", compiled_update, {"cuda": 1.32}, needs=COMPILER, contract=_contract(ONE_PASS, NO_COPIES)
            ),
        ),
        cold=False,
        writes_inputs=True,
    ),
)
