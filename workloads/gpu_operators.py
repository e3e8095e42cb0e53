"""Operators between the matrix products of a language model, on a GPU: eager, compiled, by a library, and in Triton.

Eager softmax and layer norm are PyTorch's fused kernels already, and it has none for SwiGLU: these have no rung by a
library. Each operator computes little, so the least time is that of one pass over the inputs and the outputs at the
rate of a device copy. Eager code makes a pass for each operation. A row fits on a multiprocessor, so a kernel can read
it once and write it once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gpugate.workload import Context, Contract, Limit, Needs, Optimization, Side, Size, Workload
from workloads.parts.compiled import COMPILER, compile_anew
from workloads.parts.random_inputs import generator_of

EPS = 1e-6
CLASSES = 128_256  # of Llama 3
Operator = Callable[..., Any]


@dataclass(frozen=True)
class Rows:
    """Inputs of a shape, bfloat16 but for the classes, and the bytes that one pass reads and writes for each row."""

    rows: int
    width: int
    inputs: int = 1
    labelled: bool = False
    bytes_of_row: float = 0.0

    def make(self, context: Context, index: int) -> list[Tensor]:
        random = generator_of(context, index)
        shape = self.rows, self.width
        drawn = [torch.randn(shape, device=context.device, generator=random).bfloat16() for _ in range(self.inputs)]
        if self.labelled:
            drawn.append(torch.randint(self.width, (self.rows,), device=context.device, generator=random))
        return drawn

    @property
    def size(self) -> Size:
        """FLOPs: 8 per value. Bytes: one pass."""
        return Size(self.rows, 8.0 * self.rows * self.width * self.inputs, self.rows * self.bytes_of_row)


def rms_norm(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    """The residual and its norm, as models of the Llama family compute it: in float32 between two conversions."""
    added = x + residual
    wide = added.float()
    return added, (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)).to(x.dtype)


def rms_norm_of_library(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    added = x + residual
    return added, F.rms_norm(added, added.shape[-1:], eps=EPS)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def layer_norm(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    added = x + residual
    return added, F.layer_norm(added, added.shape[-1:], eps=EPS)


def softmax(scores: Tensor) -> Tensor:
    return torch.softmax(scores, dim=-1)


def cross_entropy(scores: Tensor, classes: Tensor) -> Tensor:
    """In float32, as training code computes it: the conversion writes every score once more."""
    return F.cross_entropy(scores.float(), classes, reduction="none")


def cross_entropy_of_library(scores: Tensor, classes: Tensor) -> Tensor:
    return F.cross_entropy(scores, classes, reduction="none").float()


def _side(run: Operator) -> Side:
    return Side(torch.no_grad()(lambda inputs: run(*inputs)))


def as_it_is(run: Operator, context: Context) -> Side:
    return _side(run)


def compiled(run: Operator, context: Context) -> Side:
    return _side(compile_anew(run, dynamic=False, fullgraph=True))


def in_triton(name: str, context: Context) -> Side:
    from workloads.parts import row_kernels  # which needs Triton

    return _side(getattr(row_kernels, name))


TRITON = Needs(packages=("triton",), install="pip install triton")
ONE_KERNEL, FEW_KERNELS = Limit("kernels", at_most=1), Limit("kernels", at_most=3)
NEAR_A_COPY = Limit("copy_share", at_least=0.7)
_rung = partial(Optimization, dtype="bfloat16")


def _workload(
    name: str, eager: Operator, library: Operator | None, rows: Rows, gains: tuple[float, float, float]
) -> Workload:
    """The ladder of one operator, with the speedups of its compiled, Triton and library rungs on an H100 or H200."""
    by_compiler, by_triton, by_library = ({"sm_90": gain, "cuda": 0.9} for gain in gains)
    few_kernels, one_kernel = Contract(limits=(FEW_KERNELS,)), Contract(limits=(ONE_KERNEL, NEAR_A_COPY))
    optimizations = [
        _rung("compiled", partial(compiled, eager), by_compiler, needs=COMPILER, contract={"cuda": few_kernels}),
        _rung("triton", partial(in_triton, eager.__name__), by_triton, needs=TRITON, contract={"cuda": one_kernel}),
    ]
    if library is not None:
        optimizations.append(_rung("library", partial(as_it_is, library), by_library))
    baseline = partial(as_it_is, eager)
    return Workload(f"gpu-operator-{name}", baseline, rows.make, {"cuda": rows.size}, tuple(optimizations))


# Bytes of a row: two for each bfloat16 value that is read or written once, eight for a class, four for a loss.
WORKLOADS: tuple[Workload, ...] = (
    _workload(
        "rms-norm", rms_norm, rms_norm_of_library, Rows(16_384, 4096, 2, bytes_of_row=8.0 * 4096), (4.61, 4.7, 3.63)
    ),
    _workload("swiglu", swiglu, None, Rows(16_384, 14_336, 2, bytes_of_row=6.0 * 14_336), (1.39, 1.39, 0)),
    _workload("layer-norm", layer_norm, None, Rows(16_384, 4096, 2, bytes_of_row=8.0 * 4096), (1.2, 1.2, 0)),
    _workload("softmax", softmax, None, Rows(16_384, 8192, bytes_of_row=4.0 * 8192), (1.31, 3.1, 0)),
    _workload(
        "cross-entropy",
        cross_entropy,
        cross_entropy_of_library,
        Rows(4096, CLASSES, labelled=True, bytes_of_row=2.0 * CLASSES + 12),
        (4.1, 9.2, 2.76),
    ),
)
