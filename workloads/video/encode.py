"""Encoding frames of the clip: OpenCV's mp4v against libx264 in its own threads, nvJPEG and NVENC.

A step encodes some frames into a whole file. It returns float32 [frames, 2]: 1 for each frame that was taken, and 1
where the finished file has that number of frames, times the step's stamps. A proof checks the pictures of a file, and
its bit rate beside the baseline's.
"""

from __future__ import annotations

import functools
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpugate.workload import (
    Context,
    Contract,
    DeviceKind,
    DisprovedError,
    Engine,
    Limit,
    Optimization,
    Proof,
    Side,
    Workload,
)
from workloads.parts.random_inputs import stamps
from workloads.video.arrivals import psnr_db, read_numbers
from workloads.video.clip import BATCH, EXACT, ON_HOST, VIDEO_SETTING, is_users, nv12_size, source
from workloads.video.decode import bgr_frames, nv12_frames
from workloads.video.encoders import LEAST_ENCODED_DB, X264, Encoder, MotionJpeg, Mp4v, Nvenc, why_not
from workloads.video.frames import LIMITED_RANGE, TAGS, VideoInfo, decoded_frames, planes, rgb_from_nv12

# Bytes of a frame of the clip at 1080p, coded by libjpeg with the quality and the sampling that nvJPEG gets: the frame
# unchanged, and with its background blurred. H.264 is smaller. In NV12 it has 3.1 MB.
FRAME_BYTES, COMPOSITED_BYTES = 735_000, 395_000
MARGIN = 1.2  # encoders differ by some per cent
TEST_READS_BYTES = 2**16  # lengths of pictures, and bytes that tests read
# Per step, which is a whole file, since its end is a part of its cost.
ITEMS: Mapping[DeviceKind, int] = {"cuda": 64, "cpu": 24}


def build(encoder: type[Encoder], context: Context) -> Side:
    """The side of the encoder. A step raises EncodingError or OSError where it is not available."""
    clip, frames = source(context), frames_for(encoder, context)
    folder = tempfile.TemporaryDirectory(prefix="recording-", dir=context.cache_dir)
    turns = cycle(range(0, len(frames), BATCH))

    def step(stamp: Tensor) -> Tensor:
        with encoder(Path(folder.name, f"clip{encoder.suffix}"), clip, context.device) as file:
            for first in islice(turns, context.items // BATCH):
                file.write(frames[first : first + BATCH])
        taken = torch.ones(context.items, 2, device=stamp.device)
        taken[:, 1] = float(file.frames == context.items)
        return taken * stamp[:, None]

    return Side(step, close=folder.cleanup)


def frames_for(encoder: type[Encoder], context: Context) -> Any:
    """The bank's frames in the form that the encoder takes; frames of a device lie there."""
    if encoder is Mp4v:
        return bgr_frames(context)
    nv12 = nv12_frames(context)
    if encoder is not MotionJpeg:
        return nv12
    matrix = source(context).matrix
    return torch.cat([rgb_from_nv12(frame[None], matrix) for frame in nv12])


def compressed_only(frames: int, frame_bytes: int) -> Limit:
    """The limit of the bytes that an encoding GPU copies back: the compressed stream, and next to nothing else.

    It is for a step of `frames` frames of the clip; a user's own video may be noisier.
    """
    return Limit("device_to_host_bytes", at_most=frames * MARGIN * frame_bytes + TEST_READS_BYTES)


def file_shows(encoder: type[Encoder], context: Context) -> str:
    """Proves that a file has every encoded frame, in order, and that its pictures are like them."""
    theirs = _by_baseline(context)
    words = _written(encoder, context).judge(len(nv12_frames(context)))
    return f"{words} (mp4v {statistics.median(theirs.psnr_db.values()):.1f} dB at {theirs.bit_rate_mbit_s:.1f})"


@functools.lru_cache(maxsize=1)
def _by_baseline(context: Context) -> Quality:
    return _written(Mp4v, context)


def _written(make: type[Encoder], context: Context) -> Quality:
    """The quality of the bank's frames in a file of the encoder."""
    clip, frames = source(context), frames_for(make, context)
    with tempfile.TemporaryDirectory(prefix="recording-", dir=context.cache_dir) as folder:
        path = Path(folder, f"clip{make.suffix}")
        with make(path, clip, context.device) as encoder:
            for first in range(0, len(frames), BATCH):
                encoder.write(frames[first : first + BATCH])
        originals = dict(enumerate(nv12_frames(context).cpu().numpy()))
        return quality(path, originals, clip, not is_users(context))


@dataclass(frozen=True)
class Quality:
    """The number of frames in a file, its bit rate, and by number the PSNR of the frames with an original.

    `numbers` are those of the bar codes, in display order; -1 where one is unreadable.
    """

    frames: int
    bit_rate_mbit_s: float
    psnr_db: Mapping[int, float]
    numbers: tuple[int, ...]

    def judge(self, frames: int) -> str:
        """The figures in words; raises DisprovedError unless all frames are there, in order, like their originals."""
        worst_db, median_db = min(self.psnr_db.values()), statistics.median(self.psnr_db.values())
        db = f"{worst_db:.1f} dB at least and {median_db:.1f} dB in the middle of {len(self.psnr_db)}"
        words = f"{self.frames} of {frames} frames, {db}, {self.bit_rate_mbit_s:.1f} Mbit/s"
        if self.frames != frames:
            raise DisprovedError(f"{words}: all of them are wanted")
        wrong = next((place for place, number in enumerate(self.numbers) if place != number), None)
        if wrong is not None:
            raise DisprovedError(f"{words}: frame {wrong} of the file carries the number {self.numbers[wrong]}")
        if worst_db < LEAST_ENCODED_DB:
            raise DisprovedError(f"{words}: {LEAST_ENCODED_DB:g} dB are wanted")
        return words


def quality(path: Path, originals: Mapping[int, NDArray[np.uint8]], info: VideoInfo, numbered: bool = True) -> Quality:
    """Decodes the file once, to NV12 in the video's matrix and limited range, and compares frames with their originals.

    Bar codes are read where frames are `numbered`.
    """
    frames, psnr, numbers = 0, {}, []
    for nv12 in decoded_frames(path, dst_colorspace=TAGS[info.matrix], dst_color_range=LIMITED_RANGE):
        if numbered:
            numbers.append(int(read_numbers(planes(torch.from_numpy(nv12)[None])[0])))
        if frames in originals:
            psnr[frames] = psnr_db(nv12, originals[frames])
        frames += 1
    bit_rate_mbit_s = 8e-6 * path.stat().st_size * float(info.frames_per_second) / max(frames, 1)
    return Quality(frames, bit_rate_mbit_s, psnr, tuple(numbers))


def _variant(
    name: str, encoder: type[Encoder], speedup: Mapping[str, float], why: str, *limits: Limit, **more: Any
) -> Optimization:
    contract, proofs = {"cuda": Contract(limits)}, (Proof("file shows them", partial(file_shows, encoder)),)
    words = {"tolerance": EXACT, "needs": ON_HOST, "contract": contract, "proofs": proofs, "why": why, **more}
    return Optimization(name, partial(build, encoder), speedup, **words)


COMPRESSED_ONLY = compressed_only(ITEMS["cuda"], FRAME_BYTES)
NVENC = replace(ON_HOST, engine=Engine("nvenc", why_not))
OWN_THREADS = (
    "H.264 costs more than MPEG-4 Part 2 and is smaller; its threads work while the caller goes on, but at "
    "the end of a short file they are soon idle"
)
ALL_CORES = "libx264 encodes on all cores of the host, which others use too"
PICTURES = "every frame is a picture of its own: fast, and several times as large as H.264"
APART = "the GPU's own encoder, an engine apart from what computes"
X264_GAINS = {"nvidia-h100-80gb-hbm3": 2.6, "sm_90": 2.2, "cuda": 0.5, "cpu": 0.4}
JPEG_GAINS = {"nvidia-h100-80gb-hbm3": 24.6, "sm_90": 20.0, "cuda": 2.0}
ENCODE = Workload(
    name="video/encode",
    baseline=partial(build, Mp4v),
    inputs=stamps,
    sizes={kind: nv12_size(kind, items) for kind, items in ITEMS.items()},
    optimizations=(
        _variant("x264-overlapped", X264, X264_GAINS, OWN_THREADS, min_speedup_why=ALL_CORES),
        _variant("nvjpeg", MotionJpeg, JPEG_GAINS, PICTURES, COMPRESSED_ONLY),  # torchvision contains the library
        _variant("nvenc", Nvenc, {"cuda": 2.0}, APART, COMPRESSED_ONLY, needs=NVENC),
    ),
    cold=False,  # the inputs are stamps
    timing="pipeline",
    settings=VIDEO_SETTING,
)
