"""Matrices of one byte a value, int8 or fp8, with a scale for each row: a token reads half of the bytes of bf16."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

INT8, FP8 = torch.int8, torch.float8_e4m3fn
ATTENTION = "self_attn"  # the part of a layer that fp8 leaves in bf16


class QuantizedLinear(nn.Module):
    """y = (W x) * scale; a compiler makes one kernel of it, which widens each value as it reads it."""

    weight: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        largest = 127.0 if dtype is INT8 else torch.finfo(dtype).max
        scale = linear.weight.float().abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / largest
        scaled = linear.weight.float() / scale
        self.register_buffer("weight", (scaled.round() if dtype is INT8 else scaled).to(dtype))
        self.register_buffer("scale", scale[:, 0].to(linear.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu" and self.weight.dtype is INT8:
            # A kernel that is fast for activations in bf16 alone; the compiler fails on it (torch 2.11).
            rows, scale = x.flatten(0, -2).to(torch.bfloat16), self.scale.to(torch.bfloat16)
            product: Tensor = torch._weight_int8pack_mm(rows, self.weight, scale)
            return product.reshape(*x.shape[:-1], -1).to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype)) * self.scale


def quantize(model: nn.Module, dtype: torch.dtype, kept: str = "") -> None:
    """Replaces every linear layer outside parts named `kept`; the table of embeddings stays: a token reads one row."""
    replace_linear_layers(model, lambda linear: QuantizedLinear(linear, dtype), kept)


def replace_linear_layers(model: nn.Module, replace: Callable[[nn.Linear], nn.Module], kept: str = "") -> None:
    for name, part in list(model.named_children()):
        if isinstance(part, nn.Linear):
            setattr(model, name, replace(part))
        elif name != kept:
            replace_linear_layers(part, replace, kept)


def describe_type_problem(model: nn.Module, dtype: torch.dtype, kept: str = "") -> str | None:
    """Names the matrices outside parts named `kept` that are of another type, or None."""
    others = [
        name
        for name, part in model.named_modules()
        if (isinstance(part, nn.Linear) or (isinstance(part, QuantizedLinear) and part.weight.dtype != dtype))
        and kept not in name.split(".")[:-1]
    ]
    return f"{', '.join(others)}: the weights are not {dtype}" if others else None


def describe_plain_weights(model: nn.Module) -> str | None:
    """Names the matrices whose weights are plain tensors, which another library did not quantize, or None."""
    plain = [
        name
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear) and type(part.weight.data) is torch.Tensor
    ]
    return f"{', '.join(plain)}: the weights are plain tensors" if plain else None
