"""The workloads of video segmentation: decode, preprocess, segment, composite, encode, and all of them together."""

from __future__ import annotations

from gpugate.workload import Workload
from workloads.video.composite import COMPOSITE
from workloads.video.decode import DECODE, DECODE_HEVC
from workloads.video.encode import ENCODE
from workloads.video.pipeline import END_TO_END
from workloads.video.preprocess import PREPROCESS
from workloads.video.segment import SEGMENT

WORKLOADS: tuple[Workload, ...] = (DECODE, DECODE_HEVC, PREPROCESS, SEGMENT, COMPOSITE, ENCODE, END_TO_END)
