"""What must be true of a pipeline beyond what arrives at its encoder: frames like the baseline's, and a whole file."""

from __future__ import annotations

import functools
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
from workloads.video_segmentation.flow import Flow, own_stream
from workloads.video_segmentation.mask_agreement import LEAST_IOU, intersection_over_union
from workloads.video_segmentation.plan import BASELINE, Plan
from workloads.video_segmentation.segmenter import foreground
from workloads.video_segmentation.source_clip import Source, source

Pixels = NDArray[np.uint8]
COMPARED_BATCHES = 2  # of the clip's first frames, with the baseline's
COMPARED_EVERY = 10  # frames of a file, with what was given to its encoder
LEAST_COMPOSITED_DB, LEAST_ENCODED_DB = 40.0, 35.0


def frames_agree(plan: Plan) -> Proof:
    """That masks and composited frames, before they are encoded, are those of the baseline."""
    return Proof("frames agree", partial(_frames_agree, plan))


def file_is_whole(plan: Plan) -> Proof:
    """That every frame of the clip is in the file, in order, and looks as it was given to the encoder."""
    return Proof("file is whole", partial(_file_is_whole, plan))


def compared_numbers(frames: int) -> list[int]:
    """The first, the last and every tenth frame."""
    return sorted({*range(0, frames, COMPARED_EVERY), frames - 1})


def _frames_agree(plan: Plan, context: Context) -> str:
    from workloads.video_segmentation.encoding.quality import psnr_db

    clip = source(context)
    (wanted, their_masks), (found, our_masks) = _by_baseline(context, clip), _computed(plan, context, clip)
    overlap = intersection_over_union(our_masks, their_masks)
    worst_db = min(psnr_db(frame, other) for frame, other in zip(found, wanted, strict=True))
    words = f"IoU {overlap:.4f} and {worst_db:.1f} dB with the baseline's over {len(wanted)} frames"
    if overlap < LEAST_IOU or worst_db < LEAST_COMPOSITED_DB:
        raise DisprovedError(f"{words}: {LEAST_IOU} and {LEAST_COMPOSITED_DB:g} dB are wanted")
    return words


def _file_is_whole(plan: Plan, context: Context) -> str:
    from workloads.video_segmentation.encoding.quality import quality

    clip = source(context)
    with tempfile.TemporaryDirectory(prefix="recording-", dir=context.cache_dir) as folder:
        path = Path(folder, f"clip{plan.suffix}")
        given = _encoded(plan, context, clip, path)
        found = quality(path, given, "nv12", clip.info.matrix, clip.numbered)
    words = f"{found.frames} of {clip.info.frames} frames"
    if found.frames != clip.info.frames:
        raise DisprovedError(f"{words}: all of them are wanted")
    wrong = next((place for place, number in enumerate(found.numbers) if place != number), None)
    if wrong is not None:
        raise DisprovedError(f"{words}: frame {wrong} of the file carries the number {found.numbers[wrong]}")
    values = found.psnr_db.values()
    worst_db, median_db = min(values), statistics.median(values)
    words += f", {worst_db:.1f} dB at least and {median_db:.1f} dB in the middle of {len(values)}"
    if worst_db < LEAST_ENCODED_DB:
        raise DisprovedError(f"{words}: {LEAST_ENCODED_DB:g} dB are wanted")
    return f"{words}, {found.bit_rate_mbit_s:.1f} Mbit/s"


@functools.lru_cache(maxsize=1)
def _by_baseline(context: Context, clip: Source) -> tuple[Pixels, torch.Tensor]:
    """Several rungs are compared with the same frames."""
    return _computed(BASELINE, context, clip)


def _computed(plan: Plan, context: Context, clip: Source) -> tuple[Pixels, torch.Tensor]:
    """Composited frames in BGR on the host, uint8 [n, H, W, 3], and their masks, bool [n, h, w]: the first batches."""
    frames: list[Pixels] = []
    masks: list[torch.Tensor] = []
    with _chain(plan, context, clip, lambda frames: None) as (chain, decoder):
        while len(frames) < COMPARED_BATCHES and (batch := chain.decode(decoder)) is not None:
            masks.append(foreground(chain.logits(chain.uploaded(batch))).cpu())
            frames.append(chain.downloaded(chain.compute(batch)))
    return np.concatenate(frames), torch.cat(masks)


def _encoded(plan: Plan, context: Context, clip: Source, path: Path) -> dict[int, Pixels]:
    """Encodes the whole clip; the frames to compare in NV12, by number, as they were given to the encoder."""
    given: dict[int, Pixels] = {}
    numbers = compared_numbers(clip.info.frames)
    with (
        own_stream(context.device),
        encoder_of(plan, path, clip.info, context.device) as encoder,
        _chain(plan, context, clip, encoder.write) as (chain, decoder),
        closing(Flow(chain, decoder, chain.encode)) as flow,
    ):
        while (batch := flow.take()) is not None:
            here = [number for number in numbers if 0 <= number - batch.first < len(batch)]
            if here:
                given.update(zip(here, chain.nv12_of(batch, [each - batch.first for each in here]), strict=True))
    return given


@contextmanager
def _chain(plan: Plan, context: Context, clip: Source, write: Any) -> Iterator[tuple[Chain, Any]]:
    with (
        closing(decoder_of(plan, clip.path, context.device, loop=False)) as decoder,
        closing(Chain(plan, context, clip.info, write, before_capture=decoder.settle)) as chain,
    ):
        yield chain, decoder
