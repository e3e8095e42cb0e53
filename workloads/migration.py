"""A training program after its move from the CPU to a GPU: stages that stayed on the host, then mended one by one.

The move is one word, `model.to("cuda")`, and the program runs. But a picture is still augmented on the host, one after
another, the loss is computed on the host, and its value is read in every step. The GPU waits for each of them. A
profile shows a busy CPU core and a GPU that is active for a third of the time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpugate.workload import (
    BASELINE,
    TOLERANCE_BY_DTYPE,
    Context,
    Contract,
    Limit,
    Optimization,
    Side,
    Size,
    Tolerance,
    Workload,
)
from workloads.parts.random_inputs import host_generator

CHANNELS, CLASSES = {"cuda": 64, "cpu": 16}, 10
PIXELS = {"cuda": 64, "cpu": 32}
PADDING = 4
Pictures = tuple[Tensor, Tensor]


def pictures(context: Context, index: int) -> Pictures:
    """uint8 [pictures, 3, pixels, pixels] and their classes, in pageable memory of the host."""
    random = host_generator(context, index)
    pixels = PIXELS[context.device.type]
    drawn = torch.randint(256, (context.items, 3, pixels, pixels), dtype=torch.uint8, generator=random)
    return drawn, torch.randint(CLASSES, (context.items,), generator=random)


def network(context: Context) -> nn.Sequential:
    """Four convolutions of a small picture, and a layer for the classes."""
    channels = CHANNELS[context.device.type]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(context.seed)
        layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)]
        model = nn.Sequential(*layers)
    return model.to(context.device)


def augment(picture: Tensor, number: int) -> Tensor:
    """Moves the picture by up to PADDING pixels, mirrors every second one, and normalizes it. [..., 3, y, x]"""
    pixels = picture.shape[-1]
    down, right = number % (2 * PADDING + 1), number // 3 % (2 * PADDING + 1)
    padded = F.pad(picture, [PADDING] * 4)
    moved = padded[..., down : down + pixels, right : right + pixels]
    mirrored = moved.flip(-1) if number % 2 else moved
    return (mirrored.float() / 255 - 0.5) / 0.25


def augment_together(pictures: Tensor) -> Tensor:
    """The same pictures as `augment` makes one by one, in a few kernels: each pixel is gathered from its place."""
    count, _, pixels, _ = pictures.shape
    number = torch.arange(count, device=pictures.device)
    down, right = number % (2 * PADDING + 1), number // 3 % (2 * PADDING + 1)
    along = torch.arange(pixels, device=pictures.device)
    columns = torch.where(number[:, None] % 2 == 1, along.flip(0), along)
    y, x = down[:, None] + along, right[:, None] + columns
    padded = F.pad(pictures, [PADDING] * 4)
    moved = padded[number[:, None, None], :, y[:, :, None], x[:, None, :]]  # [pictures, y, x, 3]
    return (moved.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25


@dataclass(frozen=True)
class Mended:
    """The mistakes of the moved program that a rung has mended, in their order."""

    loss: bool = False  # computed on the device
    silent: bool = False  # nobody asks for the value of the loss
    augmentation: bool = False  # of all pictures together, on the device
    pinned: bool = False  # the copies start from page-locked memory


def training(context: Context, mended: Mended) -> Side:
    """A forward and a backward pass over a batch: the output is the loss, the augmented pictures and all gradients."""
    model, device = network(context), context.device
    weights = list(model.parameters())

    def move(values: Tensor) -> Tensor:
        return values.pin_memory().to(device, non_blocking=True) if mended.pinned else values.to(device)

    def step(inputs: Pictures) -> list[Tensor]:
        raw, classes = inputs
        if mended.augmentation:
            x = augment_together(move(raw))
        else:
            x = move(torch.stack([augment(picture, number) for number, picture in enumerate(raw)]))
        scores = model(x)
        loss = F.cross_entropy(scores, move(classes)) if mended.loss else F.cross_entropy(scores.cpu(), classes)
        gradients = torch.autograd.grad(loss, weights)
        if not mended.silent and not math.isfinite(loss.item()):
            raise FloatingPointError("the loss is no number")
        return [loss.detach(), x, *gradients]

    return Side(step, model)


def size(items: int, kind: str) -> Size:
    """FLOPs: 2 per multiply-add; the backward pass is twice the forward one, without the gradient of the pictures.

    Bytes: the pictures as they come from the host.
    """
    channels, pixels = CHANNELS[kind], PIXELS[kind] ** 2
    first, others = 9 * 3 * channels * pixels, 3 * 9 * channels * channels * pixels + channels * CLASSES
    return Size(items=items, flops=2.0 * items * (2 * first + 3 * others), bytes=3.0 * items * pixels)


# The gradients of the pictures nearly cancel out in a network of random weights. So TF32 changed their sum by up to
# 1.9 % in the first layer, as much as one wrong picture of 256 did. The pictures themselves show a wrong one.
CANCELLED = {**TOLERANCE_BY_DTYPE, "tf32": Tolerance(relative_l2=5e-2, max_error=1e-1)}


def _rung(
    name: str, after: str, promises: dict[str, float], mended: Mended, *limits: Limit, min_speedup_why: str = ""
) -> Optimization:
    return Optimization(
        name,
        partial(training, mended=mended),
        promises,
        dtype="tf32",
        tolerance=CANCELLED,
        compared_with=after,
        contract={"cuda": Contract(limits=limits)} if limits else {},
        min_speedup_why=min_speedup_why,
    )


NO_WAIT = Limit("synchronizing_calls", at_most=0)
WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "migration",
        partial(training, mended=Mended()),
        pictures,
        {"cuda": size(768, "cuda"), "cpu": size(64, "cpu")},
        (
            _rung("loss-on-device", BASELINE, {"cuda": 0.95}, Mended(loss=True)),
            _rung("no-item", "loss-on-device", {"cuda": 0.95}, Mended(True, silent=True)),
            _rung(
                "augment-on-device",
                "no-item",
                {"cuda": 3.5, "cpu": 1.1},
                Mended(True, True, augmentation=True),
                Limit("host_to_device_bytes", at_most_of_reference=0.3),
                min_speedup_why="the reference augments on the host, whose cores decide how long that takes",
            ),
            _rung(
                "pinned",
                "augment-on-device",
                {"cuda": 0.95},
                Mended(True, True, True, pinned=True),
                NO_WAIT,
                Limit("pageable_copies", at_most=0),
                Limit("active_fraction", at_least=0.9),
            ),
        ),
        timing="pipeline",
        cold=False,
        ladder=True,
    ),
)
