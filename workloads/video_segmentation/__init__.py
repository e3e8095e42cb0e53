"""Video segmentation: decode, preprocess, segment, composite and encode, each a workload, and all of them together."""

from __future__ import annotations

from gpugate.workload import Workload
from workloads.video_segmentation.catalogue.composite import COMPOSITE
from workloads.video_segmentation.catalogue.decode import DECODE, DECODE_HEVC
from workloads.video_segmentation.catalogue.encode import ENCODE
from workloads.video_segmentation.catalogue.end_to_end import END_TO_END
from workloads.video_segmentation.catalogue.preprocess import PREPROCESS
from workloads.video_segmentation.catalogue.segment import SEGMENT

WORKLOADS: tuple[Workload, ...] = (DECODE, DECODE_HEVC, PREPROCESS, SEGMENT, COMPOSITE, ENCODE, END_TO_END)
