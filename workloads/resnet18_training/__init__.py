"""Training of ResNet-18 on 32 x 32 pictures resized to 224: a ladder from a plain loop to one CUDA graph per step.

Every rung is the rung before it with one change. A step is 512 pictures on all of them, in batches of 32 or of 512, and
every rung trains on the same pictures in the same order, with the same crops and mirrorings. On a CPU the pictures keep
their size, a step is 32, and the rungs are those that have a meaning there.

Where a rung changes more than its name says, its `why` gives the rest: the large batch is made of pieces, channels_last
brings autotuning, pictures that are made on the device get a fourth channel, and the graph brings another pooling and
block sizes that were timed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from gpugate.workload import BASELINE, Contract, Limit, Needs, Optimization, Proof, Workload
from workloads.resnet18_training import rungs
from workloads.resnet18_training.cifar import CIFAR10_SETTING
from workloads.resnet18_training.loop import receipts, train
from workloads.resnet18_training.proofs import (
    batches_arrive,
    close_losses,
    learns_digits,
    learns_pictures,
    same_losses,
)
from workloads.resnet18_training.rungs import LARGE, LARGE_ON_CPU, Rung
from workloads.resnet18_training.step_size import AREA_RATIO, size

ITEMS, ITEMS_ON_CPU = LARGE, LARGE_ON_CPU  # of one step on every rung: one large batch, or several small ones


# The promise is 350 of 360. At 224 in bfloat16, batches of 32 reach 348 after 160, 352 after 240: half is too few.
DIGIT_ITERATIONS = {32: 400, ITEMS: 90}
PICTURE_ITERATIONS = {8: 60, ITEMS_ON_CPU: 30}


def _learns(rung: Rung) -> Proof:
    if rung.side_pixels == rungs.BOTTOM.side_pixels:
        return Proof("learns digits", partial(learns_digits, rung=rung, iterations=DIGIT_ITERATIONS[rung.batch]))
    return Proof("learns pictures", partial(learns_pictures, rung=rung, iterations=PICTURE_ITERATIONS[rung.batch]))


def _same(rung: Rung, below: Rung) -> Proof:
    return Proof("same losses", partial(same_losses, rung=rung, below=below))


def _close(rung: Rung) -> tuple[Proof, ...]:
    return Proof("close losses", partial(close_losses, rung=rung)), _learns(rung)


def _arrives(rung: Rung) -> Proof:
    return Proof("batches arrive", partial(batches_arrive, rung=rung))


def _engaged(*limits: Limit) -> Mapping[str, Contract]:
    return {"cuda": Contract(engaged=limits)}


ALL_PINNED = Limit("pageable_copies", at_most=0)
NO_SYNC = Limit("synchronizing_calls", at_most=0)
TENSOR_CORES = Limit("tensor_core_kernels", at_least=20)  # the least of any rung: one iteration of 20 convolutions
# On the compute stream, no copy is hidden. Where pictures come late, no kernel runs beside most of a copy: the GPU is
# idle for four fifths of the time, and 0.34 to 0.52 of the copying was hidden on an H200.
COPIES_OVERLAP = (Limit("streams", at_least=2), Limit("overlap_fraction", at_least=0.2))
VOLTA = Needs(compute_capability=(7, 0))
COMPILER = replace(VOLTA, cpp_compiler=True, install="install a C++ compiler, such as g++")
AVX512_BF16 = Needs(cpu_flags=("avx512_bf16",), install="run it on a CPU with AVX-512 BF16 instructions")
BF16_COMPILER = replace(AVX512_BF16, cpp_compiler=True, install="use a CPU with AVX-512 BF16 and install g++")


def _full(
    name: str, rung: Rung, below: str, speedup: Mapping[str, float], *limits: Limit, why: str = ""
) -> Optimization:
    """A rung that computes in FP32, like the lowest rung: its losses must be those of the lowest rung."""
    # The lowest rung's losses lead to the same learning on all of these rungs: the first one proves it.
    proofs = (_same(rung, rungs.BOTTOM), *([_learns(rung)] if below == BASELINE else []))
    build = partial(train, rung=rung)
    return Optimization(name, build, speedup, compared_with=below, contract=_engaged(*limits), proofs=proofs, why=why)


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
        needs=COMPILER if rung.recipe.compiled else VOLTA,
        contract=_engaged(TENSOR_CORES, *limits),
        proofs=proofs,
        why=why,
    )


# Both sides wait for worker processes, and two runs of one loader differ by up to a tenth: 0.94 to 1.01 on an H200.
NO_SLOWER = {"cuda": 0.85}
OWN_THREADS = (
    "below, the process that trains prepares the pictures too, each with all the threads that PyTorch has by default; "
    "a worker has one thread, and what 8 of them send is copied once more: a loss, until it is page-locked"
)
DATA_BOUND = (
    "8 workers resize fewer pictures a second than the GPU trains on, so that this gain shows only once the data is "
    "resident"
)
COPIES_LATE = "8 workers are late in any case: what it gains is what the copies took besides"
AUTOTUNED = f"cuDNN also times its algorithms, from here on, as it has other ones in this layout; {DATA_BOUND}"
HOST_GOES_ON = "the host goes on while a copy runs, which gains no more than the copies take"
FEW_CASTS = "at batch 32 a fast GPU waits for launches, of which the casts and the loss scaler's wait add some"
FEW_LAUNCHES = (
    "a sixteenth of the launches; the loader, from here on the slower part, goes on sending pieces of 32, of which 16 "
    "are joined on the device: what it holds in stock stays one step"
)
NOTHING_HIDDEN = (
    "no loader and no bus: what they hid, the gains of the rungs below, shows here; images that are made on the device "
    "have a fourth channel of zeros, to which cuDNN would else pad them in every iteration"
)
ONE_LAUNCH = (
    "no gap between kernels, the update in a few of them, a pooling whose gradient every pixel gathers by few "
    "comparisons, and kernels whose block sizes Inductor has timed; the GPU then runs at its power limit, which takes "
    "a part of it back"
)

LADDER = (
    _full("workers-8", rungs.WORKERS, BASELINE, {"sm_90": 0.82, "cuda": 0.7}, why=OWN_THREADS),
    _full("pinned", rungs.PINNED, "workers-8", {"sm_90": 1.1, "cuda": 0.97}, ALL_PINNED),
    _full(
        "non-blocking",
        rungs.NON_BLOCKING,
        "pinned",
        {"sm_90": 0.95, "cuda": 0.90},
        ALL_PINNED,
        NO_SYNC,
        why=HOST_GOES_ON,
    ),
    _half("amp-fp16", rungs.HALF, "non-blocking", {"cuda": 0.75}, _close(rungs.HALF), FEW_CASTS, ALL_PINNED),
    replace(
        _half(
            "batch-512",
            rungs.LARGE_BATCH,
            "amp-fp16",
            {"sm_90": 1.2, "cuda": 0.97},
            _close(rungs.LARGE_BATCH),
            FEW_LAUNCHES,
            ALL_PINNED,
            Limit("kernel_launches", at_most_of_reference=0.25),
        ),
        min_speedup_why="within a process the loader varies more, and the interval of a process must keep the promise",
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
        {"sm_90": 1.0, "cuda": 0.90},
        (_same(rungs.COPY_STREAM, rungs.COMPILED), *_close(rungs.COPY_STREAM), _arrives(rungs.COPY_STREAM)),
        COPIES_LATE,
        ALL_PINNED,
        *COPIES_OVERLAP,
    ),
    _half(
        "channels-last",
        rungs.CHANNELS_LAST,
        "copy-stream",
        NO_SLOWER,
        (*_close(rungs.CHANNELS_LAST), _arrives(rungs.CHANNELS_LAST)),
        AUTOTUNED,
        ALL_PINNED,
        *COPIES_OVERLAP,
    ),
    replace(
        _half(
            "resident-uint8",
            rungs.RESIDENT,
            "channels-last",
            {"sm_90": 5.2, "cuda": 1.5},
            _close(rungs.RESIDENT),
            NOTHING_HIDDEN,
            Limit("host_to_device_copies", at_most=0),
        ),
        min_speedup_why="the rung below is as fast as the host's cores prepare pictures",
    ),
    _half(
        "whole-step-graph",
        rungs.WHOLE_STEP,
        "resident-uint8",
        {"sm_90": 1.05, "cuda": 0.97},
        _close(rungs.WHOLE_STEP),
        ONE_LAUNCH,
        Limit("graph_launches", at_least=1, at_most=1),
        NO_SYNC,
    ),
)
WHOLE_LADDER = replace(
    LADDER[-1],
    name="whole-ladder",
    min_speedup={"sm_90": 12.0, "cuda": 5.85},
    min_speedup_why="the bottom rung is as fast as the host's cores resize and launch, and quick cores left 12.2x",
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
FEW_PRODUCTS = "in batches of 8 the products are so few that converting the weights costs more than they gain"
ON_CPU = (
    Optimization(
        "workers-2",
        partial(train, rung=rungs.CPU_WORKERS),
        {"cpu": 0.7},
        proofs=(_same(rungs.CPU_WORKERS, rungs.CPU_BOTTOM),),
        why=SHARED_CORES,
    ),
    _on_cpu("amp-bf16", rungs.CPU_HALF, "workers-2", 0.6, why=FEW_PRODUCTS),
    _on_cpu("batch-32", rungs.CPU_LARGE_BATCH, "amp-bf16", 1.5),
    _on_cpu("compile", rungs.CPU_COMPILED, "batch-32", 0.5, BF16_COMPILER, FEW_TO_FUSE),
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
        settings=CIFAR10_SETTING,
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
        settings=CIFAR10_SETTING,
    ),
)
