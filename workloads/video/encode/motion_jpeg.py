"""Motion-JPEG: by nvJPEG where the frames lie on a CUDA device, by torchvision's libjpeg for frames in host memory.

Every frame is a picture of its own, so a file is several times as large as H.264 of that quality, and only that file
crosses the bus. JPEG's colours are BT.601 in full range, whatever the matrix of the video was: players expect that of
the codec. nvJPEG keeps chroma at full resolution (4:4:4), as torchvision would; libjpeg halves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch import Tensor

from workloads.video.clip.muxing import CodedTrack, Coding, replacing_video
from workloads.video.encode.encoder_thread import ThreadedEncoder
from workloads.video.encode.encoding import Encoded, VideoFormat, encoded, require_frames
from workloads.video.encode.jpeg import encode_jpegs
from workloads.video.encode.nvjpeg import AT_ONCE, pictures
from workloads.video.encode.pending_frames import as_of_now

QUALITY = 90
MOST_IN_FLIGHT = 3


class MotionJpeg(ThreadedEncoder[Tensor, Iterator[Tensor]]):
    """An encoder of uint8 [n, 3, H, W] RGB, full range, on a CUDA device or in host memory; `quality` is 1 to 100.

    Threads of their own encode frames on a device, beyond the end of a batch, while the encoder's thread writes earlier
    frames. The caller waits while MOST_IN_FLIGHT batches are in flight.
    """

    def __init__(self, path: Path, video: VideoFormat, quality: int = QUALITY) -> None:
        if not 1 <= quality <= 100:
            raise ValueError(f"JPEG knows no quality of {quality}: choose from 1 to 100")
        self._quality = quality
        self._threads = ThreadPoolExecutor(AT_ONCE, "jpeg")
        super().__init__(path, video, MOST_IN_FLIGHT)

    def write(self, frames: Tensor) -> None:
        require_frames(frames, (3, self.video.height, self.video.width))
        if len(frames):
            self._thread.wait_for_room()
            self._thread.put(self._pictures(frames))

    def close(self) -> Encoded:
        try:
            return super().close()
        finally:
            self._threads.shutdown(cancel_futures=True)

    def abort(self) -> None:
        super().abort()
        self._threads.shutdown(cancel_futures=True)

    def _encode(self, batches: Iterator[Iterator[Tensor]]) -> Encoded:
        coding = Coding("mjpeg", self.video.width, self.video.height, self.video.frames_per_second)
        with replacing_video(self.path) as container:
            track = CodedTrack(container, coding)
            for pictures_of_batch in batches:
                for picture in pictures_of_batch:
                    track.mux(picture.numpy())
        return encoded(self.path, track.frames, self.video)

    def _pictures(self, frames: Tensor) -> Iterator[Tensor]:
        if frames.is_cuda:
            return pictures(as_of_now(frames), self._quality, self._threads)  # cuda only
        return self._when_asked(frames)

    def _when_asked(self, frames: Tensor) -> Iterator[Tensor]:
        """Encodes in the thread that takes the pictures."""
        yield from encode_jpegs(list(frames), self._quality)
