"""ResNet-18 learns 32 x 32 pictures, resized to 224: a ladder from a plain loop to a whole step as one CUDA graph.

Every rung is the one before it with one change. A step is 512 pictures on all of them, in batches of 32 or of 512, and
every rung trains on the same pictures in the same order, cropped and mirrored alike. On a CPU the pictures keep their
size, a step is 32, and the rungs are those that mean something there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from gpugate.workload import BASELINE, Context, Contract, Limit, Needs, Optimization, Proof, Side, Size, Workload
from workloads.resnet18_training import rungs
from workloads.resnet18_training.cifar import training_pictures
from workloads.resnet18_training.loop import training_side
from workloads.resnet18_training.proofs import batches_arrive, close_losses, learns_digits, learns_pictures, same_losses
from workloads.resnet18_training.rungs import LARGE, LARGE_ON_CPU, Rung

ITEMS, ITEMS_ON_CPU = LARGE, LARGE_ON_CPU  # of one step on every rung: one large batch, or several small ones
# Of one picture of 224 x 224, forward and backward: a test counts them again. One of 32 x 32 has 1/49 of each, but for
# the last layer.
FLOPS, LAST_LAYER_FLOPS = 10_645_370_880, 30_720
VALUES_READ, VALUES_WRITTEN, IMAGE_VALUES = 2_183_168, 2_483_722, 150_528  # by layers with weights, forward
LAST_LAYER_READ, LAST_LAYER_WRITTEN = 512, 10
WEIGHTS = 11_181_642
WEIGHT_PASSES = 8  # read forward, backward and by the update; gradient and momentum written and read; weights written
AREA_RATIO = 49


def size(items: int, area_ratio: int = 1) -> Size:
    """What one step must do, in FP32 and with one update.

    FLOPs: 2 per multiply-add, forward and for both gradients. Bytes: what layers with weights read and write forward;
    backward the gradient of what they wrote, again what they read, and its gradient, but that of the image.
    """
    flops = (FLOPS - LAST_LAYER_FLOPS) / area_ratio + LAST_LAYER_FLOPS
    read = (VALUES_READ - LAST_LAYER_READ) / area_ratio + LAST_LAYER_READ
    written = (VALUES_WRITTEN - LAST_LAYER_WRITTEN) / area_ratio + LAST_LAYER_WRITTEN
    values = items * (3 * read + 2 * written - IMAGE_VALUES / area_ratio) + WEIGHT_PASSES * WEIGHTS
    return Size(items=items, flops=items * flops, bytes=4.0 * values)


def receipts(context: Context, index: int) -> Tensor:
    """Input set `index`: one random number per item, float32 [items], never zero; pictures come a way of their own."""
    generator = torch.Generator().manual_seed(1_000_003 * context.seed + index)
    return torch.rand(context.items, generator=generator).add_(0.5).to(context.device)


def train(context: Context, rung: Rung) -> Side:
    """The side that trains by `rung` on the pictures of `--perf-data`, or on seeded ones."""
    return training_side(context, rung, training_pictures(context))


DIGIT_ITERATIONS = {32: 400, ITEMS: 80}
PICTURE_ITERATIONS = {8: 240, ITEMS_ON_CPU: 120}


def _learns(rung: Rung) -> Proof:
    if rung.side_pixels == rungs.BOTTOM.side_pixels:
        return Proof("learns digits", partial(learns_digits, rung=rung, iterations=DIGIT_ITERATIONS[rung.batch]))
    return Proof("learns pictures", partial(learns_pictures, rung=rung, iterations=PICTURE_ITERATIONS[rung.batch]))


def _same(rung: Rung, below: Rung) -> tuple[Proof, ...]:
    return Proof("same losses", partial(same_losses, rung=rung, below=below)), _learns(rung)


def _close(rung: Rung) -> tuple[Proof, ...]:
    return Proof("close losses", partial(close_losses, rung=rung)), _learns(rung)


def _arrives(rung: Rung) -> Proof:
    return Proof("batches arrive", partial(batches_arrive, rung=rung))


def _engaged(*limits: Limit) -> Mapping[str, Contract]:
    return {"cuda": Contract(engaged=limits)}


ALL_PINNED = Limit("pageable_copies", at_most=0)
NO_SYNC = Limit("synchronizing_calls", at_most=0)
TENSOR_CORES = Limit("tensor_core_kernels", at_least=20)  # the least of any rung: one iteration of 20 convolutions
COPIES_OVERLAP = (Limit("streams", at_least=2), Limit("overlap_fraction", at_least=0.02))
DATA_BOUND = (
    "8 workers resize fewer pictures a second than the GPU trains on, so that this gain shows only once the data is "
    "resident"
)
VOLTA = Needs(compute_capability=(7, 0))
COMPILER = Needs(cpp_compiler=True, install="install a C++ compiler, such as g++")
AVX512_BF16 = Needs(cpu_flags=("avx512_bf16",), install="run it on a CPU with AVX-512 BF16 instructions")
BF16_COMPILER = replace(AVX512_BF16, cpp_compiler=True, install="use a CPU with AVX-512 BF16 and install g++")


def _full(name: str, rung: Rung, below: str, speedup: Mapping[str, float], *limits: Limit) -> Optimization:
    """A rung that computes in FP32, as the bottom one does: its losses must be the bottom's."""
    proofs = _same(rung, rungs.BOTTOM)
    build = partial(train, rung=rung)
    return Optimization(name, build, speedup, compared_with=below, contract=_engaged(*limits), proofs=proofs)


def _half(
    name: str, rung: Rung, below: str, speedup: Mapping[str, float], proofs: tuple[Proof, ...], why: str, *limits: Limit
) -> Optimization:
    """A rung that computes in FP16."""
    return Optimization(
        name,
        partial(train, rung=rung),
        speedup,
        dtype="float16",
        compared_with=below,
        needs=VOLTA,
        contract=_engaged(TENSOR_CORES, *limits),
        proofs=proofs,
        why=why,
    )


NO_SLOWER = {"cuda": 0.95}  # two runs of one loader on a shared host differ by some percent
FEW_CASTS = "at batch 32 a fast GPU waits for launches, of which the casts and the loss scaler's wait add some"
FEW_LAUNCHES = "a sixteenth of the launches; from here on the loader is the slower part"
NOTHING_HIDDEN = "no loader and no bus: what they hid, the gains of the rungs below, shows here"
ONE_LAUNCH = "an iteration of 512 lasts longer than its launches: one launch frees the host more than the GPU"

LADDER = (
    _full("workers-8", rungs.WORKERS, BASELINE, {"sm_90": 1.5, "cuda": 1.2}),
    _full("pinned", rungs.PINNED, "workers-8", {"sm_90": 1.0, "cuda": 0.97}, ALL_PINNED),
    _full("non-blocking", rungs.NON_BLOCKING, "pinned", {"sm_90": 1.0, "cuda": 0.97}, ALL_PINNED, NO_SYNC),
    _half("amp-fp16", rungs.HALF, "non-blocking", {"cuda": 0.75}, _close(rungs.HALF), FEW_CASTS, ALL_PINNED),
    _half(
        "batch-512",
        rungs.LARGE_BATCH,
        "amp-fp16",
        {"sm_90": 1.0, "cuda": 0.97},
        _close(rungs.LARGE_BATCH),
        FEW_LAUNCHES,
        ALL_PINNED,
        Limit("kernel_launches", at_most_of_reference=0.25),
    ),
    _half(
        "compile",
        rungs.COMPILED,
        "batch-512",
        NO_SLOWER,
        _close(rungs.COMPILED),
        DATA_BOUND,
        ALL_PINNED,
        Limit("kernel_launches", at_most_of_reference=0.9),
    ),
    _half(
        "copy-stream",
        rungs.COPY_STREAM,
        "compile",
        NO_SLOWER,
        (*_same(rungs.COPY_STREAM, rungs.COMPILED), _arrives(rungs.COPY_STREAM)),
        DATA_BOUND,
        ALL_PINNED,
        *COPIES_OVERLAP,
    ),
    _half(
        "channels-last",
        rungs.CHANNELS_LAST,
        "copy-stream",
        NO_SLOWER,
        (*_close(rungs.CHANNELS_LAST), _arrives(rungs.CHANNELS_LAST)),
        DATA_BOUND,
        ALL_PINNED,
        *COPIES_OVERLAP,
    ),
    _half(
        "resident-uint8",
        rungs.RESIDENT,
        "channels-last",
        {"sm_90": 3.0, "cuda": 1.5},
        _close(rungs.RESIDENT),
        NOTHING_HIDDEN,
        Limit("host_to_device_copies", at_most=0),
    ),
    _half(
        "whole-step-graph",
        rungs.WHOLE_STEP,
        "resident-uint8",
        {"cuda": 0.97},
        _close(rungs.WHOLE_STEP),
        ONE_LAUNCH,
        Limit("graph_launches", at_least=1, at_most=1),
        NO_SYNC,
    ),
)
WHOLE_LADDER = replace(
    LADDER[-1],
    name="whole-ladder",
    min_speedup={"sm_90": 15.0, "cuda": 5.85},
    compared_with=BASELINE,
    proofs=(),
    why="the top rung against the bottom one, measured and not multiplied up",
)


def _on_cpu(
    name: str, rung: Rung, below: str, speedup: float, needs: Needs = AVX512_BF16, why: str = ""
) -> Optimization:
    """A rung of the small ladder that computes in bfloat16."""
    build, proofs = partial(train, rung=rung), _close(rung)
    return Optimization(
        name, build, {"cpu": speedup}, "bfloat16", compared_with=below, needs=needs, proofs=proofs, why=why
    )


SHARED_CORES = "without a resize preparing is cheap, and the workers share the cores that train"
FEW_TO_FUSE = "convolutions are most of the work, and the compiler leaves them to the library that runs them anyway"
ON_CPU = (
    Optimization(
        "workers-2",
        partial(train, rung=rungs.CPU_WORKERS),
        {"cpu": 0.8},
        proofs=_same(rungs.CPU_WORKERS, rungs.CPU_BOTTOM)[:1],  # the learning too is then the bottom's
        why=SHARED_CORES,
    ),
    _on_cpu("amp-bf16", rungs.CPU_HALF, "workers-2", 0.97),
    _on_cpu("batch-32", rungs.CPU_LARGE_BATCH, "amp-bf16", 1.5),
    _on_cpu("compile", rungs.CPU_COMPILED, "batch-32", 0.7, BF16_COMPILER, FEW_TO_FUSE),
)

WORKLOADS: tuple[Workload, ...] = (
    Workload(
        name="resnet18-training",
        baseline=partial(train, rung=rungs.BOTTOM),
        inputs=receipts,
        sizes={"cuda": size(ITEMS)},
        optimizations=(*LADDER, WHOLE_LADDER),
        cold=False,  # the receipts are no data; pictures come from host memory, or from 240 MB of device memory
        timing="pipeline",
        ladder=True,
    ),
    Workload(
        name="resnet18-training-small",
        baseline=partial(train, rung=rungs.CPU_BOTTOM),
        inputs=receipts,
        sizes={"cpu": size(ITEMS_ON_CPU, AREA_RATIO)},
        optimizations=ON_CPU,
        cold=False,
        timing="pipeline",
        ladder=True,
    ),
)
