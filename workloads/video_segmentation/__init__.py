"""Video segmentation: decode, preprocess, segment, composite and encode, each a workload, and all of them together."""

from __future__ import annotations

from gpugate.workload import Workload
from workloads.video_segmentation.composite_stage import COMPOSITE
from workloads.video_segmentation.decode_stage import DECODE, DECODE_HEVC
from workloads.video_segmentation.encode_stage import ENCODE
from workloads.video_segmentation.end_to_end import END_TO_END
from workloads.video_segmentation.preprocess_stage import PREPROCESS
from workloads.video_segmentation.segmenting import SEGMENT

WORKLOADS: tuple[Workload, ...] = (DECODE, DECODE_HEVC, PREPROCESS, SEGMENT, COMPOSITE, ENCODE, END_TO_END)
