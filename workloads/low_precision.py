"""A layer's product in fewer bits: eight with a scale for each row, four in the weights alone, and half of the weights.

A tensor core multiplies eight-bit values at twice the rate of bfloat16, and a sparse one at twice the rate of a dense
one. An eight-bit product first converts its activations: it finds the largest value and scales each one. This is a pass
over memory, which the compiler fuses with the operators before it. A scale for each row keeps one large row from
spoiling others. For few rows the bytes of the weights decide: with four bits a weight they are a quarter, and the
kernel widens them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from gpugate.workload import (
    TOLERANCE_BY_DTYPE,
    Context,
    Contract,
    DeviceKind,
    Limit,
    Needs,
    Optimization,
    Side,
    Size,
    Tolerance,
    Workload,
)
from workloads.parts.compiled import COMPILER, compile_anew
from workloads.parts.quantized import FP8, INT8, multiply_scaled, round_rows
from workloads.parts.random_inputs import draw

INPUTS, OUTPUTS = {"cuda": 4096, "cpu": 256}, {"cuda": 14_336, "cpu": 512}
DTYPE = {"cuda": torch.bfloat16, "cpu": torch.float32}
GROUP = 128  # neighbours with one scale, in four bits
Product = Callable[[Tensor], Tensor]


def activations(context: Context, index: int) -> Tensor:
    """[rows, inputs]: every row has another size, as the tokens of a text have."""
    kind = context.device.type
    drawn = draw(context, index, context.items, INPUTS[kind])
    sizes = 1 + torch.arange(context.items, device=context.device) % 8
    rows: Tensor = (drawn * sizes[:, None]).to(DTYPE[kind])
    return rows


def weights(context: Context, pruned: bool = False) -> Tensor:
    """[outputs, inputs]. In pruned ones, two of four neighbours are zero: every second pair of them."""
    kind, random = context.device.type, torch.Generator(context.device).manual_seed(context.seed)
    inputs, outputs = INPUTS[kind], OUTPUTS[kind]
    drawn: Tensor = torch.randn(outputs, inputs, device=context.device, generator=random) / inputs**0.5
    if pruned:
        drawn = drawn * torch.tensor([1.0, 0.0, 0.0, 1.0], device=context.device).repeat(inputs // 4)
    return drawn.to(DTYPE[kind])


def _side(run: Product) -> Side:
    return Side(torch.inference_mode()(run))


def dense(context: Context) -> Side:
    """The product in bfloat16 on a GPU, in float32 on a CPU."""
    weight = weights(context)
    return _side(lambda x: F.linear(x, weight))


def dense_and_pruned(context: Context) -> Side:
    weight = weights(context, pruned=True)
    return _side(lambda x: F.linear(x, weight))


def fp8(context: Context) -> Side:
    """Eight-bit floats with a scale for each row of the activations and of the weights."""
    weight, weight_scales = round_rows(weights(context), FP8)

    def run(x: Tensor) -> Tensor:
        values, scales = round_rows(x, FP8)
        return multiply_scaled(values, scales, weight, weight_scales.t(), x.dtype)

    return _side(compile_anew(run, dynamic=False, fullgraph=True))


def int8(context: Context) -> Side:
    """Eight-bit integers with the same scales.

    The library's sums are 32-bit integers, which go through memory: 0.97x on an H200. Among the kernels that
    max-autotune times is one that scales its sums itself.
    """
    (weight, weight_scales), dtype = round_rows(weights(context), INT8), DTYPE[context.device.type]

    def run(x: Tensor) -> Tensor:
        values, scales = round_rows(x, INT8)
        sums = torch._int_mm(values, weight.t())
        return (sums.float() * scales * weight_scales.t()).to(dtype)

    mode = "max-autotune-no-cudagraphs" if context.device.type == "cuda" else "default"
    return _side(compile_anew(run, dynamic=False, fullgraph=True, mode=mode))


def sparse(context: Context) -> Side:
    """Pruned weights as values and places (Mishra et al., Accelerating Sparse Deep Neural Networks, 2021)."""
    weight = torch.sparse.to_sparse_semi_structured(weights(context, pruned=True))
    return _side(lambda x: F.linear(x, weight))


def round_to_four_bits(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Values 0 to 15, int32 [outputs, inputs]; a scale and the value of 8 for each GROUP: [groups, outputs, 2]."""
    groups = weight.float().unflatten(1, (-1, GROUP))  # type: ignore[no-untyped-call]
    low, high = groups.aminmax(dim=2)
    scales = ((high - low) / 15).clamp(min=1e-6)
    values = ((groups - low[..., None]) / scales[..., None]).round().int()
    return values.flatten(1), torch.stack((scales, low + 8 * scales), dim=2).transpose(0, 1).contiguous()


def int4(context: Context) -> Side:
    """PyTorch's kernels for four-bit weights, which torchao uses too; activations are in bfloat16.

    The kernel of the CPU has vector instructions for bfloat16 alone: in float32 it took a hundred times as long.
    """
    values, scales = round_to_four_bits(weights(context))
    scales = scales.to(torch.bfloat16)
    if context.device.type == "cpu":
        on_cpu = torch._convert_weight_to_int4pack_for_cpu(values, 1)
        return _side(lambda x: torch._weight_int4pack_mm_for_cpu(x.bfloat16(), on_cpu, GROUP, scales).to(x.dtype))
    pairs = (values[:, ::2] << 4 | values[:, 1::2]).to(torch.uint8)
    packed = torch._convert_weight_to_int4pack(pairs, 8)
    return _side(lambda x: torch._weight_int4pack_mm(x, packed, GROUP, scales))


def size(kind: str, rows: int) -> Size:
    """FLOPs: 2 per multiply-add. Bytes: activations, weights and results once, by the reference's precision."""
    values = rows * (INPUTS[kind] + OUTPUTS[kind]) + INPUTS[kind] * OUTPUTS[kind]
    return Size(rows, 2.0 * rows * INPUTS[kind] * OUTPUTS[kind], float(values * DTYPE[kind].itemsize))


ADA = Needs(compute_capability=(8, 9), cpp_compiler=True, install="install a C++ compiler, such as g++")
AMPERE = Needs(compute_capability=(8, 0))
# Where oneDNN has no kernel for these sums, PyTorch adds them in a plain loop: 0.02x on a CPU, and 3.3x to 4.9x on one
# that has these instructions.
INT8_SUMS = replace(COMPILER, cpu_flags=("avx512_vnni",))
TWO_KERNELS = {"cuda": Contract(limits=(Limit("kernels", at_most=2),))}
FEW_KERNELS = {"cuda": Contract(limits=(Limit("kernels", at_most=4),))}  # names of Triton's show no tensor cores
TENSOR_CORES = {"cuda": Contract(limits=(Limit("tensor_core_kernels", at_least=1), *FEW_KERNELS["cuda"].limits))}
TOLERANCES = {
    "fp8": Tolerance(relative_l2=5e-2, max_error=1e-1),  # three bits of mantissa in both factors
    "int8": Tolerance(relative_l2=3e-2, max_error=1e-1),
    "int4": Tolerance(relative_l2=1.5e-1, max_error=2e-1),  # half of 15 levels of a group
    "pruned": TOLERANCE_BY_DTYPE["bfloat16"],
}
_rung = partial(Optimization, tolerance=TOLERANCES)
FEW_ROWS = 4
FOUR_BIT_BYTES = INPUTS["cuda"] * OUTPUTS["cuda"] * (0.5 + 4 / GROUP) + 2.0 * FEW_ROWS * (
    INPUTS["cuda"] + OUTPUTS["cuda"]
)
MANY: dict[DeviceKind, Size] = {"cuda": size("cuda", 8192), "cpu": size("cpu", 256)}
# PyTorch plans every sparse product anew, which takes an H200's host 0.9 to 1.7 ms: 8192 rows would wait for it.
MORE: dict[DeviceKind, Size] = {"cuda": size("cuda", 32_768)}
FEW: dict[DeviceKind, Size] = {"cuda": size("cuda", FEW_ROWS), "cpu": size("cpu", FEW_ROWS)}
FP8_PROMISE = {"sm_90": 1.35, "cuda": 1.2}
EIGHT_BIT_RUNGS = (
    _rung("fp8", fp8, FP8_PROMISE, "fp8", needs=ADA, contract=TENSOR_CORES),
    _rung("int8", int8, {"cuda": 1.0, "cpu": 1.5}, "int8", needs=INT8_SUMS, contract=FEW_KERNELS),
)
INT4_PROMISE = {"cuda": 1.2, "cpu": 0.9}
INT4 = _rung("int4", int4, INT4_PROMISE, "int4", needs=AMPERE, contract=TWO_KERNELS, bytes=FOUR_BIT_BYTES)
# No yardstick bounds a product that leaves out half of its multiplications.
TWO_OF_FOUR = _rung("two-of-four", sparse, {"cuda": 1.0}, "pruned", needs=AMPERE, contract=TENSOR_CORES)
WORKLOADS: tuple[Workload, ...] = (
    Workload("low-precision", dense, activations, MANY, EIGHT_BIT_RUNGS, cold=False),
    Workload("four-bit-weights", dense, activations, FEW, (INT4,), cold=True),
    Workload("sparse-weights", dense_and_pruned, activations, MORE, (TWO_OF_FOUR,), cold=False),
)
