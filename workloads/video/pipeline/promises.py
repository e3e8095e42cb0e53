"""The promises of the whole pipeline: stage by stage against the rung below, and all of it against the baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from gpugate.workload import BASELINE, Context, Contract, Engine, Limit, Needs, Optimization, Side, Workload
from workloads.video.clip.clip import CLIPS, VIDEO_SETTING
from workloads.video.decode.promises import stamps
from workloads.video.encode.nvenc import why_not
from workloads.video.encode.promises import COMPOSITED_BYTES, compressed_only
from workloads.video.needs import BATCH, EXACT, GPU, ON_HOST, VIDEO_ENGINES
from workloads.video.pipeline import plan as plans
from workloads.video.pipeline.plan import Plan
from workloads.video.pipeline.proofs import file_is_whole
from workloads.video.pipeline.sides import FRAMES, build, size, x264_alone
from workloads.video.segment import TENSOR_CORES, TENSORRT
from workloads.video.segmenter import SEGMENTER_SETTING

VIDEO = replace(VIDEO_ENGINES, compute_capability=(8, 0))
GPU_STAGES = replace(GPU, compute_capability=(8, 0))
WITH_TENSORRT = replace(VIDEO, packages=(*VIDEO.packages, "cvcuda"), engine=TENSORRT.engine)
PIXELS = FRAMES["cuda"] * CLIPS["cuda"].width * CLIPS["cuda"].height  # of a step; a user's own video may have more
TEST_READS_BYTES = 2**16  # bytes that tests read
# The project's target is 13.4 for H.264 by a GPU's own encoder, which an A100, H100 or H200 lacks. Motion JPEG, whose
# files have many times the bits, has to reach it. H.264 by libx264 misses it, and has to keep 0.8 of what it has.
MOTION_JPEG_WITH_START_UP = Limit("whole_run_speedup", at_least=13.4)
H264_WITH_START_UP = Limit("whole_run_speedup", at_least=5.4)  # 6.2 to 6.8 on a slow host of an H200
ALWAYS_BUSY = Limit("active_fraction", at_least=0.80)
COMPRESSED_ONLY = compressed_only(FRAMES["cuda"], COMPOSITED_BYTES)
NV12_ONLY = Limit("device_to_host_bytes", at_most=PIXELS * 3 // 2 + TEST_READS_BYTES)
BGR_ONLY = Limit("device_to_host_bytes", at_most=PIXELS * 3 + TEST_READS_BYTES)  # no logits, a third as much again
WITHIN_8_GIB = Limit("peak_bytes", at_most=8 * 2**30)  # every case checks that it does not grow


def _captured(stages: int) -> Limit:
    """Each of the stages is a launch of its own for a batch, and a step is a batch."""
    return Limit("graph_launches", at_least=stages * FRAMES["cuda"] // BATCH)


def _from_the_gpu(*engaged: Limit, limits: tuple[Limit, ...] = ()) -> Contract:
    """The contract of frames that no host has decoded."""
    return Contract((Limit("host_to_device_bytes", at_most=2**20), *engaged), (WITHIN_8_GIB, *limits))


def _rung(
    name: str,
    plan: Plan,
    speedup: Mapping[str, float],
    below: str = BASELINE,
    needs: Needs = GPU_STAGES,
    contract: Mapping[str, Contract] | None = None,
    why: str = "",
    whole: bool = True,
    why_lower: str = "",
) -> Optimization:
    make: Callable[[Context], Side] = partial(build, plan)
    return Optimization(
        name,
        make,
        speedup,
        dtype="float16",
        compared_with=below,
        needs=needs,
        tolerance=EXACT,
        contract=contract or {},
        proofs=(file_is_whole(plan),) if whole else (),
        why=why,
        min_speedup_why=why_lower,
    )


X264_BOUND = "H.264 out, as users get it: libx264 on the cores is the longest stage, and all else hides behind it"
NVIDIAS_LIBRARIES = "TensorRT and CV-CUDA in place of fused cuDNN calls and torch: libx264 is the longest stage of both"
ONE_KERNEL_A_STAGE = "Motion JPEG out; one kernel each preprocesses and composites, in place of a captured dozen"
MOTION_JPEG = "Motion JPEG out, with many times the bits of H.264 at equal PSNR: the proofs print both figures of both"
OVERLAP = "every stage works on another batch: the pipeline takes the time of the longest stage"
NO_PIPELINE = "the encoder's own speed, on frames that lie ready: the most that a pipeline which ends in it can reach"
ENCODED_APART = "H.264 out by the GPU's own encoder, an engine apart from what computes"
SHARED_CORES = "below, OpenCV decodes and encodes on all cores of the host, which others use too"
TWO_CORES = (
    "decoding, computing and encoding share the same cores: overlap fills only what one of them "
    "leaves idle; in the sequential baseline too the network computes on one thread"
)

LADDER = (
    _rung(
        "segment-fused",
        plans.SEGMENT,
        {"sm_90": 1.05, "cuda": 0.95},
        contract={"cuda": Contract((*TENSOR_CORES, _captured(1), Limit("kernel_launches", at_most_of_reference=0.1)))},
        why="the longest stage of the GPU first; what the CPU does takes seven tenths of a step",
        whole=False,
    ),
    _rung(
        "composite-gpu",
        plans.COMPOSITE,
        {"sm_90": 1.0, "cuda": 0.9},
        "segment-fused",
        contract={"cuda": Contract((*TENSOR_CORES, _captured(3), BGR_ONLY))},
        why="frames go up for it and come back for the encoder",
        whole=False,
        why_lower=SHARED_CORES,
    ),
    _rung(
        "preprocess-gpu",
        plans.PREPROCESS,
        {"sm_90": 0.85, "cuda": 0.8},
        "composite-gpu",
        contract={"cuda": Contract((_captured(4), Limit("host_to_device_bytes", at_most_of_reference=0.75)))},
        why="at most a tenth of the time, which is the noise of what the CPU still decodes and encodes: hardly a loss",
        whole=False,
        why_lower="within a process what the CPU decodes and encodes varies more, and the interval of a process must "
        "keep the promise",
    ),
    _rung(
        "nvdec-sessions",
        plans.DECODE,
        {"sm_90": 1.0, "cuda": 0.9},
        "preprocess-gpu",
        VIDEO,
        {"cuda": _from_the_gpu(_captured(4))},
        why="frames are born on the GPU; the encoder still wants them back",
        whole=False,
    ),
    _rung(
        "nvjpeg",
        plans.ENCODE,
        {"sm_90": 10.0, "cuda": 1.0},
        "nvdec-sessions",
        VIDEO,
        {"cuda": Contract((COMPRESSED_ONLY,))},
        why=f"only the compressed stream comes back; {MOTION_JPEG}",
        why_lower=SHARED_CORES,
    ),
    _rung(
        "overlapped",
        plans.NVJPEG,
        {"sm_90": 0.95, "cuda": 0.95},
        "nvjpeg",
        VIDEO,
        {"sm_90": _from_the_gpu(COMPRESSED_ONLY, limits=(ALWAYS_BUSY,)), "cuda": _from_the_gpu(COMPRESSED_ONLY)},
        why=OVERLAP,
    ),
)
OPTIMIZED = (
    _rung(
        "optimized-x264",
        plans.X264,
        {"sm_90": 7.4, "cuda": 1.5},
        needs=VIDEO,
        contract={
            "sm_90": _from_the_gpu(_captured(4), NV12_ONLY, limits=(H264_WITH_START_UP,)),
            "cuda": _from_the_gpu(NV12_ONLY),
        },
        why=X264_BOUND,
    ),
    _rung(
        "optimized-tensorrt",
        plans.TENSORRT,
        {"sm_90": 0.95, "cuda": 0.9},
        "optimized-x264",
        WITH_TENSORRT,
        {"cuda": _from_the_gpu(Limit("tensor_core_kernels", at_least=40), NV12_ONLY)},
        why=NVIDIAS_LIBRARIES,
    ),
    Optimization(
        "x264-alone",
        partial(x264_alone, plans.X264),
        {"sm_90": 9.4, "cuda": 0.5},
        tolerance=EXACT,
        needs=GPU_STAGES,
        contract={
            "cuda": Contract((Limit("kernels", at_most=8), Limit("device_to_host_bytes", at_most=TEST_READS_BYTES)))
        },
        why=NO_PIPELINE,
    ),
    _rung(
        "of-x264-alone",
        plans.X264,
        {"sm_90": 0.75, "cuda": 0.5},
        "x264-alone",
        VIDEO,
        {"cuda": _from_the_gpu(_captured(4), NV12_ONLY)},
        why=X264_BOUND,
        why_lower="a host of its own reaches 0.97, and less where others use the cores that libx264 encodes on",
    ),
    _rung(
        "optimized-triton",
        plans.TRITON,
        {"cuda": 0.95},
        "optimized-nvjpeg",
        replace(VIDEO, packages=(*VIDEO.packages, "triton")),
        {"cuda": _from_the_gpu(COMPRESSED_ONLY)},
        why=ONE_KERNEL_A_STAGE,
    ),
    _rung(
        "optimized-nvenc",
        plans.NVENC,
        {"cuda": 1.5},
        needs=replace(VIDEO, engine=Engine("nvenc", why_not)),
        contract={"cuda": _from_the_gpu(COMPRESSED_ONLY)},
        why=ENCODED_APART,
    ),
    _rung(
        "optimized-nvjpeg",
        plans.NVJPEG,
        {"sm_90": 35.0, "cuda": 3.0},
        needs=VIDEO,
        contract={
            "sm_90": _from_the_gpu(COMPRESSED_ONLY, limits=(ALWAYS_BUSY, MOTION_JPEG_WITH_START_UP)),
            "cuda": _from_the_gpu(),
        },
        why=f"{MOTION_JPEG}; {OVERLAP}",
        why_lower=SHARED_CORES,
    ),
)
ON_CPU = Optimization(
    "optimized-on-cpu",
    partial(build, plans.ON_CPU),
    {"cpu": 0.6},
    tolerance=EXACT,
    needs=ON_HOST,
    proofs=(file_is_whole(plans.ON_CPU),),
    why=TWO_CORES,
)
END_TO_END = Workload(
    name="video/end-to-end",
    baseline=partial(build, plans.BASELINE),
    inputs=stamps,
    sizes={kind: size(kind) for kind in FRAMES},
    optimizations=(*LADDER, *OPTIMIZED, ON_CPU),
    cold=False,  # the inputs are stamps; frames come from a file
    timing="pipeline",
    ladder=True,
    settings={**VIDEO_SETTING, **SEGMENTER_SETTING},
)
