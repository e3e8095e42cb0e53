"""The proof of a pipeline beyond the record at its encoder: a whole file, of frames like the baseline's."""

from __future__ import annotations

import functools
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from gpugate.errors import DisprovedError
from gpugate.workload import Context, Proof
from workloads.video.clip.clip import Source, source
from workloads.video.composite import LEAST_COMPOSITED_DB
from workloads.video.encode.encoding import LEAST_ENCODED_DB, encoder_of
from workloads.video.needs import BATCH
from workloads.video.pipeline.chain import Batch, Chain, Flow, decoder_of, own_stream
from workloads.video.pipeline.plan import BASELINE, Plan
from workloads.video.segment import LEAST_IOU, intersection_over_union
from workloads.video.segmenter import foreground

if TYPE_CHECKING:
    from workloads.video.decode.decoding import Decoder

Pixels = NDArray[np.uint8]
_Chain = TypeVar("_Chain", bound=Chain)
COMPARED_EVERY = 10  # frames of a file, with the encoder's inputs
COMPARED_COMPOSITES = 16  # of the whole clip, with the baseline's


def file_is_whole(plan: Plan) -> Proof:
    """Proves that every frame of the clip is in the file, in order, and like the encoder's input.

    The proof also compares the encoder's inputs with the baseline's composites, by its masks.
    """
    return Proof("file is whole", partial(_file_is_whole, plan))


def compared_numbers(frames: int) -> list[int]:
    """The numbers of the first, the last and every tenth frame."""
    return sorted({*range(0, frames, COMPARED_EVERY), frames - 1})


def composited_numbers(frames: int) -> list[int]:
    """The numbers of the first, the last and some frames between them, at other places of their batches."""
    between = COMPARED_COMPOSITES - 2
    return sorted({0, *((2 * place + 1) * frames // (2 * between) for place in range(between)), frames - 1})


@dataclass(frozen=True)
class Composites:
    """Composites by frame number: NV12, uint8 [H*3//2, W], and masks, bool [h, w], on the host."""

    nv12: Mapping[int, Pixels]
    masks: Mapping[int, torch.Tensor]


def _file_is_whole(plan: Plan, context: Context) -> str:
    from workloads.video.encode.quality import quality

    clip = source(context)
    with tempfile.TemporaryDirectory(prefix="recording-", dir=context.cache_dir) as folder:
        path = Path(folder, f"clip{plan.suffix}")
        given = _encoded(plan, context, clip, path)
        found = quality(path, given.nv12, "nv12", clip.info.matrix, clip.numbered)
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
    return f"{words}, {_like_the_baselines(given, context, clip)}, {found.bit_rate_mbit_s:.1f} Mbit/s"


def _like_the_baselines(given: Composites, context: Context, clip: Source) -> str:
    from workloads.video.encode.quality import psnr_db

    wanted = _composites_by_baseline(context, clip)
    ours, theirs = (torch.stack([each.masks[number] for number in wanted.masks]) for each in (given, wanted))
    overlap = intersection_over_union(ours, theirs)
    worst_db = min(psnr_db(given.nv12[number], frame) for number, frame in wanted.nv12.items())
    words = f"IoU {overlap:.4f} and {worst_db:.1f} dB with the baseline's composites of {len(wanted.nv12)}"
    if overlap < LEAST_IOU or worst_db < LEAST_COMPOSITED_DB:
        raise DisprovedError(f"{words} frames: {LEAST_IOU} and {LEAST_COMPOSITED_DB:g} dB are wanted")
    return words


@functools.lru_cache(maxsize=1)
def _composites_by_baseline(context: Context, clip: Source) -> Composites:
    """The baseline's composites, with which several variants are compared; only these of all frames are computed.

    Raises DisprovedError where they equal our own clip: a comparison with them would prove nothing.
    """
    numbers = composited_numbers(clip.info.frames)
    make = partial(_ShowingMasks, range(len(numbers)))
    nv12: list[Pixels] = []
    with _chain(BASELINE, context, clip, lambda frames: None, make) as (chain, decoder):
        batches = iter(lambda: chain.decode(decoder), None)
        frames = [batch.on_host[place].copy() for batch in batches for _, place in _places(numbers, batch)]
        for first in range(0, len(frames), BATCH):
            batch = Batch(first, bgr=np.stack(frames[first : first + BATCH]))
            places = [*range(len(batch))]
            composited = chain.nv12_of(chain.compute(batch), places)
            if clip.numbered:
                _refuse_unchanged(chain.nv12_of(batch, places), composited)
            nv12 += [*composited]
    masks = [chain.masks[place] for place in range(len(frames))]
    return Composites(dict(zip(numbers, nv12, strict=True)), dict(zip(numbers, masks, strict=True)))


def _refuse_unchanged(frames: Pixels, composites: Pixels) -> None:
    """Raises DisprovedError for unchanged frames of our own clip, most of which is a textured background."""
    from workloads.video.encode.quality import psnr_db

    best_db = max(psnr_db(frame, other) for frame, other in zip(frames, composites, strict=True))
    if best_db >= LEAST_COMPOSITED_DB:
        raise DisprovedError(f"the baseline's composites have {best_db:.1f} dB with its input: nothing was blurred")


def _places(numbers: Sequence[int], batch: Batch) -> list[tuple[int, int]]:
    """The numbers that are in the batch, each with its place there."""
    return [(number, number - batch.first) for number in numbers if 0 <= number - batch.first < len(batch)]


class _ShowingMasks(Chain):
    """Keeps the masks of the frames of these numbers, bool [h, w] on the host, from any thread that computes them."""

    def __init__(self, numbers: Sequence[int], *arguments: Any, **more: Any) -> None:
        self.masks: dict[int, torch.Tensor] = {}
        self._numbers = numbers
        super().__init__(*arguments, **more)

    def logits(self, batch: Batch) -> torch.Tensor:
        logits = super().logits(batch)
        for number, place in _places(self._numbers, batch):
            self.masks[number] = foreground(logits[place : place + 1])[0].cpu()
        return logits


def _encoded(plan: Plan, context: Context, clip: Source, path: Path) -> Composites:
    """Encodes the whole clip; returns the frames to compare in the form that the encoder got."""
    given: dict[int, Pixels] = {}
    composited = composited_numbers(clip.info.frames)
    numbers = sorted({*compared_numbers(clip.info.frames), *composited})
    with (
        own_stream(context.device),
        encoder_of(plan.encode, path, clip.info, context.device) as encoder,
        _chain(plan, context, clip, encoder.write, partial(_ShowingMasks, composited)) as (chain, decoder),
        closing(Flow(chain, decoder, chain.encode)) as flow,
    ):
        while (batch := flow.take()) is not None:
            here = dict(_places(numbers, batch))
            if here:
                given.update(zip(here, chain.nv12_of(batch, [*here.values()]), strict=True))
    return Composites(given, chain.masks)


@contextmanager
def _chain(
    plan: Plan,
    context: Context,
    clip: Source,
    write: Callable[[Any], object],
    make: Callable[..., _Chain],
) -> Iterator[tuple[_Chain, Decoder]]:
    with (
        closing(decoder_of(plan, clip.path, context.device, loop=False)) as decoder,
        closing(make(plan, context, clip.info, write, before_capture=decoder.settle)) as chain,
    ):
        yield chain, decoder
