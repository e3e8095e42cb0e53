"""Training of ResNet-18 on 32 x 32 pictures resized to 224: a ladder from a plain loop to one CUDA graph per step.

Every rung is the rung before it with one change. A step is 512 pictures on all of them, in batches of 32 or of 512, and
every rung trains on the same pictures in the same order, with the same crops and mirrorings. Rungs up to `batch-512`
compute in FP32 as PyTorch has it by default, with convolutions in TF32 on a GPU that has it. On a CPU the pictures keep
their size, a step is 32, and the rungs are those that have a meaning there.

The lowest rungs prepare one picture after the other by the chain of torchvision's examples, in floats; `uint8-v2`, and
each rung above it that has a loader, a piece of 32 pictures at once by version 2 of the transforms, in bytes. What a
step takes beyond its time on cached data is the time of the data path: both sides of a rung have the counters
`cached_step_ms` and `data_path_efficiency`.

Where a rung changes more than its name says, its `why` gives the rest: the large batch is made of pieces, channels_last
brings autotuning, pictures that are made on the device get a fourth channel, and the graph brings another pooling and
block sizes that were timed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from gpugate.workload import BASELINE, Contract, Limit, Needs, Optimization, Proof, Size, Workload
from workloads.parts.compiled import COMPILER
from workloads.parts.random_inputs import stamps
from workloads.resnet18_training import training as rungs
from workloads.resnet18_training.pictures import CIFAR10_SETTING
from workloads.resnet18_training.proofs import arrives, close, learns, same
from workloads.resnet18_training.training import Rung, train

# The least work of a step, in FP32 and with one update; a test counts it again. FLOPs: 2 per multiply-add, forward and
# for both gradients. Bytes: inputs and outputs of the layers with weights, forward; backward the gradient of their
# outputs, again their inputs, and the gradient of these, except that of the image; eight passes over the weights.
ON_A_GPU = Size(rungs.ITEMS, flops=5_450_429_890_560.0, bytes=23_636_240_704.0)
ON_A_CPU = Size(rungs.ITEMS_ON_CPU, flops=6_953_041_920.0, bytes=387_699_520.0)

ALL_PINNED = Limit("pageable_copies", at_most=0)
NO_SYNC = Limit("synchronizing_calls", at_most=0)
TENSOR_CORES = Limit("tensor_core_kernels", at_least=20)  # the least of any rung: one iteration of 20 convolutions
# On the compute stream, no copy is hidden. Where pictures come late, no kernel runs beside a copy on its own stream
# either: compiled code computes 512 pictures in 26 ms on an H200, and the loader sends them in 58.
COPY_STREAM_USED = Limit("streams", at_least=2)
VOLTA = Needs(compute_capability=(7, 0))
VOLTA_COMPILER = replace(COMPILER, compute_capability=(7, 0))
AVX512_BF16 = Needs(cpu_flags=("avx512_bf16",), install="run it on a CPU with AVX-512 BF16 instructions")
BF16_COMPILER = replace(AVX512_BF16, cpp_compiler=True, install="use a CPU with AVX-512 BF16 and install g++")


def _rung(
    name: str,
    rung: Rung,
    speedup: Mapping[str, float],
    *engaged: Limit,
    proofs: tuple[Proof, ...] | None = None,
    costs: tuple[Limit, ...] = (),
    on_sm_90: tuple[Limit, ...] = (),
    why: str = "",
) -> Optimization:
    """A rung on a GPU, whose losses are close to those of plain FP32 where no other proof is named.

    `engaged` is what shows the change at work, beside what the rung has from those below it. `costs` are limits on each
    GPU, `on_sm_90` further ones, of times that an H200 has measured.
    """
    half = rung.recipe.half is not None
    below = (*((TENSOR_CORES,) if half else ()), *((ALL_PINNED,) if rung.pinned else ()))
    engaged = (*below, *engaged, *((COPY_STREAM_USED,) if rung.prefetched else ()))
    contract = {"cuda": Contract(engaged, costs), "sm_90": Contract(engaged, (*costs, *on_sm_90))}
    return Optimization(
        name,
        partial(train, rung=rung),
        speedup,
        dtype="float16" if half else "float32",
        needs=VOLTA_COMPILER if rung.recipe.compiled else VOLTA if half else Needs(),
        contract=contract,
        proofs=close(rung) if proofs is None else proofs,
        why=why,
    )


def _gain_on_cached_data(gain: float) -> Limit:
    """A limit on the gain of the computation alone, on cached data: a slow loader hides this gain in the speedup."""
    return Limit("cached_step_ms", at_most_of_reference=1 / gain)


# In FP16 the 15 longest kernels have 0.94 of the time that they have in TF32 on an H200: most of them wait for memory.
NO_LONGER_KERNELS = Limit("longest_kernels_mean_ms", at_most_of_reference=1.0)
# Stages of a step. What H200 steps take beyond cached data and copies is 0.16 to 0.19 of the time of one process: an
# estimate of the waits, which were not counted. Copies from page-locked memory take 0.08 to 0.09 of the time.
SHORT_WAIT = Limit("wait_ms", at_most_of_reference=0.35)
SHORT_COPIES = Limit("host_to_device_ms", at_most_of_reference=0.12)
# Both sides wait for worker processes, and two runs of one loader differ by up to a tenth: 0.94 to 1.01 on an H200. In
# three processes there `pinned` gained 1.08 to 1.41 and `non-blocking` 0.92 to 1.28, each by its interval.
NO_SLOWER = {"cuda": 0.85}
# The first rung also proves that the losses of all rungs up to `non-blocking`, which are its own, lead to learning.
RUNGS = (
    _rung(
        *("workers-8", rungs.WORKERS, {"sm_90": 2.04, "cuda": 1.2}),
        proofs=(same(rungs.WORKERS), learns(rungs.WORKERS)),
        on_sm_90=(SHORT_WAIT,),
    ),
    _rung(
        *("pinned", rungs.PINNED, {"sm_90": 1.05, "cuda": 0.97}), proofs=(same(rungs.PINNED),), on_sm_90=(SHORT_COPIES,)
    ),
    _rung(
        *("non-blocking", rungs.NON_BLOCKING, {"cuda": 0.9}, NO_SYNC),
        proofs=(same(rungs.NON_BLOCKING),),
        why="the host goes on while a copy runs, which gains no more than the copies take",
    ),
    _rung(
        *("uint8-v2", rungs.UINT8, {"sm_90": 1.08, "cuda": 1.0}, NO_SYNC),
        Limit("host_to_device_bytes", at_most_of_reference=0.3),
        on_sm_90=(Limit("host_to_device_ms", at_most_of_reference=0.3),),  # as the bytes: 0.26
        why="a byte for each float crosses the bus, and a worker resizes all bytes of a piece in one call",
    ),
    _rung(
        *("batch-512", rungs.LARGE_BATCH, {"sm_90": 1.56, "cuda": 0.97}),
        Limit("kernel_launches", at_most_of_reference=0.25),
        why="a sixteenth of the launches, which gains as much as a GPU waits for them at batch 32; the loader "
        "goes on sending pieces of 32, of which 16 are joined on the device: what it holds in stock stays one "
        "step",
    ),
    _rung(
        *("amp-fp16", rungs.HALF, {"sm_90": 1.03, "cuda": 1.0}),
        costs=(Limit("peak_bytes", at_most_of_reference=0.7),),
        on_sm_90=(_gain_on_cached_data(1.2), NO_LONGER_KERNELS),
        why="at batch 32 a fast GPU waits for launches, of which casts and the loss scaler add some: a loss, and "
        "so this rung comes after the large batch; steps on cached data gained 1.3x in each of four processes of an "
        "H200, and must gain 1.2x",
    ),
    _rung(
        *("compile", rungs.COMPILED, {"cuda": 1.0}, Limit("kernel_launches", at_most_of_reference=0.9)),
        # Of the reference's 2.42 ms, the mean of its longest kernels, it kept 0.62 on an H200.
        on_sm_90=(_gain_on_cached_data(1.5), Limit("longest_kernels_mean_ms", at_most_of_reference=1 / 3)),
        why="what a loader and its copies leave of the gain; in steps on cached data it must gain 1.5x",
    ),
    _rung(
        *("copy-stream", rungs.COPY_STREAM, {"sm_90": 0.95, "cuda": 0.90}),
        proofs=(same(rungs.COPY_STREAM, rungs.COMPILED), *close(rungs.COPY_STREAM), arrives(rungs.COPY_STREAM)),
        why="the next batch is fetched and copied while the GPU computes gradients: what both took, and no more",
    ),
    _rung(
        *("channels-last", rungs.CHANNELS_LAST, NO_SLOWER),
        proofs=(*close(rungs.CHANNELS_LAST), arrives(rungs.CHANNELS_LAST)),
        why="cuDNN also times its algorithms, from here on; Inductor lays out the convolutions so by itself: no gain",
    ),
    _rung(
        *("resident-uint8", rungs.RESIDENT, {"sm_90": 1.8, "cuda": 0.97}, Limit("host_to_device_copies", at_most=0)),
        why="no loader and no bus; images that are made on the device have a fourth channel of zeros, to which "
        "cuDNN would else pad them in every iteration",
    ),
    _rung(
        *("whole-step-graph", rungs.WHOLE_STEP, {"sm_90": 1.05, "cuda": 0.97}),
        *(Limit("graph_launches", at_least=1, at_most=1), NO_SYNC),
        why="no gap between kernels, the update in a few of them, a pooling whose gradient every pixel gathers by "
        "few comparisons, and kernels whose block sizes Inductor has timed; the GPU then runs at its power "
        "limit, which takes a part of it back",
    ),
)
LADDER = tuple(
    replace(rung, compared_with=below.name if below else BASELINE)
    for below, rung in zip((None, *RUNGS), RUNGS, strict=False)
)
WHOLE_LADDER = replace(
    LADDER[-1],
    name="whole-ladder",
    min_speedup={"sm_90": 28.0, "cuda": 5.85},
    min_speedup_why="the bottom rung is as fast as the host: processes of an H200 left 31x to 50x",
    compared_with=BASELINE,
    proofs=(),
    why="the top rung against the bottom one, measured and not multiplied up; most of it is the loader, since "
    "the bottom rung prepares each picture in the process that trains",
)


def _on_cpu(
    name: str, rung: Rung, below: str, speedup: float, needs: Needs = AVX512_BF16, why: str = ""
) -> Optimization:
    """A rung of the small ladder that computes in bfloat16."""
    build, proofs = partial(train, rung=rung), close(rung)
    return Optimization(
        name, build, {"cpu": speedup}, "bfloat16", compared_with=below, needs=needs, proofs=proofs, why=why
    )


FEW_TO_FUSE = "convolutions are most of the work, and the compiler leaves them to the library that runs them anyway"
FEW_PRODUCTS = "in batches of 8 the products are so few that converting the weights costs more than they gain"
ON_CPU = (
    Optimization(
        "workers-2",
        partial(train, rung=rungs.CPU_WORKERS),
        {"cpu": 0.7},
        proofs=(same(rungs.CPU_WORKERS, rungs.CPU_BOTTOM),),
        why="without a resize preparing is cheap, and the workers share the cores that train",
    ),
    _on_cpu("amp-bf16", rungs.CPU_HALF, "workers-2", 0.6, why=FEW_PRODUCTS),
    _on_cpu("batch-32", rungs.CPU_LARGE_BATCH, "amp-bf16", 1.5),
    _on_cpu("compile", rungs.CPU_COMPILED, "batch-32", 0.5, BF16_COMPILER, FEW_TO_FUSE),
)

WORKLOADS: tuple[Workload, ...] = (
    Workload(
        name="resnet18-training",
        baseline=partial(train, rung=rungs.BOTTOM),
        inputs=stamps,
        sizes={"cuda": ON_A_GPU},
        optimizations=(*LADDER, WHOLE_LADDER),
        cold=False,  # the stamps are no data; pictures come from host memory, or from 240 MB of device memory
        timing="pipeline",
        ladder=True,
        settings=CIFAR10_SETTING,
    ),
    Workload(
        name="resnet18-training-small",
        baseline=partial(train, rung=rungs.CPU_BOTTOM),
        inputs=stamps,
        sizes={"cpu": ON_A_CPU},
        optimizations=ON_CPU,
        cold=False,
        timing="pipeline",
        ladder=True,
        settings=CIFAR10_SETTING,
    ),
)
