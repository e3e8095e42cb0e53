"""The luma of the reference's composites, with which the frames at every encoder are compared.

The baseline's own stages compute them: OpenCV, and the eager network in strict FP32. The stages of the GPU would be
faster, but they are what is compared. It is done once for a clip and its weights, in the time that the baseline takes
for the clip, and the grids are kept on disk.
"""

from __future__ import annotations

import functools
import hashlib
import io
from contextlib import closing
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from gpugate.workload import Context, DeviceKind
from workloads.parts.kept_files import keep, key_of, read_kept
from workloads.video.clip.clip import CLIPS, Source
from workloads.video.decode.arrivals import luma_of_bgr
from workloads.video.pipeline.chain import Chain, decoder_of
from workloads.video.pipeline.plan import BASELINE
from workloads.video.segment.fitted_weights import fit_key
from workloads.video.segment.segmenter import own_checkpoint

FORMAT = 1  # of the stored file; raise it whenever the baseline's stages compute other composites
FOLDER = "video-composites"  # in the context's `cache_dir`
COMPARED_FRAMES = 600  # the clip's length, half a minute of the baseline on an H200; of a longer video the first ones


@functools.lru_cache(maxsize=1)
def composite_grids(context: Context, clip: Source) -> Tensor:
    """The grids of all frames of the clip, as of `luma_of_nv12`: float32 [frames, rows, columns] on the CPU.

    They are NaN from frame COMPARED_FRAMES on, and for frames that cannot be decoded. A stored file that was damaged is
    deleted with a RuntimeWarning and made again. Raises VideoError for a video without a frame that can be decoded.
    """
    path = context.cache_dir / FOLDER / f"{_key(context, clip)}.pt"
    content = read_kept(path)
    if content is None:
        buffer = io.BytesIO()
        torch.save(_computed(context, clip), buffer)
        content = buffer.getvalue()
        keep(path, content)
    grids: Tensor = torch.load(io.BytesIO(content), weights_only=True)
    return F.pad(grids, (0, 0, 0, 0, 0, clip.info.frames - len(grids)), value=torch.nan)


def _key(context: Context, clip: Source) -> str:
    """A name that changes with any fact that decides the grids."""
    import av
    import cv2

    kind, checkpoint = cast(DeviceKind, context.device.type), own_checkpoint(context)
    weights = fit_key(kind, CLIPS[kind], context.seed, context.device)  # names the processor and torch too
    own = None if checkpoint is None else _digest(checkpoint)
    versions = cv2.__version__, av.__version__, torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return key_of(FORMAT, COMPARED_FRAMES, _digest(clip.path), weights, own, versions)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _computed(context: Context, clip: Source) -> Tensor:
    """The grids of the first frames, at most COMPARED_FRAMES, and fewer where the clip was cut short."""
    grids: list[Tensor] = []
    with (
        torch.backends.cudnn.flags(enabled=True, allow_tf32=False),
        closing(Chain(BASELINE, context, clip.info, lambda frames: None)) as chain,
        closing(decoder_of(BASELINE, clip.path, context.device, loop=False)) as decoder,
    ):
        while len(grids) < COMPARED_FRAMES and (batch := chain.decode(decoder)) is not None:
            grids += luma_of_bgr(chain.compute(batch).on_host, clip.info.matrix)
    return torch.stack(grids[:COMPARED_FRAMES])
