"""Motion-JPEG by nvJPEG's own interface: several pictures at once, each encoder with a stream and a state of its own.

Every frame is a picture of its own, so a file is several times as large as H.264 of that quality, and only that file
crosses the bus. JPEG's colours are BT.601 in full range, whatever the matrix of the video was: players expect that of
the codec. Chroma stays at full resolution (4:4:4), as torchvision would keep it.

torchvision brings the library and has one encoder, behind a lock, on a stream of the lowest priority. A picture is a
row of some thirty small kernels and copies, and the host has to wait for the last of them. Beside a network that fills
the GPU each of them waits for its turn, and a single row of pictures takes longer than the network: so these streams
have a higher priority, and while one picture waits others continue.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from ctypes import Structure, byref, c_int, c_size_t, c_void_p
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workloads.video.clip.video_file import replacing_video
from workloads.video.encode.encoding import (
    Encoder,
    EncodingError,
    PendingFrames,
    as_of_now,
    coded_packet,
    coded_track,
    require_frames,
)

QUALITY = 90  # JPEG's, 1 to 100
AT_ONCE = 4  # pictures
NAMES = ("libnvjpeg.so.13", "libnvjpeg.so.12")  # of CUDA 13 and 12: names in the machine's own library folders
# The numbers of nvjpeg.h.
CSS_444, INPUT_RGB, MOST_COMPONENTS, SUCCESS = 0, 3, 4, 0


class MotionJpeg(Encoder[Tensor]):
    """An encoder of uint8 [n, 3, H, W] RGB, full range, on a CUDA device.

    Threads of their own encode frames, beyond the end of a batch, while the encoder's thread writes earlier frames.
    """

    def _open(self) -> None:
        self._container = self._file.enter_context(replacing_video(self.path))
        self._track = coded_track(self._container, "mjpeg", self.video)

    def _prepared(self, frames: Tensor) -> Iterator[Tensor]:
        require_frames(frames, (3, self.video.height, self.video.width))
        return pictures(as_of_now(frames), jpeg_threads())

    def _encode(self, batch: Iterator[Tensor]) -> None:
        for picture in batch:
            number = self.frames
            self._container.mux(
                coded_packet(self._track, self.video, picture.numpy(), number, number, is_keyframe=True)
            )
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
