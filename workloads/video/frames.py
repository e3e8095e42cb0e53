"""Video files and their frames: facts of a file, frames as they are coded, NV12 and RGB.

NV12 is uint8 [n, H*3/2, W]: the luma of a frame, then the rows of its chroma, U and V in turns, one pair for 2 x 2
pixels. All of it is limited range: luma 16..235, chroma 16..240 (ITU-R BT.601 and BT.709).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workloads.parts.kept_files import replacing_file

if TYPE_CHECKING:
    from av.container import InputContainer, OutputContainer
    from av.video.stream import VideoStream

Matrix = Literal["bt601", "bt709"]
# Matrix coefficients as ISO/IEC 23091-2 numbers them. Untagged (2) is BT.601 at any size, as for swscale and OpenCV.
MATRICES: dict[int, Matrix] = {1: "bt709", 2: "bt601", 5: "bt601", 6: "bt601"}
# A tag for matrix, primaries and transfer, by the same numbers; BT.601 is SMPTE 170M's.
TAGS: dict[Matrix, int] = {"bt601": 6, "bt709": 1}
LIMITED_RANGE, FULL_RANGE = 1, 2  # as FFmpeg numbers them; luma of limited range is 16..235, chroma 16..240
PIXELS = ("yuv420p", "nv12")  # FFmpeg's names of 8 bits deep, 4:2:0
MOST_REORDERED = 16  # frames coded ahead of one that is shown before them, in H.264 and HEVC
CONVERT = (
    "convert it, for instance with ffmpeg -i IN -vf "
    "'crop=trunc(iw/2)*2:trunc(ih/2)*2,scale=out_color_matrix=bt709:out_range=tv' -pix_fmt yuv420p -fps_mode cfr OUT"
)


class VideoError(ValueError):
    """A video that is refused; the message is one sentence with its name and the next step."""


@dataclass(frozen=True)
class VideoInfo:
    """Facts of a video before it is decoded.

    `frames` is the number that the file announces, or contains where it announces none; the last `missing` of them are
    not in a file that was cut short. `keyframes` are the numbers, in display order, of frames at which decoding may
    begin: no frame coded later is shown before them. `matrix` follows from the file's tag.
    """

    path: Path
    width: int
    height: int
    frames: int
    frames_per_second: Fraction
    matrix: Matrix
    keyframes: tuple[int, ...]
    missing: int = 0

    @property
    def nv12_shape(self) -> tuple[int, int]:
        """Rows and columns of a frame in NV12: luma, then rows of interleaved U and V."""
        return self.height * 3 // 2, self.width


def examine(path: Path) -> VideoInfo:
    """Reads the packets of a video. Raises VideoError for one with which a stage would go wrong without an error."""
    import av

    try:
        with av.open(path.absolute()) as container:
            stream = container.streams.best("video")
            if stream is None or not stream.average_rate:
                raise VideoError(f"{path} has no video of a known frame rate: name another file")
            return _facts(path, container, stream)
    except av.FFmpegError as error:
        raise VideoError(f"{path} is not there, or no video ({error.strerror}): name another file") from error


def _facts(path: Path, container: InputContainer, stream: VideoStream) -> VideoInfo:
    packets = [
        (packet.dts if packet.pts is None else packet.pts, packet.is_keyframe, packet.is_discard)
        for packet in container.demux(stream)
        if packet.size
    ]
    shown = [(time, is_key) for time, is_key, is_discarded in packets if not is_discarded and time is not None]
    if not shown:
        raise VideoError(f"{path} has no frames with time stamps: name another file, or make this one anew")
    frames_per_second = exact(stream.average_rate)
    ticks_per_frame = 1 / (frames_per_second * exact(stream.time_base))
    times = sorted(time for time, _ in shown)
    # Numbers of frames are computed from times. The last frames of a file that was cut short may have gaps.
    late = [time - times[0] - number * ticks_per_frame for number, time in enumerate(times)]
    even = all(abs(each) <= ticks_per_frame / 4 for each in late[: max(1, len(late) - MOST_REORDERED)])
    problems = {
        f"an odd side, of {stream.width}x{stream.height} pixels": stream.width % 2 or stream.height % 2,
        f"pixels of {stream.pix_fmt}, not 8 bits deep, 4:2:0": stream.pix_fmt not in PIXELS,
        "colours in full range": stream.color_range == FULL_RANGE,
        f"colours of matrix {stream.colorspace}, not BT.601 or BT.709": stream.colorspace not in MATRICES,
        "a variable frame rate": not even,
    }
    if problem := next((name for name, is_found in problems.items() if is_found), None):
        raise VideoError(f"{path} has {problem}: {CONVERT}")
    missing = max(0, stream.frames - len(packets))
    return VideoInfo(
        path=path,
        width=stream.width,
        height=stream.height,
        frames=len(shown) + missing,
        frames_per_second=frames_per_second,
        matrix=MATRICES[stream.colorspace],
        keyframes=_keyframes(shown),
        missing=missing,
    )


def _keyframes(coded: list[tuple[int, bool]]) -> tuple[int, ...]:
    """The numbers, in display order, of those keyframes before which no frame coded later is shown."""
    times = [time for time, _ in coded]
    earliest_from_here = [*accumulate(reversed(times), min)][::-1]
    numbers = {time: number for number, time in enumerate(sorted(times))}
    return tuple(
        numbers[time]
        for (time, is_key), earliest in zip(coded, earliest_from_here, strict=True)
        if is_key and time == earliest
    )


def exact(rational: Any) -> Fraction:
    """A number of PyAV as a fraction: from version 19 on, products of its own type are rounded."""
    return Fraction(rational.numerator, rational.denominator)


def decoded_frames(path: Path, **colours: int) -> Iterator[NDArray[np.uint8]]:
    """The frames in display order, NV12, uint8 [H * 3 // 2, W], recoded to other colours where some are given.

    Each is valid until the next one: all of them lie in the same memory, since a copy into new memory took ten times as
    long, 2.7 ms at 1080p. Ends where the file is damaged.
    """
    import av

    with av.open(path.absolute()) as container, suppress(av.InvalidDataError):
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        nv12 = np.empty((stream.height * 3 // 2, stream.width), np.uint8)
        for frame in container.decode(stream):
            # With several threads, swscale would take the cores of the decoder.
            coded = frame.reformat(format="nv12", threads=1, **colours)
            rows = (np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size) for plane in coded.planes)
            yield np.concatenate([row[:, : stream.width] for row in rows], out=nv12)


@contextmanager
def replacing_video(path: Path) -> Iterator[OutputContainer]:
    """PyAV's container of `path` to mux into, as by `replacing_file`; the trailer is written when the block ends."""
    import av

    with replacing_file(path) as partial, av.open(partial, "w") as container:
        yield container


# --- NV12 and RGB, with the arithmetic of FFmpeg's swscale, through which OpenCV shows every frame it decodes ---------

# The luma of red and of blue: ITU-R BT.601-7 section 2.5.1, BT.709-6 item 3.2. Green has the rest.
LUMA_OF_RED_AND_BLUE: dict[Matrix, tuple[float, float]] = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722)}
LUMA_GAIN, CHROMA_GAIN = 255 / 219, 255 / 224
# Lost levels of grey, by rounding down once for brightness, once for red and blue each, twice for green: 0.5 each.
LOST_LEVELS: dict[Matrix, float] = {matrix: 1.5 - 0.5 * sum(shares) for matrix, shares in LUMA_OF_RED_AND_BLUE.items()}
STEP = 2**-13  # of swscale's fixed-point coefficients


def planes(nv12: Tensor) -> tuple[Tensor, Tensor]:
    """Views of uint8 [n, H*3/2, W] on the same memory: Y [n, H, W] and UV [n, H/2, W/2, 2]. H and W are even."""
    frames, rows, width = nv12.shape
    height = rows // 3 * 2
    return nv12[:, :height], nv12[:, height:].view(frames, height // 2, width // 2, 2)


def rgb_from_nv12(nv12: Tensor, matrix: Matrix) -> Tensor:
    """uint8 [n, 3, H, W] from uint8 [n, H*3/2, W], on the device of the input.

    One pair of chroma serves its 2 x 2 pixels, and each product is rounded down separately, as in swscale's code for
    x86 and for a frame that keeps its size: there the result is OpenCV's to the last bit.
    """
    luma, chroma = planes(nv12)
    u, v = chroma.unbind(-1)
    frames, height, width = luma.shape
    of_y, of_u, of_v = gains_of(matrix).tolist()
    brightness = _rounded_down(luma, 16, of_y[0]).view(frames, 1, height // 2, 2, width // 2, 2)
    red, blue = _rounded_down(v, 128, of_v[0]), _rounded_down(u, 128, of_u[2])
    green = _rounded_down(u, 128, of_u[1]).add_(_rounded_down(v, 128, of_v[1]))
    rgb = brightness + torch.stack((red, green, blue), 1)[:, :, :, None, :, None]
    return rgb.clamp_(0, 255).to(torch.uint8).view(frames, 3, height, width)


def nv12_from_rgb(rgb: Tensor, matrix: Matrix, lost_levels: float = 0.0) -> Tensor:
    """uint8 [n, H*3/2, W] from uint8 [n, 3, H, W], H and W even, on the device of the input.

    Chroma is that of the mean of 2 x 2 pixels; everything is rounded to the nearest level. `lost_levels` is the amount
    by which the RGB is too dark on average: LOST_LEVELS for RGB from `rgb_from_nv12`.
    """
    frames, _, height, width = rgb.shape
    nv12 = torch.empty(frames, height * 3 // 2, width, dtype=torch.uint8, device=rgb.device)
    luma, chroma = planes(nv12)
    luma.copy_(luma_of_rgb(rgb, matrix).add_(lost_levels).div_(LUMA_GAIN).add_(16.5))  # truncated into bytes
    mean = rgb.view(frames, 3, height // 2, 2, width // 2, 2).mean((3, 5), dtype=torch.float32)
    of_red, of_blue = LUMA_OF_RED_AND_BLUE[matrix]
    grey = luma_of_rgb(mean, matrix)
    for place, channel, share in ((0, 2, of_blue), (1, 0, of_red)):
        difference = (mean[:, channel] - grey) / (2 * (1 - share) * CHROMA_GAIN)
        chroma[..., place].copy_(difference.add_(128.5))
    return nv12


def luma_of_rgb(rgb: Tensor, matrix: Matrix) -> Tensor:
    """float32 [n, H, W], 0..255, from any [n, 3, H, W] of that range."""
    of_red, of_blue = LUMA_OF_RED_AND_BLUE[matrix]
    grey = rgb[:, 0] * of_red
    return grey.add_(rgb[:, 1], alpha=1 - of_red - of_blue).add_(rgb[:, 2], alpha=of_blue)


def gains_of(matrix: Matrix) -> Tensor:
    """float32 [3, 3]: the weight of a level of Y, of U and of V in red, green and blue, in swscale's fixed point.

    Their products with levels are exact in float32: a whole number of steps, of which there are fewer than 2**24.
    """
    of_red, of_blue = LUMA_OF_RED_AND_BLUE[matrix]
    of_green = 1 - of_red - of_blue
    blue, red = 2 * (1 - of_blue) * CHROMA_GAIN, 2 * (1 - of_red) * CHROMA_GAIN
    of_u, of_v = (0.0, -blue * of_blue / of_green, blue), (red, -red * of_red / of_green, 0.0)
    return torch.tensor([(LUMA_GAIN,) * 3, of_u, of_v]).div_(STEP).round_().mul_(STEP)


def _rounded_down(levels: Tensor, zero: int, gain: float) -> Tensor:
    """int16: the bytes `levels` above `zero`, times the gain, rounded down."""
    return torch.sub(levels, float(zero)).mul_(gain).floor_().to(torch.int16)
