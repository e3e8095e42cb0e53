"""Matrices of one byte a value, int8 or fp8, with a scale for each row: a token reads half of the bytes of bf16."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

INT8, FP8 = torch.int8, torch.float8_e4m3fn


def round_rows(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The values in int8 or fp8, and the float32 [rows, 1] scales that undo it."""
    largest = 127.0 if dtype is INT8 else torch.finfo(dtype).max
    scales = values.abs().amax(dim=1, keepdim=True).float().clamp(min=1e-12) / largest
    scaled = values.float() / scales
    return (scaled.round() if dtype is INT8 else scaled).to(dtype), scales


def replace_linear_layers(model: nn.Module, replace: Callable[[nn.Linear], nn.Module], kept: str = "") -> None:
    """Replaces those outside parts named `kept`. The table of embeddings is none: a token reads one row of it."""
    for name, part in list(model.named_children()):
        if isinstance(part, nn.Linear) and name != kept:
            setattr(model, name, replace(part))
        elif name != kept:
            replace_linear_layers(part, replace, kept)


class Int8Linear(nn.Module):
    """y = (W x) * scale, by a kernel of the CPU that is fast for activations in bf16."""

    weight: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight, scale = round_rows(linear.weight, INT8)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale[:, 0].to(torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = torch._weight_int8pack_mm(x.flatten(0, -2).to(torch.bfloat16), self.weight, self.scale)
        return product.reshape(*x.shape[:-1], -1).to(x.dtype)


class Fp8Linear(nn.Module):
    """The product of two fp8 matrices with a scale for each row; those of the activations are chosen in each step."""

    weight: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight, scale = round_rows(linear.weight, FP8)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale.t())
        self.bias = linear.bias  # in the precision of the activations

    def forward(self, x: Tensor) -> Tensor:
        rows, scales = round_rows(x.flatten(0, -2), FP8)
        product = multiply_scaled(rows, scales, self.weight, self.scale, x.dtype).reshape(*x.shape[:-1], -1)
        return product if self.bias is None else product + self.bias


def multiply_scaled(rows: Tensor, scales: Tensor, weight: Tensor, weight_scales: Tensor, dtype: torch.dtype) -> Tensor:
    """rows [n, inputs] and weight [outputs, inputs] in fp8, scales [n, 1] and [1, outputs]: [n, outputs] in `dtype`.

    PyTorch's compiler traces this operator; `torch.nn.functional.scaled_mm`, which is public, breaks its graph.
    """
    product: Tensor = torch._scaled_mm(rows, weight.t(), scales, weight_scales, out_dtype=dtype)
    return product


def describe_wide_weights(model: nn.Module) -> str | None:
    """Names the matrices that are not in int8, or None."""
    wide = [name for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    return f"{', '.join(wide)}: the weights are not in int8" if wide else None
