"""Sides that run one network on batches of pictures: eager, compiled, or as a CUDA graph in one launch.

Each side takes float32 pictures [n, 3, h, w] and returns float32 logits; converting the pictures to the side's
precision is part of its step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from gpugate.workload import Context, Side
from workloads.parts.compiled import compile_counted, miscount
from workloads.parts.graph_capture import recorded

NCHW, NHWC = torch.contiguous_format, torch.channels_last


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


@dataclass(frozen=True)
class Replay:
    """A step that converts the batch into the buffer that the captured kernels read, and replays them."""

    model: object  # the graph reads its weights
    pictures: Tensor  # [n, 3, h, w]
    graph: torch.cuda.CUDAGraph
    logits: Tensor  # overwritten by every step

    @torch.inference_mode()
    def __call__(self, inputs: Tensor) -> Tensor:
        self.pictures.copy_(inputs)
        self.graph.replay()
        return self.logits


@dataclass(frozen=True)
class OneByOne:
    """The step of `Replay` without a graph: every kernel is launched."""

    model: nn.Module
    buffer: Tensor  # [n, channels, h, w]

    @torch.inference_mode()
    def __call__(self, inputs: Tensor) -> Tensor:
        self.buffer[:, :3].copy_(inputs)
        logits: Tensor = self.model(self.buffer).float()
        return logits


@torch.inference_mode()
def captured(context: Context, model: nn.Module, channels: int, example: Tensor) -> Side:
    """The side of `model` as a CUDA graph; `model` reads [n, channels, h, w] in channels_last FP16.

    The channels beyond the third stay zero. The graph is captured for pictures like `example`, and warmed up on it:
    autotuning on zeros would time a cooler GPU.
    """
    pictures, _, height, width = example.shape
    shape = (pictures, channels, height, width)
    buffer = torch.zeros(shape, dtype=torch.float16, device=context.device).to(memory_format=NHWC)
    buffer[:, :3].copy_(example)
    if not context.capture_graphs:
        return Side(OneByOne(model, buffer), model)
    stream = torch.cuda.Stream(context.device)  # type: ignore[no-untyped-call]  # cuda only
    graph, logits = recorded(lambda: model(buffer).float(), stream)  # cuda only
    return Side(Replay(model, buffer[:, :3], graph, logits), model)
