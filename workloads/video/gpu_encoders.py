"""The encoders of a GPU: Motion-JPEG by nvJPEG, and H.264 by NVENC."""

from __future__ import annotations

import ctypes
import functools
import importlib
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from ctypes import Structure, byref, c_int, c_size_t, c_void_p
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workloads.video.encoders import (
    H273_CODE,
    Encoder,
    EncodingError,
    PendingFrames,
    as_of_now,
    coded_packet,
    coded_track,
    require_frames,
)
from workloads.video.video_file import VideoInfo, replacing_video

# --- Motion-JPEG ------------------------------------------------------------------------------------------------------

QUALITY = 90  # JPEG's, 1 to 100
AT_ONCE = 4  # pictures
NAMES = ("libnvjpeg.so.13", "libnvjpeg.so.12")  # of CUDA 13 and 12: names in the machine's own library folders
# The numbers of nvjpeg.h.
CSS_444, INPUT_RGB, MOST_COMPONENTS, SUCCESS = 0, 3, 4, 0


class MotionJpeg(Encoder[Tensor]):
    """Motion-JPEG of uint8 [n, 3, H, W] RGB, full range, on a CUDA device, by nvJPEG's own interface.

    Every frame is a picture of its own, so a file is several times as large as H.264 of that quality, and only that
    file crosses the bus. JPEG's colours are BT.601 in full range, whatever the matrix of the video was: players expect
    that of the codec. Chroma stays at full resolution (4:4:4), as torchvision would keep it.

    torchvision brings the library and has one encoder, behind a lock, on a stream of the lowest priority. A picture is
    a row of some thirty small kernels and copies, and the host has to wait for the last of them. Beside a network that
    fills the GPU each of them waits for its turn, and a single row of pictures takes longer than the network: so
    several threads encode at once, on streams of a higher priority, beyond the end of a batch, while the encoder's
    thread writes earlier frames.
    """

    def _open(self) -> None:
        self._container = self._file.enter_context(replacing_video(self.path))
        self._track = coded_track(self._container, "mjpeg", self.info)

    def _prepared(self, frames: Tensor) -> Iterator[Tensor]:
        require_frames(frames, (3, self.info.height, self.info.width))
        return pictures(as_of_now(frames), jpeg_threads())

    def _encode(self, batch: Iterator[Tensor]) -> None:
        for picture in batch:
            number = self.frames
            self._container.mux(coded_packet(self._track, self.info, picture.numpy(), number, number, is_keyframe=True))
            self.frames += 1

    def _flush(self) -> None:
        """Every picture is in the file already."""


@functools.cache
def jpeg_threads() -> ThreadPoolExecutor:
    """The threads of all files, each with an encoder that it keeps."""
    return ThreadPoolExecutor(AT_ONCE, "jpeg")


def pictures(frames: PendingFrames, threads: ThreadPoolExecutor) -> Iterator[Tensor]:
    """uint8 [bytes] in page-locked memory for each of the frames, uint8 [n, 3, H, W] RGB, contiguous, in order.

    `threads` begin at once, one picture each, and wait for the frames.
    """
    return threads.map(partial(_picture, frames.wait), frames.frames.unbind())


_of_thread = threading.local()


def _picture(wait: Callable[[], object], frame: Tensor) -> Tensor:
    torch.cuda.set_device(frame.device)  # for this thread, whose calls of CUDA come from nvJPEG
    wait()
    encoder = getattr(_of_thread, "encoder", None)
    if encoder is None or encoder.device != frame.device:
        encoder = NvJpeg(frame.device)
    _of_thread.encoder = None  # it is not used again where it fails
    picture = encoder.encode(frame)
    _of_thread.encoder = encoder
    return picture


class Image(Structure):
    """nvjpegImage_t: the planes of a picture on the device, and the bytes from row to row."""

    _fields_ = (("channel", c_void_p * MOST_COMPONENTS), ("pitch", c_size_t * MOST_COMPONENTS))


class NvJpeg:  # cuda only
    """Encodes one picture at a time, on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._library = device, library()
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._on_stream = c_void_p(self._stream.cuda_stream)
        self._handle, self._state, self._settings = c_void_p(), c_void_p(), c_void_p()
        self._call("nvjpegCreateSimple", byref(self._handle))
        self._call("nvjpegEncoderStateCreate", self._handle, byref(self._state), self._on_stream)
        self._call("nvjpegEncoderParamsCreate", self._handle, byref(self._settings), self._on_stream)
        self._call("nvjpegEncoderParamsSetSamplingFactors", self._settings, c_int(CSS_444), self._on_stream)
        self._call("nvjpegEncoderParamsSetQuality", self._settings, c_int(QUALITY), self._on_stream)

    def encode(self, frame: Tensor) -> Tensor:
        """uint8 [bytes] in page-locked memory, of uint8 [3, H, W] RGB, contiguous and complete."""
        planes, height, width = frame.shape
        image = Image()
        for plane in range(planes):
            image.channel[plane], image.pitch[plane] = frame.data_ptr() + plane * height * width, width
        encoder, size = (self._handle, self._state), (c_int(width), c_int(height))
        self._call(
            "nvjpegEncodeImage", *encoder, self._settings, byref(image), c_int(INPUT_RGB), *size, self._on_stream
        )
        length = c_size_t()
        self._call("nvjpegEncodeRetrieveBitstream", *encoder, None, byref(length), self._on_stream)
        self._stream.synchronize()  # the length may be on its way until then
        picture = torch.empty(length.value, dtype=torch.uint8, pin_memory=True)
        content = c_void_p(picture.data_ptr())
        self._call("nvjpegEncodeRetrieveBitstream", *encoder, content, byref(length), self._on_stream)
        self._stream.synchronize()
        return picture[: length.value]

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != SUCCESS:
            raise EncodingError(f"{self.device} encodes no JPEG ({name} returned {status}): use another encoder there")


@functools.cache
def library() -> Any:
    """The library nvJPEG. Raises EncodingError where it is missing.

    torchvision contains it, or a package of NVIDIA's beside torchvision, or the machine has it.
    """
    found = find_spec("torchvision")
    packages = Path(found.origin).parent.parent if found and found.origin else Path()
    places = ("torchvision.libs/libnvjpeg*.so*", "nvidia/*/lib/libnvjpeg.so*")
    brought = [str(path) for place in places for path in sorted(packages.glob(place))]
    for path in (*brought, *NAMES):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise EncodingError("there is no nvJPEG to encode with: pip install torchvision, as it is built for CUDA")


# --- NVENC ------------------------------------------------------------------------------------------------------------

PACKAGE, INSTALL = "PyNvVideoCodec", "pip install PyNvVideoCodec"
TRIAL_LIMIT_S = 60.0
# The child encodes four grey pictures: NVENC refuses pictures much smaller than 256 x 256. It ends without a library's
# clean-up, which could crash or hang it.
TRIAL = """
import os, sys
import numpy, PyNvVideoCodec
encoder = PyNvVideoCodec.CreateEncoder(256, 256, "NV12", True, gpu_id=int(sys.argv[1]), codec="h264")
grey = numpy.full((384, 256), 128, dtype=numpy.uint8)
packets = sum(len(encoder.Encode(grey)) for _ in range(4)) + len(encoder.EndEncode())
os._exit(0 if packets else 1)
"""
KEYFRAMES = (2, 3)  # I and IDR of NV_ENC_PIC_TYPE; an I that is no IDR cannot occur, as every group begins with an IDR
FRAMES_BETWEEN_KEYFRAMES = 250
SETTINGS: dict[str, str | int] = {
    "codec": "h264",
    "preset": "P4",
    "tuning_info": "high_quality",
    "rc": "constqp",
    "constqp": 25,
    "gop": FRAMES_BETWEEN_KEYFRAMES,
    "idrperiod": FRAMES_BETWEEN_KEYFRAMES,
}


@functools.cache
def why_not(gpu: int) -> str | None:
    """The reason why this GPU, by CUDA's index, cannot encode, as one sentence with the next step; None if it can.

    A child process tries it, which takes seconds; the answer is kept for this process.
    """
    if find_spec(PACKAGE) is None:
        return f"NVENC needs the package {PACKAGE}: {INSTALL}"
    try:
        child = subprocess.run(
            [sys.executable, "-c", TRIAL, str(gpu)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TRIAL_LIMIT_S,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        problem = f"a trial did not end within {TRIAL_LIMIT_S:g} s"
    else:
        if child.returncode == 0:
            return None
        lines = child.stdout.strip().splitlines() or [""]
        problem = f"a trial ended with status {child.returncode}, {lines[-1][:160]}"
    return f"GPU {gpu} encodes no h264 by NVENC ({problem}): take another encoder, A100, H100 and H200 have none"


class Nvenc(Encoder[Tensor]):
    """H.264 of uint8 [n, H*3//2, W] NV12, limited range, on a CUDA device, through PyNvVideoCodec.

    A100, H100 and H200 have no such encoder, and creating one breaks the CUDA context of its process. So a child
    process tries it first, and none is created where the child could not.

    The library reports a finished read of a frame only by its packet: until then the batches are kept.
    """

    def __init__(self, path: Path, info: VideoInfo, device: torch.device) -> None:
        self._gpu = torch.cuda.current_device() if device.index is None else device.index
        if problem := why_not(self._gpu):
            raise EncodingError(problem)
        super().__init__(path, info)

    def _prepared(self, frames: Tensor) -> PendingFrames:
        require_frames(frames, self.info.nv12_shape)
        return as_of_now(frames)

    def _open(self) -> None:
        from av.bitstream import BitStreamFilterContext

        info, code = self.info, H273_CODE[self.info.matrix]
        # A thread without a context would get one of its own, without PyTorch's memory.
        torch.cuda.set_device(self._gpu)
        self._library: Any = importlib.import_module(PACKAGE)
        # NVENC tags no colours, which a player would guess from the frame's size: the filter rewrites parameter sets.
        colours = f"colour_primaries={code}:transfer_characteristics={code}:matrix_coefficients={code}"
        self._tags = BitStreamFilterContext(f"h264_metadata={colours}:video_full_range_flag=0", "h264")
        fps = max(1, round(info.frames_per_second))
        self._container = self._file.enter_context(replacing_video(self.path))
        self._encoder = self._library.CreateEncoder(
            info.width, info.height, "NV12", False, gpu_id=self._gpu, fps=fps, **SETTINGS
        )
        self._reordered = max(0, int(self._encoder.GetNumBFrames()))  # -1 where every picture is a keyframe
        self._track = coded_track(self._container, "h264", info)
        self._kept: deque[tuple[int, Tensor]] = deque()  # with the number of the frame after the last one
        self._given = 0

    def _encode(self, batch: PendingFrames) -> None:
        batch.wait()
        self._kept.append((self._given + len(batch.frames), batch.frames))
        for frame in batch.frames:
            picture = self._library.NV_ENC_PIC_PARAMS()
            picture.inputTimeStamp = self._given
            self._given += 1
            self._mux(self._encoder.Encode(Nv12Planes(frame), picture))

    def _flush(self) -> None:
        self._mux(self._encoder.EndEncode())
        del self._encoder  # in its thread
        self._kept.clear()

    def _mux(self, packets: list[dict[str, Any]]) -> None:
        """Writes the packets, in coding order: `data`, the frame's number as `timestamp`, and `picture_type`."""
        from av.packet import Packet

        for packet in packets:
            data, is_keyframe = bytes(packet["data"]), packet["picture_type"] in KEYFRAMES
            if is_keyframe:
                data = b"".join(bytes(tagged) for tagged in self._tags.filter(Packet(data)))
            coded = self.frames - self._reordered
            self._container.mux(coded_packet(self._track, self.info, data, packet["timestamp"], coded, is_keyframe))
            self.frames += 1
        while self._kept and self._kept[0][0] + self._reordered <= self.frames:
            self._kept.popleft()


class Nv12Planes:
    """A frame, uint8 [H*3//2, W] contiguous, for PyNvVideoCodec, whose `cuda()` returns luma and chroma.

    Each has a `__cuda_array_interface__`: [H, W, 1], and [H/2, W/2, 2] with U before V.
    """

    def __init__(self, frame: Tensor) -> None:
        rows, width = frame.shape
        height = rows * 2 // 3
        self._planes = [
            _Plane((height, width, 1), (width, 1, 1), frame.data_ptr()),
            _Plane((height // 2, width // 2, 2), (width, 2, 1), frame.data_ptr() + height * width),
        ]

    def cuda(self) -> list[_Plane]:
        return self._planes


class _Plane:
    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], address: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "strides": strides,
            "data": (address, False),
            "typestr": "|u1",
            "version": 3,
        }
