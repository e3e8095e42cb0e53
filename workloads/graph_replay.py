"""A model captured once as a CUDA graph: a step copies its batch in and replays all kernels in one launch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gpugate.workload import Context, Side
from workloads.photographs import SIDE_PIXELS, photograph_batch
from workloads.resnet50_weights import UNMEASURED_BATCH

WARM_UP_STEPS = 3
NHWC = torch.channels_last


@dataclass(frozen=True)
class Replay:
    """A step that copies the batch to where the captured kernels read it, converting it, and replays them."""

    model: nn.Module  # the graph reads its weights
    photographs: Tensor  # [items, 3, 224, 224]
    graph: torch.cuda.CUDAGraph
    logits: Tensor  # [items, 1000], overwritten by every step

    @torch.inference_mode()
    def __call__(self, inputs: Tensor) -> Tensor:
        self.photographs.copy_(inputs)
        self.graph.replay()
        return self.logits


@dataclass(frozen=True)
class OneByOne:
    """The same step without a graph: every kernel is launched."""

    model: nn.Module
    buffer: Tensor  # [items, channels, 224, 224]

    @torch.inference_mode()
    def __call__(self, inputs: Tensor) -> Tensor:
        self.buffer[:, :3].copy_(inputs)
        logits: Tensor = self.model(self.buffer).float()
        return logits


@torch.inference_mode()
def capture(context: Context, model: nn.Module, channels: int) -> Side:
    """`model` reads [items, channels, 224, 224] in channels_last FP16; the channels beyond the third stay zero."""
    shape = (context.items, channels, SIDE_PIXELS, SIDE_PIXELS)
    buffer = torch.zeros(shape, dtype=torch.float16, device=context.device).to(memory_format=NHWC)
    buffer[:, :3].copy_(photograph_batch(context, UNMEASURED_BATCH))  # autotuning on zeros would time a cooler GPU
    if not context.capture_graphs:
        return Side(OneByOne(model, buffer), model)
    stream = torch.cuda.Stream(context.device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(context.device))
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_STEPS):
            model(buffer)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        logits = model(buffer).float()
    return Side(Replay(model, buffer[:, :3], graph, logits), model)
