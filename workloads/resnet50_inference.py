"""ResNet-50 inference on photographs: eager FP32 against lower precision, layout, fusion, compilers and graphs.

Every side gets the same float32 batch [items, 3, 224, 224] and returns float32 logits [items, 1000]; converting the
batch to the precision of a side is part of its step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gpugate.workload import (
    TOLERANCE_BY_DTYPE,
    Build,
    Context,
    Contract,
    Limit,
    Needs,
    Optimization,
    Side,
    Size,
    Tolerance,
    Workload,
)
from workloads.parts.cudnn_fusion import CUDNN, STEM_CHANNELS, Operators, fuse, to_channels_last_half
from workloads.parts.model_sides import NCHW, NHWC, captured, compiled, eager
from workloads.parts.photographs import PHOTOGRAPHS_SETTING, photograph_batch
from workloads.parts.resnet50_weights import UNMEASURED_BATCH, WEIGHTS_SETTING, resnet50

# For one photograph; a test counts them again.
MULTIPLY_ADDS = 4_089_184_256  # in the convolutions and the fully connected layer
VALUES_READ, VALUES_WRITTEN = 10_664_448, 11_114_984  # by the same layers, weights apart
WEIGHTS = 25_557_032


def size(items: int) -> Size:
    """FLOPs: 2 per multiply-add. Bytes: FP32 weights once, and the input and output of each of those layers once."""
    values = WEIGHTS + items * (VALUES_READ + VALUES_WRITTEN)
    return Size(items=items, flops=2.0 * items * MULTIPLY_ADDS, bytes=4.0 * values)


def _eager(context: Context, dtype: torch.dtype, layout: torch.memory_format) -> Side:
    return eager(resnet50(context), dtype, layout)


def baseline(context: Context) -> Side:
    return _eager(context, torch.float32, NCHW)


def tf32(context: Context) -> Side:
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.allow_tf32 = True
    return _eager(context, torch.float32, NCHW)


def fp16(context: Context) -> Side:
    return _eager(context, torch.float16, NCHW)


def channels_last_fp16(context: Context) -> Side:
    torch.backends.cudnn.benchmark = True
    return _eager(context, torch.float16, NHWC)


def channels_last(context: Context) -> Side:
    return _eager(context, torch.float32, NHWC)


def bf16(context: Context) -> Side:
    return _eager(context, torch.bfloat16, NHWC)


def inductor_fp16(context: Context) -> Side:
    torch.backends.cudnn.benchmark = True
    return _compiled(context, torch.float16, NHWC)


def inductor(context: Context) -> Side:
    return _compiled(context, torch.float32, NCHW)


def _compiled(context: Context, dtype: torch.dtype, layout: torch.memory_format) -> Side:
    return compiled(resnet50(context), photograph_batch(context, UNMEASURED_BATCH), dtype, layout)


def cuda_graph(context: Context) -> Side:
    """The kernels of `channels_last_fp16`, in one launch."""
    torch.backends.cudnn.benchmark = True
    model = resnet50(context).to(dtype=torch.float16, memory_format=NHWC)  # type: ignore[call-overload]
    return captured(context, model, 3, photograph_batch(context, UNMEASURED_BATCH))


def cudnn_fused(context: Context) -> Side:
    """Each convolution is one cuDNN call with its successors, all in one launch; the fully connected layer in TF32."""
    return _fused(context, CUDNN)


def split_k(context: Context) -> Side:
    """The graph of `cudnn_fused`; its convolutions after the first are Triton kernels with a tile size for each layer.

    Where a layer has few tiles, several programs share the sum of one (split-K).
    """
    from workloads.parts.split_convolution import SplitConvolutions

    return _fused(context, SplitConvolutions(context.device).operators())


def _fused(context: Context, operators: Operators) -> Side:
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    import torch._inductor.config as inductor_config

    with inductor_config.patch(compile_threads=1):  # one small kernel, the pooling: no worker processes for it
        model = to_channels_last_half(fuse(resnet50(context), operators))
        return captured(context, model, STEM_CHANNELS, photograph_batch(context, UNMEASURED_BATCH))


def tensorrt_fp32(context: Context) -> Side:
    """TensorRT in strict FP32: the builder must leave TF32 off, as the baseline does."""
    return _tensorrt(context, torch.float32)


def tensorrt_fp16(context: Context) -> Side:
    return _tensorrt(context, torch.float16)


def _tensorrt(context: Context, dtype: torch.dtype) -> Side:
    from workloads.parts.tensorrt_engine import build_engine

    model = resnet50(context).to(dtype)
    engine = build_engine(model, photograph_batch(context, UNMEASURED_BATCH).to(dtype), context.cache_dir)

    @torch.inference_mode()
    def step(inputs: Tensor) -> Tensor:
        return engine(inputs.to(dtype)).float()

    return Side(step, model)


COMPILER = Needs(cpp_compiler=True, install="install a C++ compiler, such as g++")
AVX512_BF16 = Needs(cpu_flags=("avx512_bf16",), install="run it on a CPU with AVX-512 BF16 instructions")
VOLTA, AMPERE = Needs(compute_capability=(7, 0)), Needs(compute_capability=(8, 0))
TENSORRT = Needs(("torch_tensorrt", "tensorrt"), (7, 5), install="pip install 'gpugate[tensorrt]'")

# Among 128 photographs a few lie between two classes; with one or four, a single such photograph is a false alarm.
AGREEING = {name: replace(tolerance, top1_agreement=0.95) for name, tolerance in TOLERANCE_BY_DTYPE.items()}
# Two correct FP32 programs of 53 layers, with Winograd on one side, differ more than two of one layer.
TENSORRT_TOLERANCE = {"float32": Tolerance(relative_l2=1e-4, max_error=1e-3)}

ALL_LAYERS = Limit("kernels", at_least=54)  # 53 convolutions and the fully connected layer: no work vanished
TENSOR_CORES = (ALL_LAYERS, Limit("tensor_core_kernels", at_least=20))
ONE_LAUNCH = (Limit("graph_launches", at_least=1, at_most=1), Limit("kernel_launches", at_most=1))
ONE_GRAPH = (*TENSOR_CORES, *ONE_LAUNCH)
ENGINE = (Limit("kernels", at_least=20, at_most_of_reference=0.5),)
FEWER_LAUNCHES = Limit("kernel_launches", at_most_of_reference=1 / 3.5)  # 219 against the 57 that fusion must leave
LESS_API_TIME = Limit("api_ms", at_most_of_reference=1 / 3.3)
SHORTER_KERNELS = Limit("longest_kernels_mean_ms", at_most_of_reference=1 / 2.6)
FAST_LAUNCH = Limit("enqueue_ms", at_most=0.05)


@dataclass(frozen=True)
class Promise:
    """The promise of one optimization at one batch size: at least this speedup, and on sm_90 these limits too.

    `h100` is the speedup on an H100 80GB HBM3, where it differs from that of other products of sm_90.
    """

    sm_90: float
    cuda: float
    limits: tuple[Limit, ...] = ()
    why_lower: str = ""  # the reason of a promise below 0.8 of the recorded speedup, or below a target
    h100: float | None = None

    @property
    def speedups(self) -> Mapping[str, float]:
        own = {} if self.h100 is None else {"nvidia-h100-80gb-hbm3": self.h100}
        return {**own, "sm_90": self.sm_90, "cuda": self.cuda}

    def contract(self, engaged: tuple[Limit, ...]) -> Mapping[str, Contract]:
        return {"sm_90": Contract(engaged, self.limits), "cuda": Contract(engaged)}


OF_AN_H100 = "the target is of an H200: an H100 has 0.7 of its memory bandwidth and reaches 7.1x"
BATCH_128 = {
    "tf32": Promise(1.8, 1.1),
    "fp16": Promise(2.3, 1.2),
    "channels-last-fp16": Promise(3.8, 1.2),
    "inductor-fp16": Promise(7.5, 1.5, (Limit("kernels", at_most=110),), OF_AN_H100, h100=5.9),
    "cuda-graph": Promise(1.0, 0.95),
    "cudnn-fused": Promise(9.8, 1.5, (Limit("kernels", at_most=62), FEWER_LAUNCHES, LESS_API_TIME, SHORTER_KERNELS)),
    "tensorrt-fp32": Promise(1.0, 0.9, (FEWER_LAUNCHES,)),
    "tensorrt-fp16": Promise(6.0, 1.5, (FEWER_LAUNCHES, LESS_API_TIME, SHORTER_KERNELS)),
}
LAUNCHES_VARY = "the host's cores decide how long the launches of the eager side take"
QUICK_HOST = f"{LAUNCHES_VARY}, and a quick host of an H200 left 3.0x on 2026-11-20"
# One photograph is bound by launches: shorter kernels alone gain nothing, and FP16 adds conversion kernels.
BATCH_1 = {
    "tf32": Promise(0.7, 0.7),
    "fp16": Promise(0.58, 0.5),
    "channels-last-fp16": Promise(0.65, 0.5),
    "inductor-fp16": Promise(1.5, 0.9),
    "cuda-graph": Promise(2.9, 1.2, (FAST_LAUNCH,), QUICK_HOST),
    "cudnn-fused": Promise(6.4, 1.2, (FAST_LAUNCH, FEWER_LAUNCHES), LAUNCHES_VARY),
    "split-k": Promise(8.0, 1.2, (FAST_LAUNCH, FEWER_LAUNCHES), LAUNCHES_VARY),
    "tensorrt-fp32": Promise(1.2, 1.0, (FEWER_LAUNCHES,)),
    "tensorrt-fp16": Promise(2.0, 1.2, (FEWER_LAUNCHES,)),
}


def _on_cuda(promises: Mapping[str, Promise], tolerance: Mapping[str, Tolerance]) -> tuple[Optimization, ...]:
    def promised(name: str, build: Build, dtype: str, engaged: tuple[Limit, ...], needs: Needs) -> Optimization:
        made = Optimization(name, build, promises[name].speedups, dtype, needs=needs, tolerance=tolerance)
        return replace(made, contract=promises[name].contract(engaged), min_speedup_why=promises[name].why_lower)

    return (
        promised("tf32", tf32, "tf32", TENSOR_CORES, AMPERE),
        promised("fp16", fp16, "float16", TENSOR_CORES, VOLTA),
        promised("channels-last-fp16", channels_last_fp16, "float16", TENSOR_CORES, VOLTA),
        promised("inductor-fp16", inductor_fp16, "float16", TENSOR_CORES, VOLTA),
        replace(promised("cuda-graph", cuda_graph, "float16", ONE_GRAPH, VOLTA), compared_with="channels-last-fp16"),
        promised("cudnn-fused", cudnn_fused, "float16", ONE_GRAPH, AMPERE),
        replace(promised("tensorrt-fp32", tensorrt_fp32, "float32", ENGINE, TENSORRT), tolerance=TENSORRT_TOLERANCE),
        promised("tensorrt-fp16", tensorrt_fp16, "float16", (*ENGINE, *TENSOR_CORES[1:]), TENSORRT),
    )


SPLIT_K = Optimization(
    "split-k",
    split_k,
    BATCH_1["split-k"].speedups,
    dtype="float16",
    needs=AMPERE,
    contract=BATCH_1["split-k"].contract((ALL_LAYERS, *ONE_LAUNCH)),  # names of Triton's kernels show no tensor cores
    tolerance=TOLERANCE_BY_DTYPE,
    min_speedup_why=BATCH_1["split-k"].why_lower,
)
ON_CPU = (
    Optimization("channels-last", channels_last, {"cpu": 0.85}),
    Optimization("inductor", inductor, {"cpu": 1.1}, needs=COMPILER),
    Optimization("bf16", bf16, {"cpu": 1.3}, dtype="bfloat16", needs=AVX512_BF16),
)

WORKLOADS: tuple[Workload, ...] = (
    Workload(
        name="resnet50-inference",
        baseline=baseline,
        inputs=photograph_batch,
        sizes={"cuda": size(128), "cpu": size(1)},
        optimizations=(*_on_cuda(BATCH_128, AGREEING), *ON_CPU),
        settings={**PHOTOGRAPHS_SETTING, **WEIGHTS_SETTING},
    ),
    Workload(
        name="resnet50-inference-batch1",
        baseline=baseline,
        inputs=photograph_batch,
        sizes={"cuda": size(1)},
        optimizations=(*_on_cuda(BATCH_1, TOLERANCE_BY_DTYPE), SPLIT_K),
        settings={**PHOTOGRAPHS_SETTING, **WEIGHTS_SETTING},
    ),
)
