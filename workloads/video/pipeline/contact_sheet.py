"""A contact sheet of a pipeline: frames of the input, their masks, the baseline's output and the written output."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpugate.workload import Context
from workloads.video.clip.video_file import VideoInfo
from workloads.video.pipeline.chain import Chain, decoder_of
from workloads.video.pipeline.plan import BASELINE
from workloads.video.segment.segmenter import foreground

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.uint8]
ROWS, CELL_WIDTH, MARGIN, HEADING = 4, 480, 8, 24  # all but the first in pixels
BACKGROUND, INK = (24, 24, 24), (235, 235, 235)


def chosen_frames(frames: int, count: int = ROWS) -> tuple[int, ...]:
    """Up to `count` numbers, evenly spread, neither the first nor the last where there is a choice."""
    return tuple(sorted({(2 * place + 1) * frames // (2 * count) for place in range(count)}))


def contact_sheet(info: VideoInfo, written: Path, title: str, context: Context) -> Image:
    """A row for each of some frames; `written` is the output of the variant `title` for the video of `info`.

    The baseline runs on the context's device, for these frames alone.
    """
    numbers = chosen_frames(info.frames)
    inputs, masks, baseline = _by_baseline(info, numbers, context)
    outputs = _frames_of(written, numbers)
    columns = [("input", inputs), ("mask", masks), ("baseline", baseline), (f"{title}, as written", outputs)]
    return _drawn(numbers, columns, info.height * CELL_WIDTH // info.width)


def _by_baseline(info: VideoInfo, numbers: tuple[int, ...], context: Context) -> tuple[list[Pixels], ...]:
    """RGB uint8 [H, W, 3] of the input and the output, and masks uint8 [h, w], of each frame."""
    inputs, masks, outputs = [], [], []
    with (
        closing(Chain(BASELINE, context, info, lambda frames: None)) as chain,
        closing(decoder_of(BASELINE, info.path, context.device, loop=False)) as decoder,
    ):
        while (batch := chain.decode(decoder)) is not None:
            places = [number - batch.first for number in numbers if 0 <= number - batch.first < len(batch)]
            if places:
                found = foreground(chain.logits(batch)).cpu().numpy()
                composited = chain.compute(batch).on_host
                inputs += [batch.on_host[place][..., ::-1] for place in places]
                masks += [found[place].astype(np.uint8) * 255 for place in places]
                outputs += [composited[place][..., ::-1] for place in places]
    return inputs, masks, outputs


def _frames_of(path: Path, numbers: tuple[int, ...]) -> list[Pixels]:
    from workloads.video.encode.quality import decoded

    return list(decoded(path, "rgb24", only=numbers))


def _drawn(numbers: tuple[int, ...], columns: Sequence[tuple[str, list[Pixels]]], cell_height: int) -> Image:
    from PIL import Image, ImageDraw

    width = MARGIN + len(columns) * (CELL_WIDTH + MARGIN)
    sheet = Image.new("RGB", (width, HEADING + len(numbers) * (cell_height + MARGIN)), BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    for column, (title, frames) in enumerate(columns):
        left = MARGIN + column * (CELL_WIDTH + MARGIN)
        pen.text((left, MARGIN // 2), title, INK)
        for row, (number, pixels) in enumerate(zip(numbers, frames, strict=False)):
            top = HEADING + row * (cell_height + MARGIN)
            picture = Image.fromarray(np.ascontiguousarray(pixels)).convert("RGB").resize((CELL_WIDTH, cell_height))
            sheet.paste(picture, (left, top))
            if column == 0:
                pen.text((left + 4, top + cell_height - 16), f"frame {number}", INK)
    return sheet
