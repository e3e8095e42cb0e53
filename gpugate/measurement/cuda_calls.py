"""What a CUDA API call is, by its name: one definition for the trace of torch's profiler and for reports of nsys."""

from __future__ import annotations

import re

# nsys and CUPTI append the version in which a function's parameters last changed, and how its default stream behaves.
_SUFFIX = re.compile(r"(_ptsz|_ptds)?(_v\d+)?$")
LAUNCH = re.compile(r"cu(da)?Launch(Cooperative)?Kernel")
GRAPH_LAUNCH = re.compile(r"cu(da)?GraphLaunch")
# cudaMemcpy without Async blocks the host; so do the synchronize calls. cudaStreamWaitEvent does not.
SYNCHRONIZING = re.compile(
    r"cu(da|Ctx|Stream|Event|Device)*Synchronize|cudaMem(cpy|set)(2D|3D)?(_v\d+)?$|cuMemcpy[HD]to[HD](_v2)?$|cuda(Free|Malloc)$"
)
# How cuDNN, cuBLAS and CUTLASS spell tensor-core kernels; plain f32f32 ones run on the FP32 cores. Numbers alone say
# nothing: Triton ends a kernel's name with one. nvjet is cuBLAS on Hopper, warpgroup MMA throughout.
TENSOR_CORES = re.compile(
    r"tensorop|gmma|[hi]mma_|nvjet_|[hsi](884|1688|16816)|xmma_\w*(f16|tf32|e4m3|e5m2)",
    re.IGNORECASE,
)
# PyTorch's own kernels and Inductor's: the program chooses them. A library chooses the others, by shape, or by a race
# of algorithms that another process can end otherwise.
FRAMEWORK = re.compile(r"\bat::|\btriton_|\bc10::")


def plain(name: str) -> str:
    """`cudaLaunchKernel` for `cudaLaunchKernel_ptsz_v7000`: a call as programs write it, and torch's profiler."""
    return _SUFFIX.sub("", name)
