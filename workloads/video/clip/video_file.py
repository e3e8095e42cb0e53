"""Facts of a video file, found by reading its packets, and the reasons to refuse a file.

Every stage works on whole frames of one even size and of square pixels, 8 bits deep, 4:2:0, in limited range, upright
and evenly spaced in time. Any other video would give wrong results without an error, so it is refused at the beginning.
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
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

Matrix = Literal["bt601", "bt709"]
# Matrix coefficients as ISO/IEC 23091-2 numbers them. Untagged (2) is BT.601 at any size, as for swscale and OpenCV.
MATRICES: dict[int, Matrix] = {1: "bt709", 2: "bt601", 5: "bt601", 6: "bt601"}
FULL_RANGE = 2
PIXELS = ("yuv420p", "nv12")  # FFmpeg's names of 8 bits deep, 4:2:0
# Codecs whose size can change with the parameter sets in a packet; the filter that finds these needs Annex B.
PARAMETER_SETS = {"h264": "h264_mp4toannexb,extract_extradata", "hevc": "hevc_mp4toannexb,extract_extradata"}
STRETCHED_COLUMNS = 2  # of square pixels: a ratio that only makes up for a width that had to be even is accepted
JITTER_SECONDS = Fraction(1, 1000)  # for containers that count milliseconds, and copies from them
CONVERT = "convert it, for instance with ffmpeg -i IN"
# OpenCV lets FFmpeg write a line on stderr for each damaged packet, and our errors are one sentence. OpenCV reads the
# variable when it opens its first file; PyAV keeps FFmpeg quiet.
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # AV_LOG_QUIET


class VideoError(ValueError):
    """A video that is refused; the message is one sentence with its name and the next step."""


@dataclass(frozen=True)
class VideoInfo:
    """Facts of a video before it is decoded.

    `frames` is the number that the file announces, or contains where it announces none; `frames_missing` of them are
    absent, because the file was cut short. `keyframes` are the numbers, in display order, of frames at which decoding
    may begin: no frame coded later is shown before them. `codec` is FFmpeg's name; `matrix` follows from the file's
    tag.
    """

    path: Path
    width: int
    height: int
    frames: int
    frames_per_second: Fraction
    codec: str
    matrix: Matrix
    keyframes: tuple[int, ...]
    frames_missing: int = 0


def examine(path: Path) -> VideoInfo:
    """Reads the packets of the video at `path`, and decodes one picture, more only where parameter sets change.

    A file that was cut short is no error here: see `frames_missing`; not every container announces enough to detect it.
    Raises VideoError for a file that is no video or has not exactly one video stream, has no frames, a variable frame
    rate, an odd width or height, more than 8 bits, other than 4:2:0, full range or unknown colours, pixels that are not
    square, is interlaced, rotated or mirrored, or changes its size in the middle. The result, or the refusal, is
    remembered for as long as the file is unchanged.
    """
    if not path.is_file():
        raise VideoError(f"{path} is {'no file' if path.exists() else 'not there'}: name a video file")
    state = path.stat()
    found = _found(path, state.st_mtime_ns, state.st_size, state.st_ino)
    if isinstance(found, str):
        raise VideoError(found)
    return found


@functools.lru_cache(maxsize=16)
def _found(path: Path, *state: int) -> VideoInfo | str:
    """The facts of the video, or the reason of its refusal."""
    try:
        return _read(path)
    except VideoError as error:
        return str(error)


def _read(path: Path) -> VideoInfo:
    with _opened(path) as container:
        stream = _video_stream(container, path)
        packets = _listed(container, stream, path)
        _refuse_format(stream, path)
        # Decoding, even of damaged packets, may change the facts of the stream.
        width, height, matrix = stream.width, stream.height, MATRICES[stream.colorspace]
        _refuse_pictures(stream, packets, path)
        missing = max(0, stream.frames - packets.count)
        return VideoInfo(
            path=path,
            width=width,
            height=height,
            frames=len(packets.times) + missing,
            frames_per_second=_frame_rate(stream, packets, path),
            codec=stream.codec_context.codec.canonical_name,
            matrix=matrix,
            keyframes=packets.keyframes(),
            frames_missing=missing,
        )


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


@contextmanager
def _opened(path: Path) -> Iterator[InputContainer]:
    import av

    try:
        with open_video(path) as container:
            yield container
    except av.FFmpegError as error:
        reason = f"{path} is not a video, has no frames or was cut short ({error.strerror})"
        raise VideoError(f"{reason}: name another file, or make this one anew") from error


def _video_stream(container: InputContainer, path: Path) -> VideoStream:
    from av.stream import Disposition

    streams = [each for each in container.streams.video if not each.disposition & Disposition.attached_pic]
    if not streams:
        others = ", ".join(sorted({each.type for each in container.streams.get()}))
        instead = f"only {others}" if others else "or one without a frame"
        raise VideoError(f"{path} has no video stream, {instead}: name a file with moving pictures")
    if len(streams) > 1:
        raise VideoError(f"{path} has {len(streams)} video streams: keep one, for instance with ffmpeg -map 0:v:0")
    if streams[0].codec_context is None or streams[0].pix_fmt is None:
        raise VideoError(f"{path} begins with nothing that FFmpeg can decode: name another file, or make it anew")
    return streams[0]


@dataclass(frozen=True)
class _Packets:
    """The facts of a stream's `count` packets, in coding order.

    `times` are those of the frames to be shown, in units of `seconds`. `changes` are the keyframes with other parameter
    sets than the one before, the first keyframe included.
    """

    count: int
    times: list[int]
    seconds: Fraction
    are_keys: list[bool]
    changes: list[Packet[VideoStream]]

    def times_shown(self, is_whole: bool) -> NDArray[np.int64]:
        """The times in display order; if the file may be cut short, without the last few, which may have gaps.

        The omitted times are as many as frames may be coded ahead of frames shown before them; at least one time stays.
        """
        times = np.array(self.times)
        order = np.argsort(times, kind="stable")
        ahead = 0 if is_whole else int((np.argsort(order) - np.arange(len(times))).max())
        return times[order][: max(1, len(times) - ahead)]

    def keyframes(self) -> tuple[int, ...]:
        """The numbers, in display order, of those keyframes before which no frame coded later is shown."""
        earliest_from_here = [*accumulate(reversed(self.times), min)][::-1]
        numbers = {time: number for number, time in enumerate(sorted(self.times))}
        keys = zip(self.times, self.are_keys, earliest_from_here, strict=True)
        return tuple(numbers[time] for time, is_key, earliest in keys if is_key and time == earliest)


def _listed(container: InputContainer, stream: VideoStream, path: Path) -> _Packets:
    count, changes, shown = 0, [], []
    parameter_sets, known = _ParameterSets(stream), None
    for packet in container.demux(stream):
        if not packet.size:
            continue  # the demuxer's sign of the end
        count += 1
        if packet.is_keyframe and (found := parameter_sets.of(packet)) != known:
            known = found
            changes.append(packet)
        if changes and not packet.is_discard:  # no frame before the first keyframe can be decoded
            shown.append((packet.pts, packet.dts, packet.is_keyframe))
    if not shown:
        raise VideoError(f"{path} has a video stream without {'a keyframe' if count else 'a frame'}: make it anew")
    times, seconds = _times(stream, [each[:2] for each in shown])
    return _Packets(count, times, seconds, [is_key for *_, is_key in shown], changes)


def _times(stream: VideoStream, stamps: list[tuple[int | None, int | None]]) -> tuple[list[int], Fraction]:
    """The display times of the frames, else their decoding times, else consecutive numbers; and the unit."""
    for kind in zip(*stamps, strict=True):
        times = [time for time in kind if time is not None]
        if len(times) == len(stamps):
            return times, exact(stream.time_base or 1)
    return list(range(len(stamps))), 1 / exact(stream.guessed_rate or 25)


class _ParameterSets:
    """Finds the parameter sets (size, pixel format and more) that come with keyframes, as bytes to compare."""

    def __init__(self, stream: VideoStream) -> None:
        from av.bitstream import BitStreamFilterContext

        filters = PARAMETER_SETS.get(stream.codec_context.codec.canonical_name)
        self._filter = BitStreamFilterContext(filters, stream) if filters else None

    def of(self, packet: Packet[VideoStream]) -> bytes:
        import av

        from_container = bytes(packet.get_sidedata("new_extradata"))
        if self._filter is None:
            return from_container
        with suppress(av.FFmpegError):  # the decoder reports a damaged keyframe
            filtered = self._filter.filter(av.Packet(bytes(packet)))  # a copy, since the filter keeps what it gets
            return from_container + b"".join(bytes(each.get_sidedata("new_extradata")) for each in filtered)
        return from_container


def _refuse_format(stream: VideoStream, path: Path) -> None:
    if stream.width % 2 or stream.height % 2:
        odd = f"{stream.width}x{stream.height} pixels, an odd number of {'columns' if stream.width % 2 else 'rows'}"
        raise VideoError(f"{path} has {odd}: {CONVERT} -vf 'crop=trunc(iw/2)*2:trunc(ih/2)*2' OUT")
    if stream.color_range == FULL_RANGE or stream.pix_fmt not in PIXELS:
        kind = f"{stream.pix_fmt} in {'full' if stream.color_range == FULL_RANGE else 'limited'} range"
        wanted = "8 bits, 4:2:0, limited range"
        raise VideoError(f"{path} is {kind}, not {wanted}: {CONVERT} -vf scale=out_range=tv -pix_fmt yuv420p OUT")
    if stream.colorspace not in MATRICES:
        told = f"has its colours in matrix {stream.colorspace} of ISO/IEC 23091-2, neither BT.601 nor BT.709"
        raise VideoError(f"{path} {told}: {CONVERT} -vf scale=out_color_matrix=bt709 OUT")
    ratio = exact(stream.sample_aspect_ratio or 1)
    if abs(ratio - 1) * stream.width > STRETCHED_COLUMNS:
        told = f"has pixels that are not square, {ratio.numerator}:{ratio.denominator}"
        raise VideoError(f"{path} {told}: {CONVERT} -vf 'scale=trunc(iw*sar/2)*2:ih,setsar=1' OUT")


def _refuse_pictures(stream: VideoStream, packets: _Packets, path: Path) -> None:
    first = f"{stream.width}x{stream.height} {stream.pix_fmt}"
    for packet in packets.changes:
        for frame in _decoded(stream, packet):
            this = f"{frame.width}x{frame.height} {frame.format.name}"
            if this != first:
                raise VideoError(f"{path} changes from {first} to {this} in the middle: {CONVERT} -s SIZE OUT")
            if frame.interlaced_frame:
                raise VideoError(f"{path} is interlaced, two half frames in one: {CONVERT} -vf bwdif OUT")
            if not _is_upright(frame):
                raise VideoError(f"{path} is to be shown rotated or mirrored: {CONVERT} OUT, which turns the pixels")


def _decoded(stream: VideoStream, packet: Packet[VideoStream]) -> list[VideoFrame]:
    """The frames of a keyframe alone; empty for a damaged one, which the decoder of the file reports."""
    import av

    frames: list[VideoFrame] = []
    with suppress(av.FFmpegError):
        frames = stream.decode(packet)
        frames += stream.decode(None)
    stream.codec_context.flush_buffers()
    return frames


def _is_upright(frame: VideoFrame) -> bool:
    from av.sidedata.sidedata import Type

    side_data: Any = frame.side_data  # PyAV's stub knows motion vectors alone
    if Type.DISPLAYMATRIX not in side_data:
        return True
    across, skew, _, back, down = np.frombuffer(bytes(side_data[Type.DISPLAYMATRIX]), np.int32)[:5]  # 3 x 3, by rows
    return bool(across > 0 and down > 0 and not skew and not back)


def _frame_rate(stream: VideoStream, packets: _Packets, path: Path) -> Fraction:
    """The rate at which every frame is shown on time, to a millisecond or the file's unit of time."""
    ticks = packets.times_shown(is_whole=stream.frames == packets.count)
    seconds = (ticks - ticks[0]) * float(packets.seconds)
    told = [exact(rate) for rate in (stream.average_rate, stream.guessed_rate) if rate]
    measured = [(len(ticks) - 1) / (int(ticks[-1] - ticks[0]) * packets.seconds)] if ticks[-1] > ticks[0] else []
    for rate in told + measured or [Fraction(25)]:
        most_seconds = min(max(JITTER_SECONDS, packets.seconds), 1 / (4 * rate))
        if np.abs(seconds - np.arange(len(ticks)) / float(rate)).max() <= float(most_seconds) + 1e-6:
            return rate
    gaps_ms = np.diff(seconds) * 1e3
    between = f"{gaps_ms.min():.4g} to {gaps_ms.max():.4g} ms between frames"
    raise VideoError(f"{path} has a variable frame rate, {between}: {CONVERT} -fps_mode cfr OUT")
