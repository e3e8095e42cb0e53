"""Video files: facts from their packets, frames as they are coded, and files that appear whole or not at all.

Every stage works on whole frames of one even size, 8 bits deep, 4:2:0, in limited range, and evenly spaced in time. Any
other video would give wrong results without an error, so it is refused at the beginning.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from av.container import InputContainer, OutputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

Matrix = Literal["bt601", "bt709"]
Plane = NDArray[np.uint8]
# Matrix coefficients as ISO/IEC 23091-2 numbers them. Untagged (2) is BT.601 at any size, as for swscale and OpenCV.
MATRICES: dict[int, Matrix] = {1: "bt709", 2: "bt601", 5: "bt601", 6: "bt601"}
FULL_RANGE = 2
PIXELS = ("yuv420p", "nv12")  # FFmpeg's names of 8 bits deep, 4:2:0
FORMATS = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska", ".avi": "avi"}  # FFmpeg's names of the containers
JITTER_SECONDS = Fraction(1, 1000)  # for containers that count milliseconds, and copies from them
MOST_REORDERED = 16  # frames coded ahead of one that is shown before them, in H.264 and HEVC
CONVERT = "convert it, for instance with ffmpeg -i IN"
# OpenCV lets FFmpeg write a line on stderr for each damaged packet, and our errors are one sentence. OpenCV reads the
# variable when it opens its first file; PyAV keeps FFmpeg quiet.
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # AV_LOG_QUIET


class VideoError(ValueError):
    """A video that is refused; the message is one sentence with its name and the next step."""


@dataclass(frozen=True)
class VideoInfo:
    """Facts of a video before it is decoded.

    `frames` is the number that the file announces, or contains where it announces none. `keyframes` are the numbers, in
    display order, of frames at which decoding may begin: no frame coded later is shown before them. `codec` is FFmpeg's
    name; `matrix` follows from the file's tag.
    """

    path: Path
    width: int
    height: int
    frames: int
    frames_per_second: Fraction
    codec: str
    matrix: Matrix
    keyframes: tuple[int, ...]


def examine(path: Path) -> VideoInfo:
    """Reads the packets of the video at `path`, and remembers its facts for as long as the file is unchanged.

    A file that was cut short is no error here: its decoder reports the missing frames. Raises VideoError for a file
    without frames of a video, a variable frame rate, an odd width or height, more than 8 bits, other than 4:2:0, full
    range or unknown colours.
    """
    if not path.is_file():
        raise VideoError(f"{path} is {'no file' if path.exists() else 'not there'}: name a video file")
    state = path.stat()
    return _read(path, state.st_mtime_ns, state.st_size, state.st_ino)


@functools.lru_cache(maxsize=16)
def _read(path: Path, *state: int) -> VideoInfo:
    import av

    try:
        with open_video(path) as container:
            stream = next(iter(container.streams.video), None)
            if stream is None or stream.codec_context is None or stream.pix_fmt is None:
                raise VideoError(f"{path} has no video stream that FFmpeg can decode: name a file with moving pictures")
            _refuse_format(stream, path)
            packets = [
                (packet.dts if packet.pts is None else packet.pts, packet.is_keyframe, packet.is_discard)
                for packet in container.demux(stream)
                if packet.size
            ]
            are_keys = [is_key for _, is_key, _ in packets]
            begin = are_keys.index(True) if any(are_keys) else len(packets)  # no frame before it can be decoded
            shown = [(time, is_key) for time, is_key, is_discarded in packets[begin:] if not is_discarded]
            times = [time for time, _ in shown if time is not None]
            if not times or len(times) < len(shown):
                raise VideoError(f"{path} has no keyframe or no time stamps: make it anew")
            return VideoInfo(
                path=path,
                width=stream.width,
                height=stream.height,
                frames=len(shown) + max(0, stream.frames - len(packets)),
                frames_per_second=_frame_rate(stream, sorted(times), path),
                codec=stream.codec_context.codec.canonical_name,
                matrix=MATRICES[stream.colorspace],
                keyframes=_keyframes(times, [is_key for _, is_key in shown]),
            )
    except av.FFmpegError as error:
        reason = f"{path} is not a video, has no frames or was cut short ({error.strerror})"
        raise VideoError(f"{reason}: name another file, or make this one anew") from error


def open_video(path: Path) -> InputContainer:
    """PyAV's container of the file, which the caller closes. Raises av.FFmpegError where FFmpeg cannot read it."""
    import av

    # Titles need not be UTF-8: PyAV accepts any from version 19 on, and needs an option before.
    options: Any = {} if int(av.__version__.partition(".")[0]) >= 19 else {"metadata_errors": "replace"}
    container: InputContainer = av.open(path.absolute(), "r", **options)  # a relative name may look like a protocol
    return container


def exact(rational: Any) -> Fraction:
    """A number of PyAV as a fraction: from version 19 on, products of its own type are rounded."""
    return Fraction(rational.numerator, rational.denominator)


def planar_frames(path: Path) -> Iterator[VideoFrame]:
    """The frames in display order, 4:2:0 in three planes; ends where the file is damaged."""
    import av

    with open_video(path) as container, suppress(av.InvalidDataError):
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        for frame in container.decode(stream):
            yield frame if frame.format.name == "yuv420p" else frame.reformat(format="yuv420p")


def plane(frame: VideoFrame, number: int) -> Plane:
    """uint8 [rows, columns]: Y, U or V, in the frame's own memory."""
    stored: Any = frame.planes[number]
    rows: Plane = np.frombuffer(stored, np.uint8).reshape(stored.height, stored.line_size)
    return rows[:, : stored.width]


def copy_as_nv12(frame: VideoFrame, nv12: Plane) -> None:
    """Copies a frame in three planes into NV12, uint8 [H * 3 // 2, W]."""
    nv12[: frame.height] = plane(frame, 0)
    chroma = nv12[frame.height :].reshape(frame.height // 2, frame.width // 2, 2)
    chroma[..., 0], chroma[..., 1] = plane(frame, 1), plane(frame, 2)


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to: its file becomes `path` when the block ends, and vanishes if the block fails.

    Raises OSError, in one sentence, where no file can be written.
    """
    partial = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        partial.touch()
    except OSError as error:
        problem = f"{path} cannot be written ({error.strerror})"
        raise OSError(f"{problem}: name a file in a folder that exists and may be written to") from error
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replacing_video(path: Path) -> Iterator[OutputContainer]:
    """A PyAV container that becomes the file `path` when the block ends, and vanishes if the block or a write fails.

    The block adds a stream and muxes packets, from one thread at a time, and must flush its encoder; the trailer is
    written here. Raises VideoError for a suffix outside of FORMATS and when nothing was muxed, and OSError when the
    file cannot be written.
    """
    import av

    if path.suffix.lower() not in FORMATS:
        raise VideoError(f"{path} cannot be written as a video: let its name end in {', '.join(FORMATS)}")
    with replacing_file(path) as partial:
        try:
            with av.open(partial.absolute(), "w", format=FORMATS[path.suffix.lower()]) as container:
                yield container
        except av.FFmpegError as error:
            if not isinstance(error, OSError):
                raise
            problem = f"{path} cannot be written ({error.strerror})"
            raise OSError(f"{problem}: make room or choose another folder") from error
        if not partial.stat().st_size:
            raise VideoError(f"{path} would be a video without a frame: check what was to be encoded")


def _keyframes(times: list[int], are_keys: list[bool]) -> tuple[int, ...]:
    """The numbers, in display order, of those keyframes before which no frame coded later is shown."""
    earliest_from_here = [*accumulate(reversed(times), min)][::-1]
    numbers = {time: number for number, time in enumerate(sorted(times))}
    keys = zip(times, are_keys, earliest_from_here, strict=True)
    return tuple(numbers[time] for time, is_key, earliest in keys if is_key and time == earliest)


def _refuse_format(stream: VideoStream, path: Path) -> None:
    if stream.width % 2 or stream.height % 2:
        odd = f"{stream.width}x{stream.height} pixels, an odd number of {'columns' if stream.width % 2 else 'rows'}"
        raise VideoError(f"{path} has {odd}: {CONVERT} -vf 'crop=trunc(iw/2)*2:trunc(ih/2)*2' OUT")
    if stream.color_range == FULL_RANGE or stream.pix_fmt not in PIXELS:
        kind = f"{stream.pix_fmt} in {'full' if stream.color_range == FULL_RANGE else 'limited'} range"
        wanted = "8 bits, 4:2:0, limited range"
        raise VideoError(f"{path} is {kind}, not {wanted}: {CONVERT} -vf scale=out_range=tv -pix_fmt yuv420p OUT")
    if stream.colorspace not in MATRICES:
        found = f"has its colours in matrix {stream.colorspace} of ISO/IEC 23091-2, neither BT.601 nor BT.709"
        raise VideoError(f"{path} {found}: {CONVERT} -vf scale=out_color_matrix=bt709 OUT")


def _frame_rate(stream: VideoStream, times: list[int], path: Path) -> Fraction:
    """The rate at which every frame is shown on time, to a millisecond or the file's unit of time."""
    tick_s = exact(stream.time_base or 1)
    # The last frames of a file that was cut short may have gaps.
    seconds = (np.array(times[: max(1, len(times) - MOST_REORDERED)]) - times[0]) * float(tick_s)
    rates = [exact(rate) for rate in (stream.average_rate, stream.guessed_rate) if rate]
    for rate in rates:
        most_seconds = min(max(JITTER_SECONDS, tick_s), 1 / (4 * rate))
        if np.abs(seconds - np.arange(len(seconds)) / float(rate)).max() <= float(most_seconds) + 1e-6:
            return rate
    raise VideoError(f"{path} has a variable frame rate: {CONVERT} -fps_mode cfr OUT")
