"""All stages together: from a file to a file, one batch after the other or every stage at once on another batch.

A step takes the next frames of the clip, round and round, and returns what arrived at the encoder: float32 [frames, 2],
see `Arrivals`, times the step's stamps. Files are written all the time, one for each round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor

from gpugate.workload import (
    BASELINE,
    Context,
    Contract,
    DeviceKind,
    Engine,
    Limit,
    Needs,
    Optimization,
    Proof,
    Side,
    Size,
    Workload,
)
from workloads.video_segmentation import plan as plans
from workloads.video_segmentation import segmenting
from workloads.video_segmentation.arrivals import Arrivals
from workloads.video_segmentation.chain import Batch, Chain, decoder_of, encoder_of, noise_in_nv12
from workloads.video_segmentation.compressed_only import COMPOSITED_BYTES, compressed_only
from workloads.video_segmentation.decode_stage import (
    EXACT,
    HOST,
    INSTALL,
    INSTALL_VIDEO,
    ON_HOST,
    stamps,
)
from workloads.video_segmentation.encoding.nvenc_probe import why_not
from workloads.video_segmentation.end_to_end_proofs import file_is_whole, frames_agree
from workloads.video_segmentation.flow import Flow, on_stream
from workloads.video_segmentation.frame_bank import one_thread_on_cpu
from workloads.video_segmentation.host_planes import HostPlanesDecoder
from workloads.video_segmentation.one_launch import Work, in_one_launch
from workloads.video_segmentation.plan import BATCH, Plan
from workloads.video_segmentation.recorder import Recorder
from workloads.video_segmentation.source_clip import CLIPS, source
from workloads.video_segmentation.video_file import VideoInfo

FRAMES: Mapping[DeviceKind, int] = {"cuda": BATCH, "cpu": BATCH}  # per step


def size(kind: DeviceKind) -> Size:
    """FLOPs: those of `segmenting.size`. Bytes: the network's, and each frame read and written once in NV12."""
    clip, network = CLIPS[kind], segmenting.size(kind, FRAMES[kind])
    frame_bytes = clip.width * clip.height * 3 // 2
    moved = network.bytes + 2.0 * FRAMES[kind] * frame_bytes
    return Size(items=FRAMES[kind], flops=network.flops, bytes=moved, whole_run_items=clip.frames)


Recorded = tuple[Tensor, torch.cuda.Event | None]


class Pipeline:
    """A chain from decoder to recorder, driven by whoever calls it or by the threads of a conveyor."""

    def __init__(self, plan: Plan, context: Context) -> None:
        if context.items % BATCH:
            raise ValueError(f"a step of {context.items} frames is no whole number of batches of {BATCH}: change one")
        self._batches, self._device = context.items // BATCH, context.device
        with ExitStack() as built:  # what was built is closed where the rest cannot be
            clip = source(context)
            self._matrix = clip.info.matrix
            make = partial(encoder_of, plan, info=clip.info, device=context.device)
            self.recorder: Recorder[Any] = Recorder(make, plan.suffix, clip.info.frames, context.cache_dir)
            built.callback(self.recorder.close)
            self.decoder = decoder_of(plan, clip.path, context.device, loop=True)
            built.callback(self.decoder.close)
            self._chain = Chain(plan, context, clip.info, self.recorder.write, before_capture=self.decoder.settle)
            built.callback(self._chain.close)
            place = context.device if plan.frames_on_device else torch.device("cpu")
            self._arrivals = Arrivals(clip.path, place, clip.numbered)
            self._arrived = self._following(context, clip.info) if plan.frames_on_device else None
            self._flow: Flow[Recorded] = Flow(self._chain, self.decoder, self._recorded)
            built.callback(self._flow.close)
            self._closing = built.pop_all()

    def step(self, stamp: Tensor) -> Tensor:
        with on_stream(self._flow.stream):
            records = [self._next() for _ in range(self._batches)]
            return torch.cat(records).to(stamp.device) * stamp[:, None]

    def finish(self) -> None:
        self._flow.settle()
        self.decoder.settle()
        self.recorder.settle()
        self._flow.synchronize()

    def close(self) -> None:
        """From the end to the beginning: what feeds is closed after what is fed."""
        self._closing.close()

    def _next(self) -> Tensor:
        taken = self._flow.take()
        if taken is not None and len(taken[0]) < BATCH:
            taken = self._flow.take()  # the clip was cut short: what comes next is why
        if taken is None:
            raise self._chain.shortage or ValueError("the decoder came to its end, and it is to go round: report this")
        record, ready = taken
        if ready is not None:
            current = torch.cuda.current_stream(self._device)  # cuda only
            current.wait_event(ready)  # cuda only
            record.record_stream(current)  # cuda only
        return record

    def _following(self, context: Context, info: VideoInfo) -> Work:
        """Of NV12; what was followed to capture it is forgotten."""
        arrived = in_one_launch(
            context, partial(self._arrivals.of_nv12, blurred=True), partial(noise_in_nv12, context, info)
        )
        self._arrivals.begin()
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()  # cuda only  # other streams follow from here
        return arrived

    def _recorded(self, batch: Batch) -> Recorded:
        """Encodes; the record, and when it is ready."""
        batch = self._chain.encode(batch)
        if batch.nv12 is None or self._arrived is None:
            return self._arrivals.of_bgr(batch.on_host, self._matrix, blurred=True), None
        record = self._arrived(batch.nv12)
        if not record.is_cuda:
            return record, None
        return record, torch.cuda.current_stream(self._device).record_event()  # cuda only


def build(plan: Plan, context: Context) -> Side:
    """On a CPU the network gets one thread, which stands for the device; the other cores are the host's.

    Raises VideoError, EncodingError, ValueError or OSError, in one sentence, where a stage cannot be had.
    """
    one_thread_on_cpu(context.device)
    pipeline = Pipeline(plan, context)
    return Side(
        pipeline.step,
        finish=pipeline.finish,
        close=pipeline.close,
        stock_steps=_stock_steps(plan, context),
        works_ahead=plan.overlapped or plan.sessions > 1,
        round_steps=_round_steps(pipeline.decoder.info, context),
    )


def _round_steps(info: VideoInfo, context: Context) -> int:
    """Until a file is complete."""
    return -(-info.frames // context.items)


def _stock_steps(plan: Plan, context: Context) -> int:
    """Of libx264, which has up to a second's frames in hand. A conveyor is as full after a step as before it.

    What FFmpeg decodes ahead for the baseline is left out: it does that beside the other stages in any case, and is
    done with it in a seventh of a step.
    """
    if plan.encode != "x264":
        return 0
    from workloads.video_segmentation.encoding.x264 import stock_frames

    return -(-stock_frames() // context.items)


@dataclass(frozen=True)
class _Uploading:
    """A decoder of the host whose frames go to the device at once."""

    decoder: HostPlanesDecoder
    device: torch.device

    def read(self, frames: int) -> Tensor:
        return self.decoder.read(frames).to(self.device)


def x264_alone(plan: Plan, context: Context) -> Side:
    """libx264 with nothing around it: what the plan gives its encoder, ready in host memory, so it bounds the plan."""
    clip = source(context)
    with (
        closing(Chain(plan, context, clip.info, lambda frames: None)) as chain,
        closing(HostPlanesDecoder(clip.path)) as decoder,
    ):
        batches = iter(lambda: chain.decode(_Uploading(decoder, context.device)), None)
        ready = [chain.compute(batch).on_device.cpu() for batch in batches if len(batch) == BATCH]
    make = partial(encoder_of, plans.X264, info=clip.info, device=context.device)
    recorder: Recorder[Tensor] = Recorder(make, plans.X264.suffix, clip.info.frames, context.cache_dir)
    turns = cycle(ready)

    def step(stamp: Tensor) -> Tensor:
        for batch in islice(turns, context.items // BATCH):
            recorder.write(batch)
        return stamp[:, None].repeat(1, 2)

    stock_steps = _stock_steps(plans.X264, context)
    return Side(
        step,
        finish=recorder.settle,
        close=recorder.close,
        stock_steps=stock_steps,
        works_ahead=True,
        round_steps=_round_steps(clip.info, context),
    )


VIDEO = Needs((*HOST, "PyNvVideoCodec"), (8, 0), install=INSTALL_VIDEO)
GPU_STAGES = Needs(HOST, (8, 0), install=INSTALL)
ALWAYS_BUSY = Limit("active_fraction", at_least=0.80)
COMPRESSED_ONLY = compressed_only(FRAMES["cuda"], COMPOSITED_BYTES)
WITHIN_8_GIB = Limit("peak_bytes", at_most=8 * 2**30)  # that it does not grow is looked at in every case
FROM_THE_GPU = Contract((Limit("host_to_device_bytes", at_most=2**20),), (WITHIN_8_GIB,))


def _rung(
    name: str,
    plan: Plan,
    speedup: Mapping[str, float],
    below: str = BASELINE,
    needs: Needs = GPU_STAGES,
    contract: Mapping[str, Contract] | None = None,
    why: str = "",
    proofs: tuple[Proof, ...] = (),
) -> Optimization:
    make: Callable[[Context], Side] = partial(build, plan)
    return Optimization(
        name,
        make,
        speedup,
        dtype="float16",
        compared_with=below,
        needs=needs,
        tolerance=EXACT,
        contract=contract or {},
        proofs=proofs,
        why=why,
    )


def _whole(name: str, plan: Plan, speedup: Mapping[str, float], *limits: Limit, why: str) -> Optimization:
    busy = Contract((*FROM_THE_GPU.engaged, *limits), (*FROM_THE_GPU.limits, ALWAYS_BUSY))
    contract = {"sm_90": busy, "cuda": FROM_THE_GPU}
    return _rung(name, plan, speedup, needs=VIDEO, contract=contract, why=why, proofs=(file_is_whole(plan),))


X264_BOUND = "libx264 on the cores is the longest stage: everything else hides behind it"
OVERLAP = "every stage works on another batch: the pipeline takes the time of the longest stage"
NO_PIPELINE = "the encoder's own speed, on frames that lie ready: the most that a pipeline which ends in it can reach"
ENCODED_APART = "the GPU's own encoder, an engine apart from what computes"
TWO_CORES = "decoding, computing and encoding share the same cores: overlap fills only what one of them leaves idle"

LADDER = (
    _rung(
        "segment-fused",
        plans.SEGMENT,
        {"sm_90": 1.0, "cuda": 0.95},
        why="the longest stage of the GPU first; what the CPU does takes seven tenths of a step",
        proofs=(frames_agree(plans.SEGMENT),),
    ),
    _rung(
        "composite-gpu",
        plans.COMPOSITE,
        {"sm_90": 1.0, "cuda": 0.9},
        "segment-fused",
        why="frames go up for it and come back for the encoder",
        proofs=(frames_agree(plans.COMPOSITE),),
    ),
    _rung(
        "preprocess-gpu",
        plans.PREPROCESS,
        {"sm_90": 0.8, "cuda": 0.8},
        "composite-gpu",
        why="at most a tenth of the time, which is the noise of what the CPU still decodes and encodes: hardly a loss",
        proofs=(frames_agree(plans.PREPROCESS),),
    ),
    _rung(
        "nvdec-sessions",
        plans.DECODE,
        {"sm_90": 1.0, "cuda": 0.9},
        "preprocess-gpu",
        VIDEO,
        why="frames are born on the GPU; the encoder still wants them back",
        proofs=(frames_agree(plans.DECODE),),
    ),
    _rung(
        "nvjpeg",
        plans.ENCODE,
        {"sm_90": 5.0, "cuda": 1.0},
        "nvdec-sessions",
        VIDEO,
        {"cuda": Contract((COMPRESSED_ONLY,))},
        why="only the compressed stream comes back",
    ),
    _rung("overlapped", plans.NVJPEG, {"sm_90": 0.95, "cuda": 0.95}, "nvjpeg", VIDEO, why=OVERLAP),
)
OPTIMIZED = (
    _whole("optimized-nvjpeg", plans.NVJPEG, {"sm_90": 13.4, "cuda": 3.0}, COMPRESSED_ONLY, why=OVERLAP),
    _rung(
        "optimized-nvenc",
        plans.NVENC,
        {"cuda": 1.5},
        needs=replace(VIDEO, engine=Engine("nvenc", why_not)),
        contract={"cuda": Contract((*FROM_THE_GPU.engaged, COMPRESSED_ONLY), FROM_THE_GPU.limits)},
        why=ENCODED_APART,
        proofs=(file_is_whole(plans.NVENC),),
    ),
    _rung(
        "optimized-x264",
        plans.X264,
        {"sm_90": 7.0, "cuda": 1.5},
        needs=VIDEO,
        contract={"cuda": FROM_THE_GPU},
        why=X264_BOUND,
        proofs=(file_is_whole(plans.X264),),
    ),
    Optimization(
        "x264-alone", partial(x264_alone, plans.X264), {"cuda": 0.5}, tolerance=EXACT, needs=GPU_STAGES, why=NO_PIPELINE
    ),
    # 0.91 to 0.94 on an H200, give or take 0.05: the cores' noise, of which both sides have their own.
    _rung("of-x264-alone", plans.X264, {"sm_90": 0.85, "cuda": 0.5}, "x264-alone", VIDEO, why=X264_BOUND),
)
ON_CPU = Optimization(
    "optimized-on-cpu",
    partial(build, plans.ON_CPU),
    {"cpu": 0.6},
    tolerance=EXACT,
    needs=ON_HOST,
    proofs=(file_is_whole(plans.ON_CPU),),
    why=TWO_CORES,
)
END_TO_END = Workload(
    name="video/end-to-end",
    baseline=partial(build, plans.BASELINE),
    inputs=stamps,
    sizes={kind: size(kind) for kind in FRAMES},
    optimizations=(*LADDER, *OPTIMIZED, ON_CPU),
    cold=False,  # the inputs are stamps; frames come from a file
    timing="pipeline",
    ladder=True,
)
