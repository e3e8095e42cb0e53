"""Results of `examine` on videos, and its error for each kind of video that it refuses."""

import wave
from collections.abc import Callable, Iterable
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.copied_clips import copied, cut_short
from workloads.video.clip import video_file
from workloads.video.clip.host_planes import HostPlanesDecoder
from workloads.video.clip.video_file import VideoError, examine
from workloads.video.decode.decoding import HostDecoder

av = pytest.importorskip("av", reason="PyAV reads videos: pip install av")

TICK = Fraction(1, 90_000)
FASTSTART = {"movflags": "faststart"}  # the index of the file comes first


def pictures(width: int, height: int, count: int, pixels: str = "yuv420p") -> Iterable:
    random = np.random.default_rng(0)
    for number in range(count):
        rgb = random.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8).repeat(8, 0).repeat(8, 1)
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(rgb[:height, :width]), "rgb24").reformat(format=pixels)
        frame.pts, frame.time_base = number, Fraction(1, 30)
        yield frame


def make(
    path: Path,
    count: int = 12,
    size: tuple[int, int] = (160, 96),
    codec: str = "libx264",
    pixels: str = "yuv420p",
    times: Iterable[int] | None = None,  # in TICK
    rotation: float = 0,
    flip: bool = False,
    options: dict[str, str] | None = None,
    rate: Fraction | int = 30,
    tags: dict[str, Any] | None = None,
    container_options: dict[str, str] | None = None,
) -> Path:
    with av.open(path, "w", options=container_options or {}) as container:
        stream = container.add_stream(codec, rate=rate, options=options or {})
        stream.width, stream.height = size
        stream.pix_fmt = pixels
        for name, value in (tags or {}).items():
            setattr(stream.codec_context, name, value)
        if rotation or flip:
            stream.set_display_rotation(rotation, hflip=flip)
        given = list(times) if times is not None else None
        if given is not None:
            stream.codec_context.time_base = TICK
        for number, frame in enumerate(pictures(*size, count, pixels)):
            frame.time_base = 1 / Fraction(rate)
            if given is not None:
                frame.pts, frame.time_base = given[number], TICK
            container.mux(stream.encode(frame))
        if count:
            container.mux(stream.encode(None))
        else:
            container.start_encoding()
    return path


def refused(path: Path) -> str:
    with pytest.raises(VideoError) as raised:
        examine(path)
    message = str(raised.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return message[len(str(path)) + 1 :]


def test_a_video_is_described(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", options={"x264-params": "keyint=5:scenecut=0"})
    info = examine(path)
    assert (info.path, info.width, info.height, info.frames, info.frames_missing) == (path, 160, 96, 12, 0)
    assert (info.frames_per_second, info.codec, info.matrix, info.keyframes) == (30, "h264", "bt601", (0, 5, 10))


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv", ".ts", ".avi"])
@pytest.mark.parametrize("rate", [Fraction(30000, 1001), Fraction(25), Fraction(60)])
def test_any_container_and_rate_will_do(tmp_path: Path, suffix: str, rate: Fraction) -> None:
    """Matroska counts milliseconds, so that no two gaps are the same; MPEG-TS announces no number of frames."""
    options = {"x264-params": "keyint=20:scenecut=0" + (":bframes=0" if suffix == ".avi" else "")}
    info = examine(make(tmp_path / f"a{suffix}", 50, rate=rate, options=options))
    assert (info.frames, info.keyframes) == (50, (0, 20, 40))
    assert float(info.frames_per_second) == pytest.approx(float(rate), rel=1e-4)


@pytest.mark.parametrize(
    ("encoder", "codec"), [("libx265", "hevc"), ("mpeg4", "mpeg4"), ("libvpx-vp9", "vp9"), ("libsvtav1", "av1")]
)
def test_any_codec_will_do(tmp_path: Path, encoder: str, codec: str) -> None:
    options = {"libx265": {"x265-params": "log-level=error"}, "libsvtav1": {"preset": "12"}}
    info = examine(make(tmp_path / "a.mp4", 6, codec=encoder, options=options.get(encoder)))
    assert (info.frames, info.codec) == (6, codec)


def test_a_single_frame_is_a_video(tmp_path: Path) -> None:
    info = examine(make(tmp_path / "a.mp4", 1))
    assert (info.frames, info.frames_per_second, info.keyframes) == (1, 30, (0,))


def test_the_matrix_is_the_tagged_one_and_else_bt601(tmp_path: Path) -> None:
    for tag, matrix in ((1, "bt709"), (2, "bt601"), (5, "bt601"), (6, "bt601")):
        assert examine(make(tmp_path / f"{tag}.mp4", 3, tags={"colorspace": tag})).matrix == matrix
    assert examine(make(tmp_path / "large.mp4", 1, size=(1920, 1080))).matrix == "bt601", "as swscale and OpenCV do"


def test_keyframes_of_open_groups_are_none_to_begin_at(tmp_path: Path) -> None:
    options = {"x264-params": "keyint=8:min-keyint=8:scenecut=0:open-gop=1:bframes=3:b-adapt=0"}
    path = make(tmp_path / "a.mkv", 30, options=options)
    with av.open(path) as container:
        keyframes = sum(packet.is_keyframe for packet in container.demux(video=0))
    assert keyframes > 1
    assert examine(path).keyframes == (0,)


def test_pictures_of_an_album_are_not_the_video(tmp_path: Path) -> None:
    """A cover is a video stream to FFmpeg, and what is left of this file is sound."""
    path = tmp_path / "a.mp4"
    with av.open(path, "w") as container:
        sound, cover = container.add_stream("aac", rate=44100), container.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 160, 96, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        container.mux(cover.encode(next(iter(pictures(160, 96, 1, "yuvj420p")))))
        container.mux(cover.encode(None))
        container.mux(sound.encode(silence()))
        container.mux(sound.encode(None))
    assert refused(path) == "has no video stream, only audio, video: name a file with moving pictures"


def silence():
    frame = av.AudioFrame.from_ndarray(np.zeros((2, 1024), np.float32), "fltp", "stereo")
    frame.sample_rate = 44100
    return frame


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a video, has no frames or was cut short (Invalid data found when processing input): name"),
        (b"some text\n" * 100, "is not a video, has no frames or was cut short"),
        (np.random.default_rng(0).bytes(50_000), "is not a video, has no frames or was cut short"),
    ],
    ids=["empty", "text", "noise"],
)
def test_what_is_no_video_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(content)
    assert refused(path).startswith(said)


def test_a_path_without_a_file_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path / "none.mp4") == "is not there: name a video file"
    assert refused(tmp_path) == "is no file: name a video file"


def test_a_name_that_looks_like_a_protocol_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "concat:a.mp4", 2)
    monkeypatch.chdir(tmp_path)
    assert examine(Path("concat:a.mp4")).frames == 2


def test_an_audio_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(16_000))
    assert refused(path) == "has no video stream, only audio: name a file with moving pictures"


def test_two_video_streams_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    with av.open(path, "w") as container:
        streams = [container.add_stream("libx264", rate=30) for _ in range(2)]
        for stream in streams:
            stream.width, stream.height = 160, 96
        for stream in streams:
            for frame in pictures(160, 96, 3):
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    assert refused(path).startswith("has 2 video streams: keep one")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a.mp4", "has no video stream, or one without a frame: name a file"),
        ("a.mkv", "is not a video, has no frames or was cut short (End of file): name another file"),
    ],
)
def test_no_frames_are_refused(tmp_path: Path, name: str, said: str) -> None:
    assert refused(make(tmp_path / name, 0)).startswith(said)


def test_a_variable_frame_rate_is_refused_with_its_gaps(tmp_path: Path) -> None:
    times = np.cumsum([0, 3000, 3000, 4500, 3000, 1500, 3000, 9000, 3000, 3000]).tolist()
    assert refused(make(tmp_path / "a.mp4", 10, times=times)) == (
        "has a variable frame rate, 16.67 to 100 ms between frames: "
        "convert it, for instance with ffmpeg -i IN -fps_mode cfr OUT"
    )


@pytest.mark.parametrize(("suffix", "gap"), [(".mp4", 1), (".mp4", 20), (".mp4", 39), (".mkv", 1), (".mkv", 30)])
def test_one_frame_left_out_is_a_variable_frame_rate(tmp_path: Path, suffix: str, gap: int) -> None:
    """At the very end of a file that announces no number of frames it would be a file cut short."""
    times = [3000 * (number + (number >= gap)) for number in range(40)]
    assert "variable frame rate, 33" in refused(make(tmp_path / f"a{suffix}", 40, times=times))


def test_one_frame_left_out_is_seen_where_a_unit_of_time_is_a_frame(tmp_path: Path) -> None:
    times = [3000 * (number + (number >= 10)) for number in range(40)]
    path = make(tmp_path / "a.mp4", 40, times=times, container_options={"video_track_timescale": "30"})
    assert "variable frame rate, 33.33 to 66.67 ms" in refused(path)


def test_a_jitter_of_five_milliseconds_is_a_variable_frame_rate(tmp_path: Path) -> None:
    times = [3000 * number + 450 * (number % 2) for number in range(40)]
    assert "variable frame rate, 28.33 to 38.33 ms" in refused(make(tmp_path / "a.mp4", 40, times=times))


def test_times_rounded_to_milliseconds_are_still_even(tmp_path: Path) -> None:
    """A copy from Matroska into MP4 keeps the rounding, with a finer unit of time."""
    times = [90 * round(number * 1000 / 30) for number in range(60)]
    assert float(examine(make(tmp_path / "a.mp4", 60, times=times)).frames_per_second) == pytest.approx(30, rel=1e-3)


@pytest.mark.parametrize(("size", "what"), [((161, 96), "columns"), ((160, 97), "rows"), ((161, 97), "columns")])
def test_an_odd_size_is_refused(tmp_path: Path, size: tuple[int, int], what: str) -> None:
    said = refused(make(tmp_path / "a.mp4", 3, size=size, codec="mpeg4"))
    assert said.startswith(f"has {size[0]}x{size[1]} pixels, an odd number of {what}: convert it")


@pytest.mark.parametrize(
    ("pixels", "tags", "kind"),
    [
        ("yuv420p10le", {}, "yuv420p10le in limited range"),
        ("yuv422p", {}, "yuv422p in limited range"),
        ("yuv444p", {}, "yuv444p in limited range"),
        ("yuv420p", {"color_range": 2}, "yuvj420p in full range"),
    ],
)
def test_other_pixels_are_refused(tmp_path: Path, pixels: str, tags: dict[str, int], kind: str) -> None:
    said = refused(make(tmp_path / "a.mp4", 3, pixels=pixels, tags=tags))
    assert said.startswith(f"is {kind}, not 8 bits, 4:2:0, limited range: convert it, for instance with ffmpeg")


def test_colours_of_another_matrix_are_refused(tmp_path: Path) -> None:
    assert "matrix 9 of ISO/IEC 23091-2" in refused(make(tmp_path / "a.mp4", 3, tags={"colorspace": 9}))


@pytest.mark.parametrize(("degrees", "flip"), [(90, False), (-90, False), (180, False), (0, True)])
@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
def test_a_rotated_or_mirrored_video_is_refused(tmp_path: Path, degrees: int, flip: bool, codec: str) -> None:
    path = make(tmp_path / "a.mp4", 6, rotation=degrees, flip=flip, codec=codec)
    assert refused(path).startswith("is to be shown rotated or mirrored: convert it")


def test_pixels_that_are_not_square_are_refused(tmp_path: Path) -> None:
    said = refused(make(tmp_path / "a.mp4", 3, tags={"sample_aspect_ratio": Fraction(16, 11)}))
    assert said.startswith(
        "has pixels that are not square, 16:11: convert it, for instance with ffmpeg -i IN -vf 'scale"
    )
    square = {"same": Fraction(1), "of a width that had to be even": Fraction(159, 160)}
    for name, ratio in square.items():
        assert examine(make(tmp_path / f"{name}.mp4", 3, tags={"sample_aspect_ratio": ratio})).width == 160


@pytest.mark.parametrize("codec", ["libx264", "mpeg2video"])
def test_interlaced_frames_are_refused(tmp_path: Path, codec: str) -> None:
    options = {"libx264": {"x264-params": "tff=1"}, "mpeg2video": {"flags": "+ildct+ilme"}}[codec]
    said = refused(make(tmp_path / "a.mkv", 6, codec=codec, options=options))
    assert said.startswith(
        "is interlaced, two half frames in one: convert it, for instance with ffmpeg -i IN -vf bwdif"
    )


def joined(path: Path, parts: list[Path], damage: Callable[[bytes], bytes] = bytes) -> Path:
    """Their packets one after another in one MPEG-TS, as a broadcast would switch; the last part's are damaged."""
    with av.open(path, "w", format="mpegts") as container:
        with av.open(parts[0]) as source:
            stream = container.add_mux_stream(source.streams.video[0].codec_context.name, rate=30, width=160, height=96)
        start = 0
        for part in parts:
            with av.open(part) as source:
                packets = [packet for packet in source.demux(video=0) if packet.size]
            for packet in packets:
                copy = av.Packet(damage(bytes(packet)) if part is parts[-1] else bytes(packet))
                copy.stream, copy.time_base, copy.is_keyframe = stream, packet.time_base, packet.is_keyframe
                copy.pts, copy.dts = packet.pts + start, packet.dts + start
                container.mux(copy)
            start += 3000 * len(packets)
    return path


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_a_size_that_changes_in_the_middle_is_refused(tmp_path: Path, codec: str) -> None:
    options = {"x265-params": "log-level=error"} if codec == "libx265" else {}
    small = make(tmp_path / "small.ts", 6, codec=codec, options=options)
    large = make(tmp_path / "large.ts", 6, size=(320, 192), codec=codec, options=options)
    assert examine(joined(tmp_path / "same.ts", [small, small])).frames == 12
    said = refused(joined(tmp_path / "a.ts", [small, large, small]))
    assert said.startswith("changes from 160x96 yuv420p to 320x192 yuv420p in the middle: convert it")


def test_other_parameter_sets_of_the_same_size_are_no_change(tmp_path: Path) -> None:
    parts = [make(tmp_path / f"{refs}.ts", 6, options={"x264-params": f"ref={refs}"}) for refs in (1, 4)]
    info = examine(joined(tmp_path / "a.ts", parts))
    assert (info.frames, info.keyframes) == (12, (0, 6))


@pytest.mark.parametrize(
    "damages",
    [
        [(b"\x01\x67", b"\x01\x67\xff\xff\xff\xff")],  # a sequence parameter set of another size, which is nonsense
        [(b"\x01\x67", b"\x01\x67\x64\x01"), (b"\x01\x65", b"\x01\x65\0\0\0")],  # and a slice that is none
    ],
    ids=["parameter set", "slice"],
)
def test_a_damaged_keyframe_in_the_middle_is_left_to_the_decoder(tmp_path: Path, damages) -> None:
    parts = [make(tmp_path / f"{name}.ts", 6) for name in ("intact", "damaged")]

    def damage(packet: bytes) -> bytes:
        for old, new in damages:
            packet = packet.replace(old, new)
        return packet

    info = examine(joined(tmp_path / "a.ts", parts, damage))
    assert (info.frames, info.width, info.height) == (12, 160, 96)


def cut(path: Path, share: float) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: round(len(content) * share)])
    return path


def test_a_file_cut_short_tells_what_is_missing_where_its_index_comes_first(tmp_path: Path) -> None:
    info = examine(cut(make(tmp_path / "a.mp4", 40, container_options=FASTSTART), 0.5))
    assert info.frames == 40
    assert 10 < info.frames_missing < 30
    assert info.frames_per_second == 30


def test_a_file_cut_short_is_refused_where_its_index_came_last(tmp_path: Path) -> None:
    assert refused(cut(make(tmp_path / "a.mp4"), 0.5)).startswith("is not a video, has no frames or was cut short")


def test_a_file_cut_within_its_first_frame_is_refused(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", container_options=FASTSTART)
    with av.open(path) as container:
        first = next(container.demux(video=0))
        path.write_bytes(path.read_bytes()[: first.pos + first.size // 4])
    assert refused(path).startswith("begins with nothing that FFmpeg can decode: name another file")


@pytest.mark.parametrize("suffix", [".mkv", ".ts"])
def test_a_file_cut_short_without_an_index_holds_what_it_holds(tmp_path: Path, suffix: str) -> None:
    assert 10 < examine(cut(make(tmp_path / f"a{suffix}", 40), 0.5)).frames < 30


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".ts", ".avi"])
def test_a_file_cut_anywhere_is_refused_or_described(tmp_path: Path, suffix: str) -> None:
    whole = make(tmp_path / f"a{suffix}", container_options=FASTSTART if suffix == ".mp4" else None).read_bytes()
    path = tmp_path / f"cut{suffix}"
    for length in [*range(0, 2000, 97), *range(2000, len(whole), 2 + len(whole) // 20)]:
        path.write_bytes(whole[:length])
        with suppress(VideoError):
            assert examine(path).frames >= 1


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".ts", ".avi"])
def test_a_damaged_file_is_refused_or_described(tmp_path: Path, suffix: str) -> None:
    whole = make(tmp_path / f"a{suffix}").read_bytes()
    path = tmp_path / f"damaged{suffix}"
    random = np.random.default_rng(0)
    for _ in range(25):
        content = bytearray(whole)
        for place in random.integers(0, len(whole), 40):
            content[place] = random.integers(256)
        path.write_bytes(content)
        with suppress(VideoError):
            assert examine(path).frames >= 1


def test_a_stream_that_begins_between_keyframes_begins_at_the_first(tmp_path: Path) -> None:
    whole = make(tmp_path / "whole.ts", 20, options={"x264-params": "keyint=8:min-keyint=8:scenecut=0:bframes=0"})
    late = tmp_path / "late.ts"
    with av.open(whole) as source, av.open(late, "w") as container:
        stream = container.add_mux_stream("h264", rate=30, width=160, height=96)
        for packet in [packet for packet in source.demux(video=0) if packet.size][5:]:
            packet.stream = stream
            container.mux(packet)
    info = examine(late)
    assert (info.frames, info.keyframes) == (12, (0, 8))
    with av.open(late) as container:
        assert len(list(container.decode(video=0))) == 12


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, whole = [], video_file._read
    monkeypatch.setattr(video_file, "_read", lambda path: read.append(path) or whole(path))
    path = make(tmp_path / "a.mp4")
    assert examine(path) is examine(path)
    assert len(read) == 1
    path.write_bytes(b"no video at all" * 100)
    said = []
    for _ in range(2):
        with pytest.raises(VideoError, match=r"a\.mp4 is not a video") as raised:
            examine(path)
        said.append(str(raised.value))
    assert said[0] == said[1]
    assert len(read) == 2, "a refusal is remembered too"
    make(path, count=5)
    assert examine(path).frames == 5


@pytest.mark.parametrize("kind", [HostDecoder, HostPlanesDecoder])
def test_libraries_write_nothing_beside_our_sentence(
    kind: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = copied(make(tmp_path / "a.mp4", count=60), tmp_path / "indexed.mp4", movflags="faststart")
    short = cut_short(whole, tmp_path / "short.mp4")
    decoder = kind(short)
    with pytest.raises(VideoError, match="of its 60 frames"):
        [decoder.read(8) for _ in range(9)]
    decoder.close()
    assert capfd.readouterr().err == ""
