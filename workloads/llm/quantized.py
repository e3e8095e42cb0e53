"""Matrices of one byte a value, int8 or fp8, with a scale for each row: a token reads half of the bytes of bf16."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

INT8, FP8 = torch.int8, torch.float8_e4m3fn


class Int8Linear(nn.Module):
    """y = (W x) * scale, by a kernel of the CPU that is fast for activations in bf16."""

    weight: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight, scale = round_rows(linear.weight, INT8)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale.to(torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = torch._weight_int8pack_mm(x.flatten(0, -2).to(torch.bfloat16), self.weight, self.scale)
        return product.reshape(*x.shape[:-1], -1).to(x.dtype)


def round_rows(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The weights in int8 or fp8, and the float32 [rows] scales that undo it."""
    largest = 127.0 if dtype is INT8 else torch.finfo(dtype).max
    scale = weight.float().abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / largest
    scaled = weight.float() / scale
    return (scaled.round() if dtype is INT8 else scaled).to(dtype), scale[:, 0]


def quantize(model: nn.Module) -> None:
    """Replaces every linear layer; the table of embeddings stays: a token reads one row."""
    replace_linear_layers(model, Int8Linear)


def replace_linear_layers(model: nn.Module, replace: Callable[[nn.Linear], nn.Module], kept: str = "") -> None:
    """Replaces those outside parts named `kept`."""
    for name, part in list(model.named_children()):
        if isinstance(part, nn.Linear):
            setattr(model, name, replace(part))
        elif name != kept:
            replace_linear_layers(part, replace, kept)


def describe_wide_weights(model: nn.Module) -> str | None:
    """Names the matrices that are not in int8, or None."""
    wide = [name for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    return f"{', '.join(wide)}: the weights are not in int8" if wide else None
