"""The plan of a pipeline: a variant of every stage, from the baseline to the plan where no frame leaves the GPU."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

PIPELINE_SESSIONS = 4  # decode more than twice what the network takes; every further one makes the start longer


@dataclass(frozen=True)
class Plan:
    """One variant per stage. `sessions` decode at once; `overlapped` stages work at once, each on another batch.

    Raises ValueError for stages that do not fit: OpenCV's require frames that were never on the device.
    """

    decode: Literal["opencv", "nvdec"] = "opencv"
    preprocess: Literal["opencv", "torch", "cvcuda", "triton"] = "opencv"
    segment: Literal["eager", "cudnn-fused", "tensorrt"] = "eager"
    composite: Literal["opencv", "torch", "cvcuda", "triton"] = "opencv"
    encode: Literal["mp4v", "x264", "nvjpeg", "nvenc"] = "mp4v"
    sessions: int = 1
    overlapped: bool = False

    def __post_init__(self) -> None:
        for stage in ("preprocess", "composite"):
            if self.decode != "opencv" and getattr(self, stage) == "opencv":
                raise ValueError(
                    f"{stage} by OpenCV wants frames on the host, and {self.decode} leaves them on the GPU"
                )

    @property
    def frames_on_device(self) -> bool:
        """True where any stage between decoding and encoding needs frames on the device."""
        return self.preprocess != "opencv" or self.composite != "opencv"

    @property
    def in_rgb(self) -> bool:
        """True where the encoder takes RGB from the device."""
        return self.encode == "nvjpeg"

    @property
    def suffix(self) -> str:
        """The suffix of the encoder's files: players expect Motion-JPEG in QuickTime."""
        return ".mov" if self.encode == "nvjpeg" else ".mp4"

    def __str__(self) -> str:
        """The differences from the baseline: `decode nvdec, encode nvjpeg, overlapped`."""
        other = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        said = [name if getattr(self, name) is True else f"{name} {getattr(self, name)}" for name in other]
        return ", ".join(said) or "the baseline"


BASELINE = Plan()
SEGMENT = replace(BASELINE, segment="cudnn-fused")
COMPOSITE = replace(SEGMENT, composite="torch")
PREPROCESS = replace(COMPOSITE, preprocess="torch")
DECODE = replace(PREPROCESS, decode="nvdec", sessions=PIPELINE_SESSIONS)
ENCODE = replace(DECODE, encode="nvjpeg")
NVJPEG = replace(ENCODE, overlapped=True)
TRITON = replace(NVJPEG, preprocess="triton", composite="triton")
X264 = replace(NVJPEG, encode="x264")
TENSORRT = replace(X264, preprocess="cvcuda", segment="tensorrt", composite="cvcuda")  # NVIDIA's library in each stage
NVENC = replace(NVJPEG, encode="nvenc")
ON_CPU = replace(BASELINE, overlapped=True)
