"""nvJPEG by its own interface: several pictures at once, each encoder with a stream and a state of its own.

torchvision brings the library and has one encoder, behind a lock, on a stream of the lowest priority. A picture is a
row of some thirty small kernels and copies, and the host has to wait for the last of them. Beside a network that fills
the GPU each of them waits for its turn, and a single row of pictures takes longer than the network: so these streams
have a higher priority, and while one picture waits others continue.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from ctypes import POINTER, Structure, byref, c_int, c_size_t, c_void_p
from ctypes.util import find_library
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from queue import LifoQueue
from typing import Any

import torch
from torch import Tensor

from workloads.video.encode.encoding import EncodingError
from workloads.video.encode.pending_frames import PendingFrames

AT_ONCE = 4  # pictures
NAMES = ("libnvjpeg.so.13", "libnvjpeg.so.12")  # of CUDA 13 and 12: names in the machine's own library folders
INSTALL = "pip install torchvision, as it is built for CUDA"
# The numbers of nvjpeg.h.
CSS_444, INPUT_RGB, MOST_COMPONENTS, SUCCESS = 0, 3, 4, 0


class Image(Structure):
    """nvjpegImage_t: the planes of a picture on the device, and the bytes from row to row."""

    _fields_ = (("channel", c_void_p * MOST_COMPONENTS), ("pitch", c_size_t * MOST_COMPONENTS))


HANDLE, STREAM = c_void_p, c_void_p
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "nvjpegCreateSimple": (POINTER(HANDLE),),
    "nvjpegEncoderStateCreate": (HANDLE, POINTER(HANDLE), STREAM),
    "nvjpegEncoderParamsCreate": (HANDLE, POINTER(HANDLE), STREAM),
    "nvjpegEncoderParamsSetSamplingFactors": (HANDLE, c_int, STREAM),
    "nvjpegEncoderParamsSetQuality": (HANDLE, c_int, STREAM),
    "nvjpegEncodeImage": (HANDLE, HANDLE, HANDLE, POINTER(Image), c_int, c_int, c_int, STREAM),
    "nvjpegEncodeRetrieveBitstream": (HANDLE, HANDLE, c_void_p, POINTER(c_size_t), STREAM),
}


def pictures(frames: PendingFrames, quality: int, threads: Executor) -> Iterator[Tensor]:
    """uint8 [bytes] in page-locked memory for each of the frames, uint8 [n, 3, H, W] RGB, contiguous, in order.

    `threads` begin at once, one picture each, and wait for the frames. An error is raised at the request of its
    picture: EncodingError where nvJPEG fails or is missing.
    """
    return threads.map(partial(_picture, frames.wait, quality), frames.frames.unbind())


def _picture(wait: Callable[[], object], quality: int, frame: Tensor) -> Tensor:
    torch.cuda.set_device(frame.device)  # for this thread, whose calls of CUDA come from nvJPEG
    wait()
    idle = _idle_encoders(frame.device)
    encoder, sound = idle.get(), None
    try:
        encoder = encoder or Encoder(frame.device)
        picture = encoder.encode(frame, quality)
        sound = encoder
        return picture
    finally:
        idle.put(sound)  # None replaces one that failed


@functools.lru_cache(maxsize=8)
def _idle_encoders(device: torch.device) -> LifoQueue[Encoder | None]:
    """Encoders kept for all files, with their streams and memory; None stands for one that is still to be made."""
    idle: LifoQueue[Encoder | None] = LifoQueue()
    for _ in range(AT_ONCE):
        idle.put(None)
    return idle


class Encoder:
    """Encodes one picture at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._library, self._quality = device, library(), 0
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._handle, self._state, self._settings = HANDLE(), HANDLE(), HANDLE()
        self._call("nvjpegCreateSimple", byref(self._handle))
        self._call("nvjpegEncoderStateCreate", self._handle, byref(self._state), self._on_stream)
        self._call("nvjpegEncoderParamsCreate", self._handle, byref(self._settings), self._on_stream)
        self._call("nvjpegEncoderParamsSetSamplingFactors", self._settings, CSS_444, self._on_stream)

    def encode(self, frame: Tensor, quality: int) -> Tensor:
        """uint8 [bytes] in page-locked memory, of uint8 [3, H, W] RGB, contiguous and complete."""
        planes, height, width = frame.shape
        image = Image()
        for plane in range(planes):
            image.channel[plane], image.pitch[plane] = frame.data_ptr() + plane * height * width, width
        if quality != self._quality:
            self._call("nvjpegEncoderParamsSetQuality", self._settings, quality, self._on_stream)
            self._quality = quality
        encoder = self._handle, self._state
        self._call(
            "nvjpegEncodeImage", *encoder, self._settings, byref(image), INPUT_RGB, width, height, self._on_stream
        )
        length = c_size_t()
        self._call("nvjpegEncodeRetrieveBitstream", *encoder, None, byref(length), self._on_stream)
        self._stream.synchronize()  # the length may be on its way until then
        picture = _page_locked(length.value)
        self._call("nvjpegEncodeRetrieveBitstream", *encoder, picture.data_ptr(), byref(length), self._on_stream)
        self._stream.synchronize()
        return picture[: length.value]

    @property
    def _on_stream(self) -> c_void_p:
        return STREAM(self._stream.cuda_stream)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != SUCCESS:
            raise EncodingError(f"{self._device} encodes no JPEG ({name} returned {status}): use another encoder there")


def _page_locked(length: int) -> Tensor:
    return torch.empty(length, dtype=torch.uint8, pin_memory=True)  # cuda only


@functools.cache
def library() -> Any:
    """The library nvJPEG with the types of the functions used here. Raises EncodingError where it is missing."""
    for path in (*_brought_along(), find_library("nvjpeg"), *NAMES):
        if path is None:
            continue
        try:
            loaded = ctypes.CDLL(path)
        except OSError:
            continue
        for name, arguments in ARGUMENTS.items():
            function = getattr(loaded, name)
            function.argtypes, function.restype = arguments, c_int
        return loaded
    raise EncodingError(f"there is no nvJPEG to encode with: {INSTALL}, or use another encoder")


def _brought_along() -> list[str]:
    """The paths of libraries that torchvision, or a package of NVIDIA's beside it, contains."""
    found = find_spec("torchvision")
    if found is None or found.origin is None:
        return []
    packages = Path(found.origin).parent.parent
    places = ("torchvision.libs/libnvjpeg*.so*", "nvidia/*/lib/libnvjpeg.so*")
    return [str(path) for place in places for path in sorted(packages.glob(place))]
