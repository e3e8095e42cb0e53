"""NVDEC decoders through PyNvVideoCodec: frames stay on the GPU, from one session or from several at once.

A decoder copies each frame, on the stream of its construction, into memory that it overwrites some frames later, on
that stream. So a copy out of this memory on that stream, before the next request, is complete without any waiting;
events order it for other streams, and no call here waits for the device while it decodes.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from workloads.video.clip.video_file import VideoError, VideoInfo, exact, examine, open_video
from workloads.video.decode.decoding import SequentialDecoder
from workloads.video.decode.sessions import Sessions, segments

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.stream import VideoStream

# Frames ahead of a session: it should finish its next segment while the other ones are read, and never fill the GPU. A
# clip with longer segments than that decodes less of itself at the same time.
MOST_BUFFER_BYTES = 3 * 2**29
LEAST_SLOTS = 4
# Priority over a network's kernels, each of which would delay a frame's conversion and copy while an engine idles, and
# over the encoders' too: PyTorch has 32 streams of each priority, and these are not shared.
PRIORITY = -2
BUFFERED_FRAMES, FRAMES_AT_ONCE = 24, 8  # of the threaded decoder: decoded ahead, and taken from it
TO_ANNEX_B = {"h264": "h264_mp4toannexb", "hevc": "hevc_mp4toannexb"}  # the bitstream filter of a codec's packets
VIDEO_CAPABILITY = "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"


@dataclass
class FrameSlot:  # cuda only
    """Room for a frame on the device, uint8 [H*3/2, W]: valid after `filled`, free after `used`.

    Slots of one run share their `used` event.
    """

    frame: Tensor
    filled: torch.cuda.Event = field(default_factory=torch.cuda.Event)
    used: torch.cuda.Event | None = None


def _on_device(frame: Any, info: VideoInfo, stream: torch.cuda.Stream) -> Tensor:  # cuda only
    """A view of a decoder's frame, uint8 [H*3/2, W], ready on the stream of the decoder's construction."""
    # The capsule is requested here: PyTorch's own request has arguments that PyNvVideoCodec does not support.
    nv12 = from_dlpack(frame.__dlpack__(stream=stream.cuda_stream))
    if nv12.shape != (info.height * 3 // 2, info.width):
        found, wanted = list(nv12.shape), [info.height * 3 // 2, info.width]
        raise VideoError(f"{info.path} was decoded to a frame of {found} bytes, not {wanted}: convert it first")
    return nv12


def _library() -> Any:  # cuda only
    with _in_one_sentence(RuntimeError):
        return importlib.import_module("PyNvVideoCodec")


@contextmanager
def _in_one_sentence(*errors: type[Exception]) -> Iterator[None]:  # cuda only
    """Shortens the paragraphs in which PyNvVideoCodec reports a missing driver or engine to one sentence."""
    try:
        yield
    except errors as error:
        said = " ".join(str(error).partition("===")[0].split()) or "no message"
        raise RuntimeError(f"there is no NVDEC to decode with ({said}): {VIDEO_CAPABILITY}") from error


class SegmentPackets:
    """The coded frames of a clip's segments as Annex B byte streams, for a decoder that has no demuxer.

    Raises VideoError for a codec other than H.264 and HEVC.
    """

    def __init__(self, info: VideoInfo) -> None:
        from av.bitstream import BitStreamFilterContext

        if info.codec not in TO_ANNEX_B:
            known = " and ".join(TO_ANNEX_B)
            raise VideoError(f"{info.path} is {info.codec}, and only {known} are split over sessions: take 1 session")
        self._container = open_video(info.path)
        self._stream: VideoStream = self._container.streams.video[0]
        self._annex_b = BitStreamFilterContext(TO_ANNEX_B[info.codec], self._stream)
        self._begin = self._stream.start_time or 0
        self._frames_per_tick = info.frames_per_second * exact(self._stream.time_base or 1)

    def read(self, segment: range) -> Iterator[tuple[int, bytes]]:
        """The packets of these frames in decoding order, each with its frame's number in display order.

        They begin with the keyframe, to which the filter adds the clip's parameter sets. They are fewer where the file
        ends before or is damaged.
        """
        import av

        self._annex_b.flush()
        self._container.seek(self._begin + round(segment.start / self._frames_per_tick), stream=self._stream)
        begun = not segment.start  # a file may begin with undecodable packets: their frames will be missing
        with suppress(av.InvalidDataError):
            for packet in self._container.demux(self._stream):
                if not packet.size:
                    return
                number = self._number(packet)
                if number >= segment.stop:
                    return
                begun = begun or (number == segment.start and packet.is_keyframe)
                if begun:
                    yield number, b"".join(bytes(each) for each in self._annex_b.filter(packet))

    def close(self) -> None:
        self._container.close()

    def _number(self, packet: Packet[VideoStream]) -> int:
        return round(((packet.pts or 0) - self._begin) * self._frames_per_tick)


class SegmentDecoder:  # cuda only
    """A session of NVDEC with its own stream and slots, for the thread that builds it."""

    def __init__(self, info: VideoInfo, device: torch.device, slots: int) -> None:
        torch.cuda.set_device(device)
        self._info, self._packets = info, SegmentPackets(info)
        with ExitStack() as built:  # the file is closed where the rest cannot be
            built.callback(self._packets.close)
            self._stream = torch.cuda.Stream(device, priority=PRIORITY)  # type: ignore[no-untyped-call]
            torch.cuda.set_stream(self._stream)  # of this thread
            library = _library()
            self._decoder = self._made(library, device)
            built.callback(self._end_decoder)
            self._new_packet = library.PacketData
            self._waited_for: torch.cuda.Event | None = None
            ring = torch.empty(slots, info.height * 3 // 2, info.width, dtype=torch.uint8, device=device)
            self.slots = [FrameSlot(frame) for frame in ring]
            self._closing = built.pop_all()

    def read(self, segment: range, free_slot: Callable[[], FrameSlot]) -> Iterator[FrameSlot]:
        wanted = segment.start
        for number, coded in chain(self._packets.read(segment), [(0, b"")]):  # an empty packet flushes the decoder
            for frame in self._decoder.Decode(self._packet(number, coded)):
                if wanted <= frame.timestamp < segment.stop:
                    yield self._filled(free_slot(), frame)
                    wanted = frame.timestamp + 1

    def close(self) -> None:
        self._closing.close()

    def _made(self, library: Any, device: torch.device) -> Any:
        codecs = {"h264": library.cudaVideoCodec.H264, "hevc": library.cudaVideoCodec.HEVC}
        codec, stream = codecs[self._info.codec], self._stream.cuda_stream
        with _in_one_sentence(library.PyNvVCException, library.PyNvVCExceptionUnsupported):
            return library.CreateDecoder(gpuid=device.index, codec=codec, cudastream=stream, usedevicememory=True)

    def _end_decoder(self) -> None:
        self._stream.synchronize()
        del self._decoder

    def _packet(self, number: int, coded: bytes) -> Any:
        packet = self._new_packet()
        if coded:
            self._payload = np.frombuffer(coded, np.uint8)  # lives until the packet is decoded
            packet.bsl_data, packet.bsl, packet.pts = self._payload.ctypes.data, len(coded), number
        return packet

    def _filled(self, slot: FrameSlot, frame: Any) -> FrameSlot:
        if slot.used is not None and slot.used is not self._waited_for:
            self._stream.wait_event(slot.used)
            self._waited_for = slot.used
        slot.frame.copy_(_on_device(frame, self._info, self._stream))
        slot.filled.record(self._stream)
        return slot


class ParallelDecoder(Sessions[FrameSlot]):  # cuda only
    """A clip split at its keyframes over several sessions, which are built while the constructor returns.

    A session may be ahead by its longest segment, or by its share of the memory limit.
    """

    def __init__(self, info: VideoInfo, device: torch.device, sessions: int, loop: bool) -> None:
        self._shape, self._device = (info.height * 3 // 2, info.width), device
        parts = segments(info)
        sessions = min(sessions, len(parts))
        frame_bytes = self._shape[0] * self._shape[1]
        slots = max(LEAST_SLOTS, min(max(map(len, parts)), MOST_BUFFER_BYTES // (sessions * frame_bytes)))
        spare = slots - 1 if sessions > 1 else 0
        self.stock_frames = sessions * slots - spare
        super().__init__(info, lambda: SegmentDecoder(info, device, slots), sessions, loop, spare)

    def read(self, frames: int) -> Tensor:
        current = torch.cuda.current_stream(self._device)
        batch = torch.empty(frames, *self._shape, dtype=torch.uint8, device=self._device)
        filled = 0
        for run in self.runs(frames):
            current.wait_event(run[-1].filled)  # the session's stream has filled the others before
            # One by one, though their memory may be contiguous: the number of copies must not depend on chance.
            for place, slot in enumerate(run, filled):
                batch[place].copy_(slot.frame)
            run[0].frame.record_stream(current)  # all frames of a session are the same memory to PyTorch
            used = current.record_event()
            for slot in run:
                slot.used = used
            filled += len(run)
        return batch[:filled]


class ThreadedDecoder(SequentialDecoder[Tensor]):  # cuda only
    """PyNvVideoCodec's own threaded decoder: one session, and a native thread that decodes ahead."""

    stock_frames = BUFFERED_FRAMES

    def __init__(self, info: VideoInfo, device: torch.device, loop: bool) -> None:
        super().__init__(info, loop)
        self._device, self._file = device, str(info.path.absolute())
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        library = _library()
        with _in_one_sentence(library.PyNvVCException, library.PyNvVCExceptionUnsupported):
            self._decoder = library.ThreadedDecoder(
                self._file, BUFFERED_FRAMES, gpu_id=device.index, cuda_stream=self._stream.cuda_stream
            )
        self._frames: deque[Any] = deque()

    def read(self, frames: int) -> Tensor:
        current = torch.cuda.current_stream(self._device)
        rows = self.info.height * 3 // 2
        with torch.cuda.stream(self._stream):  # new memory of the current stream would wait for its work
            batch = torch.empty(frames, rows, self.info.width, dtype=torch.uint8, device=self._device)
            filled = self._fill(batch)
        current.wait_event(self._stream.record_event())
        batch.record_stream(current)
        return batch[:filled]

    def _decode_into(self, frame: Tensor) -> bool:
        if not self._frames:
            # The earlier frames are overwritten from now on: they were copied on the stream that overwrites them.
            self._frames.extend(self._decoder.get_batch_frames(FRAMES_AT_ONCE))
        if not self._frames:
            return False
        frame.copy_(_on_device(self._frames.popleft(), self.info, self._stream))
        return True

    def _rewind(self) -> None:
        self._decoder.reconfigure_decoder(self._file)

    def _release(self) -> None:
        self._stream.synchronize()
        self._decoder.end()  # a request after that would wait forever


def decode_on_device(  # cuda only
    path: Path, device: torch.device, sessions: int = 1, loop: bool = False
) -> ThreadedDecoder | ParallelDecoder:
    """NVDEC decodes to NV12 on `device`, with one session or with several at once.

    `read(frames)` returns uint8 [n, H*3/2, W]: `frames` frames, fewer at the end, then 0; ready on the caller's current
    stream, and valid after `close`. It raises VideoError where the clip ended too early, after all decodable frames
    were returned, and immediately any error of a thread.

    Raises VideoError for videos that `examine` refuses, ImportError without PyNvVideoCodec, and RuntimeError, in one
    sentence, where there is no NVDEC; with several sessions when frames are read, since they are built meanwhile.
    """
    _library()
    info = examine(path)
    device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    if sessions == 1:
        return ThreadedDecoder(info, device, loop)
    return ParallelDecoder(info, device, sessions, loop)
