"""Proof that an optimized segmenter still draws the baseline's masks, with the baseline's accuracy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial

from torch import Tensor

from gpugate.errors import DisprovedError
from gpugate.workload import Build, Context, Proof
from workloads.video.segment.segmenter import foreground

LEAST_IOU = 0.98  # of the masks with the baseline's
MOST_LOST = 0.01  # of the baseline's IoU with the truth
Truth = Callable[[Context], tuple[Tensor, Tensor | None]]


def intersection_over_union(masks: Tensor, others: Tensor) -> float:
    """The overlap of two bool tensors of one shape, over all their pixels together; 1 where both are empty."""
    union = int((masks | others).sum())
    return int((masks & others).sum()) / union if union else 1.0


def masks_agree(baseline: Build, optimized: Build, truth: Truth) -> Proof:
    """Proves that the masks are the baseline's, and as accurate, on the frames and masks of `truth`.

    Where the true masks are not known, they are None.
    """
    return Proof("masks", partial(_masks_agree, baseline, optimized, truth))


def _masks_agree(baseline: Build, optimized: Build, truth: Truth, context: Context) -> str:
    frames, true_masks = truth(context)
    wanted, found = _by_baseline(baseline, truth, context), _masks(optimized, context, frames)
    agreement = intersection_over_union(found, wanted)
    figures = f"IoU {agreement:.4f} with the baseline's over {len(frames)} frames"
    if agreement < LEAST_IOU:
        raise DisprovedError(f"{figures}: the baseline's masks need {LEAST_IOU}")
    if true_masks is None:
        return figures
    before, after = (intersection_over_union(masks, true_masks) for masks in (wanted, found))
    figures = f"{figures}, {after:.3f} with the truth"
    if after < before - MOST_LOST:
        raise DisprovedError(f"{figures}: the baseline has {before:.3f}, and at most {MOST_LOST} may be lost")
    return f"{figures}, the baseline {before:.3f}"


@functools.lru_cache(maxsize=1)
def _by_baseline(baseline: Build, truth: Truth, context: Context) -> Tensor:
    """The baseline's masks, with which every optimization is compared."""
    return _masks(baseline, context, truth(context)[0])


def _masks(build: Build, context: Context, frames: Tensor) -> Tensor:
    side = build(context)
    try:
        logits = side.step(frames)
        side.finish()
        return foreground(logits).to(frames.device)
    finally:
        side.close()
