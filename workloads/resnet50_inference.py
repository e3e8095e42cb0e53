"""ResNet-50 inference on photographs: eager FP32 against what precision, layout, fusion, compilers and graphs give.

Every side gets the same float32 batch [items, 3, 224, 224] and returns float32 logits [items, 1000]; converting the
batch to what a side computes in is part of its step.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

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
from workloads.cudnn_fusion import STEM_CHANNELS, fuse, to_channels_last_half
from workloads.photographs import SIDE_PIXELS, photograph_batch

# Of one photograph; a test counts them again.
MULTIPLY_ADDS = 4_089_184_256  # in the convolutions and the fully connected layer
VALUES_READ, VALUES_WRITTEN = 10_664_448, 11_114_984  # by the same layers, weights apart
WEIGHTS = 25_557_032

UNMEASURED_BATCH = 2**31  # an index that no measurement reaches: for calibration, compilation and autotuning
CALIBRATION_PHOTOGRAPHS = 8
WARM_UP_STEPS = 3
NCHW, NHWC = torch.contiguous_format, torch.channels_last


def size(items: int) -> Size:
    """FLOPs: 2 per multiply-add. Bytes: FP32 weights once, and the input and output of each of those layers once."""
    values = WEIGHTS + items * (VALUES_READ + VALUES_WRITTEN)
    return Size(items=items, flops=2.0 * items * MULTIPLY_ADDS, bytes=4.0 * values)


def resnet50(context: Context) -> nn.Module:
    """A new eval model on the context's device, float32, with seeded weights or those of the user's checkpoint.

    Raises ValueError, in one sentence that names the file, for a checkpoint that is not a ResNet-50's state_dict.
    """
    path = context.checkpoint_path
    weights = checkpoint(path) if path else seeded_weights(context.seed, context.input_path)
    model = _without_weights()
    model.load_state_dict({name: value.to(context.device, copy=True) for name, value in weights.items()}, assign=True)
    return model.float().eval().requires_grad_(False)


def _without_weights() -> nn.Module:
    from torchvision.models import resnet50 as architecture

    with torch.device("meta"):
        model: nn.Module = architecture()
    return model


@functools.lru_cache(maxsize=1)
def checkpoint(path: Path) -> Mapping[str, Tensor]:
    """The state_dict in `path`, on the CPU; raises ValueError, in one sentence that names the file."""
    try:
        weights: Mapping[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        _without_weights().load_state_dict(weights, assign=True)
    except Exception as error:  # whatever zip archives, unpickling, the file system and load_state_dict raise
        reason = " ".join(str(error).split())[:120]
        problem = f"--perf-checkpoint {path} holds no state_dict of torchvision's resnet50"
        advice = "write one with torch.save(model.state_dict(), path)"
        raise ValueError(f"{problem} ({type(error).__name__}: {reason}): {advice}") from error
    return weights


@functools.lru_cache(maxsize=2)
def seeded_weights(seed: int, input_path: Path | None) -> Mapping[str, Tensor]:
    """He initialization, random BatchNorm weights, and running statistics from photographs, on the CPU.

    With the statistics of an untrained BatchNorm, activations grow from block to block. The last BatchNorm of each
    block is small, as training makes it: else the blocks amplify rounding, and logits in FP16 are 2 % off, not 0.1 %.
    """
    from torchvision.models import resnet50 as architecture

    context = Context(torch.device("cpu"), CALIBRATION_PHOTOGRAPHS, seed, Path(), input_path)
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(seed)
        model = architecture().eval()
        for name, norm in model.named_modules():
            if isinstance(norm, nn.BatchNorm2d):
                ends_block = name.endswith("bn3")
                norm.weight.uniform_(*((0.1, 0.3) if ends_block else (0.5, 1.5)))
                norm.bias.normal_(0.0 if ends_block else 0.3, 0.2)
                norm.register_forward_pre_hook(_calibrate)
        model(photograph_batch(context, UNMEASURED_BATCH))
    return {name: value.clone() for name, value in model.state_dict().items()}


def _calibrate(norm: nn.BatchNorm2d, inputs: tuple[Tensor]) -> None:
    """Sets the running statistics for outputs of unit scale that keep half of their mean, as on unseen pictures."""
    mean = 0.5 * inputs[0].mean((0, 2, 3))
    variance = (inputs[0] - mean.view(1, -1, 1, 1)).square().mean((0, 2, 3))
    norm.load_state_dict({"running_mean": mean, "running_var": variance}, strict=False)


def _eager(context: Context, dtype: torch.dtype, layout: torch.memory_format) -> Side:
    model = resnet50(context).to(dtype=dtype, memory_format=layout)  # type: ignore[call-overload]

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
    """torch.compile with frozen weights, so that BatchNorm is folded; conversion of the batch is compiled with it."""
    import torch._inductor.config as inductor_config
    from torch._inductor.compile_fx import compile_fx

    model = resnet50(context).to(dtype=dtype, memory_format=layout)  # type: ignore[call-overload]
    graphs_frozen: list[bool] = []

    def backend(graph: fx.GraphModule, examples: Sequence[Tensor]) -> Any:
        graphs_frozen.append(bool(inductor_config.freezing) and not torch.is_grad_enabled())
        return compile_fx(graph, examples)

    def forward(inputs: Tensor) -> Tensor:
        logits: Tensor = model(inputs.to(dtype=dtype, memory_format=layout))
        return logits.float()

    # Dynamo keeps what it compiled with the code object, and gives up after 8: every build needs one of its own.
    forward.__code__ = forward.__code__.replace()
    step = torch.inference_mode()(torch.compile(forward, backend=backend, dynamic=False))
    with inductor_config.patch(freezing=True):
        step(photograph_batch(context, UNMEASURED_BATCH))
    return Side(step, model, engaged=partial(_not_one_frozen_graph, graphs_frozen))


def _not_one_frozen_graph(graphs_frozen: Sequence[bool]) -> str | None:
    if len(graphs_frozen) != 1:
        return f"{len(graphs_frozen)} graphs were compiled, not 1: graph breaks or recompilations"
    return None if graphs_frozen[0] else "the weights were not frozen: compiled without freezing or with gradients on"


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


@torch.inference_mode()
def _capture(context: Context, model: nn.Module, channels: int) -> Side:
    """`model` reads [items, channels, 224, 224] in channels_last FP16; the channels beyond the third stay zero."""
    shape = (context.items, channels, SIDE_PIXELS, SIDE_PIXELS)
    buffer = torch.zeros(shape, dtype=torch.float16, device=context.device).to(memory_format=NHWC)
    buffer[:, :3].copy_(photograph_batch(context, UNMEASURED_BATCH))  # autotuning on zeros would time a cooler GPU
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


def cuda_graph(context: Context) -> Side:
    """The kernels of `channels_last_fp16`, in one launch."""
    torch.backends.cudnn.benchmark = True
    model = resnet50(context).to(dtype=torch.float16, memory_format=NHWC)  # type: ignore[call-overload]
    return _capture(context, model, channels=3)


def cudnn_fused(context: Context) -> Side:
    """Every convolution one cuDNN call with all that follows it, in one launch; the fully connected layer in TF32."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    return _capture(context, to_channels_last_half(fuse(resnet50(context))), STEM_CHANNELS)


def tensorrt_fp32(context: Context) -> Side:
    """Strict FP32: the builder is to leave TF32 off, as the baseline does."""
    return _tensorrt(context, torch.float32)


def tensorrt_fp16(context: Context) -> Side:
    return _tensorrt(context, torch.float16)


def _tensorrt(context: Context, dtype: torch.dtype) -> Side:
    from workloads.tensorrt_engine import build_engine

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

# Tensor cores may drop the 13 bits that TF32 lacks instead of rounding: emulated so, these logits are 4e-3 off.
TF32_TOLERANCE = {"tf32": Tolerance(relative_l2=6e-3, max_error=2e-2)}
# Two correct FP32 programs of 53 layers, with Winograd on one side, differ more than two of one layer.
TENSORRT_TOLERANCE = {**TOLERANCE_BY_DTYPE, "float32": Tolerance(relative_l2=1e-4, max_error=1e-3)}

ALL_LAYERS = Limit("kernels", at_least=54)  # 53 convolutions and the fully connected layer: no work vanished
TENSOR_CORES = (ALL_LAYERS, Limit("tensor_core_kernels", at_least=20))
ONE_GRAPH = (*TENSOR_CORES, Limit("graph_launches", at_least=1, at_most=1), Limit("kernel_launches", at_most=1))
ENGINE = (Limit("kernels", at_least=20, at_most_of_reference=0.5),)
FEWER_LAUNCHES = Limit("kernel_launches", at_most_of_reference=1 / 4.1)
LESS_API_TIME = Limit("api_ms", at_most_of_reference=1 / 3.3)
SHORTER_KERNELS = Limit("longest_kernels_mean_ms", at_most_of_reference=1 / 2.6)
FAST_LAUNCH = Limit("api_ms", at_most=0.05)


@dataclass(frozen=True)
class Promise:
    """What one optimization promises at one batch size: at least this speedup, and on sm_90 these limits too."""

    sm_90: float
    cuda: float
    limits: tuple[Limit, ...] = ()

    @property
    def speedups(self) -> Mapping[str, float]:
        return {"sm_90": self.sm_90, "cuda": self.cuda}

    def contract(self, engaged: tuple[Limit, ...]) -> Mapping[str, Contract]:
        return {"sm_90": Contract(engaged, self.limits), "cuda": Contract(engaged)}


BATCH_128 = {
    "tf32": Promise(1.8, 1.1),
    "fp16": Promise(2.3, 1.2),
    "channels-last-fp16": Promise(3.8, 1.2),
    "inductor-fp16": Promise(7.5, 1.5, (Limit("kernels", at_most=110),)),
    "cuda-graph": Promise(1.0, 0.95),
    "cudnn-fused": Promise(9.0, 1.5, (Limit("kernels", at_most=62), FEWER_LAUNCHES, LESS_API_TIME, SHORTER_KERNELS)),
    "tensorrt-fp32": Promise(1.0, 0.9, (FEWER_LAUNCHES,)),
    "tensorrt-fp16": Promise(6.0, 1.5, (FEWER_LAUNCHES, LESS_API_TIME, SHORTER_KERNELS)),
}
# One photograph is bound by launches: what only makes kernels shorter gains nothing, and FP16 adds conversion kernels.
BATCH_1 = {
    "tf32": Promise(0.9, 0.8),
    "fp16": Promise(0.7, 0.6),
    "channels-last-fp16": Promise(0.8, 0.6),
    "inductor-fp16": Promise(1.1, 0.9),
    "cuda-graph": Promise(2.5, 1.2, (FAST_LAUNCH,)),
    "cudnn-fused": Promise(3.0, 1.2, (FAST_LAUNCH, FEWER_LAUNCHES)),
    "tensorrt-fp32": Promise(1.2, 1.0, (FEWER_LAUNCHES,)),
    "tensorrt-fp16": Promise(2.0, 1.2, (FEWER_LAUNCHES,)),
}


def _on_cuda(promises: Mapping[str, Promise]) -> tuple[Optimization, ...]:
    def promised(name: str, build: Build, dtype: str, engaged: tuple[Limit, ...], needs: Needs) -> Optimization:
        promise = promises[name]
        contract = promise.contract(engaged)
        return Optimization(name, build, promise.speedups, dtype, needs=needs, contract=contract)

    return (
        replace(promised("tf32", tf32, "tf32", TENSOR_CORES, AMPERE), tolerance=TF32_TOLERANCE),
        promised("fp16", fp16, "float16", TENSOR_CORES, VOLTA),
        promised("channels-last-fp16", channels_last_fp16, "float16", TENSOR_CORES, VOLTA),
        promised("inductor-fp16", inductor_fp16, "float16", TENSOR_CORES, VOLTA),
        replace(promised("cuda-graph", cuda_graph, "float16", ONE_GRAPH, VOLTA), compared_with="channels-last-fp16"),
        promised("cudnn-fused", cudnn_fused, "float16", ONE_GRAPH, AMPERE),
        replace(promised("tensorrt-fp32", tensorrt_fp32, "float32", ENGINE, TENSORRT), tolerance=TENSORRT_TOLERANCE),
        promised("tensorrt-fp16", tensorrt_fp16, "float16", ENGINE, TENSORRT),
    )


ON_CPU = (
    Optimization("channels-last", channels_last, {"cpu": 0.9}),
    Optimization("inductor", inductor, {"cpu": 1.1}, needs=COMPILER),
    Optimization("bf16", bf16, {"cpu": 1.3}, dtype="bfloat16", needs=AVX512_BF16),
)

WORKLOADS: tuple[Workload, ...] = (
    Workload(
        name="resnet50-inference",
        baseline=baseline,
        inputs=photograph_batch,
        sizes={"cuda": size(128), "cpu": size(4)},
        optimizations=(*_on_cuda(BATCH_128), *ON_CPU),
    ),
    Workload(
        name="resnet50-inference-batch1",
        baseline=baseline,
        inputs=photograph_batch,
        sizes={"cuda": size(1)},
        optimizations=_on_cuda(BATCH_1),
    ),
)
