"""The promises of preprocessing on the device against OpenCV on the host."""

from __future__ import annotations

from functools import partial

from gpugate.workload import Contract, Limit, Optimization, Tolerance, Workload
from workloads.video.clip.clip import VIDEO_SETTING
from workloads.video.clip.frame_bank import batch_numbers
from workloads.video.needs import CVCUDA, GPU, ON_HOST, TRITON
from workloads.video.preprocess.sides import ITEMS, by_opencv, from_nv12, size

# Both sides round levels of bytes, by one of 255, and CV-CUDA by three; normalized values are about 1.
ROUNDED = {dtype: Tolerance(relative_l2=1.5e-2, max_error=5e-2) for dtype in ("float32", "float16")}
ROUNDED_BY_CVCUDA = {dtype: Tolerance(relative_l2=3e-2, max_error=5e-2) for dtype in ("float32", "float16")}
ON_THE_GPU = {"cuda": Contract((Limit("host_to_device_bytes", at_most=4096),))}
FEWEST_KERNELS = Limit("kernels", at_most=3)  # one of them copies the frames of a step out of the bank
SHARED_CORES = (
    "OpenCV computes on all cores of the host, which others use too, and the operators are launched one by one"
)
SAMPLED_FIRST = "a ninth of the pixels is sampled first, and only those are converted"

PREPROCESS = Workload(
    name="video/preprocess",
    baseline=by_opencv,
    inputs=batch_numbers,
    sizes={kind: size(kind) for kind in ITEMS},
    optimizations=(
        Optimization(
            "torch-gpu",
            partial(from_nv12, "torch"),
            {"nvidia-h100-80gb-hbm3": 46.0, "sm_90": 38.0, "cuda": 2.0},
            tolerance=ROUNDED,
            needs=GPU,
            contract=ON_THE_GPU,
            why=SAMPLED_FIRST,
        ),
        Optimization(
            "triton",
            partial(from_nv12, "triton"),
            {"sm_90": 38.0, "cuda": 2.0},
            tolerance=ROUNDED,
            needs=TRITON,
            contract={"cuda": Contract(ON_THE_GPU["cuda"].engaged, (FEWEST_KERNELS,))},
            why="one kernel samples, converts and normalizes: nothing between the frame and the result is in memory",
        ),
        Optimization(
            "cvcuda",
            partial(from_nv12, "cvcuda"),
            {"sm_90": 19.0, "cuda": 2.0},
            tolerance=ROUNDED_BY_CVCUDA,
            needs=CVCUDA,
            contract=ON_THE_GPU,
            why="an operator for each step, with all pixels converted before they are sampled",
            min_speedup_why=SHARED_CORES,
        ),
        Optimization(
            "torch-cpu",
            partial(from_nv12, "torch"),
            {"cpu": 0.03},  # promises no speed: the case keeps the path tested where there is no GPU
            tolerance=ROUNDED,
            needs=ON_HOST,
            why=f"{SAMPLED_FIRST}; PyTorch still makes several passes over them, and OpenCV one",
        ),
    ),
    cold=False,  # the inputs are numbers of frames, which lie in a bank
    timing="pipeline",
    settings=VIDEO_SETTING,
)
