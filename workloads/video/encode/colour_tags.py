"""Colour tags for H.264 and HEVC that an encoder left untagged: a player would guess them from the frame's size."""

from __future__ import annotations

from typing import Literal

from av.bitstream import BitStreamFilterContext
from av.packet import Packet

from workloads.video.clip.video_file import Matrix
from workloads.video.encode.encoding import H273_CODE


class ColourTags:
    """Rewrites the parameter sets in keyframes of one stream, Annex B; pictures stay as they are."""

    def __init__(self, codec: Literal["h264", "hevc"], matrix: Matrix) -> None:
        code = H273_CODE[matrix]
        colours = f"colour_primaries={code}:transfer_characteristics={code}:matrix_coefficients={code}"
        self._filter = BitStreamFilterContext(f"{codec}_metadata={colours}:video_full_range_flag=0", codec)

    def __call__(self, keyframe: bytes) -> bytes:
        return b"".join(bytes(packet) for packet in self._filter.filter(Packet(keyframe)))
