"""A side of the driving workload, built from a plan: the source of its batches and the recipe of its iterations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from gpugate.workload import Context, Side
from workloads.driving.data import Frames, stored_frames
from workloads.driving.delivery import Batch, BatchOrder, Delivery, order_table
from workloads.driving.loading import (
    Blocking,
    Collated,
    Gathered,
    Pinned,
    PinnedBatches,
    Prefetched,
    Resident,
    Source,
    stock_steps,
)
from workloads.driving.model import FULL_RIG, SMALL_RIG
from workloads.driving.nvjpeg import NvJpeg
from workloads.driving.reading import FrameSet, HostBatches, read_jpeg, read_normalized, read_raw
from workloads.driving.training import Recipe, Trainer
from workloads.parts.random_inputs import host_generator
from workloads.parts.stages import stage
from workloads.parts.whole_step import captured

FRAMES = {"cuda": 192, "cpu": 48}  # 830 MB and 2 MB as bytes
NVJPEG_LEVELS = 1.0  # the rounding and the upsampling of colour differ from the host's, on average by much less
READ = {"normalized": read_normalized, "bytes": read_raw, "jpeg": read_jpeg}

Iteration = tuple[Tensor, Tensor]  # the record of its frames, float32 [batch, 3], and its loss, float32 []


@dataclass(frozen=True)
class Plan:
    """The plan of a side. `read` is the form in which the host reads a frame on the paths `blocking` and `pinned`."""

    path: Literal["blocking", "pinned", "prefetched", "nvjpeg", "resident"] = "blocking"
    read: Literal["normalized", "bytes", "jpeg"] = "bytes"
    workers: int = 0
    batch: int = 8
    recipe: Recipe = Recipe()
    captured: bool = False  # the whole iteration as one CUDA graph, where the context allows it


def frames_of(context: Context) -> Frames:
    rig = FULL_RIG if context.device.type == "cuda" else SMALL_RIG
    return stored_frames(context.cache_dir, rig, FRAMES[context.device.type], context.seed)


def stamps(context: Context, index: int) -> Tensor:
    """Input set `index`: float32 [items] between 1 and 2 on the device, one per frame of the step.

    The frames of a step are no input: they come from a loader that reads ahead. A step multiplies its record by the
    stamps, so that it cannot return the record of an earlier step.
    """
    generator = host_generator(context, index)
    return (1 + torch.rand(context.items, generator=generator)).to(context.device)


def build_by_device(plan: Plan, context: Context) -> Side:
    """Builds a side like `build`, by the plan's recipe on a GPU and in FP32 on a CPU."""
    return build(plan if context.device.type == "cuda" else replace(plan, recipe=Recipe()), context)


def build(plan: Plan, context: Context) -> Side:
    """Builds a side of the plan; raises ValueError or OSError, in one sentence, where the frames are not available."""
    torch.backends.cudnn.benchmark = plan.recipe.autotuned
    pipeline = Pipeline(context, plan)
    try:
        pipeline.prepare()
    except BaseException:
        pipeline.close()
        raise
    return Side(
        pipeline.step,
        finish=pipeline.finish,
        engaged=pipeline.why_not,
        close=pipeline.close,
        stock_steps=stock_steps(pipeline.source, pipeline.iterations),
        cached_step=None if plan.path == "resident" else pipeline.cached_step,
    )


class Pipeline:
    """Batches, a trainer, and the record of delivery; one step has as many iterations as its frames need."""

    def __init__(self, context: Context, plan: Plan) -> None:
        batch = min(plan.batch, context.items)
        if context.items % batch:
            raise ValueError(f"a step of {context.items} frames is no whole number of batches of {batch}: change one")
        self.iterations, self.device = context.items // batch, context.device
        self._captures = plan.captured and context.capture_graphs
        frames = frames_of(context)
        table = order_table(len(frames), context.seed)
        self.trainer = Trainer(frames.rig, plan.recipe, context.seed, self.device)
        sums = frames.jpeg_sums if plan.path == "nvjpeg" or plan.read == "jpeg" else frames.raw_sums
        levels = NVJPEG_LEVELS if plan.path == "nvjpeg" else 0.0
        make_delivery = partial(Delivery, table, sums, batch, self.device, levels)
        self._delivery, self._idle_delivery = make_delivery(), make_delivery()
        self._kept: list[Batch] = []
        self.iterate: Callable[[], Iteration] = self._iterate
        self.source = _source(plan, frames, table, batch, self.device)

    def prepare(self) -> None:
        """Captures the iteration where the plan asks for a graph; the state of the pipeline is restored afterwards."""
        if not self._captures:
            return
        state = [*self.trainer.state().values(), self._delivery.state]  # cuda only
        state += [self.source.state] if isinstance(self.source, Resident) else []  # cuda only
        replay = captured(self._iterate, state, self.trainer.scaler, self.device)  # cuda only
        self.iterate = lambda: _copied(replay())  # cuda only

    def step(self, stamps: Tensor) -> Tensor:
        """Trains; stamps float32 [frames] -> float32 [frames, 3], the record times each frame's stamp.

        The stamps arrive with the step, so that the output of an earlier step is never right again.
        """
        records = [self.iterate()[0] for _ in range(self.iterations)]
        return torch.cat(records) * stamps[:, None]

    def cached_step(self) -> Tensor:
        """Runs the same iterations on batches that stay on the device."""
        while len(self._kept) < self.iterations:
            self._kept.append(Batch(*(tensor.clone() for tensor in self.source.take())))
            self._delivery.skip()
        return torch.cat([self._idle_delivery.record(batch, self.trainer.train(batch)) for batch in self._kept])

    def finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # cuda only

    def why_not(self) -> str | None:
        return self.source.why_not() or self.trainer.why_not()

    def close(self) -> None:
        self.source.close()
        self._kept.clear()

    def _iterate(self) -> Iteration:
        with stage("next batch"):
            batch = self.source.take()
        loss = self.trainer.train(batch)
        return self._delivery.record(batch, loss), loss


def _source(plan: Plan, frames: Frames, table: Tensor, batch: int, device: torch.device) -> Source:
    if plan.path == "resident":
        return Resident(frames, table, batch, device)
    order = BatchOrder(table, batch)
    if plan.path == "nvjpeg":
        return NvJpeg(frames, order, device)  # cuda only
    frame_set = FrameSet(frames, READ[plan.read])
    if plan.path == "blocking":
        return Blocking(HostBatches(frame_set, order, plan.workers), device)
    return _pinned_source(plan, frame_set, order, batch, device)  # cuda only


def _pinned_source(
    plan: Plan, frame_set: FrameSet, order: BatchOrder, batch: int, device: torch.device
) -> Source:  # cuda only
    example = frame_set.example(batch)
    if plan.path == "pinned":
        return Pinned(PinnedBatches(Collated(HostBatches(frame_set, order, plan.workers)), example, ahead=0), device)
    return Prefetched(PinnedBatches(Gathered(frame_set.frames, order), example, ahead=1), device)


def _copied(iteration: Iteration) -> Iteration:  # cuda only
    """Copies of both tensors, which the next replay overwrites."""
    record, loss = iteration
    return record.clone(), loss.clone()
