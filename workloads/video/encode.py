"""Encoding frames of the clip: OpenCV's mp4v against libx264 in its own threads, nvJPEG and NVENC.

A step encodes some frames into a whole file. It returns its stamps, float32 [frames], or zeros where the finished file
has another number of frames. A proof checks the pictures of a file.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpugate.workload import (
    Context,
    Contract,
    DisprovedError,
    Engine,
    Limit,
    Optimization,
    Proof,
    Side,
    Workload,
)
from workloads.parts.random_inputs import stamps
from workloads.video.arrivals import luma_of_nv12, psnr_db
from workloads.video.clip import BATCH, CLIPS, EXACT, ON_HOST, VIDEO_SETTING, nv12_size, source
from workloads.video.decode import bgr_frames, nv12_frames
from workloads.video.encoders import LEAST_ENCODED_DB, X264, Encoder, MotionJpeg, Mp4v, Nvenc, why_not
from workloads.video.frames import LIMITED_RANGE, TAGS, VideoInfo, decoded_frames, rgb_from_nv12

# Bytes of a frame of the clip at 1080p, coded by libjpeg with the quality and the sampling that nvJPEG gets: the frame
# unchanged, and with its background blurred. H.264 is smaller. In NV12 it has 3.1 MB.
FRAME_BYTES, COMPOSITED_BYTES = 735_000, 395_000
MARGIN = 1.2  # encoders differ by some per cent
TEST_READS_BYTES = 2**16  # lengths of pictures, and bytes that tests read
# A step's frames are a whole file, since its end is a part of its cost: more frames than the KEPT_FRAMES after which
# libx264 begins to encode. The only keyframe of so short a file and its end weigh more than in a long one: on two cores
# libx264 takes 12.9 ms for a frame in files of 16, and 10.3 in files of 64. In files of 600 it is the longest stage of
# the pipeline optimized-x264.
FRAMES = 16


def build(make: type[Encoder], context: Context) -> Side:
    """The side of the encoder. A step raises EncodingError or OSError where it is not available."""
    clip, frames = source(context), frames_for(make, context)
    folder = tempfile.TemporaryDirectory(prefix="recording-", dir=context.cache_dir)
    path = Path(folder.name, f"clip{make.suffix}")

    def step(stamp: Tensor) -> Tensor:
        return stamp * float(write(make(path, clip, context.device), frames) == context.items)

    return Side(step, close=folder.cleanup)


def write(encoder: Encoder, frames: Any) -> int:
    """Encodes the frames, batch after batch, and completes the file; returns the number of its frames."""
    with encoder:
        for first in range(0, len(frames), BATCH):
            encoder.write(frames[first : first + BATCH])
    return encoder.frames


def frames_for(make: type[Encoder], context: Context) -> Any:
    """A step's frames, the bank's first ones, in the form that the encoder takes; frames of a device lie there."""
    if make is Mp4v:
        return bgr_frames(context)[: context.items]
    nv12 = nv12_frames(context)[: context.items]
    if make is not MotionJpeg:
        return nv12
    matrix = source(context).matrix
    return torch.cat([rgb_from_nv12(batch, matrix) for batch in torch.split(nv12, BATCH)])


def compressed_only(frames: int, frame_bytes: int) -> Limit:
    """The limit of the bytes that an encoding GPU copies back: the compressed stream, and next to nothing else.

    It is for a step of `frames` frames of the clip; a user's own video may be noisier.
    """
    return Limit("device_to_host_bytes", at_most=frames * MARGIN * frame_bytes + TEST_READS_BYTES)


def file_shows(make: type[Encoder], context: Context) -> str:
    """Proves that the file of a step has every frame, in order, and that its pictures are like them."""
    clip, originals = source(context), nv12_frames(context)[: context.items].cpu().numpy()
    with tempfile.TemporaryDirectory(prefix="recording-", dir=context.cache_dir) as folder:
        path = Path(folder, f"clip{make.suffix}")
        write(make(path, clip, context.device), frames_for(make, context))
        return quality(path, dict(enumerate(originals)), clip).judge(context.items)


@dataclass(frozen=True)
class Quality:
    """The bit rate of a file, by number the PSNR of its frames with an original, and the luma of each frame.

    `grids` are as of `luma_of_nv12`, in display order.
    """

    bit_rate_mbit_s: float
    psnr_db: Mapping[int, float]
    grids: Sequence[Tensor]

    def judge(self, frames: int) -> str:
        """The figures in words; raises DisprovedError unless all frames are there, and like their originals."""
        worst_db, median_db = min(self.psnr_db.values()), statistics.median(self.psnr_db.values())
        db = f"{worst_db:.1f} dB at least and {median_db:.1f} dB in the middle of {len(self.psnr_db)}"
        words = f"{len(self.grids)} of {frames} frames, {db}, {self.bit_rate_mbit_s:.1f} Mbit/s"
        if len(self.grids) != frames:
            raise DisprovedError(f"{words}: all of them are wanted")
        if worst_db < LEAST_ENCODED_DB:
            raise DisprovedError(f"{words}: {LEAST_ENCODED_DB:g} dB are wanted")
        return words


def quality(path: Path, originals: Mapping[int, NDArray[np.uint8]], info: VideoInfo) -> Quality:
    """Decodes the file once, to NV12 in the video's matrix and limited range, and compares frames with their originals.

    Two frames of our clips have at most 31 dB with each other: one in the place of another has too few.
    """
    psnr, grids = {}, list[Tensor]()
    for nv12 in decoded_frames(path, dst_colorspace=TAGS[info.matrix], dst_color_range=LIMITED_RANGE):
        if len(grids) in originals:
            psnr[len(grids)] = psnr_db(nv12, originals[len(grids)])
        grids += luma_of_nv12(torch.from_numpy(nv12)[None])
    bit_rate_mbit_s = 8e-6 * path.stat().st_size * float(info.frames_per_second) / max(len(grids), 1)
    return Quality(bit_rate_mbit_s, psnr, grids)


def _variant(
    name: str, encoder: type[Encoder], speedup: Mapping[str, float], why: str, *limits: Limit, **more: Any
) -> Optimization:
    contract, proofs = {"cuda": Contract(limits)}, (Proof("file shows them", partial(file_shows, encoder)),)
    words = {"tolerance": EXACT, "needs": ON_HOST, "contract": contract, "proofs": proofs, "why": why, **more}
    return Optimization(name, partial(build, encoder), speedup, **words)


COMPRESSED_ONLY = compressed_only(FRAMES, FRAME_BYTES)
NVENC = replace(ON_HOST, engine=Engine("nvenc", why_not))
OWN_THREADS = (
    "H.264 costs more than MPEG-4 Part 2 and is smaller; its threads work while the caller goes on, but at "
    "the end of a short file they are soon idle"
)
PICTURES = "every frame is a picture of its own: fast, and several times as large as H.264"
APART = "the GPU's own encoder, an engine apart from what computes"
X264_GAINS = {"sm_90": 1.8, "cuda": 0.5, "cpu": 0.3}
JPEG_GAINS = {"sm_90": 14.7, "cuda": 2.0}
ENCODE = Workload(
    name="video/encode",
    baseline=partial(build, Mp4v),
    inputs=stamps,
    sizes={kind: nv12_size(kind, FRAMES) for kind in CLIPS},
    optimizations=(
        _variant("x264-overlapped", X264, X264_GAINS, OWN_THREADS),
        _variant("nvjpeg", MotionJpeg, JPEG_GAINS, PICTURES, COMPRESSED_ONLY),  # torchvision contains the library
        _variant("nvenc", Nvenc, {"cuda": 2.0}, APART, COMPRESSED_ONLY, needs=NVENC),
    ),
    cold=False,  # the inputs are stamps
    timing="pipeline",
    settings=VIDEO_SETTING,
)
