"""Motion-JPEG by torchvision: nvJPEG where the frames lie on a CUDA device, libjpeg for frames in host memory.

Every frame is a picture of its own, so a file is several times as large as H.264 of the same quality, and that file is
all that crosses the bus. JPEG's colours are BT.601 in full range, whatever the matrix of the video was: players know
that of the codec. nvJPEG keeps chroma at full resolution (4:4:4), as torchvision sets it up; libjpeg halves it.

What torchvision leaves to its caller (encode_jpegs_cuda.cpp): it encodes on a stream of its own that waits for nobody,
and fetches each result on the default stream, which nobody waits for either, not even the next picture of the same
call. That one overwrites what is still to be fetched while the default stream waits for something else; so pictures
are encoded one by one here, each when the one before it was fetched.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from workloads.video_segmentation.encoding import Encoded, EncodingError, VideoFormat, encoded, require_frames
from workloads.video_segmentation.encoding.encoder_thread import ThreadedEncoder
from workloads.video_segmentation.encoding.jpeg import encode_jpegs
from workloads.video_segmentation.encoding.pending_frames import PendingFrames, as_of_now, encoders_stream
from workloads.video_segmentation.muxing import CodedTrack, Coding, replacing_video

QUALITY = 90
MOST_IN_FLIGHT = 3


class MotionJpeg(ThreadedEncoder[Tensor, PendingFrames]):
    """Takes uint8 [n, 3, H, W] RGB, full range, on a CUDA device or in host memory; `quality` is JPEG's, 1 to 100.

    Nothing should wait on the default stream meanwhile: every picture would have to wait with it. The caller waits
    while MOST_IN_FLIGHT batches are on their way.
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
        with replacing_video(self.path) as container:
            track = CodedTrack(container, coding)
            for batch in batches:
                for picture in self._pictures(batch):
                    track.mux(picture)
        return encoded(self.path, track.frames, self.video)

    def _pictures(self, batch: PendingFrames) -> list[bytes]:
        batch.wait()
        if batch.frames.is_cuda:
            return self._pictures_by_nvjpeg(batch.frames)  # cuda only
        return [picture.numpy().tobytes() for picture in encode_jpegs(list(batch.frames), self._quality)]

    def _pictures_by_nvjpeg(self, frames: Tensor) -> list[bytes]:  # cuda only
        stream = encoders_stream(frames.device)
        with torch.cuda.stream(stream):
            pictures = [self._encoded_by_nvjpeg(frame, stream) for frame in frames]
            joined = torch.cat(pictures)
            on_host = torch.empty(joined.shape, dtype=torch.uint8, pin_memory=True).copy_(joined, non_blocking=True)
        # Until here, or torchvision would fetch its next results into memory that is still read by this copy.
        stream.synchronize()
        return [picture.numpy().tobytes() for picture in torch.split(on_host, [len(picture) for picture in pictures])]

    def _encoded_by_nvjpeg(self, frame: Tensor, stream: torch.cuda.Stream) -> Tensor:  # cuda only
        """Fetched when this returns, whichever stream torchvision fetches it on."""
        try:
            (picture,) = encode_jpegs([frame], self._quality)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            said = str(error).strip().partition("\n")[0]
            raise EncodingError(f"{frame.device} encodes no JPEG ({said}): use another encoder there") from error
        stream.wait_stream(torch.cuda.default_stream(frame.device))
        stream.synchronize()
        return picture
