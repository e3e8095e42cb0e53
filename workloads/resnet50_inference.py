"""ResNet-50 inference on photographs: eager PyTorch against lower precision, layout, fusion, compilers and graphs.

Every side gets the same float32 batch [items, 3, 224, 224] and returns float32 logits [items, 1000]; converting the
batch to the precision of a side is part of its step.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn

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
from workloads.parts.compiled import COMPILER, NCHW, NHWC, compiled, eager
from workloads.parts.cudnn_fusion import CUDNN, STEM_CHANNELS, Operators, fuse, to_channels_last_half
from workloads.parts.graph_capture import Replay, captured, recorded
from workloads.parts.kept_files import key_of
from workloads.parts.photographs import PHOTOGRAPHS_SETTING, UNMEASURED_BATCH, photograph_batch
from workloads.parts.state_dicts import read_state_dict
from workloads.parts.tensorrt_engine import TENSORRT_LIBRARY, Engine, Precision, build_engine

# For one photograph; a test counts them again.
MULTIPLY_ADDS = 4_089_184_256  # in the convolutions and the fully connected layer
VALUES_READ, VALUES_WRITTEN = 10_664_448, 11_114_984  # by the same layers, weights apart
WEIGHTS = 25_557_032
CALIBRATION_BATCHES, CALIBRATION_ITEMS = 4, 16  # of photographs for INT8
CALIBRATION_PHOTOGRAPHS = 16  # for the statistics of seeded weights
WEIGHTS_SETTING = {"resnet50-weights": "a state_dict of torchvision's resnet50"}


def size(items: int) -> Size:
    """FLOPs: 2 per multiply-add. Bytes: FP32 weights once, and the input and output of each of those layers once."""
    values = WEIGHTS + items * (VALUES_READ + VALUES_WRITTEN)
    return Size(items=items, flops=2.0 * items * MULTIPLY_ADDS, bytes=4.0 * values)


def resnet50(context: Context) -> nn.Module:
    """A new eval model on the context's device, float32, with seeded weights or those of the user's checkpoint.

    Raises ValueError, in one sentence that names the file, for a checkpoint that is not a ResNet-50's state_dict.
    """
    own = context.settings.get("resnet50-weights")
    photographs = context.settings.get("photographs")
    weights = seeded_weights(context.seed, photographs) if own is None else checkpoint(Path(own))
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
    return read_state_dict(path, f"--perf-set resnet50-weights={path}", "resnet50", lambda weights: _without_weights())


@functools.lru_cache(maxsize=2)
def seeded_weights(seed: int, photographs: str | None) -> Mapping[str, Tensor]:
    """He initialization, random BatchNorm weights, and running statistics from photographs, on the CPU.

    With the statistics of an untrained BatchNorm, activations grow from block to block. The last BatchNorm of each
    block is small, as training makes it: else the blocks amplify rounding, and logits in FP16 are 2 % off, not 0.1 %.
    """
    from torchvision.models import resnet50 as architecture

    settings = {} if photographs is None else {"photographs": photographs}
    context = Context(torch.device("cpu"), CALIBRATION_PHOTOGRAPHS, seed, Path(), settings=settings)
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
    return eager(resnet50(context), dtype, layout)


def baseline(context: Context) -> Side:
    return _eager(context, torch.float32, NCHW)


def strict_fp32(context: Context) -> Side:
    """FP32 in full precision, as PyTorch had it before TF32: convolutions without tensor cores."""
    torch.backends.cudnn.allow_tf32 = False
    return _eager(context, torch.float32, NCHW)


def fp16(context: Context) -> Side:
    return _eager(context, torch.float16, NCHW)


def channels_last_fp16(context: Context) -> Side:
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


def tensorrt(context: Context, precision: Precision) -> Side:
    """The model as one TensorRT engine; for INT8 it is calibrated on photographs that no measurement reads."""
    engine = _engine(context, precision)
    return Side(engine, layers=engine.layers)


def tensorrt_graph(context: Context, precision: Precision) -> Side:
    """The engine as a CUDA graph: one launch in place of one for each layer."""
    engine, pictures = _engine(context, precision), photograph_batch(context, UNMEASURED_BATCH)
    if not context.capture_graphs:
        return Side(engine, layers=engine.layers)
    graph, logits = recorded(lambda: engine(pictures), torch.cuda.Stream(context.device))  # type: ignore[no-untyped-call]
    return Side(Replay(engine, pictures, graph, logits), layers=engine.layers)


def _engine(context: Context, precision: Precision) -> Engine:
    on_cpu = replace(context, device=torch.device("cpu"), items=CALIBRATION_ITEMS)
    calibration = CALIBRATION_BATCHES if precision == "int8" else 0
    batches = [photograph_batch(on_cpu, UNMEASURED_BATCH + number) for number in range(calibration)]
    example = photograph_batch(context, UNMEASURED_BATCH)
    return build_engine(resnet50(on_cpu), example, precision, context.cache_dir, batches)


def torch_tensorrt_fp16(context: Context) -> Side:
    """Torch-TensorRT's own compiler on the half model, in its own file format."""
    import torch_tensorrt

    model, example = resnet50(context).half(), photograph_batch(context, UNMEASURED_BATCH).half()
    weights = b"".join(value.cpu().numpy().tobytes() for value in model.state_dict().values())
    gpu = torch.cuda.get_device_name(context.device)
    key = key_of(weights, tuple(example.shape), torch_tensorrt.__version__, version("tensorrt"), torch.__version__, gpu)
    path = context.cache_dir / "torch-tensorrt" / f"{key}.ep"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        compiled = torch_tensorrt.compile(
            model, ir="dynamo", inputs=[example], use_explicit_typing=True, require_full_compilation=True
        )
        unfinished = path.with_suffix(f".{os.getpid()}.ep")
        torch_tensorrt.save(compiled, str(unfinished), inputs=[example])
        unfinished.replace(path)
    program = torch_tensorrt.load(str(path)).module()

    @torch.inference_mode()
    def step(inputs: Tensor) -> Tensor:
        logits: Tensor = program(inputs.half())
        return logits.float()

    return Side(step)


AVX512_BF16 = Needs(cpu_flags=("avx512_bf16",), install="run it on a CPU with AVX-512 BF16 instructions")
VOLTA, AMPERE = Needs(compute_capability=(7, 0)), Needs(compute_capability=(8, 0))
TENSORRT = Needs(compute_capability=(7, 5), engine=TENSORRT_LIBRARY)
INT8 = replace(TENSORRT, packages=("onnxruntime",), install="pip install 'gpugate[tensorrt]'")
TORCH_TENSORRT = Needs(("torch_tensorrt",), (7, 5), install="pip install 'gpugate[torch-tensorrt]'")

# Two correct FP32 programs of 53 layers, with Winograd on one side, differ more than two of one layer.
TENSORRT_FP32 = {"float32": Tolerance(relative_l2=1e-4, max_error=1e-3)}
# An engine adds up some products in FP16, where cuDNN's kernels use FP32: 2.3e-3 on an H100.
TENSORRT_FP16 = {"float16": Tolerance(relative_l2=3e-3, max_error=1e-2)}
# Every value is off by half a step of 255 at most: 4.5e-2 after 53 layers, and up to 6.1e-2 for one photograph.
TENSORRT_INT8 = {"int8": Tolerance(relative_l2=9e-2, max_error=0.12)}
# The classes of seeded weights lie closer than those of trained ones: 0.77 to 0.81 of 128 photographs agreed in INT8.
INT8_TOP1 = 0.7

ALL_LAYERS = Limit("kernels", at_least=54)  # 53 convolutions and the fully connected layer: no work vanished
TENSOR_CORES = (ALL_LAYERS, Limit("tensor_core_kernels", at_least=20))
ONE_LAUNCH = (Limit("graph_launches", at_least=1, at_most=1), Limit("kernel_launches", at_most=1))
ONE_GRAPH = (*TENSOR_CORES, *ONE_LAUNCH)
ENGINE = (ALL_LAYERS, Limit("engine_layers", at_least=54))  # 53 convolutions and the fully connected layer
FAST_ENGINE = (*ENGINE, *TENSOR_CORES[1:])


def limit_layers(layers: int) -> tuple[Limit, ...]:
    """Limits of an engine that has at most so many layers, as recorded: one more is an operator that is fused no more.

    TensorRT 8.6 runs an engine of a plain network on one stream.
    """
    return Limit("engine_layers", at_most=layers), Limit("streams", at_most=1)


def limit_kernels(share: float) -> Limit:
    return Limit("longest_kernels_mean_ms", at_most_of_reference=share)


# One reshape more than the network has layers, and two casts more in FP16 and INT8.
FUSED, FUSED_IN_HALF, FUSED_IN_INT8 = limit_layers(57), limit_layers(59), limit_layers(59)
# The eager side has 243 launches, and fusion leaves 57.
FEWER_LAUNCHES = Limit("kernel_launches", at_most_of_reference=1 / 3.5)
LESS_API_TIME = Limit("api_ms", at_most_of_reference=1 / 3.3)
FEWER_CALLS = (FEWER_LAUNCHES, LESS_API_TIME)
SHORTER_KERNELS = limit_kernels(1 / 2.6)
# Shares of the eager reference's memory and kernels, a tenth above those of an H100.
SOME_MEMORY, HALF_THE_MEMORY = (Limit("peak_bytes", at_most_of_reference=share) for share in (0.92, 0.5))
LESS_OF_ALL = (*FEWER_CALLS, SHORTER_KERNELS, HALF_THE_MEMORY)


def limit_size(memory_share: float, kernels_share: float) -> tuple[Limit, ...]:
    """Limits of an FP16 side: its peak memory and its 15 longest kernels, as shares of the reference's."""
    return Limit("peak_bytes", at_most_of_reference=memory_share), limit_kernels(kernels_share)


# A slow host lengthens both launches: on an H200, 0.003 to 0.011 of the eager side's in five processes.
FAST_LAUNCH = Limit("enqueue_ms", at_most_of_reference=1 / 50)


@dataclass(frozen=True)
class Promise:
    """The promise of one optimization at one batch size: at least this speedup, and on sm_90 these limits too."""

    sm_90: float
    cuda: float
    limits: tuple[Limit, ...] = ()
    why_lower: str = ""  # the reason of a promise below 0.8 of the recorded speedup, or below a target

    @property
    def speedups(self) -> Mapping[str, float]:
        return {"sm_90": self.sm_90, "cuda": self.cuda}

    def contract(self, engaged: tuple[Limit, ...]) -> Mapping[str, Contract]:
        return {"sm_90": Contract(engaged, self.limits), "cuda": Contract(engaged)}


TF32_WAS_LEFT = "the default computes convolutions in TF32: this is the loss of a program that turns TF32 off"
BATCH_128 = {
    "strict-fp32": Promise(0.43, 0.3),
    "fp16": Promise(1.18, 0.9, limit_size(0.62, 0.8)),
    "channels-last-fp16": Promise(1.72, 1.0, limit_size(0.58, 0.6)),
    # cuDNN times its kernels, and may choose some with a large workspace: on an H200, 0.45 to 0.65 of the memory.
    "inductor-fp16": Promise(3.2, 1.2, (Limit("kernels", at_most=110), *limit_size(0.75, 0.41))),
    "cuda-graph": Promise(0.98, 0.95, (limit_kernels(1.1),)),
    "cudnn-fused": Promise(4.6, 1.3, (Limit("kernels", at_most=62), *FEWER_CALLS, *limit_size(0.7, 1 / 2.6))),
    "tensorrt-fp32": Promise(0.7, 0.5, (Limit("kernels", at_most=82), *FUSED)),
    "tensorrt-tf32": Promise(2.4, 1.0, (Limit("kernels", at_most=57), *FUSED, *FEWER_CALLS, SOME_MEMORY)),
    "tensorrt-fp16": Promise(4.6, 1.3, (Limit("kernels", at_most=60), *FUSED_IN_HALF, *LESS_OF_ALL)),
    "tensorrt-int8": Promise(6.8, 1.3, (Limit("kernels", at_most=62), *FUSED_IN_INT8, *LESS_OF_ALL)),
    "torch-tensorrt-fp16": Promise(4.5, 1.3, LESS_OF_ALL),
}
LAUNCHES_VARY = "the host's cores decide how long the launches of the eager side take"
QUICK_HOST = f"{LAUNCHES_VARY}, and a quick host of an H200 left 3.0x on 2026-11-20"
# One photograph is bound by launches: shorter kernels alone gain nothing, and FP16 adds conversion kernels. The mean of
# the 15 longest is 8 to 11 us, and an H200 has 0.47 to 0.79 of the reference's 14 us; a graph replays its reference's.
BATCH_1 = {
    "fp16": Promise(0.58, 0.5, (limit_kernels(0.9),), LAUNCHES_VARY),
    "channels-last-fp16": Promise(0.65, 0.5, (limit_kernels(0.9),), LAUNCHES_VARY),
    "inductor-fp16": Promise(1.5, 0.9, (limit_kernels(0.8),), LAUNCHES_VARY),
    "cuda-graph": Promise(2.9, 1.2, (FAST_LAUNCH, limit_kernels(1.15)), QUICK_HOST),
    "cudnn-fused": Promise(6.4, 1.2, (FAST_LAUNCH, FEWER_LAUNCHES, limit_kernels(0.8)), LAUNCHES_VARY),
    "split-k": Promise(8.0, 1.2, (FAST_LAUNCH, FEWER_LAUNCHES, limit_kernels(0.7)), LAUNCHES_VARY),
    "tensorrt-fp32": Promise(2.2, 1.0, FUSED, LAUNCHES_VARY),
    "tensorrt-tf32": Promise(4.0, 1.0, (*FUSED, FEWER_LAUNCHES), LAUNCHES_VARY),
    "tensorrt-fp16": Promise(5.0, 1.2, (*FUSED_IN_HALF, FEWER_LAUNCHES, limit_kernels(0.65)), LAUNCHES_VARY),
    "tensorrt-fp16-graph": Promise(6.4, 1.2, (*FUSED_IN_HALF, FAST_LAUNCH, limit_kernels(0.65)), LAUNCHES_VARY),
    "tensorrt-int8": Promise(5.0, 1.2, (*FUSED_IN_INT8, FEWER_LAUNCHES, limit_kernels(0.55)), LAUNCHES_VARY),
    "torch-tensorrt-fp16": Promise(5.0, 1.2, (FEWER_LAUNCHES,), LAUNCHES_VARY),
}


def _on_cuda(promises: Mapping[str, Promise], items: int) -> tuple[Optimization, ...]:
    many = items > 1  # one photograph agrees or does not

    def promised(
        name: str,
        build: Build,
        dtype: str,
        engaged: tuple[Limit, ...],
        needs: Needs,
        tolerance: Mapping[str, Tolerance] = TOLERANCE_BY_DTYPE,
        top1: float = 0.92,  # a few photographs lie between two classes: an FP16 engine moved 5 of 128
    ) -> Optimization:
        agreeing = {dtype: replace(tolerance[dtype], top1_agreement=top1 if many else 0.0)}
        moved = size(items).bytes / (2 if dtype == "float16" else 1)
        made = Optimization(name, build, promises[name].speedups, dtype, needs=needs, tolerance=agreeing, bytes=moved)
        return replace(made, contract=promises[name].contract(engaged), min_speedup_why=promises[name].why_lower)

    graph = promised("cuda-graph", cuda_graph, "float16", ONE_GRAPH, VOLTA)
    int8 = promised(
        "tensorrt-int8", partial(tensorrt, precision="int8"), "int8", FAST_ENGINE, INT8, TENSORRT_INT8, INT8_TOP1
    )
    return (
        promised("fp16", fp16, "float16", TENSOR_CORES, VOLTA),
        promised("channels-last-fp16", channels_last_fp16, "float16", TENSOR_CORES, VOLTA),
        promised("inductor-fp16", inductor_fp16, "float16", TENSOR_CORES, VOLTA),
        replace(graph, compared_with="channels-last-fp16"),
        promised("cudnn-fused", cudnn_fused, "float16", ONE_GRAPH, AMPERE),
        promised("tensorrt-fp32", partial(tensorrt, precision="fp32"), "float32", ENGINE, TENSORRT, TENSORRT_FP32),
        promised("tensorrt-tf32", partial(tensorrt, precision="tf32"), "tf32", FAST_ENGINE, TENSORRT),
        promised("tensorrt-fp16", partial(tensorrt, precision="fp16"), "float16", FAST_ENGINE, TENSORRT, TENSORRT_FP16),
        replace(int8, bytes=size(items).bytes / 4),  # one byte a value
        promised("torch-tensorrt-fp16", torch_tensorrt_fp16, "float16", TENSOR_CORES, TORCH_TENSORRT, TENSORRT_FP16),
    )


STRICT_FP32 = Optimization(
    "strict-fp32",
    strict_fp32,
    BATCH_128["strict-fp32"].speedups,
    needs=VOLTA,
    contract=BATCH_128["strict-fp32"].contract((ALL_LAYERS, Limit("tensor_core_kernels", at_most=0))),
    why=TF32_WAS_LEFT,
)
SPLIT_K = Optimization(
    "split-k",
    split_k,
    BATCH_1["split-k"].speedups,
    dtype="float16",
    needs=AMPERE,
    contract=BATCH_1["split-k"].contract((ALL_LAYERS, *ONE_LAUNCH)),  # names of Triton's kernels show no tensor cores
    tolerance=TOLERANCE_BY_DTYPE,
    bytes=size(1).bytes / 2,
    min_speedup_why=BATCH_1["split-k"].why_lower,
)
TENSORRT_GRAPH = Optimization(
    "tensorrt-fp16-graph",
    partial(tensorrt_graph, precision="fp16"),
    BATCH_1["tensorrt-fp16-graph"].speedups,
    dtype="float16",
    needs=TENSORRT,
    contract=BATCH_1["tensorrt-fp16-graph"].contract((*FAST_ENGINE, *ONE_LAUNCH)),
    tolerance=TENSORRT_FP16,
    bytes=size(1).bytes / 2,
    min_speedup_why=BATCH_1["tensorrt-fp16-graph"].why_lower,
)
ON_CPU = (
    Optimization("channels-last", channels_last, {"cpu": 0.85}),
    Optimization("inductor", inductor, {"cpu": 1.1}, needs=COMPILER),
    Optimization("bf16", bf16, {"cpu": 1.3}, dtype="bfloat16", needs=AVX512_BF16, bytes=size(1).bytes / 2),
)

WORKLOADS: tuple[Workload, ...] = (
    Workload(
        name="resnet50-inference",
        baseline=baseline,
        inputs=photograph_batch,
        sizes={"cuda": size(128), "cpu": size(1)},
        optimizations=(STRICT_FP32, *_on_cuda(BATCH_128, 128), *ON_CPU),
        settings={**PHOTOGRAPHS_SETTING, **WEIGHTS_SETTING},
    ),
    Workload(
        name="resnet50-inference-batch1",
        baseline=baseline,
        inputs=photograph_batch,
        sizes={"cuda": size(1)},
        optimizations=(*_on_cuda(BATCH_1, 1), SPLIT_K, TENSORRT_GRAPH),
        settings={**PHOTOGRAPHS_SETTING, **WEIGHTS_SETTING},
    ),
)
