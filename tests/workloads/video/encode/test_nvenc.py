"""NVENC without the hardware: packets, colours and rates, with libx264 behind PyNvVideoCodec's interface."""

from __future__ import annotations

import ctypes
import sys
import weakref
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("av")
import av

from workloads.video.encode import nvenc
from workloads.video.encode.encoding import Encoded, VideoFormat
from workloads.video.encode.nvenc import Nvenc
from workloads.video.encode.quality import quality

pytestmark = pytest.mark.usefixtures("no_thread_stays")
VIDEO = VideoFormat(160, 96, Fraction(25))
GPU = torch.device("cuda", 0)
IDR, NOT_INTRA = 3, 0  # of NV_ENC_PIC_TYPE


class Pretended:
    """PyNvVideoCodec's encoder, as far as it is used here: NV12 planes by their addresses in, lists of packets out."""

    def __init__(self, width: int, height: int, reordered: int = 0, **asked: Any) -> None:
        self.asked = asked
        self._reordered = reordered
        self._context = av.CodecContext.create("libx264", "w")
        self._context.width, self._context.height, self._context.pix_fmt = width, height, "yuv420p"
        self._context.framerate, self._context.time_base = Fraction(25), Fraction(1, 25)
        self._context.options = {"preset": "veryfast", "crf": "18", "g": "10", "bf": str(max(0, reordered))}
        self.fail_at: int | None = None

    def GetNumBFrames(self) -> int:  # noqa: N802 (PyNvVideoCodec's name)
        return self._reordered

    def Encode(self, frame: Any, picture: Any) -> list[dict[str, Any]]:  # noqa: N802
        if picture.inputTimeStamp == self.fail_at:
            raise RuntimeError("NvEncoder : m_nvenc.nvEncEncodePicture returned error 8")
        luma, chroma = (_at(plane.__cuda_array_interface__) for plane in frame.cuda())
        assert chroma.shape[2] == 2
        nv12 = np.concatenate([luma[:, :, 0], chroma.reshape(len(chroma), -1)])
        shown = av.VideoFrame.from_ndarray(nv12, "nv12").reformat(format="yuv420p")
        shown.pts = picture.inputTimeStamp
        return self._packets(self._context.encode(shown))

    def EndEncode(self) -> list[dict[str, Any]]:  # noqa: N802
        return self._packets(self._context.encode(None))

    def _packets(self, packets: list[Any]) -> list[dict[str, Any]]:
        return [
            {"data": bytes(each), "timestamp": each.pts, "picture_type": IDR if each.is_keyframe else NOT_INTRA}
            for each in packets
        ]


def _at(interface: dict[str, Any]) -> np.ndarray:
    assert (interface["typestr"], interface["version"]) == ("|u1", 3)
    address, _ = interface["data"]
    memory = (ctypes.c_uint8 * (interface["shape"][0] * interface["strides"][0])).from_address(address)
    values = np.frombuffer(memory, np.uint8)
    return np.lib.stride_tricks.as_strided(values, interface["shape"], interface["strides"], writeable=False)


@pytest.fixture
def library(monkeypatch) -> SimpleNamespace:
    """PyNvVideoCodec on a GPU that can; `made` are its encoders, `reordered` their B-frames."""
    made: list[Pretended] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: None)
    module = SimpleNamespace(made=made, reordered=0, fail_at=None, NV_ENC_PIC_PARAMS=SimpleNamespace)

    def create(width: int, height: int, pixels: str, from_host: bool, **asked: Any) -> Pretended:
        assert (pixels, from_host) == ("NV12", False)
        made.append(Pretended(width, height, reordered=module.reordered, **asked))
        made[-1].fail_at = module.fail_at
        return made[-1]

    module.CreateEncoder = create
    monkeypatch.setitem(sys.modules, "PyNvVideoCodec", module)
    monkeypatch.setattr(nvenc, "why_not", lambda gpu: None)
    return module


@pytest.mark.parametrize(
    ("suffix", "reordered"),
    [(".mp4", -1), (".mp4", 2), (".mkv", 0)],
)
def test_every_packet_is_in_the_file_and_every_frame_in_order(tmp_path, nv12, library, suffix, reordered):
    """libx264 holds back frames until it is flushed, and so does NVENC where it looks ahead or uses B-frames."""
    library.reordered = reordered
    path = tmp_path / f"out{suffix}"
    with Nvenc(path, VIDEO, GPU) as encoder:
        for part in torch.split(nv12, 7):
            encoder.write(part)

    assert encoder.close() == Encoded(path, 12, path.stat().st_size, 12 / 25)
    found = quality(path, dict(enumerate(nv12.numpy())), "nv12")
    assert found.numbers == tuple(range(12))
    assert min(found.psnr_db.values()) > 35
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "h264"
        keyframes = [packet.pts for packet in container.demux(stream) if packet.size and packet.is_keyframe]
        container.seek(0)
        times = [float(frame.time) for frame in container.decode(stream)]
    assert times == pytest.approx([number / 25 for number in range(12)], abs=0.001)
    assert len(keyframes) == 2  # frames 0 and 10
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("matrix", "code"), [("bt601", 6), ("bt709", 1)])
def test_colours_are_tagged_which_nvenc_leaves_out(tmp_path, nv12, library, matrix, code):
    path = tmp_path / "out.mp4"
    with Nvenc(path, VideoFormat(160, 96, matrix=matrix), GPU) as encoder:
        encoder.write(nv12)
    with av.open(str(path)) as container:
        coding = container.streams.video[0].codec_context
        colours = coding.colorspace, coding.color_primaries, coding.color_trc, coding.color_range
        assert colours == (code, code, code, 1)


def test_frames_are_kept_until_their_packets_are_there(tmp_path, nv12, library):
    """The library copies a frame after `Encode` has returned; a freed one could be overwritten before."""
    alive: dict[int, weakref.ref[Tensor]] = {}
    coded: set[int] = set()
    freed_too_early: set[int] = set()

    class Watched(Pretended):
        def _packets(self, packets: list[Any]) -> list[dict[str, Any]]:
            freed = {number for number, frame in list(alive.items()) if frame() is None}
            freed_too_early.update(freed - coded)
            coded.update(packet.pts for packet in packets)
            return super()._packets(packets)

    library.CreateEncoder = lambda width, height, *_, **asked: Watched(width, height, reordered=2, **asked)
    with Nvenc(tmp_path / "out.mp4", VIDEO, GPU) as encoder:
        for number in range(12):
            frame = nv12[number : number + 1].clone()
            alive[number] = weakref.ref(frame)
            encoder.write(frame)
            del frame
    assert coded == set(range(12))
    assert not freed_too_early
    assert all(frame() is None for frame in alive.values())


def test_an_error_of_the_encoder_comes_out_and_leaves_nothing(tmp_path, nv12, library):
    library.fail_at = 5
    encoder = Nvenc(tmp_path / "out.mp4", VIDEO, GPU)
    encoder.write(nv12)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="returned error 8"):
            encoder.close()
    assert not list(tmp_path.iterdir())
