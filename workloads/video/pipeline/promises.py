"""The promises of the whole pipeline: stage by stage against the rung below, and all of it against the baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from gpugate.workload import BASELINE, Context, Contract, Engine, Limit, Needs, Optimization, Proof, Side, Workload
from workloads.video.clip.source_clip import VIDEO_SETTING
from workloads.video.decode.sides import stamps
from workloads.video.encode.compressed_only import COMPOSITED_BYTES, compressed_only
from workloads.video.encode.nvenc_probe import why_not
from workloads.video.needs import EXACT, GPU, ON_HOST, VIDEO_ENGINES
from workloads.video.pipeline import plan as plans
from workloads.video.pipeline.plan import Plan
from workloads.video.pipeline.proofs import file_is_whole, frames_agree
from workloads.video.pipeline.sides import FRAMES, build, size, x264_alone
from workloads.video.segment.segmenter import SEGMENTER_SETTING

VIDEO = replace(VIDEO_ENGINES, compute_capability=(8, 0))
GPU_STAGES = replace(GPU, compute_capability=(8, 0))
WITH_START_UP = 13.4  # the project's target
ALWAYS_BUSY = Limit("active_fraction", at_least=0.80)
COMPRESSED_ONLY = compressed_only(FRAMES["cuda"], COMPOSITED_BYTES)
WITHIN_8_GIB = Limit("peak_bytes", at_most=8 * 2**30)  # every case checks that it does not grow
FROM_THE_GPU = Contract((Limit("host_to_device_bytes", at_most=2**20),), (WITHIN_8_GIB,))


def _rung(
    name: str,
    plan: Plan,
    speedup: Mapping[str, float],
    below: str = BASELINE,
    needs: Needs = GPU_STAGES,
    contract: Mapping[str, Contract] | None = None,
    why: str = "",
    shown: Callable[[Plan], Proof] = file_is_whole,
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
        proofs=(shown(plan),),
        why=why,
        min_speedup_why=why_lower,
    )


def _whole(name: str, plan: Plan, speedup: Mapping[str, float], *limits: Limit, why: str) -> Optimization:
    """A rung of the whole pipeline; on an H200 a speedup with start-up is promised too."""
    from_start = Limit("whole_run_speedup", at_least=WITH_START_UP)
    busy = Contract((*FROM_THE_GPU.engaged, *limits), (*FROM_THE_GPU.limits, ALWAYS_BUSY, from_start))
    contract = {"sm_90": busy, "cuda": FROM_THE_GPU}
    return _rung(name, plan, speedup, needs=VIDEO, contract=contract, why=why, why_lower=SHARED_CORES)


X264_BOUND = "libx264 on the cores is the longest stage: everything else hides behind it"
OVERLAP = "every stage works on another batch: the pipeline takes the time of the longest stage"
NO_PIPELINE = "the encoder's own speed, on frames that lie ready: the most that a pipeline which ends in it can reach"
ENCODED_APART = "the GPU's own encoder, an engine apart from what computes"
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
        why="the longest stage of the GPU first; what the CPU does takes seven tenths of a step",
        shown=frames_agree,
    ),
    _rung(
        "composite-gpu",
        plans.COMPOSITE,
        {"sm_90": 1.0, "cuda": 0.9},
        "segment-fused",
        why="frames go up for it and come back for the encoder",
        shown=frames_agree,
        why_lower=SHARED_CORES,
    ),
    _rung(
        "preprocess-gpu",
        plans.PREPROCESS,
        {"sm_90": 0.85, "cuda": 0.8},
        "composite-gpu",
        why="at most a tenth of the time, which is the noise of what the CPU still decodes and encodes: hardly a loss",
        shown=frames_agree,
        why_lower="within a process what the CPU decodes and encodes varies more, and the interval of a process must "
        "keep the promise",
    ),
    _rung(
        "nvdec-sessions",
        plans.DECODE,
        {"sm_90": 1.0, "cuda": 0.9},
        "preprocess-gpu",
        VIDEO,
        why="frames are born on the GPU; the encoder still wants them back",
        shown=frames_agree,
    ),
    _rung(
        "nvjpeg",
        plans.ENCODE,
        {"sm_90": 10.0, "cuda": 1.0},
        "nvdec-sessions",
        VIDEO,
        {"cuda": Contract((COMPRESSED_ONLY,))},
        why="only the compressed stream comes back",
        why_lower=SHARED_CORES,
    ),
    _rung(
        "overlapped",
        plans.NVJPEG,
        {"sm_90": 0.95, "cuda": 0.95},
        "nvjpeg",
        VIDEO,
        {"sm_90": Contract(limits=(ALWAYS_BUSY,))},
        why=OVERLAP,
    ),
)
OPTIMIZED = (
    _whole("optimized-nvjpeg", plans.NVJPEG, {"sm_90": 35.0, "cuda": 3.0}, COMPRESSED_ONLY, why=OVERLAP),
    _rung(
        "optimized-nvenc",
        plans.NVENC,
        {"cuda": 1.5},
        needs=replace(VIDEO, engine=Engine("nvenc", why_not)),
        contract={"cuda": Contract((*FROM_THE_GPU.engaged, COMPRESSED_ONLY), FROM_THE_GPU.limits)},
        why=ENCODED_APART,
    ),
    _rung(
        "optimized-x264",
        plans.X264,
        {"sm_90": 7.4, "cuda": 1.5},
        needs=VIDEO,
        contract={"cuda": FROM_THE_GPU},
        why=X264_BOUND,
    ),
    Optimization(
        "x264-alone",
        partial(x264_alone, plans.X264),
        {"sm_90": 9.4, "cuda": 0.5},
        tolerance=EXACT,
        needs=GPU_STAGES,
        why=NO_PIPELINE,
    ),
    _rung(
        "of-x264-alone",
        plans.X264,
        {"sm_90": 0.75, "cuda": 0.5},
        "x264-alone",
        VIDEO,
        why=X264_BOUND,
        why_lower="a host of its own reaches 0.97, and less where others use the cores that libx264 encodes on",
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
