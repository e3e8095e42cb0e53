"""The end-to-end driving model, one training iteration by a recipe, and a side that trains on batches of a source.

Eight cameras and a command go in, waypoints come out. The same ResNet-18 encodes every camera's picture; the mean over
the remaining height makes each column of features a token. A transformer fuses the tokens of all cameras with the token
of the command, whose output becomes the waypoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpugate.workload import Context, Side
from workloads.driving import loading
from workloads.driving.frames import COMMANDS, WAYPOINTS, Frames, Rig, stored_frames
from workloads.driving.loading import Batch, Delivery, Source, normalized, order_table
from workloads.parts.compiled import NHWC
from workloads.parts.resnet_layers import PaddedStem, padded_channels
from workloads.parts.stages import stage
from workloads.parts.trainer import Recipe, Trainer

FULL_RIG = Rig(cameras=8, height=256, width=704)
SMALL_RIG = Rig(cameras=2, height=64, width=96)  # small enough for a CPU to train on in a tenth of a second
STRIDE, FEATURES = 32, 512  # of ResNet-18: pixels per feature, and channels
WIDTH, HEADS, LAYERS = 256, 8, 2
DROPOUT = 0.1
LEARNING_RATE = 0.02
FRAMES = {"cuda": 192, "cpu": 48}  # 830 MB and 2 MB as bytes
NVJPEG_LEVELS = 1.0  # the rounding and the upsampling of colour differ from the host's, on average by much less

Iteration = tuple[Tensor, Tensor]  # the record of its frames, float32 [batch, 3], and its loss, float32 []


class DrivingModel(nn.Module):
    """images [batch, cameras, 3, height, width], commands int64 [batch] -> float32 [batch, WAYPOINTS, 2].

    uint8 images are normalized here, on the device; float32 images must be normalized already. The encoder runs in the
    `dtype` and `layout` of its input; autocast decides any further precision.
    """

    def __init__(self, rig: Rig) -> None:
        from torchvision.models import resnet18

        super().__init__()
        self.dtype, self.layout, self.missing_channels = torch.float32, torch.contiguous_format, 0
        self.encoder = nn.Sequential(*list(resnet18(weights=None).children())[:-2])  # without pooling and classifier
        self.to_token = nn.Linear(FEATURES, WIDTH)
        self.command = nn.Embedding(len(COMMANDS), WIDTH)
        self.camera = nn.Parameter(0.02 * torch.randn(rig.cameras, 1, WIDTH))
        self.column = nn.Parameter(0.02 * torch.randn(rig.width // STRIDE, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, DROPOUT, activation="gelu", batch_first=True, norm_first=True
        )
        self.fusion = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        for one in self.fusion.layers:
            # cuDNN's attention, which torch prefers on Hopper, rounds its dropout to sixteenths: attention gets no
            # dropout.
            one.self_attn.dropout = 0.0
        self.to_waypoints = nn.Linear(WIDTH, 2 * WAYPOINTS)

    def forward(self, images: Tensor, commands: Tensor) -> Tensor:
        batch, cameras = images.shape[:2]
        pictures = images.flatten(0, 1)
        if pictures.dtype == torch.uint8:
            pictures = normalized(pictures)
        pictures = padded_channels(pictures, self.missing_channels).to(self.dtype, memory_format=self.layout)
        features = self.encoder(pictures)  # [batch*cameras, 512, h/32, w/32]
        tokens = self.to_token(features.mean(2).transpose(1, 2))  # [batch*cameras, w/32, WIDTH]
        tokens = tokens.unflatten(0, (batch, cameras)) + self.camera + self.column
        told = self.command(commands)[:, None]  # [batch, 1, WIDTH]
        fused = self.fusion(torch.cat((told, tokens.flatten(1, 2)), dim=1))  # [batch, 1 + cameras*w/32, WIDTH]
        waypoints: Tensor = self.to_waypoints(fused[:, 0]).float()
        return waypoints.view(batch, WAYPOINTS, 2)

    def pad_stem(self, channels: int) -> None:
        """Widens the first convolution to `channels` input channels; the channels beyond the colours are zeros."""
        self.encoder[0] = PaddedStem(self.encoder[0], channels)  # type: ignore[arg-type]
        self.missing_channels = channels - 3


def driving_model(rig: Rig, seed: int) -> DrivingModel:
    """The seeded model, on the host."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return DrivingModel(rig)


class DrivingTrainer(Trainer):
    """Training of the driving model by a recipe."""

    def __init__(self, rig: Rig, recipe: Recipe, seed: int, device: torch.device) -> None:
        model = driving_model(rig, seed)
        if recipe.stem_channels > 3:
            model.pad_stem(recipe.stem_channels)
        model.dtype, model.layout = recipe.half or torch.float32, recipe.layout
        super().__init__(model, recipe, LEARNING_RATE, device)

        def forward(images: Tensor, commands: Tensor) -> Tensor:
            waypoints: Tensor = model(images, commands)
            return waypoints

        self._forward = self.compiled(forward)

    def train(self, batch: Batch) -> Tensor:
        """One iteration on a batch that is on the device; returns its loss, float32 [], without waiting for it."""
        return self.iterate(partial(self._loss, batch), len(batch.images))

    def _loss(self, batch: Batch) -> Tensor:
        with self.autocast():
            waypoints = self._forward(batch.images, batch.commands)
        return F.smooth_l1_loss(waypoints, batch.waypoints)


@dataclass(frozen=True)
class Plan:
    """The plan of a side. `read` is the form in which the host reads a frame on the paths `blocking` and `pinned`."""

    path: Literal["blocking", "pinned", "prefetched", "nvjpeg", "resident"] = "blocking"
    read: Literal["normalized", "bytes", "jpeg"] = "bytes"
    workers: int = 0
    batch: int = 8
    recipe: Recipe = Recipe()
    captured: bool = False  # the whole iteration as one CUDA graph, where the context allows it


BATCH, LARGE_BATCH = 8, 16
BF16, FP16 = torch.bfloat16, torch.float16
FAST = Recipe(BF16, NHWC)
BASELINE = Plan("blocking", "normalized", batch=BATCH)
PINNED = replace(BASELINE, path="pinned")
UINT8_BUS = replace(BASELINE, read="bytes")
AMP_BF16 = replace(UINT8_BUS, recipe=Recipe(BF16))
AMP_FP16 = replace(UINT8_BUS, recipe=Recipe(FP16, fused=True))
PREFETCHER = replace(AMP_BF16, path="prefetched")
# The computation is as fast as possible: a slow one would hide the gain of the workers.
JPEG = Plan("blocking", "jpeg", batch=BATCH, recipe=FAST)
NVJPEG = Plan("nvjpeg", batch=BATCH, recipe=FAST)
CACHED = Plan("resident", batch=BATCH, recipe=FAST)
COMPILE = replace(CACHED, recipe=replace(FAST, compiled=True))
WHOLE_STEP_GRAPH = replace(CACHED, recipe=replace(FAST, fused=True), captured=True)
BEST_RECIPE = Recipe(FP16, NHWC, stem_channels=4, fused=True, autotuned=True, compiled=True)
BEST = Plan("resident", batch=LARGE_BATCH, recipe=BEST_RECIPE, captured=True)


def frames_of(context: Context) -> Frames:
    rig = FULL_RIG if context.device.type == "cuda" else SMALL_RIG
    return stored_frames(context.cache_dir, rig, FRAMES[context.device.type], context.seed)


def build_by_device(plan: Plan, context: Context) -> Side:
    """Builds a side like `build`, by the plan's recipe on a GPU and in FP32 on a CPU."""
    return build(plan if context.device.type == "cuda" else replace(plan, recipe=Recipe()), context)


def build(plan: Plan, context: Context) -> Side:
    """Builds a side of the plan; raises ValueError or OSError, in one sentence, where the frames are not available."""
    pipeline = Pipeline(context, plan)
    return Side(
        pipeline.step,
        finish=pipeline.finish,
        engaged=pipeline.trainer.why_not,
        close=pipeline.close,
        stock_steps=math.ceil(pipeline.source.stock / pipeline.iterations),
        cached_step=None if plan.path == "resident" else pipeline.cached_step,
    )


class Pipeline:
    """Batches, a trainer, and the record of delivery; one step has as many iterations as its frames need.

    Where the plan asks for a graph, the iteration is captured, and then begins anew.
    """

    def __init__(self, context: Context, plan: Plan) -> None:
        torch.backends.cudnn.benchmark = plan.recipe.autotuned
        batch = min(plan.batch, context.items)
        self.iterations, self.device = context.items // batch, context.device
        frames = frames_of(context)
        table = order_table(len(frames), context.seed)
        self.trainer = DrivingTrainer(frames.rig, plan.recipe, context.seed, self.device)
        sums = frames.jpeg_sums if plan.path == "nvjpeg" or plan.read == "jpeg" else frames.raw_sums
        levels = NVJPEG_LEVELS if plan.path == "nvjpeg" else 0.0
        self._delivery, self._idle_delivery = (Delivery(table, sums, batch, self.device, levels) for _ in range(2))
        self._kept: list[Batch] = []
        self.iterate: Callable[[], Iteration] = self._iterate
        self.source = _source(plan, frames, table, batch, self.device)
        if plan.captured and context.capture_graphs:
            state = [self._delivery.place.position, *self.source.state]  # cuda only
            replay = self.trainer.capture(self._iterate, state)  # cuda only

            def iterate() -> Iteration:  # cuda only
                record, loss = replay()
                return record.clone(), loss.clone()  # the next replay overwrites both

            self.iterate = iterate  # cuda only

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
            self._delivery.place.next()  # this batch was used for another purpose
        return torch.cat([self._idle_delivery.record(batch, self.trainer.train(batch)) for batch in self._kept])

    def finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # cuda only

    def close(self) -> None:
        self.source.close()
        self._kept.clear()

    def _iterate(self) -> Iteration:
        with stage("next batch"):
            batch = self.source.take()
        loss = self.trainer.train(batch)
        return self._delivery.record(batch, loss), loss


def _source(plan: Plan, frames: Frames, table: Tensor, batch: int, device: torch.device) -> Source:
    order, frame_set = loading.batch_order(table, batch), loading.FrameSet(frames, plan.read)
    if plan.path == "resident":
        return loading.resident(frames, table, batch, device)
    if plan.path in ("blocking", "pinned"):
        return loading.blocking(frame_set, order, plan.workers, device, plan.path == "pinned")
    if plan.path == "nvjpeg":
        return loading.nvjpeg(frames, order, device)  # cuda only
    return loading.prefetched(frames, order, batch, device)  # cuda only
