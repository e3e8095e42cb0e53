"""What must be true of a pipeline beyond what arrives at its encoder: frames like the baseline's, and a whole file."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpugate.errors import DisprovedError
from gpugate.workload import Context, Proof
from workloads.video_segmentation.chain import Chain, decoder_of, encoder_of
from workloads.video_segmentation.flow import Flow
from workloads.video_segmentation.mask_agreement import LEAST_IOU, intersection_over_union
from workloads.video_segmentation.plan import BASELINE, BATCH, Plan
from workloads.video_segmentation.segmenter import foreground
from workloads.video_segmentation.source_clip import Source, source

Pixels = NDArray[np.uint8]
COMPARED_BATCHES = 2  # of the clip's first frames
LEAST_COMPOSITED_DB, LEAST_ENCODED_DB = 40.0, 35.0


def frames_agree(plan: Plan) -> Proof:
    """That masks and composited frames, before they are encoded, are those of the baseline."""
    return Proof("frames agree", partial(_frames_agree, plan))


def file_is_whole(plan: Plan) -> Proof:
    """That every frame of the clip is in the file, in order, and looks as it was given to the encoder."""
    return Proof("file is whole", partial(_file_is_whole, plan))


def _frames_agree(plan: Plan, context: Context) -> str:
    from workloads.video_segmentation.encoding.quality import psnr_db

    clip = source(context)
    wanted, found = (list(_computed(each, context, clip, COMPARED_BATCHES)) for each in (BASELINE, plan))
    overlap = intersection_over_union(*(torch.cat([mask for _, mask in each]) for each in (found, wanted)))
    composited = (np.concatenate([frames for frames, _ in each]) for each in (found, wanted))
    worst_db = min(psnr_db(frame, other) for frame, other in zip(*composited, strict=True))
    words = f"IoU {overlap:.4f} and {worst_db:.1f} dB with the baseline's over {COMPARED_BATCHES * BATCH} frames"
    if overlap < LEAST_IOU or worst_db < LEAST_COMPOSITED_DB:
        raise DisprovedError(f"{words}: {LEAST_IOU} and {LEAST_COMPOSITED_DB:g} dB are wanted")
    return words


def _file_is_whole(plan: Plan, context: Context) -> str:
    from workloads.video_segmentation.encoding.quality import frame_numbers, quality

    clip = source(context)
    with tempfile.TemporaryDirectory(prefix="recording-", dir=context.cache_dir) as folder:
        path = Path(folder, f"clip{plan.suffix}")
        given = list(_encoded(plan, context, clip, path))
        found = quality(path, given, "nv12", clip.info.matrix)
        numbers = frame_numbers(path) if clip.numbered else list(range(found.frames))
    worst_db, median_db = min(found.psnr_db), statistics.median(found.psnr_db)
    words = f"{found.frames} of {clip.info.frames} frames, {worst_db:.1f} dB at least, {median_db:.1f} dB in the middle"
    if found.frames != clip.info.frames:
        raise DisprovedError(f"{words}: all of them are wanted")
    if numbers != list(range(clip.info.frames)):
        wrong = next(place for place, number in enumerate(numbers) if place != number)
        raise DisprovedError(f"{words}: frame {wrong} of the file carries the number {numbers[wrong]}")
    if worst_db < LEAST_ENCODED_DB:
        raise DisprovedError(f"{words}: {LEAST_ENCODED_DB:g} dB are wanted")
    return f"{words}, {found.bit_rate_mbit_s:.1f} Mbit/s"


def _computed(plan: Plan, context: Context, clip: Source, batches: int) -> Iterator[tuple[Pixels, torch.Tensor]]:
    """Composited frames in BGR on the host, and their masks, of the first batches."""
    with _chain(plan, context, clip, lambda frames: None) as (chain, decoder):
        for _ in range(batches):
            batch = chain.decode(decoder)
            if batch is None:
                return
            mask = foreground(chain.logits(chain.uploaded(batch))).cpu()
            yield chain.downloaded(chain.compute(batch)), mask


def _encoded(plan: Plan, context: Context, clip: Source, path: Path) -> Iterator[Pixels]:
    """Encodes the whole clip; the first frames in NV12, as they were given to the encoder."""
    with (
        encoder_of(plan, path, clip.info, context.device) as encoder,
        _chain(plan, context, clip, encoder.write) as (chain, decoder),
        closing(Flow(chain, decoder, chain.encode)) as flow,
    ):
        while (batch := flow.take()) is not None:
            if batch.first < COMPARED_BATCHES * BATCH:
                yield chain.nv12_of(batch)


@contextmanager
def _chain(plan: Plan, context: Context, clip: Source, write: Any) -> Iterator[tuple[Chain, Any]]:
    with (
        closing(Chain(plan, context, clip.info, write)) as chain,
        closing(decoder_of(plan, clip.path, context.device, loop=False)) as decoder,
    ):
        yield chain, decoder
