"""Training of an end-to-end driving model from eight cameras, and the data paths from disk to the GPU.

The workload measures two things: how fast the model can be trained, and whether its data path keeps up. A frame is 4.3
MB as bytes and 17 MB as floats, and costs 0.3 TFLOP, so a fast GPU consumes more than 2 GB of pictures a second. An
optimization may lose here: its gain depends on how long the GPU needs for the frames that the host prepares meanwhile.

A step is a fixed number of frames, whatever the batch; it returns the record of the frames on which the device trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from gpugate.workload import (
    TOLERANCE_BY_DTYPE,
    Contract,
    Engine,
    Limit,
    Needs,
    Optimization,
    Point,
    Size,
    Tolerance,
    Workload,
)
from workloads.driving import training as plans
from workloads.driving.frames import Rig
from workloads.driving.loading import why_no_jpeg
from workloads.driving.proofs import RESUMES, copies_intact, learns, repeats
from workloads.driving.training import Plan, build, build_by_device
from workloads.parts.compiled import COMPILER
from workloads.parts.random_inputs import stamps

FRAMES_PER_STEP, FRAMES_PER_STEP_ON_CPU, FRAMES_PER_SWEEP_STEP = 16, 4, 64
WORKERS, WORKERS_ON_CPU = (0, 2, 4, 8, 16), (0, 2)
BATCHES, REFERENCE_BATCH = (8, 16, 32, 64), 64  # a batch whose launches the GPU does not wait for


# By rig: the FLOPs of training on a frame, and the parameters of the model; a test counts both again.
WORK = {plans.FULL_RIG: (307_891_894_272.0, 12_900_176), plans.SMALL_RIG: (2_678_126_592.0, 12_893_776)}


def size(rig: Rig, frames: int) -> Size:
    """The work and the bytes of one step.

    FLOPs: 2 per multiply-add of every convolution and matrix product, forward, and backward for inputs and weights;
    pictures need no gradient. Bytes: the frames as uint8, and each weight, gradient and momentum once per step in FP32;
    activations need not leave the chip.
    """
    flops, parameters = WORK[rig]
    return Size(items=frames, flops=frames * flops, bytes=frames * rig.frame_bytes + 3 * 4 * parameters)


# The record does not pass through the model: whatever the precision, every frame is either right or wrong.
EXACT = {dtype: Tolerance(relative_l2=1e-6, max_error=1e-6) for dtype in TOLERANCE_BY_DTYPE}
TENSOR_CORES = Limit("tensor_core_kernels", at_least=20)
LESS_MEMORY = Limit("peak_bytes", at_most_of_reference=0.61)  # 2.95 of 5.34 GB on an H200
PINNED_COPIES = Limit("pageable_copies", at_most=0)
OVERLAPPED = (PINNED_COPIES, Limit("streams", at_least=2), Limit("overlap_fraction", at_least=0.5))
# In bf16 1.20 of the time of kernels in TF32 on an H200, and in FP16 0.98: cuDNN chooses others for each.
KERNELS_IN_BF16, KERNELS_IN_FP16 = (Limit("longest_kernels_mean_ms", at_most_of_reference=most) for most in (1.3, 1.05))
HIDDEN_DATA_PATH = Limit("data_path_efficiency", at_least=0.90)  # 0.97 is the goal
ON_THE_DEVICE = Limit("host_to_device_bytes", at_most=4096)
ONE_GRAPH_AN_ITERATION = (Limit("graph_launches", at_least=1), Limit("kernel_launches", at_most=40))
AMPERE = Needs(compute_capability=(8, 0))
AMPERE_COMPILER = replace(COMPILER, compute_capability=(8, 0))
TORCHVISION = replace(AMPERE, packages=("torchvision",), install="pip install 'gpugate[workloads]'")
DECODER = replace(TORCHVISION, engine=Engine("nvjpeg", why_no_jpeg))


def _limit_half(kernels: Limit) -> Mapping[str, Contract]:
    """The contract of a plan in half precision, with a limit of its kernels' time where an H200 has measured it."""
    engaged, costs = (TENSOR_CORES,), (LESS_MEMORY,)
    return {"cuda": Contract(engaged, costs), "sm_90": Contract(engaged, (*costs, kernels))}


def _variant(
    name: str, plan: Plan, min_speedup: Mapping[str, float], *engaged: Limit, why: str = "", **more: Any
) -> Optimization:
    """`engaged` are limits that show the plan at work on each GPU; its precision decides which GPUs can do it."""
    recipe = plan.recipe
    needs = AMPERE_COMPILER if recipe.compiled else AMPERE if recipe.half is torch.bfloat16 else Needs()
    words = {
        "dtype": str(recipe.half or torch.float32).removeprefix("torch."),
        "needs": needs,
        "contract": {"cuda": Contract(engaged)} if engaged else {},
        **more,
    }
    return Optimization(name, partial(build, plan), min_speedup, tolerance=EXACT, why=why, **words)


VARIANTS = (
    _variant(
        *("pinned", plans.PINNED, {"sm_90": 1.0, "cuda": 0.90}, PINNED_COPIES),
        why="normalizing on the host takes longer than the copy that page-locked memory makes faster, and filling it is"
        " a copy of 138 MB more, in this very process",
    ),
    _variant(
        *("uint8-bus", plans.UINT8_BUS, {"sm_90": 1.5, "cuda": 0.97, "cpu": 0.6}),
        Limit("host_to_device_bytes", at_most_of_reference=0.3),
        proofs=(repeats(plans.UINT8_BUS), RESUMES),
        why="a quarter of the bytes cross the bus and the GPU normalizes them; a CPU only normalizes later",
    ),
    _variant(
        *("amp-bf16", plans.AMP_BF16, {"sm_90": 0.95, "cuda": 0.9}),
        compared_with="uint8-bus",
        contract=_limit_half(KERNELS_IN_BF16),
        proofs=(learns(plans.AMP_BF16),),
        why="convolutions of the reference have tensor cores already, in TF32; a GPU without them only pays for the"
        " conversions",
    ),
    _variant(
        *("amp-fp16", plans.AMP_FP16, {"sm_90": 1.1, "cuda": 0.9}),
        compared_with="uint8-bus",
        contract=_limit_half(KERNELS_IN_FP16),
        proofs=(learns(plans.AMP_FP16),),
        why="a GPU without tensor cores only pays for the conversions and the scaling of gradients; the update is a"
        " fused one besides, to which the scaler leaves its checks",
    ),
    _variant(
        *("prefetcher", plans.PREFETCHER, {"sm_90": 1.03, "cuda": 0.97}),
        compared_with="amp-bf16",
        contract={"cuda": Contract(OVERLAPPED), "sm_90": Contract(OVERLAPPED, (HIDDEN_DATA_PATH,))},
        proofs=(copies_intact(plans.PREFETCHER), repeats(plans.PREFETCHER)),
        why="it can gain no more than the share of a step that reading and copying take",
    ),
    _variant(
        *("cached-uint8", plans.CACHED, {"sm_90": 1.6, "cuda": 0.97}, ON_THE_DEVICE),
        compared_with="prefetcher",
        proofs=(learns(plans.CACHED),),
        why="where the data fits on the GPU no data path is better than none; channels_last saves the convolutions'"
        " transposing",
    ),
    _variant(
        *("compile", plans.COMPILE, {"sm_90": 1.02, "cuda": 0.95}, Limit("kernels", at_most_of_reference=0.95)),
        compared_with="cached-uint8",
        proofs=(learns(plans.COMPILE),),
        why="the convolutions stay cuDNN's: only what lies between them is fused",
    ),
    _variant(
        *("whole-step-graph", plans.WHOLE_STEP_GRAPH, {"sm_90": 0.97, "cuda": 0.97}, *ONE_GRAPH_AN_ITERATION),
        compared_with="cached-uint8",
        proofs=(learns(plans.WHOLE_STEP_GRAPH),),
        why="the kernels of 64 pictures are longer than their launches: the host's time is saved, not the GPU's",
    ),
    _variant(
        *("best", plans.BEST, {"sm_90": 7.6, "cuda": 1.5}, TENSOR_CORES, ON_THE_DEVICE, *ONE_GRAPH_AN_ITERATION),
        proofs=(learns(plans.BEST),),
    ),
)
ON_THE_GPU = _variant(
    *("nvjpeg", plans.NVJPEG, {"sm_90": 3.57, "cuda": 1.0}, Limit("host_to_device_bytes", at_most_of_reference=0.5)),
    needs=DECODER,
    why="decoding takes its share of the GPU, and the host waits for it; what is decoded on the host is summed up"
    " besides, which names a corrupt file and takes a fifth of the time of decoding",
)


SPEEDUP_BY_WORKERS = {0: 0.85, 2: 1.0, 4: 2.0, 8: 2.75, 16: 2.8}  # at least, on sm_90
BESIDE_WORKERS = (
    "in a process that has workers the reference takes 1.3 times as long on an H200, 132 instead of 102 ms: that is no "
    "gain of theirs, and less is promised by as much"
)
WHY_LOWER_BY_WORKERS = dict.fromkeys((2, 4, 8, 16), BESIDE_WORKERS)
BY_BATCH = "small batches wait for their launches"
ITSELF = "what it is compared with, once more: it shows how far two of the same differ"
FOR_JPEGS = "decoding JPEGs is what workers are for; what they decode is copied once more between processes"


def _worker_point(workers: int) -> Optimization:
    on_cpu = {"cpu": 0.3} if workers in WORKERS_ON_CPU else {}
    return Optimization(
        f"workers-{workers}",
        partial(build_by_device, replace(plans.JPEG, workers=workers)),
        {"sm_90": SPEEDUP_BY_WORKERS[workers], "cuda": 0.3, **on_cpu},
        tolerance=EXACT,
        point=Point("workers", workers),
        why=FOR_JPEGS if workers else ITSELF,
        min_speedup_why=WHY_LOWER_BY_WORKERS.get(workers, ""),
    )


# Small batches wait for their launches: the least speedups on sm_90.
SPEEDUP_BY_BATCH = {8: 0.7, 16: 0.88, 32: 0.95, 64: 0.97}


def _batch_point(batch: int) -> Optimization:
    return _variant(
        f"batch-{batch}",
        replace(plans.CACHED, batch=batch),
        {"sm_90": SPEEDUP_BY_BATCH[batch], "cuda": 0.5},
        point=Point("batch-size", batch),
        why=ITSELF if batch == REFERENCE_BATCH else BY_BATCH,
    )


WORKLOADS: tuple[Workload, ...] = (
    Workload(
        name="driving",
        baseline=partial(build, plans.BASELINE),
        inputs=stamps,
        sizes={"cuda": size(plans.FULL_RIG, FRAMES_PER_STEP), "cpu": size(plans.SMALL_RIG, FRAMES_PER_STEP_ON_CPU)},
        optimizations=VARIANTS,
        cold=False,  # the inputs are stamps; the frames pass through L2 many times over
        timing="pipeline",
    ),
    # The host decodes JPEGs, which is the slowest preparation: only there do workers gain.
    Workload(
        name="driving-workers",
        baseline=partial(build_by_device, plans.JPEG),
        inputs=stamps,
        sizes={"cuda": size(plans.FULL_RIG, plans.BATCH), "cpu": size(plans.SMALL_RIG, FRAMES_PER_STEP_ON_CPU)},
        optimizations=(*map(_worker_point, WORKERS), ON_THE_GPU),
        cold=False,
        timing="pipeline",
    ),
    # A step holds the largest batch; the frames already lie on the device, so that the knee is the GPU's.
    Workload(
        name="driving-batch",
        baseline=partial(build, replace(plans.CACHED, batch=REFERENCE_BATCH)),
        inputs=stamps,
        sizes={"cuda": size(plans.FULL_RIG, FRAMES_PER_SWEEP_STEP)},
        optimizations=tuple(map(_batch_point, BATCHES)),
        cold=False,
        timing="pipeline",
    ),
)
