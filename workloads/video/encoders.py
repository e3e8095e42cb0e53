"""Encoders of frames into a file: OpenCV's MPEG-4 Part 2, the baseline, libx264, nvJPEG and NVENC.

An encoder takes batches of frames in order, and encodes them on a thread of its own; `close()` flushes it and renames
the complete file to its path, `abort()` leaves no file. A batch belongs to its encoder from `write()` on: it may be
read later, so its content must not change. As a context manager an encoder closes, or aborts on an error.

Bit rates differ by an order of magnitude between the codecs, so none has a budget: the defaults aim at a similar
quality.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from ctypes import Structure, byref, c_int, c_size_t, c_void_p
from functools import partial
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workloads.parts.kept_files import replacing_file
from workloads.video.frames import LIMITED_RANGE, TAGS, VideoInfo, planes, replacing_video

if TYPE_CHECKING:
    from av.video.codeccontext import VideoCodecContext
    from av.video.stream import VideoStream

CPU = torch.device("cpu")
LEAST_ENCODED_DB = 35.0
MOST_IN_FLIGHT = 3  # batches
X264_OPTIONS = {"preset": "veryfast", "g": "250", "crf": "23"}  # CRF: constant rate factor
# Frames that libx264 buffers by that preset, besides one for each of its threads: for look-ahead, and B-frames.
KEPT_FRAMES = 14


class EncodingError(RuntimeError):
    """An error for a video that cannot be encoded, or not with these frames."""


class Encoder(ABC):
    """Batches of frames in, a file out. Any call may raise the error of an earlier batch; one caller at a time."""

    suffix = ".mp4"  # of a file
    stock_frames = 0  # that it may still have to encode after `settle`

    def __init__(self, path: Path, info: VideoInfo, device: torch.device = CPU) -> None:
        self.path, self.info, self.device = path, info, device
        self.frames = 0
        self._in_flight: deque[Future[None]] = deque()
        self._work = self._encode()
        self._thread = ThreadPoolExecutor(1, f"encode {path.name}")
        try:
            self._thread.submit(next, self._work).result()
        except BaseException:
            self.abort()
            raise

    @abstractmethod
    def _encode(self) -> Generator[None, Any, None]:
        """Opens the file, encodes each batch that `yield` returns, and completes the file after None, in the thread.

        An encoder that is aborted ends at a `yield`, by GeneratorExit.
        """

    def _prepared(self, frames: Any) -> Any:
        """The batch for the thread, made on the caller's stream."""
        return frames

    def write(self, frames: Any) -> None:
        """Encodes the frames after all earlier ones; waits while MOST_IN_FLIGHT batches are on their way."""
        self.wait_for_room()
        self._in_flight.append(self._thread.submit(self._work.send, self._prepared(frames)))

    def wait_for_room(self) -> None:
        while len(self._in_flight) >= MOST_IN_FLIGHT:
            self._in_flight.popleft().result()

    def settle(self) -> None:
        """Waits until it has as few frames to encode as after the previous call."""
        while self._in_flight:
            self._in_flight.popleft().result()

    def close(self) -> None:
        """Flushes, and moves the file of `frames` frames to its path."""
        try:
            Encoder.settle(self)
            self._thread.submit(next, self._work, None).result()  # None is sent, and comes back at the end
        finally:
            self.abort()

    def abort(self) -> None:
        """Ends without a file; does nothing after `close()`. May be called again."""
        self._thread.shutdown(cancel_futures=True)
        self._in_flight.clear()
        self._work.close()

    def __enter__(self) -> Encoder:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class Mp4v(Encoder):
    """OpenCV's VideoWriter: takes uint8 [n, H, W, 3] BGR in host memory, encoded before `write()` returns.

    OpenCV converts to BT.601 in limited range and tags nothing. It takes no quality: it requests one bit per pixel of
    FFmpeg, 62 Mbit/s at 1080p30, which only detailed frames use up. It reports no dropped frame and no failed write, so
    the encoder checks the number of frames of the finished file.
    """

    def write(self, frames: NDArray[np.uint8]) -> None:
        super().write(frames)
        self.settle()

    def _encode(self) -> Generator[None, Any, None]:
        import cv2

        size, rate = (self.info.width, self.info.height), float(self.info.frames_per_second)
        with replacing_file(self.path) as partial:
            writer = cv2.VideoWriter(str(partial), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*"mp4v"), rate, size)
            try:
                while (batch := (yield)) is not None:
                    for frame in batch:
                        writer.write(frame)
                        self.frames += 1
            finally:
                writer.release()
            file = cv2.VideoCapture(str(partial), cv2.CAP_FFMPEG)
            found = round(file.get(cv2.CAP_PROP_FRAME_COUNT)) if file.isOpened() else 0  # none without its index
            file.release()
            if found != self.frames:
                lost = f"{self.path} came out with {found} of {self.frames} frames"
                raise EncodingError(f"{lost}: give uint8 [n, {size[1]}, {size[0]}, 3] to a name in .mp4, and make room")


class X264(Encoder):
    """libx264 in its own threads: takes uint8 [n, H*3//2, W] NV12, limited range, in host memory or on a CUDA device.

    libx264 takes NV12 directly: its own pictures have interleaved chroma. It copies a frame before `encode` returns,
    hence frames in host memory are encoded where they lie. Frames on a device are copied to page-locked memory first,
    by the caller's stream.
    """

    # In batches of eight; libx264 takes 1.5 threads for each core.
    stock_frames = (MOST_IN_FLIGHT - 1) * 8 + KEPT_FRAMES + len(os.sched_getaffinity(0)) * 3 // 2

    def settle(self) -> None:
        """Waits until there is room for a batch, as there was when the last one was written.

        libx264 continues with its buffered frames. Only the end of the file would stop it, and during that stop half of
        its threads idle, which is no part of its speed.
        """
        self.wait_for_room()

    def _prepared(self, frames: Tensor) -> tuple[Tensor, Callable[[], object]]:
        on_host = frames
        if frames.is_cuda:
            on_host = torch.empty(frames.shape, dtype=frames.dtype, pin_memory=True)  # cuda only
            on_host.copy_(frames, non_blocking=True)  # cuda only
        return on_host, make_wait(frames)

    def _encode(self) -> Generator[None, Any, None]:
        from av.video.frame import VideoFrame

        with replacing_video(self.path) as container:
            stream: VideoStream = container.add_stream("libx264", rate=self.info.frames_per_second)
            configure(stream.codec_context, self.info, "nv12", X264_OPTIONS)
            # PyAV requests threads that share a frame: slices that cannot be predicted from each other, slower and
            # larger. With a count of 0 libx264 takes 1.5 threads for each core.
            stream.codec_context.thread_type, stream.codec_context.thread_count = "FRAME", 0
            stream.codec_context.open()
            while (batch := (yield)) is not None:
                frames, wait = batch
                wait()
                for pixels in frames.numpy():
                    frame = VideoFrame.from_numpy_buffer(pixels, format="nv12")
                    frame.pts = self.frames
                    container.mux(stream.encode(frame))
                    self.frames += 1
            container.mux(stream.encode(None))


def configure(context: VideoCodecContext, info: VideoInfo, pixels: str, options: Mapping[str, str]) -> None:
    """Sets an encoder, not open yet, to frames of these pixels in the video's colours."""
    context.width, context.height, context.pix_fmt = info.width, info.height, pixels
    context.framerate, context.time_base = info.frames_per_second, 1 / info.frames_per_second
    context.color_range = LIMITED_RANGE
    context.colorspace = context.color_primaries = context.color_trc = TAGS[info.matrix]
    context.options = dict(options)


def make_wait(frames: Tensor) -> Callable[[], object]:
    """The function that waits until the present work of the caller's stream on the frames is done, and for no more.

    Its event has a blocking wait: a spinning thread would take a core from the encoder's.
    """
    if not frames.is_cuda:
        return lambda: None
    done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # cuda only
    done.record(torch.cuda.current_stream(frames.device))  # cuda only
    return done.synchronize  # cuda only


# --- Motion-JPEG ------------------------------------------------------------------------------------------------------

QUALITY = 90  # JPEG's, 1 to 100
AT_ONCE = 4  # pictures
NAMES = ("libnvjpeg.so.13", "libnvjpeg.so.12")  # of CUDA 13 and 12: names in the machine's own library folders
# The numbers of nvjpeg.h.
CSS_444, INPUT_RGB, MOST_COMPONENTS, SUCCESS = 0, 3, 4, 0


class MotionJpeg(Encoder):
    """Motion-JPEG of uint8 [n, 3, H, W] RGB, full range, on a CUDA device, by nvJPEG's own interface.

    JPEG's colours are BT.601 in full range, whatever the matrix of the video was: players expect that of the codec.
    Chroma stays at full resolution (4:4:4).

    torchvision brings the library and has one encoder, behind a lock, on a stream of the lowest priority. A picture is
    a row of some thirty small kernels and copies, and the host has to wait for the last of them. Beside a network that
    fills the GPU a single row of pictures takes longer than the network: so several threads encode at once, on streams
    of a higher priority, while the encoder's thread writes earlier frames.
    """

    suffix = ".mov"

    def _prepared(self, frames: Tensor) -> Iterator[Tensor]:
        """The pictures in order: the threads begin at once, one each, and wait for the frames."""
        return jpeg_threads().map(partial(_picture, make_wait(frames)), frames.unbind())

    def _encode(self) -> Generator[None, Any, None]:
        from av.packet import Packet

        info, time_base = self.info, 1 / self.info.frames_per_second
        with replacing_video(self.path) as container:
            track: Any = container.add_mux_stream(
                "mjpeg", rate=info.frames_per_second, width=info.width, height=info.height, time_base=time_base
            )
            while (batch := (yield)) is not None:
                for picture in batch:
                    packet = Packet(picture.numpy())  # which is not copied
                    packet.stream, packet.time_base = track, time_base
                    packet.pts, packet.dts, packet.duration = self.frames, self.frames, 1
                    packet.is_keyframe = True
                    container.mux(packet)
                    self.frames += 1


@functools.cache
def jpeg_threads() -> ThreadPoolExecutor:
    """The threads of all files, each with an encoder that it keeps."""
    return ThreadPoolExecutor(AT_ONCE, "jpeg")


_of_thread = threading.local()


def _picture(wait: Callable[[], object], frame: Tensor) -> Tensor:
    """uint8 [bytes] in page-locked memory, of uint8 [3, H, W] RGB, contiguous."""
    torch.cuda.set_device(frame.device)  # for this thread, whose calls of CUDA come from nvJPEG
    wait()
    if not hasattr(_of_thread, "encoder"):
        _of_thread.encoder = NvJpeg(frame.device)
    picture: Tensor = _of_thread.encoder.encode(frame)
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

NVENC: Final = "h264_nvenc"
ON_DEVICE = "cuda"  # FFmpeg's name of frames in the GPU's memory
NVENC_OPTIONS = {"preset": "p4", "tune": "hq", "rc": "constqp", "qp": "25", "g": "250"}
# PyAV gives it frames of the GPU from version 18 on, with CudaContext. A trial that hangs is ended by its alarm after a
# minute. NVENC refuses pictures much smaller than 256 x 256.
TRIAL = """
import signal, sys, av
from av.video.frame import CudaContext
signal.alarm(60)
encoder = av.CodecContext.create("h264_nvenc", "w")
encoder.width, encoder.height, encoder.pix_fmt, encoder.framerate = 256, 256, "nv12", 30
encoder.options = {"gpu": sys.argv[1]}
encoder.open()
"""


@functools.cache
def why_not(gpu: int) -> str | None:
    """The reason why this GPU, by CUDA's index, cannot encode, as one sentence with the next step; None if it can.

    A child process tries it, which takes seconds; the answer is kept for this process.
    """
    command = [sys.executable, "-c", TRIAL, str(gpu)]
    child = subprocess.run(command, capture_output=True, check=False, errors="replace")
    if child.returncode == 0:
        return None
    last = child.stderr.strip().rpartition("\n")[2] or "without a message"
    problem = f"a trial ended with status {child.returncode}, {last[:160]}"
    advice = "take another encoder, or PyAV 18 with Python 3.11 or newer; A100, H100 and H200 have none"
    return f"GPU {gpu} encodes no h264 by NVENC ({problem}): {advice}"


class Nvenc(Encoder):
    """H.264 of uint8 [n, H*3//2, W] NV12, limited range, on a CUDA device, which FFmpeg reads where it lies.

    A100, H100 and H200 have no such encoder, and creating one can break the CUDA context of its process. So a child
    process tries it first, and none is created where the child could not.
    """

    def _prepared(self, frames: Tensor) -> tuple[Tensor, Callable[[], object]]:
        return frames, make_wait(frames)

    def _encode(self) -> Generator[None, Any, None]:
        if problem := why_not(self.device.index):
            raise EncodingError(problem)
        from av.video.frame import CudaContext, VideoFrame

        torch.cuda.set_device(self.device)  # makes PyTorch's context that of this thread
        cuda = CudaContext(self.device.index, primary_ctx=False, current_ctx=True)
        with replacing_video(self.path) as container:
            stream: VideoStream = container.add_stream(NVENC, rate=self.info.frames_per_second)
            configure(stream.codec_context, self.info, ON_DEVICE, NVENC_OPTIONS)
            while (batch := (yield)) is not None:
                frames, wait = batch
                wait()
                for luma, chroma in zip(*planes(frames), strict=True):
                    frame = VideoFrame.from_dlpack((luma, chroma), cuda_context=cuda)  # keeps the memory for NVENC
                    frame.pts = self.frames
                    container.mux(stream.encode(frame))
                    self.frames += 1
            container.mux(stream.encode(None))


# --- files that are recorded without end ------------------------------------------------------------------------------


class Recorder:
    """Writes to one encoder after the other; each gets the batches of one clip, then it is closed.

    Closing an encoder, which writes its buffered frames and the end of its file, runs beside the next one. Files have
    two names in turn, and `close()` removes them. The next `settle` raises an error of closing, or the `write` that
    ends the next file; `close()` drops it.
    """

    def __init__(
        self, make: type[Encoder], info: VideoInfo, device: torch.device, frames_per_file: int, folder: Path
    ) -> None:
        self._make, self._info, self._device, self._most = make, info, device, frames_per_file
        self._folder = tempfile.TemporaryDirectory(prefix="recording-", dir=folder)
        self._names = cycle((f"clip-0{make.suffix}", f"clip-1{make.suffix}"))
        self._closer = ThreadPoolExecutor(1, "close recording")
        self._closing: Future[None] | None = None
        self._encoder: Encoder | None = None
        self._frames = 0

    def write(self, frames: Any) -> None:
        if self._encoder is None:
            self._encoder = self._make(Path(self._folder.name, next(self._names)), self._info, self._device)
        self._encoder.write(frames)
        self._frames += len(frames)
        if self._frames >= self._most:
            before, self._closing = self._closing, self._closer.submit(self._encoder.close)
            self._encoder, self._frames = None, 0
            if before is not None:
                before.result()

    def settle(self) -> None:
        """Waits like `Encoder.settle`; a file that is being closed is complete then."""
        closing, self._closing = self._closing, None
        if closing is not None:
            closing.result()
        if self._encoder is not None:
            self._encoder.settle()

    def close(self) -> None:
        """Drops the incomplete file; may be called again."""
        self._closer.shutdown()
        if self._encoder is not None:
            self._encoder.abort()
        self._folder.cleanup()
