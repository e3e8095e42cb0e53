"""Motion-JPEG: by nvJPEG where the frames lie on a CUDA device, by torchvision's libjpeg for frames in host memory.

Every frame is a picture of its own, so a file is several times as large as H.264 of the same quality, and that file is
all that crosses the bus. JPEG's colours are BT.601 in full range, whatever the matrix of the video was: players know
that of the codec. nvJPEG keeps chroma at full resolution (4:4:4), as torchvision would; libjpeg halves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from torch import Tensor

from workloads.video_segmentation.encoding import Encoded, VideoFormat, encoded, require_frames
from workloads.video_segmentation.encoding.encoder_thread import ThreadedEncoder
from workloads.video_segmentation.encoding.jpeg import encode_jpegs
from workloads.video_segmentation.encoding.nvjpeg import AT_ONCE, pictures
from workloads.video_segmentation.encoding.pending_frames import PendingFrames, as_of_now
from workloads.video_segmentation.muxing import CodedTrack, Coding, replacing_video

QUALITY = 90
MOST_IN_FLIGHT = 3


class MotionJpeg(ThreadedEncoder[Tensor, PendingFrames]):
    """Takes uint8 [n, 3, H, W] RGB, full range, on a CUDA device or in host memory; `quality` is JPEG's, 1 to 100.

    The caller waits while MOST_IN_FLIGHT batches are on their way.
    """

    def __init__(self, path: Path, video: VideoFormat, quality: int = QUALITY) -> None:
        if not 1 <= quality <= 100:
            raise ValueError(f"JPEG knows no quality of {quality}: choose from 1 to 100")
        self._quality = quality
        super().__init__(path, video, MOST_IN_FLIGHT)

    def write(self, frames: Tensor) -> None:
        require_frames(frames, (3, self.video.height, self.video.width))
        if len(frames):
            self._thread.wait_for_room()
            self._thread.put(as_of_now(frames))

    def _encode(self, batches: Iterator[PendingFrames]) -> Encoded:
        coding = Coding("mjpeg", self.video.width, self.video.height, self.video.frames_per_second)
        with replacing_video(self.path) as container, ThreadPoolExecutor(AT_ONCE, "jpeg") as threads:
            track = CodedTrack(container, coding)
            for batch in batches:
                batch.wait()
                for picture in self._pictures(batch.frames, threads):  # written while others are encoded
                    track.mux(picture.numpy())
        return encoded(self.path, track.frames, self.video)

    def _pictures(self, frames: Tensor, threads: Executor) -> Iterable[Tensor]:
        if frames.is_cuda:
            return pictures(frames, self._quality, threads)  # cuda only
        return encode_jpegs(list(frames), self._quality)
