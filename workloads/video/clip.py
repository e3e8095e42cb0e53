"""Generated clips: a moving scene whose every frame carries its number, coded once and kept in a cache, and a bank of
its frames, decoded once, for stages that are measured without the stage before them.

The strip with the number counts as foreground, as it looks more like foreground than like background: where a network
finds it to be foreground, it is never blurred, and elsewhere it stays legible all the same.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpugate.workload import Context, DeviceKind
from workloads.parts.random_inputs import host_generator
from workloads.video.arrivals import paint, strip_height
from workloads.video.colour import rgb_from_nv12
from workloads.video.needs import BATCH
from workloads.video.scene import Mask, Pixels, scene
from workloads.video.video_file import (
    LIMITED_RANGE,
    Matrix,
    VideoInfo,
    copy_as_nv12,
    examine,
    planar_frames,
    replacing_video,
)

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

RENDERED_AT_ONCE = 32  # frames, 3 MB each at 1080p
FORMAT = 1  # of the clips: raise it whenever their pixels or their coding change
GOP_FRAMES = 30
# Threads are fixed, since the output depends on their number. Open GOPs and scene cuts would make keyframes at which
# decoding cannot begin, or which are not at the expected places.
X264 = f"keyint={GOP_FRAMES}:min-keyint={GOP_FRAMES}:scenecut=0:open-gop=0:threads=8"
X265 = f"keyint={GOP_FRAMES}:min-keyint={GOP_FRAMES}:scenecut=0:open-gop=0:frame-threads=4:log-level=error"
CODECS: dict[str, tuple[Literal["libx264", "libx265"], dict[str, str]]] = {
    "h264": ("libx264", {"preset": "veryfast", "crf": "23", "x264-params": X264}),
    "hevc": ("libx265", {"preset": "ultrafast", "crf": "26", "x265-params": X265}),
}
BT601 = 6  # SMPTE 170M as ISO/IEC 23091-2 numbers matrix, primaries and transfer


@dataclass(frozen=True)
class Clip:
    """`frames` frames, at most 65,536, of `width` x `height` pixels, both even; `seed` decides the contents."""

    width: int
    height: int
    frames: int
    codec: Literal["h264", "hevc"] = "h264"
    seed: int = 0
    frames_per_second: int = 30

    @property
    def file_name(self) -> str:
        told = repr((FORMAT, CODECS[self.codec], sorted(asdict(self).items())))
        digest = hashlib.sha256(told.encode()).hexdigest()[:12]
        return f"clip-{self.width}x{self.height}-{self.frames}-{self.codec}-{digest}.mp4"


FULL = Clip(1920, 1080, 600)
SMALL = Clip(640, 360, 48)
CLIPS: Mapping[DeviceKind, Clip] = {"cuda": FULL, "cpu": SMALL}
VIDEO_SETTING = {"video": "your own video"}


@dataclass(frozen=True)
class Source:
    """The video of a workload; `numbered` is True where every frame carries its number as a bar code."""

    info: VideoInfo
    numbered: bool

    @property
    def path(self) -> Path:
        return self.info.path


def is_users(context: Context) -> bool:
    """True where the setting `video` names a video of the user."""
    return "video" in context.settings


def source(context: Context, codec: Literal["h264", "hevc"] = "h264") -> Source:
    """The user's video, whatever its codec, where there is one; else the clip, made at its first use.

    Raises VideoError for a video that is not supported.
    """
    if is_users(context):
        return Source(examine(Path(context.settings["video"])), numbered=False)
    clip = replace(CLIPS[cast(DeviceKind, context.device.type)], codec=codec)
    return Source(examine(clip_path(context.cache_dir, clip)), numbered=True)


def rendered(clip: Clip, number: int) -> tuple[Pixels, Mask]:
    """Frame `number` of the clip: RGB uint8 [H, W, 3], and its foreground, bool [H, W], by the arguments alone."""
    rgb, mask = scene(clip.width, clip.height, clip.seed)(number / clip.frames_per_second)
    paint(rgb, number)
    mask[: strip_height(clip.height)] = True
    return rgb, mask


def clip_path(cache_dir: Path, clip: Clip) -> Path:
    """The clip as an MP4 file in `cache_dir`, made first unless it lies there.

    4:2:0, tagged as BT.601 in limited range, a keyframe every 30 frames, no frame that needs one of another such group.
    """
    path = cache_dir / clip.file_name
    if path.is_file():
        return path
    encoder, options = CODECS[clip.codec]
    with replacing_video(path) as container:
        stream = container.add_stream(encoder, rate=clip.frames_per_second, options=dict(options))
        stream.width, stream.height, stream.pix_fmt = clip.width, clip.height, "yuv420p"
        coding = stream.codec_context
        coding.colorspace = coding.color_primaries = coding.color_trc = BT601
        coding.color_range = LIMITED_RANGE
        if clip.codec == "hevc":
            coding.codec_tag = "hvc1"  # QuickTime requires this tag in an MP4
        for frame in _drawn(clip):
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def _drawn(clip: Clip) -> Iterator[VideoFrame]:
    """All frames in order, drawn by all cores: one core takes most of a minute for 600 frames at 1080p."""
    scene(clip.width, clip.height, clip.seed)  # made before threads use it
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for first in range(0, clip.frames, RENDERED_AT_ONCE):
            numbers = range(first, min(first + RENDERED_AT_ONCE, clip.frames))
            yield from threads.map(partial(_coloured, clip), numbers)


def _coloured(clip: Clip, number: int) -> VideoFrame:
    import av

    frame = av.VideoFrame.from_ndarray(rendered(clip, number)[0], "rgb24").reformat(
        format="yuv420p", dst_colorspace=BT601, dst_color_range=LIMITED_RANGE
    )
    frame.pts, frame.time_base = number, Fraction(1, clip.frames_per_second)
    return frame


# --- a bank of frames ------------------------------------------------------------------------------------------------

BANK_FRAMES: Mapping[str, int] = {"cuda": 48, "cpu": 24}  # 149 MB in NV12 at 1080p, more than fits in L2


def nv12_frames(context: Context) -> Tensor:
    """The first frames of the clip, whole batches of them: uint8 [n, H*3//2, W] on the context's device.

    Raises ValueError for a clip without a whole batch.
    """
    return _decoded(source(context).path, BANK_FRAMES[context.device.type]).to(context.device)


def bgr_frames(context: Context) -> NDArray[np.uint8]:
    """The frames of the bank in OpenCV's format: uint8 [n, H, W, 3] on the host."""
    clip = source(context)
    return _converted(clip.path, BANK_FRAMES[context.device.type], clip.info.matrix)


def one_thread_on_cpu(device: torch.device) -> None:
    """Limits PyTorch to one thread on a CPU, where it is the device: several threads would compete for shared cores."""
    if device.type == "cpu":
        torch.set_num_threads(1)


@functools.lru_cache(maxsize=2)
def _decoded(path: Path, frames: int) -> Tensor:
    shown = list(islice(planar_frames(path), frames))
    if len(shown) < BATCH:
        raise ValueError(f"{path} has {len(shown)} frames: give a video of {BATCH} or more")
    decoded = np.empty((len(shown), shown[0].height * 3 // 2, shown[0].width), np.uint8)
    for frame, nv12 in zip(shown, decoded, strict=True):
        copy_as_nv12(frame, nv12)
    return torch.from_numpy(decoded[: len(decoded) // BATCH * BATCH])


@functools.lru_cache(maxsize=2)
def _converted(path: Path, frames: int, matrix: Matrix) -> NDArray[np.uint8]:
    """Converts frame by frame, since the values between NV12 and RGB take several times as much memory."""
    each = (
        rgb_from_nv12(nv12[None], matrix)[0].flip(0).movedim(0, 2).contiguous().numpy()
        for nv12 in _decoded(path, frames)
    )
    return np.stack(list(islice(each, frames)))


def batch_numbers(context: Context, index: int) -> Tensor:
    """Input set `index`: int64 [items] on the host, consecutive frames of the bank from a random one on."""
    random = host_generator(context, index)
    frames = len(_decoded(source(context).path, BANK_FRAMES[context.device.type]))
    first = torch.randint(frames - context.items + 1, (1,), generator=random)
    return first + torch.arange(context.items)


def chosen(numbers: Tensor) -> slice:
    """The slice of the bank with these consecutive frames: gathering them would cost more than some stages."""
    first = int(numbers[0])
    return slice(first, first + len(numbers))
