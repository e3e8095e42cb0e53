"""Generated clips: a moving scene, no two frames of which are alike, coded once and kept in a cache."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from gpugate.workload import TOLERANCE_BY_DTYPE, Context, DeviceKind, Needs, Size, Tolerance
from workloads.parts.kept_files import key_of
from workloads.video.frames import (
    LIMITED_RANGE,
    TAGS,
    VideoInfo,
    examine,
    replacing_video,
)

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

BATCH = 8  # frames that pass the stages together
HOST = ("cv2", "av")
INSTALL = "pip install 'gpugate[workloads]'"
INSTALL_VIDEO = "pip install 'gpugate[workloads,video]'"
ON_HOST = Needs(HOST, install=INSTALL)
GPU = Needs(HOST, (7, 0), install=INSTALL)
CVCUDA = Needs((*HOST, "cvcuda"), (7, 0), install=INSTALL_VIDEO)
TRITON = Needs((*HOST, "triton"), (8, 0), install="pip install triton")
VIDEO_ENGINES = Needs((*HOST, "PyNvVideoCodec"), install=INSTALL_VIDEO)
# Every frame is the expected one, or it is not, whatever decoder it comes from.
EXACT = {dtype: Tolerance(relative_l2=1e-6, max_error=1e-6) for dtype in TOLERANCE_BY_DTYPE}

RENDERED_AT_ONCE = 32  # frames, 3 MB each at 1080p
FORMAT = 2  # of the clips: raise it whenever their pixels or their coding change
GOP_FRAMES, FRAMES_PER_SECOND = 30, 30
# Threads are fixed, since the output depends on their number. Open GOPs and scene cuts would make keyframes at which
# decoding cannot begin, or which are not at the expected places.
X264 = f"keyint={GOP_FRAMES}:min-keyint={GOP_FRAMES}:scenecut=0:open-gop=0:threads=8"
X265 = f"keyint={GOP_FRAMES}:min-keyint={GOP_FRAMES}:scenecut=0:open-gop=0:frame-threads=4:log-level=error"
Codec = Literal["h264", "hevc"]
CODECS: dict[Codec, tuple[Literal["libx264", "libx265"], dict[str, str]]] = {
    "h264": ("libx264", {"preset": "veryfast", "crf": "23", "x264-params": X264}),
    "hevc": ("libx265", {"preset": "ultrafast", "crf": "26", "x265-params": X265}),
}


@dataclass(frozen=True)
class Clip:
    """`frames` frames of `width` x `height` pixels, both even."""

    width: int
    height: int
    frames: int
    codec: Codec = "h264"

    @property
    def file_name(self) -> str:
        key = key_of(FORMAT, CODECS[self.codec], sorted(asdict(self).items()))
        return f"clip-{self.width}x{self.height}-{self.frames}-{self.codec}-{key}.mp4"


FULL = Clip(1920, 1080, 600)
SMALL = Clip(640, 360, 48)
CLIPS: Mapping[DeviceKind, Clip] = {"cuda": FULL, "cpu": SMALL}
VIDEO_SETTING = {"video": "your own video"}


def is_users(context: Context) -> bool:
    """True where the setting `video` names a video of the user."""
    return "video" in context.settings


def kind_of(context: Context) -> DeviceKind:
    return cast(DeviceKind, context.device.type)


def source(context: Context, codec: Codec = "h264") -> VideoInfo:
    """The user's video, whatever its codec, where there is one; else the clip, made at its first use.

    Raises VideoError for a video that is not supported.
    """
    if is_users(context):
        return examine(Path(context.settings["video"]))
    clip = replace(CLIPS[kind_of(context)], codec=codec)
    return examine(clip_path(context.cache_dir, clip))


def nv12_size(kind: DeviceKind, items: int, times: int = 1) -> Size:
    """The work on so many frames of the clip: each crosses memory once in NV12, or so many times. It has no FLOPs."""
    clip = CLIPS[kind]
    return Size(items, flops=0.0, bytes=float(times * items * clip.width * clip.height * 3 // 2))


def one_thread_on_cpu(device: torch.device) -> None:
    """Limits PyTorch to one thread on a CPU, where it is the device: several threads would compete for shared cores."""
    if device.type == "cpu":
        torch.set_num_threads(1)


def rendered(clip: Clip, number: int) -> tuple[Pixels, Mask]:
    """Frame `number` of the clip: RGB uint8 [H, W, 3], and its foreground, bool [H, W], by the arguments alone."""
    return scene(clip.width, clip.height)(number / FRAMES_PER_SECOND)


def clip_path(cache_dir: Path, clip: Clip) -> Path:
    """The clip as an MP4 file in `cache_dir`, made first unless it lies there.

    4:2:0, tagged as BT.601 in limited range, a keyframe every 30 frames, no frame that needs one of another such group.
    """
    path = cache_dir / clip.file_name
    if path.is_file():
        return path
    encoder, options = CODECS[clip.codec]
    with replacing_video(path) as container:
        stream = container.add_stream(encoder, rate=FRAMES_PER_SECOND, options=dict(options))
        stream.width, stream.height, stream.pix_fmt = clip.width, clip.height, "yuv420p"
        coding = stream.codec_context
        coding.colorspace = coding.color_primaries = coding.color_trc = TAGS["bt601"]
        coding.color_range = LIMITED_RANGE
        if clip.codec == "hevc":
            coding.codec_tag = "hvc1"  # QuickTime requires this tag in an MP4
        for frame in _drawn(clip):
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def _drawn(clip: Clip) -> Iterator[VideoFrame]:
    """All frames in order, drawn by all cores: one core takes most of a minute for 600 frames at 1080p."""
    scene(clip.width, clip.height)  # made before threads use it
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for first in range(0, clip.frames, RENDERED_AT_ONCE):
            numbers = range(first, min(first + RENDERED_AT_ONCE, clip.frames))
            yield from threads.map(partial(_coloured, clip), numbers)


def _coloured(clip: Clip, number: int) -> VideoFrame:
    import av

    frame = av.VideoFrame.from_ndarray(rendered(clip, number)[0], "rgb24").reformat(
        format="yuv420p", dst_colorspace=TAGS["bt601"], dst_color_range=LIMITED_RANGE
    )
    frame.pts, frame.time_base = number, Fraction(1, FRAMES_PER_SECOND)
    return frame


# --- the scene: balls and people that move over a textured background -------------------------------------------------
# Everything is drawn once and then only moved, so that a frame costs copies alone. The foreground is warm (more red
# than blue) and striped, the background cool and cloudy, so that even a linear readout of random convolutions separates
# them. Lengths are shares of the frame's height, colours RGB.

Pixels = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Values = NDArray[np.float32]
Pair = tuple[float, float]
Swing = Callable[[float], Pair]  # the position x and y at a time in seconds, each from -1 to 1
Colours = tuple[tuple[int, int, int], tuple[int, int, int]]

SLACK = 0.08  # the margin of a texture around its visible part
CLOUD, STRIPE = 0.2, 1 / 30
OCTAVES, FADING = 6, 0.65  # of the clouds: each octave is half as large and a little weaker than the one before
GRAIN_LEVELS = 12
SKY: Colours = ((28, 62, 96), (128, 176, 204))
FOREST: Colours = ((16, 72, 72), (120, 190, 190))
SKIN: Colours = ((240, 190, 150), (196, 130, 90))
CLOTHES: tuple[Colours, ...] = (
    ((255, 170, 60), (178, 64, 16)),
    ((240, 110, 96), (140, 16, 24)),
    ((255, 222, 110), (196, 132, 0)),
    ((248, 150, 130), (176, 44, 40)),
    ((255, 190, 100), (160, 30, 30)),
)


@functools.lru_cache(maxsize=2)
def scene(width: int, height: int) -> Callable[[float], tuple[Pixels, Mask]]:
    """The scene as a function of the time in seconds: RGB uint8 [H, W, 3] and the foreground, bool [H, W]."""
    random, actors = np.random.default_rng(0), list[Callable[[float, Pixels, Mask], None]]()
    clothes = [CLOTHES[index] for index in random.permutation(len(CLOTHES))]

    def add(size: Pair, power: int, colours: Colours, centre: Pair, reach: Pair, swing: Swing | None = None) -> None:
        """An ellipse, or with a higher power a rounded rectangle, that swings about `centre` by up to `reach`.

        A texture slides inside it. The lower and the right edge of the frame cut it off.
        """
        down, across = (np.linspace(-1, 1, round(length * height)).astype(np.float32) for length in size)
        outline: Mask = across**power + down[:, None] ** power < 1
        texture, sliding = striped(random, outline, height, colours), swing_of(random, (3, 5), (3, 5))
        moving = swing or swing_of(random, (5, 8), (4, 6))

        def draw(seconds: float, rgb: Pixels, mask: Mask) -> None:
            x, y = moving(seconds)
            left = round((centre[0] + reach[0] * x) * width - outline.shape[1] / 2)
            top = round((centre[1] + reach[1] * y) * height - outline.shape[0] / 2)
            place = np.s_[top : top + outline.shape[0], left : left + outline.shape[1]]
            rows, columns = mask[place].shape
            inside = outline[:rows, :columns]
            np.copyto(rgb[place], visible(texture, sliding, outline, seconds)[:rows, :columns], where=inside[..., None])
            mask[place] |= inside

        actors.append(draw)

    for colours, x in zip(clothes[:3], (0.2, 0.5, 0.82), strict=True):  # balls
        add((random.uniform(0.18, 0.22), random.uniform(0.2, 0.26)), 2, colours, (x, 0.36), (0.12, 0.14))
    for colours, x in zip(clothes[3:], (0.28, 0.7), strict=True):  # shoulders, and a head over them
        swing = swing_of(random, (7, 11), (1.5, 2.5))
        add((0.6, 0.36), 4, colours, (x, 0.8), (0.14, 0.015), swing)
        add((0.26, 0.2), 2, SKIN, (x, 0.42), (0.14, 0.015), swing)
    size = height + round(SLACK * height), width + round(SLACK * height)
    sky, forest, where = (clouds(random, size, CLOUD * height)[:, :, None] for _ in range(3))
    background = with_grain(random, mixed(SKY, sky) * where + mixed(FOREST, forest) * (1 - where))
    drifting, empty = swing_of(random, (14, 16), (10, 12)), np.zeros((height, width), np.bool_)

    def at(seconds: float) -> tuple[Pixels, Mask]:
        rgb, mask = visible(background, drifting, empty, seconds).copy(), empty.copy()
        for draw in actors:  # from the back to the front
            draw(seconds, rgb, mask)
        return rgb, mask

    return at


def swing_of(random: np.random.Generator, x_seconds: Pair, y_seconds: Pair) -> Swing:
    """A sine in time for x and one for y, with periods within these and any phases."""
    periods_s = np.array((random.uniform(*x_seconds), random.uniform(*y_seconds)))
    turns = random.random(2)

    def at(seconds: float) -> Pair:
        x, y = np.sin(2 * np.pi * (seconds / periods_s + turns))
        return float(x), float(y)

    return at


def visible(texture: Pixels, swing: Swing, outline: Mask, seconds: float) -> Pixels:
    """The window of the outline's size that swings over all of a texture."""
    (height, width), (x, y) = outline.shape, swing(seconds)
    top, left = (round((s - n) * (1 + c) / 2) for s, n, c in zip(texture.shape, (height, width), (y, x), strict=False))
    return texture[top : top + height, left : left + width]


def striped(random: np.random.Generator, outline: Mask, height: int, colours: Colours) -> Pixels:
    size, angle = tuple(length + round(SLACK * len(outline)) for length in outline.shape), random.uniform(0, np.pi)
    rows, columns = np.indices(size, np.float32)
    wave = np.sin(2 * np.pi * (columns * np.cos(angle) + rows * np.sin(angle)) / (STRIPE * height))
    share = 0.7 * (0.5 + 0.5 * np.tanh(3 * wave)) + 0.3 * clouds(random, size, CLOUD / 4 * height)
    return with_grain(random, mixed(colours, share[:, :, None]))


def mixed(colours: Colours, share: Values) -> Values:
    """float32 [h, w, 3]: the first colour where `share`, [h, w, 1], is 0, the second where it is 1."""
    first, second = np.array(colours, np.float32)
    values: Values = first + (second - first) * share
    return values


def with_grain(random: np.random.Generator, rgb: Values) -> Pixels:
    grain = random.integers(-GRAIN_LEVELS, GRAIN_LEVELS, rgb.shape[:2], np.int8, endpoint=True)
    pixels: Pixels = np.clip(rgb + grain[:, :, None], 0, 255).astype(np.uint8)
    return pixels


def clouds(random: np.random.Generator, size: tuple[int, ...], cell: float) -> Values:
    """Value noise, float32 of `size` in 0..1: random grids, smoothly enlarged, the finer the weaker (Perlin 1985)."""
    total = np.zeros(size, np.float32)
    for octave in range(OCTAVES):
        pixels = max(cell / 2**octave, 2.0)
        grid = random.random([1, 1, *(int(length / pixels) + 2 for length in size)], np.float32)
        total += FADING**octave * F.interpolate(torch.from_numpy(grid), size, mode="bicubic").numpy()[0, 0]
    low, high = np.quantile(total[::8, ::8], (0.02, 0.98))
    values: Values = np.clip((total - low) / (high - low), 0, 1)
    return values
