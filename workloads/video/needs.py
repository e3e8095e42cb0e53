"""What the stages need, and how exactly frames must arrive."""

from __future__ import annotations

from gpugate.workload import TOLERANCE_BY_DTYPE, Needs, Tolerance

HOST = ("cv2", "av")
INSTALL = "pip install 'gpugate[workloads]'"
INSTALL_VIDEO = "pip install 'gpugate[workloads,video]'"
ON_HOST = Needs(HOST, install=INSTALL)
GPU = Needs(HOST, (7, 0), install=INSTALL)
CVCUDA = Needs((*HOST, "cvcuda"), (7, 0), install=INSTALL_VIDEO)
VIDEO_ENGINES = Needs((*HOST, "PyNvVideoCodec"), install=INSTALL_VIDEO)
# Every frame is the one whose turn it is, or it is not; whatever decoded it.
EXACT = {dtype: Tolerance(relative_l2=1e-6, max_error=1e-6) for dtype in TOLERANCE_BY_DTYPE}
