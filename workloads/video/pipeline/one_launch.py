"""Work on tensors of one shape in a single launch.

A stage is some dozen small kernels, each launched from Python. Where every stage has a thread, all of them share one
interpreter: a single launch leaves it to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gpugate.workload import Context
from workloads.parts.graph_capture import recorded

Work = Callable[..., Tensor]


def in_one_launch(context: Context, work: Work, examples: Callable[[], Sequence[Tensor]]) -> Work:
    """`work` for tensors like the examples, which are made where graphs are captured; elsewhere `work` itself."""
    if context.device.type != "cuda" or not context.capture_graphs:
        return work
    return OneLaunch(work, examples())


class OneLaunch:
    """`work` as a CUDA graph, for one stream at a time; tensors of other shapes go through it kernel by kernel.

    The inputs are copied to the graph's buffers, and the outputs are memory of their own.
    """

    def __init__(self, work: Work, examples: Sequence[Tensor]) -> None:
        self._work, self._inputs = work, [each.clone() for each in examples]
        stream = torch.cuda.Stream(examples[0].device)  # type: ignore[no-untyped-call]
        self._graph, self._result = recorded(lambda: work(*self._inputs), stream)

    def __call__(self, *tensors: Tensor) -> Tensor:
        if any(given.shape != read.shape for given, read in zip(tensors, self._inputs, strict=True)):
            return self._work(*tensors)
        for given, read in zip(tensors, self._inputs, strict=True):
            read.copy_(given)
        self._graph.replay()
        return self._result.clone()
