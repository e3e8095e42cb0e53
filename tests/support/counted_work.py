"""The work of a network: FLOPs as PyTorch counts them, and the values that its layers read and write."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class Work:
    """`read` and `written` are values of the inputs and outputs of convolutions and linear layers, `weights` of all."""

    flops: int
    read: int
    written: int
    weights: int


def count_work(model: nn.Module, images: Tensor, backward: bool = False) -> Work:
    values = {"read": 0, "written": 0}

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        values["read"] += inputs[0].numel()
        values["written"] += output.numel()

    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(count)
    with FlopCounterMode(display=False) as counter:
        output = model(images)
        if backward:
            output.sum().backward()
    weights = sum(weight.numel() for weight in model.parameters())
    return Work(counter.get_total_flops(), **values, weights=weights)
