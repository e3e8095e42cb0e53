"""The limit of the bytes that an encoding GPU copies back: the compressed stream, and next to nothing else."""

from __future__ import annotations

from gpugate.workload import Limit

# Bytes of a frame of the clip at 1080p, coded by libjpeg with the quality and the sampling that nvJPEG gets: the frame
# unchanged, and with its background blurred. H.264 is smaller. In NV12 it has 3.1 MB.
FRAME_BYTES, COMPOSITED_BYTES = 735_000, 395_000
MARGIN = 1.2  # encoders differ by some per cent
TEST_READS_BYTES = 2**16  # lengths of pictures, and bytes that tests read


def compressed_only(frames: int, frame_bytes: int) -> Limit:
    """The limit for a step of `frames` frames of the clip; a user's own video may be noisier."""
    return Limit("device_to_host_bytes", at_most=frames * MARGIN * frame_bytes + TEST_READS_BYTES)
