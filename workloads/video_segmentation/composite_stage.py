"""The stage that composites: OpenCV on the host, against what blurs and blends frames on the device.

A step gets the numbers of some frames, int64 [items], blurs their background, and returns the luma of the composites at
some of their pixels, float32 [items, rows, columns], 0..255. That all of them are alike is a proof.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from gpugate.errors import DisprovedError
from gpugate.workload import (
    Build,
    Context,
    Contract,
    DeviceKind,
    Limit,
    Needs,
    Optimization,
    Proof,
    Side,
    Size,
    Tolerance,
    Workload,
)
from workloads.video_segmentation.arrivals import luma_of_bgr, luma_of_nv12
from workloads.video_segmentation.colour import rgb_from_nv12
from workloads.video_segmentation.compositing import OnDevice, on_host
from workloads.video_segmentation.decode_stage import HOST, INSTALL, INSTALL_VIDEO, ON_HOST
from workloads.video_segmentation.end_to_end_proofs import LEAST_COMPOSITED_DB
from workloads.video_segmentation.frame_bank import batch_numbers, bgr_frames, chosen, nv12_frames, one_thread_on_cpu
from workloads.video_segmentation.preprocessing import input_size
from workloads.video_segmentation.source_clip import CLIPS, source

ITEMS: Mapping[DeviceKind, int] = {"cuda": 8, "cpu": 4}
CERTAIN = 4.0  # the logit of what a mask says: 98 %


def size(kind: DeviceKind) -> Size:
    """Bytes: each frame read once and written once in NV12. FLOPs: none, as a blur may take many or few."""
    clip = CLIPS[kind]
    return Size(items=ITEMS[kind], flops=0.0, bytes=2.0 * ITEMS[kind] * clip.width * clip.height * 3 // 2)


@functools.lru_cache(maxsize=2)
def _logits(height: int, width: int, frames: int, device: torch.device) -> Tensor:
    """float32 [frames, 2, h, w]: a soft disc of foreground that wanders, another one for every frame."""
    h, w = input_size(height, width)
    rows, columns = torch.arange(h, device=device)[:, None] / h, torch.arange(w, device=device) / w
    turns = torch.arange(frames, device=device)[:, None, None] * (2 * torch.pi / frames)
    distance = ((rows - 0.5 - 0.2 * turns.sin()) ** 2 + (columns - 0.5 - 0.2 * turns.cos()) ** 2).sqrt()
    foreground = ((0.3 - distance) * 40).clamp(-CERTAIN, CERTAIN)
    return torch.stack((torch.zeros_like(foreground), foreground), 1)


def by_opencv(context: Context) -> Side:
    """The logits come from the device, where the network leaves them; the composites stay on the host."""
    matrix, composited = source(context).info.matrix, _by_opencv(context)
    return Side(lambda numbers: luma_of_bgr(composited(numbers), matrix).to(context.device))


def _by_opencv(context: Context) -> Callable[[Tensor], Any]:
    frames = bgr_frames(context)
    logits = _logits(*frames.shape[1:3], len(frames), context.device)

    def composited(numbers: Tensor) -> Any:
        these = chosen(numbers)
        return on_host(frames[these], logits[these].cpu())

    return composited


def in_nv12(library: Literal["torch", "cvcuda"], context: Context) -> Side:
    """Composited where NV12 lies: on the device, or on the host where there is none."""
    composited = _in_nv12(library, context)
    return Side(lambda numbers: luma_of_nv12(composited(numbers)))


def _in_nv12(library: Literal["torch", "cvcuda"], context: Context) -> Callable[[Tensor], Tensor]:
    one_thread_on_cpu(context.device)
    info, frames = source(context).info, nv12_frames(context)
    logits = _logits(info.height, info.width, len(frames), context.device)
    run: Callable[[Tensor, Tensor], Tensor] = OnDevice(info.height, info.width, context.device)
    if library == "cvcuda":
        from workloads.video_segmentation.compositing_cvcuda import CvCuda  # cuda only

        run = CvCuda(info.height, info.width, context.device)  # cuda only
    return lambda numbers: run(frames[chosen(numbers)], logits[chosen(numbers)])


def composites_agree(library: Literal["torch", "cvcuda"]) -> Proof:
    """That composites are those of OpenCV, before anybody encodes them."""
    return Proof("composites agree", partial(_composites_agree, library))


def _composites_agree(library: Literal["torch", "cvcuda"], context: Context) -> str:
    from workloads.video_segmentation.encoding.quality import psnr_db

    numbers = torch.arange(context.items)
    found = rgb_from_nv12(_in_nv12(library, context)(numbers), source(context).info.matrix)
    wanted = _by_opencv(context)(numbers)
    pairs = zip(found.flip(1).movedim(1, 3).cpu().numpy(), wanted, strict=True)
    worst_db = min(psnr_db(frame, other) for frame, other in pairs)
    words = f"{worst_db:.1f} dB with OpenCV's over {len(numbers)} frames"
    if worst_db < LEAST_COMPOSITED_DB:
        raise DisprovedError(f"{words}: {LEAST_COMPOSITED_DB:g} dB are wanted")
    return words


# At single pixels chroma of half the size and rounding of levels show: see `compositing.OnDevice` for how much of each.
AT_PIXELS = {dtype: Tolerance(relative_l2=1.5e-2, max_error=6e-2) for dtype in ("float32", "float16")}
GPU = Needs(HOST, (7, 0), install=INSTALL)
CVCUDA = Needs((*HOST, "cvcuda"), (7, 0), install=INSTALL_VIDEO)
STAYS = {"cuda": Contract((Limit("device_to_host_bytes", at_most=4096),))}
OPERATORS = "an operator for each step, with memory between them"
PRODUCTS = "two matrix products blur a plane and two enlarge its mask, in YUV, where half the bytes are"
OF_ZEROS = f"{PRODUCTS}; nearly all are products with zero, which a CPU minds more than tensor cores do"


def _variant(
    name: str, library: Literal["torch", "cvcuda"], speedup: Mapping[str, float], needs: Needs, why: str
) -> Optimization:
    build: Build = partial(in_nv12, library)
    proofs = (composites_agree(library),)
    return Optimization(name, build, speedup, tolerance=AT_PIXELS, needs=needs, contract=STAYS, proofs=proofs, why=why)


COMPOSITE = Workload(
    name="video/composite",
    baseline=by_opencv,
    inputs=batch_numbers,
    sizes={kind: size(kind) for kind in ITEMS},
    optimizations=(
        _variant("torch-gpu", "torch", {"sm_90": 10.0, "cuda": 2.0}, GPU, PRODUCTS),
        _variant("cvcuda", "cvcuda", {"sm_90": 2.0, "cuda": 1.0}, CVCUDA, OPERATORS),
        _variant("torch-cpu", "torch", {"cpu": 0.02}, ON_HOST, OF_ZEROS),
    ),
    cold=False,  # the inputs are numbers of frames, which come from a bank in their turn
    timing="pipeline",
)
