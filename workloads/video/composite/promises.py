"""The promises of compositing on the device against OpenCV on the host."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from gpugate.errors import DisprovedError
from gpugate.workload import Build, Context, Contract, Limit, Needs, Optimization, Proof, Tolerance, Workload
from workloads.video.clip.clip import VIDEO_SETTING, is_users, source
from workloads.video.clip.colour import rgb_from_nv12
from workloads.video.clip.frame_bank import batch_numbers
from workloads.video.composite.sides import (
    ITEMS,
    Library,
    by_opencv,
    composited_by_opencv,
    composited_in_nv12,
    in_nv12,
    size,
)
from workloads.video.needs import CVCUDA, GPU, ON_HOST, TRITON
from workloads.video.pipeline.proofs import LEAST_COMPOSITED_DB


def composites_agree(library: Library) -> Proof:
    """Proves that composites are those of OpenCV, before an encoder takes them."""
    return Proof("composites agree", partial(_composites_agree, library))


def _composites_agree(library: Library, context: Context) -> str:
    from workloads.video.encode.quality import psnr_db

    numbers = torch.arange(context.items)
    found = rgb_from_nv12(composited_in_nv12(library, context)(numbers), source(context).info.matrix)
    wanted = composited_by_opencv(context)(numbers)
    pairs = zip(found.flip(1).movedim(1, 3).cpu().numpy(), wanted, strict=True)
    worst_db = min(psnr_db(frame, other) for frame, other in pairs)
    words = f"{worst_db:.1f} dB with OpenCV's over {len(numbers)} frames"
    if worst_db < LEAST_COMPOSITED_DB:
        why = OF_A_USERS if is_users(context) else ""
        raise DisprovedError(f"{words}: {LEAST_COMPOSITED_DB:g} dB are wanted{why}")
    return words


# Of noise at 320x180, 31.6 dB are left of OpenCV's composites when their chroma alone is halved and enlarged again.
OF_A_USERS = (
    ", which chroma of half the size alone may miss where a video is small and full of fine colours: take another"
)
# Single pixels show chroma of half the size and the rounding of levels: `compositing.OnDevice` has the share of each.
AT_PIXELS = {dtype: Tolerance(relative_l2=1.5e-2, max_error=6e-2) for dtype in ("float32", "float16")}
STAYS = {"cuda": Contract((Limit("device_to_host_bytes", at_most=4096),))}
OPERATORS = "an operator for each step, with memory between them"
PRODUCTS = "two matrix products blur a plane and two enlarge its mask, in YUV, where half the bytes are"
IN_TILES = "one kernel blurs a tile by two small products and blends it: each frame is read once and written once"
OF_ZEROS = f"{PRODUCTS}; nearly all are products with zero, which a CPU minds more than tensor cores do"


def _variant(name: str, library: Library, speedup: Mapping[str, float], needs: Needs, why: str) -> Optimization:
    build: Build = partial(in_nv12, library)
    proofs = (composites_agree(library),)
    return Optimization(
        name,
        build,
        speedup,
        tolerance=AT_PIXELS,
        needs=needs,
        contract=STAYS,
        proofs=proofs,
        why=why,
    )


COMPOSITE = Workload(
    name="video/composite",
    baseline=by_opencv,
    inputs=batch_numbers,
    sizes={kind: size(kind) for kind in ITEMS},
    optimizations=(
        _variant("torch-gpu", "torch", {"nvidia-h100-80gb-hbm3": 200.0, "sm_90": 175.0, "cuda": 2.0}, GPU, PRODUCTS),
        _variant("triton", "triton", {"sm_90": 175.0, "cuda": 2.0}, TRITON, IN_TILES),
        _variant("cvcuda", "cvcuda", {"nvidia-h100-80gb-hbm3": 25.0, "sm_90": 20.0, "cuda": 1.0}, CVCUDA, OPERATORS),
        # No speed is promised: the case keeps the path tested where there is no GPU.
        _variant("torch-cpu", "torch", {"cpu": 0.02}, ON_HOST, OF_ZEROS),
    ),
    cold=False,  # the inputs are numbers of frames, which lie in a bank
    timing="pipeline",
    settings=VIDEO_SETTING,
)
