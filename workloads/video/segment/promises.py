"""The promises of precision, layout, fusion and compilers for the segmenter."""

from __future__ import annotations

from dataclasses import replace

from gpugate.workload import BASELINE, Build, Contract, Limit, Needs, Optimization, Tolerance, Workload
from workloads.parts.tensorrt_engine import TENSORRT_LIBRARY
from workloads.video.clip.source_clip import VIDEO_SETTING
from workloads.video.segment.mask_agreement import masks_agree
from workloads.video.segment.segmenter import SEGMENTER_SETTING
from workloads.video.segment.sides import (
    baseline,
    channels_last_fp16,
    cuda_graph,
    cudnn_fused,
    inductor_fp16,
    inputs,
    size,
    tensorrt_fp16,
    truth,
)

VOLTA, AMPERE = Needs(compute_capability=(7, 0)), Needs(compute_capability=(8, 0))
TENSORRT = Needs(compute_capability=(7, 5), engine=TENSORRT_LIBRARY)

ALL_LAYERS = Limit("kernels", at_least=107)  # 106 convolutions and the interpolation: no work vanished
TENSOR_CORES = (ALL_LAYERS, Limit("tensor_core_kernels", at_least=40))
ONE_GRAPH = (*TENSOR_CORES, Limit("graph_launches", at_least=1, at_most=1), Limit("kernel_launches", at_most=1))
ENGINE = (Limit("kernels", at_least=40, at_most_of_reference=0.5), Limit("engine_layers", at_least=108, at_most=109))


def _promised(
    name: str,
    build: Build,
    sm_90: float,
    cuda: float,
    engaged: tuple[Limit, ...],
    needs: Needs,
    against: str = BASELINE,
) -> Optimization:
    """At least the speedup `sm_90` on an H200 or H100 and `cuda` on any GPU, with the baseline's masks."""
    return Optimization(
        name,
        build,
        {"sm_90": sm_90, "cuda": cuda},
        dtype="float16",
        compared_with=against,
        needs=needs,
        contract={"cuda": Contract(engaged)},
        proofs=(masks_agree(baseline, build, truth),),
    )


OPTIMIZATIONS = (
    _promised("channels-last-fp16", channels_last_fp16, 7.4, 1.2, TENSOR_CORES, VOLTA),
    _promised("inductor-fp16", inductor_fp16, 12.0, 1.2, TENSOR_CORES, VOLTA),
    _promised("cudnn-fused", cudnn_fused, 14.0, 1.2, ONE_GRAPH, AMPERE),
    _promised("cuda-graph", cuda_graph, 0.98, 0.95, ONE_GRAPH, VOLTA, against="channels-last-fp16"),
    replace(
        _promised("tensorrt-fp16", tensorrt_fp16, 3.4, 1.2, ENGINE, TENSORRT),
        tolerance={"float16": Tolerance(relative_l2=3e-3, max_error=1e-2)},  # 2.3e-3 on an H100: FP16 also in sums
    ),
)
SEGMENT = Workload(
    name="video/segment",
    baseline=baseline,
    inputs=inputs,
    sizes={"cuda": size("cuda")},
    optimizations=OPTIMIZATIONS,
    settings={**VIDEO_SETTING, **SEGMENTER_SETTING},
)
