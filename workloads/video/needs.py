"""The batch of all stages, their requirements, and the tolerance of frames that arrive."""

from __future__ import annotations

from gpugate.workload import TOLERANCE_BY_DTYPE, Needs, Tolerance

BATCH = 8  # frames that pass the stages together
HOST = ("cv2", "av")
INSTALL = "pip install 'gpugate[workloads]'"
INSTALL_VIDEO = "pip install 'gpugate[workloads,video]'"
ON_HOST = Needs(HOST, install=INSTALL)
GPU = Needs(HOST, (7, 0), install=INSTALL)
CVCUDA = Needs((*HOST, "cvcuda"), (7, 0), install=INSTALL_VIDEO)
TRITON = Needs((*HOST, "triton"), (8, 0), install="pip install triton")
VIDEO_ENGINES = Needs((*HOST, "PyNvVideoCodec"), install=INSTALL_VIDEO)
# Every frame is the expected one, or it is not, whatever decoder it comes from.
EXACT = {dtype: Tolerance(relative_l2=1e-6, max_error=1e-6) for dtype in TOLERANCE_BY_DTYPE}
