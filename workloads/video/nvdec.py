"""NVDEC through PyNvVideoCodec: frames stay on the GPU, from one session or from several at once.

A decoder copies each frame, on the stream of its construction, into memory that it overwrites some frames later, on
that stream. So a copy out of this memory on that stream, before the next request, is complete without any waiting;
events order it for other streams, and no call here waits for the device while it decodes.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, cycle, islice, pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from workloads.video.decode import Decoder
from workloads.video.video_file import VideoError, VideoInfo, exact, examine

if TYPE_CHECKING:
    from av.bitstream import BitStreamFilterContext
    from av.container import InputContainer

# Frames ahead of a session: it should finish its next segment while the other ones are read, and never fill the GPU. A
# clip with longer segments than that decodes less of itself at the same time.
MOST_BUFFER_BYTES = 3 * 2**29
LEAST_SLOTS = 4
# Priority over a network's kernels, each of which would delay a frame's conversion and copy while an engine idles, and
# over the encoders' too: PyTorch has 32 streams of each priority, and these are not shared.
PRIORITY = -2
BUFFERED_FRAMES, FRAMES_AT_ONCE = 24, 8  # of the threaded decoder: decoded ahead, and taken from it
POLL_S = 1e-4
TO_ANNEX_B = {"h264": "h264_mp4toannexb", "hevc": "hevc_mp4toannexb"}  # the bitstream filter of a codec's packets
VIDEO_CAPABILITY = "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"


def decode_on_device(path: Path, device: torch.device, sessions: int = 1, loop: bool = False) -> Decoder:  # cuda only
    """NVDEC decodes to NV12 on `device`, with one session or with several at once.

    Batches are uint8 [n, H*3/2, W], ready on the caller's current stream, and valid after `close`. Raises RuntimeError,
    in one sentence, where there is no NVDEC; with several sessions when frames are read, since they are built
    meanwhile.
    """
    info = examine(path)
    device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    return OneSession(info, device, loop) if sessions == 1 else ParallelDecoder(info, device, sessions, loop)


class NvdecDecoder(Decoder):  # cuda only
    def __init__(self, info: VideoInfo, device: torch.device, loop: bool) -> None:
        super().__init__(info, loop)
        self._device = device

    def _new_batch(self, frames: int) -> Tensor:
        return torch.empty(frames, *self.info.nv12_shape, dtype=torch.uint8, device=self._device)


class OneSession(NvdecDecoder):  # cuda only
    """PyNvVideoCodec's threaded decoder: one session, and a native thread that decodes ahead."""

    stock_frames = BUFFERED_FRAMES

    def __init__(self, info: VideoInfo, device: torch.device, loop: bool) -> None:
        super().__init__(info, device, loop)
        self._file = str(info.path.absolute())
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with nvdec_library() as library:
            self._decoder = library.ThreadedDecoder(
                self._file, BUFFERED_FRAMES, gpu_id=device.index, cuda_stream=self._stream.cuda_stream
            )
        self._frames: deque[Any] = deque()

    def read(self, frames: int) -> Tensor:
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):  # new memory of the current stream would wait for its work
            batch: Tensor = super().read(frames)
        current.wait_event(self._stream.record_event())
        batch.record_stream(current)
        return batch

    def _decode_into(self, frame: Tensor) -> bool:
        if not self._frames:
            # The earlier frames are overwritten from now on: they were copied on the stream that overwrites them.
            self._frames.extend(self._decoder.get_batch_frames(FRAMES_AT_ONCE))
        if not self._frames:
            return False
        frame.copy_(as_tensor(self._frames.popleft(), self._stream))
        return True

    def _rewound(self) -> bool:
        self._decoder.reconfigure_decoder(self._file)
        return True

    def close(self) -> None:
        self._stream.synchronize()
        self._decoder.end()  # a request after that would wait forever


class ParallelDecoder(NvdecDecoder):  # cuda only
    """A clip split at its keyframes over several sessions, which are built while the constructor returns.

    Each session decodes every n-th segment ahead into slots of its own, until these are full, and the reader takes the
    segments in order: no thread can wait for a slot that a later segment occupies. A session may be ahead by its
    longest segment, or by its share of the memory limit. All of them together may have a few frames less ahead than
    there are slots, so that every session replaces some of the frames that were taken, and not one session all.
    """

    def __init__(self, info: VideoInfo, device: torch.device, sessions: int, loop: bool) -> None:
        if info.codec not in TO_ANNEX_B:
            known = " and ".join(TO_ANNEX_B)
            raise VideoError(f"{info.path} is {info.codec}, and only {known} are split over sessions: take 1 session")
        super().__init__(info, device, loop)
        parts = segments(info)
        sessions = min(sessions, len(parts))
        frame_bytes = info.width * info.height * 3 // 2
        slots = max(LEAST_SLOTS, min(max(map(len, parts)), MOST_BUFFER_BYTES // (sessions * frame_bytes)))
        self.stock_frames = sessions * slots - (slots - 1 if sessions > 1 else 0)
        room = threading.Semaphore(self.stock_frames)
        turns = [islice(cycle(parts) if loop else parts, first, None, sessions) for first in range(sessions)]
        self._sessions = [Session(info, device, each, slots, room) for each in turns]
        self._order = cycle(self._sessions) if loop else islice(cycle(self._sessions), len(parts))
        self._current = next(self._order)

    def _decode_into(self, frame: Tensor) -> bool:
        slot = self._next_slot()
        if slot is None:
            return False
        current = torch.cuda.current_stream(self._device)
        current.wait_event(slot.filled)
        frame.copy_(slot.frame)
        slot.frame.record_stream(current)
        slot.used = current.record_event()
        self._current.give_back(slot)
        return True

    def _next_slot(self) -> Slot | None:
        while isinstance(slot := self._current.ready.get(), Ended):
            following = next(self._order, None) if slot.error is None else None
            if following is None:
                self._current.ready.put(slot)  # for the next request
                if slot.error is not None:
                    self.close()
                    raise slot.error
                return None
            self._current = following
        return slot

    def _rewound(self) -> bool:
        return False  # the order of segments goes round itself

    def settle(self) -> None:
        """Waits until the sessions are as far ahead as they can be.

        Between two calls exactly as many frames are decoded as are taken.
        """
        while sum(each.frames_ahead for each in self._sessions) < self.stock_frames and not all(
            each.is_full or not each.is_alive() for each in self._sessions
        ):
            time.sleep(POLL_S)

    def close(self) -> None:
        for session in self._sessions:
            session.stop()
        for session in self._sessions:
            session.join()


@dataclass
class Slot:  # cuda only
    """Room for a frame on the device, uint8 [H*3/2, W]: valid after `filled`, free after `used`."""

    frame: Tensor
    filled: torch.cuda.Event = field(default_factory=torch.cuda.Event)
    used: torch.cuda.Event | None = None


@dataclass(frozen=True)
class Ended:
    """The end of a segment, or the error that ended a session."""

    error: BaseException | None = None


class Session(threading.Thread):  # cuda only
    """A session of NVDEC on a thread, with a stream and slots of its own: it decodes `turns`, one after the other.

    `room` is the number of frames that all sessions together may still have ahead.
    """

    def __init__(
        self, info: VideoInfo, device: torch.device, turns: Iterable[range], slots: int, room: threading.Semaphore
    ) -> None:
        super().__init__(name="video-session", daemon=True)
        self._info, self._device, self._turns, self._slots, self._room = info, device, turns, slots, room
        self._free: SimpleQueue[Slot | None] = SimpleQueue()
        self.ready: SimpleQueue[Slot | Ended] = SimpleQueue()
        self._filled = self._freed = 0  # each is raised by one thread
        self._stopped = False
        self.start()

    @property
    def frames_ahead(self) -> int:
        return self._filled - self._freed

    @property
    def is_full(self) -> bool:
        return self.frames_ahead == self._slots

    def give_back(self, slot: Slot) -> None:
        self._freed += 1
        self._free.put(slot)
        self._room.release()

    def stop(self) -> None:
        self._stopped = True
        self._free.put(None)
        self._room.release()

    def run(self) -> None:
        try:
            self._decode_turns()
        except BaseException as error:
            self._room.release()  # which it may have taken for the frame that failed
            self.ready.put(Ended(error))
        if self._stopped:
            self.ready.put(Ended(ValueError("the decoder is closed: make another one")))

    def _decode_turns(self) -> None:
        import av
        from av.bitstream import BitStreamFilterContext

        torch.cuda.set_device(self._device)
        stream = torch.cuda.Stream(self._device, priority=PRIORITY)  # type: ignore[no-untyped-call]
        torch.cuda.set_stream(stream)  # of this thread
        with nvdec_library() as library:
            codec = {"h264": library.cudaVideoCodec.H264, "hevc": library.cudaVideoCodec.HEVC}[self._info.codec]
            decoder = library.CreateDecoder(
                gpuid=self._device.index, codec=codec, cudastream=stream.cuda_stream, usedevicememory=True
            )
        for frame in torch.empty(self._slots, *self._info.nv12_shape, dtype=torch.uint8, device=self._device):
            self._free.put(Slot(frame))
        with av.open(self._info.path.absolute()) as container:
            annex_b = BitStreamFilterContext(TO_ANNEX_B[self._info.codec], container.streams.video[0])
            for segment in self._turns:
                coded = coded_frames(self._info, container, annex_b, segment)
                for frame in decoded_frames(library, decoder, coded, segment):
                    slot = self._free.get()
                    if slot is not None:
                        self._room.acquire()  # with a slot in hand: a waiting thread must not occupy the room of others
                    if slot is None or self._stopped:
                        stream.synchronize()
                        return
                    if slot.used is not None:
                        stream.wait_event(slot.used)
                    slot.frame.copy_(as_tensor(frame, stream))
                    slot.filled.record(stream)
                    self._filled += 1
                    self.ready.put(slot)
                self.ready.put(Ended())
        stream.synchronize()


def decoded_frames(
    library: Any, decoder: Any, coded: Iterator[tuple[int, bytes]], segment: range
) -> Iterator[Any]:  # cuda only
    """The frames of a segment in display order; a session overwrites their memory at its next packet."""
    wanted = segment.start
    for number, content in chain(coded, [(0, b"")]):  # an empty packet flushes the decoder
        packet = library.PacketData()
        if content:
            payload = np.frombuffer(content, np.uint8)  # lives until the packet is decoded
            packet.bsl_data, packet.bsl, packet.pts = payload.ctypes.data, len(content), number
        for frame in decoder.Decode(packet):
            if wanted <= frame.timestamp < segment.stop:
                wanted = frame.timestamp + 1
                yield frame


def segments(info: VideoInfo) -> tuple[range, ...]:
    """The whole clip, split at its keyframes: the numbers of frames that need none of the others to be decoded."""
    starts = sorted({0, *info.keyframes})
    return tuple(range(first, stop) for first, stop in pairwise([*starts, info.frames]))


def coded_frames(
    info: VideoInfo, container: InputContainer, annex_b: BitStreamFilterContext, segment: range
) -> Iterator[tuple[int, bytes]]:
    """The frames of a segment in decoding order as Annex B, each with its number in display order.

    They begin with the keyframe, to which the filter adds the clip's parameter sets.
    """
    stream = container.streams.video[0]
    begin, frames_per_tick = stream.start_time or 0, info.frames_per_second * exact(stream.time_base)
    annex_b.flush()
    container.seek(begin + round(segment.start / frames_per_tick), stream=stream)
    begun = False
    for packet in container.demux(stream):
        number = round(((packet.pts or 0) - begin) * frames_per_tick)
        if not packet.size or number >= segment.stop:
            return
        begun = begun or (number == segment.start and packet.is_keyframe)
        if begun:
            yield number, b"".join(bytes(each) for each in annex_b.filter(packet))


def as_tensor(frame: Any, stream: torch.cuda.Stream) -> Tensor:  # cuda only
    """A view of a decoder's frame, uint8 [H*3/2, W], ready on the stream of the decoder's construction."""
    # The capsule is requested here: PyTorch's own request has arguments that PyNvVideoCodec does not support.
    return from_dlpack(frame.__dlpack__(stream=stream.cuda_stream))


@contextmanager
def nvdec_library() -> Iterator[Any]:  # cuda only
    """PyNvVideoCodec; shortens the paragraphs in which it reports a missing driver or engine to one sentence."""
    try:
        library = importlib.import_module("PyNvVideoCodec")
        refused = library.PyNvVCException, library.PyNvVCExceptionUnsupported
    except RuntimeError as error:
        raise _no_nvdec(error) from error
    try:
        yield library
    except refused as error:
        raise _no_nvdec(error) from error


def _no_nvdec(error: Exception) -> RuntimeError:
    said = " ".join(str(error).partition("===")[0].split()) or "no message"
    return RuntimeError(f"there is no NVDEC to decode with ({said}): {VIDEO_CAPABILITY}")
