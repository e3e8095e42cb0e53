"""The promises of precision, layout, fusion and compilers for the segmenter."""

from __future__ import annotations

from dataclasses import replace

from gpugate.workload import BASELINE, Build, Contract, Limit, Needs, Optimization, Tolerance, Workload
from workloads.parts.tensorrt_engine import TENSORRT_LIBRARY
from workloads.video.clip.clip import VIDEO_SETTING
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
ENGINE = (Limit("kernels", at_least=40, at_most_of_reference=0.5), Limit("engine_layers", at_least=108))
FUSED = Limit("engine_layers", at_most=109)  # of TensorRT 8.6: 106 convolutions, the pool and two casts


def _promised(
    name: str,
    build: Build,
    sm_90: float,
    cuda: float,
    engaged: tuple[Limit, ...],
    needs: Needs,
    limits: tuple[Limit, ...] = (),
    against: str = BASELINE,
) -> Optimization:
    """At least the speedup `sm_90`, within `limits`, on an H200 or H100 and `cuda` on any GPU, with equal masks."""
    return Optimization(
        name,
        build,
        {"sm_90": sm_90, "cuda": cuda},
        dtype="float16",
        compared_with=against,
        needs=needs,
        contract={"sm_90": Contract(engaged, limits), "cuda": Contract(engaged)},
        proofs=(masks_agree(baseline, build, truth),),
    )


def _limit_size(memory_share: float, kernels_share: float, longest_share: float = 0.58) -> tuple[Limit, ...]:
    """Limits on peak memory, all kernels and the 15 longest kernels, as shares of the reference's.

    The longest kernels of channels_last have 0.51 of the reference's time on an H100 and 0.69 on an H200, those of
    inductor 0.47 and 0.63, those of each other side 0.47 and 0.52.
    """
    return (
        Limit("peak_bytes", at_most_of_reference=memory_share),
        Limit("kernel_ms", at_most_of_reference=kernels_share),
        Limit("longest_kernels_mean_ms", at_most_of_reference=longest_share),
    )


# On a slow host an H200 gained 1.3x to 1.5x, while its kernels took half of the reference's time: the limit sees that.
LAUNCHES_BIND = "566 launches take longer than the kernels where the host is slow"


OPTIMIZATIONS = (
    replace(
        _promised(
            "channels-last-fp16", channels_last_fp16, 1.05, 1.0, TENSOR_CORES, VOLTA, _limit_size(0.65, 0.57, 0.75)
        ),
        min_speedup_why=LAUNCHES_BIND,
    ),
    _promised("inductor-fp16", inductor_fp16, 2.2, 1.2, TENSOR_CORES, VOLTA, _limit_size(0.6, 0.38, 0.7)),
    _promised("cudnn-fused", cudnn_fused, 3.4, 1.2, ONE_GRAPH, AMPERE, _limit_size(0.6, 0.28)),
    _promised("cuda-graph", cuda_graph, 0.98, 0.95, ONE_GRAPH, VOLTA, against="channels-last-fp16"),
    replace(
        _promised("tensorrt-fp16", tensorrt_fp16, 3.4, 1.2, ENGINE, TENSORRT, (FUSED, *_limit_size(0.42, 0.28))),
        tolerance={"float16": Tolerance(relative_l2=3e-3, max_error=2e-2)},  # 2.3e-3 and 1.0e-2: FP16 also in sums
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
