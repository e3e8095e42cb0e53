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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from ctypes import POINTER, Structure, byref, c_int, c_size_t, c_void_p
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from queue import LifoQueue
from typing import Any

import torch
from torch import Tensor

from workloads.video.clip.video_file import replacing_video
from workloads.video.encode.encoding import (
    CodedTrack,
    Encoded,
    EncodingError,
    PendingFrames,
    ThreadedEncoder,
    VideoFormat,
    as_of_now,
    encoded,
    require_frames,
)

QUALITY = 90  # JPEG's, 1 to 100
MOST_IN_FLIGHT = 3
AT_ONCE = 4  # pictures
NAMES = ("libnvjpeg.so.13", "libnvjpeg.so.12")  # of CUDA 13 and 12: names in the machine's own library folders
# The numbers of nvjpeg.h.
CSS_444, INPUT_RGB, MOST_COMPONENTS, SUCCESS = 0, 3, 4, 0


class MotionJpeg(ThreadedEncoder[Tensor, Iterator[Tensor]]):
    """An encoder of uint8 [n, 3, H, W] RGB, full range, on a CUDA device.

    Threads of their own encode frames, beyond the end of a batch, while the encoder's thread writes earlier frames. The
    caller waits while MOST_IN_FLIGHT batches are in flight.
    """

    def __init__(self, path: Path, video: VideoFormat) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE, "jpeg")
        super().__init__(path, video, MOST_IN_FLIGHT)

    def write(self, frames: Tensor) -> None:
        require_frames(frames, (3, self.video.height, self.video.width))
        if len(frames):
            self.wait_for_room()
            self.put(pictures(as_of_now(frames), self._threads))

    def close(self) -> Encoded:
        try:
            return super().close()
        finally:
            self._threads.shutdown(cancel_futures=True)

    def abort(self) -> None:
        super().abort()
        self._threads.shutdown(cancel_futures=True)

    def _encode(self, batches: Iterator[Iterator[Tensor]]) -> Encoded:
        with replacing_video(self.path) as container:
            track = CodedTrack(container, "mjpeg", self.video)
            for pictures_of_batch in batches:
                for picture in pictures_of_batch:
                    track.mux(picture.numpy())
        return encoded(self.path, track.frames, self.video)


def pictures(frames: PendingFrames, threads: ThreadPoolExecutor) -> Iterator[Tensor]:
    """uint8 [bytes] in page-locked memory for each of the frames, uint8 [n, 3, H, W] RGB, contiguous, in order.

    `threads` begin at once, one picture each, and wait for the frames. An error is raised at the request of its
    picture: EncodingError where nvJPEG fails or is missing.
    """
    return threads.map(partial(_picture, frames.wait), frames.frames.unbind())


def _picture(wait: Callable[[], object], frame: Tensor) -> Tensor:
    torch.cuda.set_device(frame.device)  # for this thread, whose calls of CUDA come from nvJPEG
    wait()
    idle = _idle_encoders(frame.device)
    encoder, sound = idle.get(), None
    try:
        encoder = encoder or NvJpeg(frame.device)
        picture = encoder.encode(frame)
        sound = encoder
        return picture
    finally:
        idle.put(sound)  # None replaces one that failed


@functools.lru_cache(maxsize=8)
def _idle_encoders(device: torch.device) -> LifoQueue[NvJpeg | None]:
    """Encoders kept for all files, with their streams and memory; None stands for one that is still to be made."""
    idle: LifoQueue[NvJpeg | None] = LifoQueue()
    for _ in range(AT_ONCE):
        idle.put(None)
    return idle


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


class NvJpeg:  # cuda only
    """Encodes one picture at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._library = device, library()
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._handle, self._state, self._settings = HANDLE(), HANDLE(), HANDLE()
        self._call("nvjpegCreateSimple", byref(self._handle))
        self._call("nvjpegEncoderStateCreate", self._handle, byref(self._state), self._on_stream)
        self._call("nvjpegEncoderParamsCreate", self._handle, byref(self._settings), self._on_stream)
        self._call("nvjpegEncoderParamsSetSamplingFactors", self._settings, CSS_444, self._on_stream)
        self._call("nvjpegEncoderParamsSetQuality", self._settings, QUALITY, self._on_stream)

    def encode(self, frame: Tensor) -> Tensor:
        """uint8 [bytes] in page-locked memory, of uint8 [3, H, W] RGB, contiguous and complete."""
        planes, height, width = frame.shape
        image = Image()
        for plane in range(planes):
            image.channel[plane], image.pitch[plane] = frame.data_ptr() + plane * height * width, width
        encoder = self._handle, self._state
        self._call(
            "nvjpegEncodeImage", *encoder, self._settings, byref(image), INPUT_RGB, width, height, self._on_stream
        )
        length = c_size_t()
        self._call("nvjpegEncodeRetrieveBitstream", *encoder, None, byref(length), self._on_stream)
        self._stream.synchronize()  # the length may be on its way until then
        picture = torch.empty(length.value, dtype=torch.uint8, pin_memory=True)
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


@functools.cache
def library() -> Any:
    """The library nvJPEG with the types of the functions used here. Raises EncodingError where it is missing.

    torchvision contains it, or a package of NVIDIA's beside torchvision, or the machine has it.
    """
    found = find_spec("torchvision")
    packages = Path(found.origin).parent.parent if found and found.origin else Path()
    places = ("torchvision.libs/libnvjpeg*.so*", "nvidia/*/lib/libnvjpeg.so*")
    brought = [str(path) for place in places for path in sorted(packages.glob(place))]
    for path in (*brought, *NAMES):
        try:
            loaded = ctypes.CDLL(path)
        except OSError:
            continue
        for name, arguments in ARGUMENTS.items():
            function = getattr(loaded, name)
            function.argtypes, function.restype = arguments, c_int
        return loaded
    raise EncodingError("there is no nvJPEG to encode with: pip install torchvision, as it is built for CUDA")
