"""Classes of CUDA API calls and kernels by name, for the traces of torch's profiler and the reports of nsys."""

from __future__ import annotations

import re

# nsys and CUPTI append the version in which a function's parameters last changed, and its kind of default stream.
_SUFFIX = re.compile(r"(_ptsz|_ptds)?(_v\d+)?$")
LAUNCH = re.compile(r"cu(da)?Launch(Cooperative)?Kernel")
GRAPH_LAUNCH = re.compile(r"cu(da)?GraphLaunch")
# cudaMemcpy without Async blocks the host; so do the synchronize calls. cudaStreamWaitEvent does not.
SYNCHRONIZING = re.compile(
    r"cu(da|Ctx|Stream|Event|Device)*Synchronize|cudaMem(cpy|set)(2D|3D)?(_v\d+)?$|cuMemcpy[HD]to[HD](_v2)?$|cuda(Free|Malloc)$"
)
# Names of tensor-core kernels in cuDNN, cuBLAS and CUTLASS; plain f32f32 kernels run on the FP32 cores. A number alone
# proves nothing: Triton ends a kernel's name with one. nvjet is cuBLAS on Hopper, warpgroup MMA throughout.
TENSOR_CORES = re.compile(
    r"tensorop|gmma|[hi]mma_|nvjet_|[hsi](884|1688|16816)|xmma_\w*(f16|tf32|i8|e4m3|e5m2)",
    re.IGNORECASE,
)
# Kernels of PyTorch itself and of Inductor: the program chooses them. A library chooses the others, by shape, or by a
# race of algorithms whose winner can differ between processes.
FRAMEWORK = re.compile(r"\bat::|\btriton_|\bc10::")

COMMUNICATION = re.compile(r"nccl", re.IGNORECASE)


def plain(name: str) -> str:
    """Strips the suffix of a call: `cudaLaunchKernel_ptsz_v7000` becomes `cudaLaunchKernel`, as programs write it."""
    return _SUFFIX.sub("", name)
