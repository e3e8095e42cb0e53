"""A training step of two layers with every product in eight-bit floats, by torchao, which is optional.

A linear layer has three products in training: its output, the gradient of its input, and that of its weights. torchao
scales and rounds both factors of each one, and the compiler fuses this with the operators before the product. Weights
and their gradients keep their precision. The products must be large: the conversions are a pass over memory each.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from gpugate.workload import Context, Contract, Limit, Needs, Optimization, Side, Size, Tolerance, Workload
from workloads.parts.compiled import compile_anew
from workloads.parts.random_inputs import draw

ROWS, WIDTH, HIDDEN = 8192, 4096, 14_336


def activations(context: Context, index: int) -> Tensor:
    """bfloat16 [rows, WIDTH]."""
    drawn: Tensor = draw(context, index, context.items, WIDTH).bfloat16()
    return drawn


def make_layers(context: Context) -> nn.Sequential:
    """Two layers whose outputs have about unit variance: bfloat16, seeded."""
    random = torch.Generator(context.device).manual_seed(context.seed)
    layers = []
    for inputs, outputs in ((WIDTH, HIDDEN), (HIDDEN, WIDTH)):
        layer = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=False, device=context.device, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            layer.weight.normal_(std=(2 / inputs) ** 0.5, generator=random)
        layers.append(layer)
    return nn.Sequential(layers[0], nn.ReLU(), layers[1])


def trained(context: Context, in_fp8: bool = False) -> Side:
    """The output, and the gradients of both weights."""
    model = make_layers(context)
    if in_fp8:
        from torchao.float8 import convert_to_float8_training

        convert_to_float8_training(model)
    weights = list(model.parameters())
    run = compile_anew(lambda x: model(x), dynamic=False, fullgraph=True)

    def step(x: Tensor) -> tuple[Tensor, ...]:
        output = run(x)
        return (output.detach(), *torch.autograd.grad(output.float().square().mean(), weights))

    return Side(step)


# FLOPs: three products of the second layer, and two of the first, whose input has no gradient. Bytes: weights and their
# gradients, the inputs and the outputs.
SIZE = Size(ROWS, 10.0 * ROWS * WIDTH * HIDDEN, 2.0 * (4 * WIDTH * HIDDEN + 2 * ROWS * WIDTH))
TORCHAO = Needs(("torchao",), (8, 9), cpp_compiler=True, install="pip install torchao")
# Both factors of each product are rounded, and the gradient of the first layer comes after three products.
TOLERANCE = {"fp8": Tolerance(relative_l2=1.5e-1, max_error=3e-1)}
TENSOR_CORES = {"cuda": Contract(limits=(Limit("tensor_core_kernels", at_least=5),))}
PROMISE = {"cuda": 1.17}
TRAINED_IN_FP8 = Optimization(
    "torchao", partial(trained, in_fp8=True), PROMISE, "fp8", needs=TORCHAO, tolerance=TOLERANCE, contract=TENSOR_CORES
)
WORKLOADS: tuple[Workload, ...] = (
    Workload("float8-training", trained, activations, {"cuda": SIZE}, (TRAINED_IN_FP8,), cold=False),
)
