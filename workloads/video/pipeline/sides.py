"""All stages together: from a file to a file, one batch after the other or every stage at once on another batch.

A step takes the next frames of the clip, round and round, and returns the record at the encoder: float32 [frames, 2],
see `Arrivals`, times the step's stamps. The record is right where each frame has its number and the luma of the
reference's composite. Files are written all the time, one for each round.
"""

from __future__ import annotations

import functools
import hashlib
import io
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from gpugate.workload import Context, DeviceKind, Side, Size
from workloads.parts.kept_files import keep, key_of, read_kept
from workloads.video import segment
from workloads.video.clip.clip import CLIPS, Source, source
from workloads.video.clip.frame_bank import one_thread_on_cpu
from workloads.video.clip.video_file import VideoInfo
from workloads.video.decode.arrivals import COMPOSITED_LEVELS, Arrivals, luma_of_bgr
from workloads.video.decode.decoding import HostPlanesDecoder
from workloads.video.encode.encoding import encoder_of
from workloads.video.flow import Recorder
from workloads.video.needs import BATCH
from workloads.video.pipeline import plan as plans
from workloads.video.pipeline.chain import Batch, Chain, Flow, Work, decoder_of, in_one_launch, noise_in_nv12, on_stream
from workloads.video.pipeline.plan import Plan
from workloads.video.segmenter import fit_key, own_checkpoint

FORMAT = 1  # of the stored grids; raise it whenever the baseline's stages compute other composites
FOLDER = "video-composites"  # in the context's `cache_dir`
COMPARED_FRAMES = 600  # the clip's length, half a minute of the baseline on an H200; of a longer video the first ones
FRAMES: Mapping[DeviceKind, int] = {"cuda": BATCH, "cpu": BATCH}  # per step


def size(kind: DeviceKind) -> Size:
    """FLOPs: those of `segment.size`. Bytes: the network's, and each frame read and written once in NV12."""
    clip, network = CLIPS[kind], segment.size(kind, FRAMES[kind])
    frame_bytes = clip.width * clip.height * 3 // 2
    moved = network.bytes + 2.0 * FRAMES[kind] * frame_bytes
    return Size(items=FRAMES[kind], flops=network.flops, bytes=moved, whole_run_items=clip.frames)


@functools.lru_cache(maxsize=1)
def composite_grids(context: Context, clip: Source) -> Tensor:
    """The luma of the reference's composites, as of `luma_of_nv12`: float32 [frames, rows, columns] on the CPU.

    The baseline's own stages compute them: OpenCV, and the eager network in strict FP32. The stages of the GPU would be
    faster, but they are what is compared. It is done once for a clip and its weights, in the time that the baseline
    takes for the clip, and the grids are kept on disk.

    They are NaN from frame COMPARED_FRAMES on, and for frames that cannot be decoded. A stored file that was damaged is
    deleted with a RuntimeWarning and made again. Raises VideoError for a video without a frame that can be decoded.
    """
    path = context.cache_dir / FOLDER / f"{_key(context, clip)}.pt"
    content = read_kept(path)
    if content is None:
        buffer = io.BytesIO()
        torch.save(_computed(context, clip), buffer)
        content = buffer.getvalue()
        keep(path, content)
    grids: Tensor = torch.load(io.BytesIO(content), weights_only=True)
    return F.pad(grids, (0, 0, 0, 0, 0, clip.info.frames - len(grids)), value=torch.nan)


def _key(context: Context, clip: Source) -> str:
    """A name that changes with any fact that decides the grids."""
    import av
    import cv2

    kind, checkpoint = cast(DeviceKind, context.device.type), own_checkpoint(context)
    weights = fit_key(kind, CLIPS[kind], context.seed, context.device)  # names the processor and torch too
    own = None if checkpoint is None else _digest(checkpoint)
    versions = cv2.__version__, av.__version__, torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return key_of(FORMAT, COMPARED_FRAMES, _digest(clip.path), weights, own, versions)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _computed(context: Context, clip: Source) -> Tensor:
    """The grids of the first frames, at most COMPARED_FRAMES, and fewer where the clip was cut short."""
    grids: list[Tensor] = []
    with (
        torch.backends.cudnn.flags(enabled=True, allow_tf32=False),
        closing(Chain(plans.BASELINE, context, clip.info, lambda frames: None)) as chain,
        closing(decoder_of(plans.BASELINE, clip.path, context.device, loop=False)) as decoder,
    ):
        while len(grids) < COMPARED_FRAMES and (batch := chain.decode(decoder)) is not None:
            grids += luma_of_bgr(chain.compute(batch).on_host, clip.info.matrix)
    return torch.stack(grids[:COMPARED_FRAMES])


Recorded = tuple[Tensor, torch.cuda.Event | None]


class Pipeline:
    """A chain from decoder to recorder, driven by its caller or by the threads of a conveyor."""

    def __init__(self, plan: Plan, context: Context) -> None:
        if context.items % BATCH:
            raise ValueError(f"a step of {context.items} frames is no whole number of batches of {BATCH}: change one")
        self._batches, self._device = context.items // BATCH, context.device
        with ExitStack() as built:  # the built parts are closed where a later one fails
            clip = source(context)
            self._matrix, self._stored_grids = clip.info.matrix, context.cache_dir / FOLDER
            grids = composite_grids(context, clip)  # before this side's own parts: another chain may compute them
            make = partial(encoder_of, plan.encode, info=clip.info, device=context.device)
            self.recorder: Recorder[Any] = Recorder(make, plan.suffix, clip.info.frames, context.cache_dir)
            built.callback(self.recorder.close)
            self.decoder = decoder_of(plan, clip.path, context.device, loop=True)
            built.callback(self.decoder.close)
            self.chain = Chain(plan, context, clip.info, self.recorder.write, before_capture=self.decoder.settle)
            built.callback(self.chain.close)
            place = context.device if plan.frames_on_device else torch.device("cpu")
            self._arrivals = Arrivals(grids, place, clip.numbered, COMPOSITED_LEVELS)
            self._arrived = self._following(context, clip.info) if plan.frames_on_device else None
            self._flow: Flow[Recorded] = Flow(self.chain, self.decoder, self._recorded)
            built.callback(self._flow.close)
            self._closing = built.pop_all()

    def step(self, stamp: Tensor) -> Tensor:
        with on_stream(self._flow.stream):
            records = [self._next() for _ in range(self._batches)]
            return torch.cat(records).to(stamp.device) * stamp[:, None]

    def checked_step(self, stamp: Tensor) -> Tensor:
        """A step whose record must be right: the record of a wrong reference would equal that of a wrong side.

        Raises ValueError where a frame is not the stored reference's.
        """
        record = self.step(stamp)
        if not torch.equal(record, stamp[:, None].expand_as(record)):
            raise ValueError(
                f"the baseline's frames are no longer those in {self._stored_grids}: remove that folder, and raise "
                "FORMAT in pipeline/sides.py if a stage of the baseline has changed"
            )
        return record

    def finish(self) -> None:
        self._flow.settle()
        self.decoder.settle()
        self.recorder.settle()
        self._flow.synchronize()

    def close(self) -> None:
        """Closes the parts from the end to the beginning: a source after its consumer."""
        self._closing.close()

    def _next(self) -> Tensor:
        taken = self._flow.take()
        if taken is not None and len(taken[0]) < BATCH:
            taken = self._flow.take()  # the clip was cut short: the end comes next
        if taken is None:
            raise self.chain.shortage or ValueError("the decoder came to its end, and it is to go round: report this")
        record, ready = taken
        if ready is not None:
            current = torch.cuda.current_stream(self._device)  # cuda only
            current.wait_event(ready)  # cuda only
            record.record_stream(current)  # cuda only
        return record

    def _following(self, context: Context, info: VideoInfo) -> Work:
        """Records NV12 frames; the record of the frames for the capture is reset."""
        arrived = in_one_launch(context, self._arrivals.of_nv12, partial(noise_in_nv12, context, info))
        self._arrivals.begin()
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()  # cuda only  # other streams follow from here
        return arrived

    def _recorded(self, batch: Batch) -> Recorded:
        """Encodes the batch; returns the record, and its event."""
        batch = self.chain.encode(batch)
        if batch.nv12 is None or self._arrived is None:
            return self._arrivals.of_bgr(batch.on_host, self._matrix), None
        record = self._arrived(batch.nv12)
        if not record.is_cuda:
            return record, None
        return record, torch.cuda.current_stream(self._device).record_event()  # cuda only


def build(plan: Plan, context: Context) -> Side:
    """The side of a plan; on a CPU the network gets one thread as the device, and the host the other cores.

    Raises VideoError, EncodingError, ValueError or OSError, in one sentence, where a stage is not available.
    """
    one_thread_on_cpu(context.device)
    pipeline = Pipeline(plan, context)
    return Side(
        pipeline.step,
        finish=pipeline.finish,
        engaged=pipeline.chain.engaged,
        layers=pipeline.chain.layers,
        close=pipeline.close,
        stock_steps=_stock_steps(plan, context),
        works_ahead=plan.overlapped or plan.sessions > 1,
        round_steps=_round_steps(pipeline.decoder.info, context),
        expected_step=pipeline.checked_step if plan == plans.BASELINE else None,
    )


def _round_steps(info: VideoInfo, context: Context) -> int:
    """The number of steps of one complete file."""
    return -(-info.frames // context.items)


def _stock_steps(plan: Plan, context: Context) -> int:
    """The stock of libx264, which buffers up to a second's frames. A conveyor is as full after a step as before it.

    Frames that FFmpeg decodes ahead for the baseline are left out: it decodes beside the other stages in any case, and
    finishes in a seventh of a step.
    """
    if plan.encode != "x264":
        return 0
    from workloads.video.encode.on_cpu import stock_frames

    return -(-stock_frames() // context.items)


@dataclass(frozen=True)
class _Uploading:
    """A decoder of the host whose frames are copied to the device at once."""

    decoder: HostPlanesDecoder
    device: torch.device

    def read(self, frames: int) -> Tensor:
        return self.decoder.read(frames).to(self.device)


def x264_alone(plan: Plan, context: Context) -> Side:
    """libx264 alone on the plan's frames, ready in host memory: an upper bound of the plan."""
    clip = source(context)
    with (
        closing(Chain(plan, context, clip.info, lambda frames: None)) as chain,
        closing(HostPlanesDecoder(clip.path)) as decoder,
    ):
        batches = iter(lambda: chain.decode(_Uploading(decoder, context.device)), None)
        ready = [chain.compute(batch).on_device.cpu() for batch in batches if len(batch) == BATCH]
    if not ready:
        raise ValueError(f"{clip.path} has {clip.info.frames} frames: give a video of {BATCH} or more")
    make = partial(encoder_of, "x264", info=clip.info, device=context.device)
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
