"""What must be true of a training besides its speed: its losses, what it learns, and that every batch arrives whole."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import torch
from torch import Tensor

from gpugate.errors import DisprovedError
from gpugate.workload import Context
from workloads.prefetcher import Prefetcher
from workloads.resnet18_training.cifar import PICTURES, Pictures, seeded_pictures, training_pictures
from workloads.resnet18_training.data import LABEL, Pieces, PreparedPictures, padded
from workloads.resnet18_training.digits import digits
from workloads.resnet18_training.loop import TrainingLoop
from workloads.resnet18_training.resident_pictures import image_maker
from workloads.resnet18_training.rungs import WORKERS, Rung
from workloads.resnet18_training.sample_order import PADDING, sample_order
from workloads.resnet18_training.step import Trainer

CURVE_ITERATIONS = 20
SAME = 1e-4  # relative, of every loss: the same arithmetic in the same order, by deterministic kernels
# Of a curve computed otherwise: the first loss, before any update, differs by rounding alone, and bfloat16 rounds eight
# times as far as FP16; later losses also differ by what training makes of it, which is why their mean is compared.
CLOSE_FIRST = {None: 1e-4, torch.float16: 0.01, torch.bfloat16: 0.05}
CLOSE_MEAN = {None: 1e-2, torch.float16: 0.1, torch.bfloat16: 0.3}
LEARNED = 0.97
CHECKED_BATCHES = 12
HELD_OUT = 512  # seeded pictures that no training has seen


def same_losses(context: Context, rung: Rung, below: Rung) -> str:
    """Every loss of `rung` is that of `below`, which computes the same in the same order."""
    losses, expected = loss_curve(context, rung, CURVE_ITERATIONS), loss_curve(context, below, CURVE_ITERATIONS)
    far = max(abs(loss - one) / one for loss, one in zip(losses, expected, strict=True))
    if not far <= SAME:
        raise DisprovedError(f"its losses are up to {far:.2g} off those of the rung before, {SAME:g} are allowed")
    return f"{len(losses)} losses {_same_as(far)} those of the rung before"


def close_losses(context: Context, rung: Rung) -> str:
    """The losses of `rung` follow those of plain FP32 training on the same batches."""
    workers = WORKERS.workers if rung.resident else rung.workers  # which changes no loss, but how long they take
    plain = Rung(batch=rung.batch, piece=rung.piece, side_pixels=rung.side_pixels, workers=workers)
    losses, expected = loss_curve(context, rung, CURVE_ITERATIONS), loss_curve(context, plain, CURVE_ITERATIONS)
    first = abs(losses[0] - expected[0]) / expected[0]
    mean = sum(abs(loss - one) for loss, one in zip(losses, expected, strict=True)) / sum(expected)
    words = f"first loss {first:.2g}, {len(losses)} losses {mean:.2g} off FP32's"
    most_first, most = CLOSE_FIRST[rung.recipe.half], CLOSE_MEAN[rung.recipe.half]
    if not (first <= most_first and mean <= most):
        raise DisprovedError(f"{words}, {most_first:g} and {most:g} are allowed")
    return words


def learns_digits(context: Context, rung: Rung, iterations: int) -> str:
    """Trained on scikit-learn's handwritten digits, it knows at least 97 % of those it has not seen.

    Raises ImportError without scikit-learn.
    """
    seen, unseen = digits()
    return _learned(context, rung, iterations, seen, unseen, "digits", mirrored=False)


def learns_pictures(context: Context, rung: Rung, iterations: int) -> str:
    """The same of seeded pictures, where no package with real ones is to be needed."""
    drawn = seeded_pictures(context.seed, PICTURES)
    seen = Pictures(drawn.pixels[HELD_OUT:], drawn.labels[HELD_OUT:])
    unseen = Pictures(drawn.pixels[:HELD_OUT], drawn.labels[:HELD_OUT])
    return _learned(context, rung, iterations, seen, unseen, "pictures", mirrored=True)


def batches_arrive(context: Context, rung: Rung) -> str:
    """The bits of every batch that a copy stream brought sum up to the host's, before and after training on it."""
    trainer = Trainer(context, replace(rung.recipe, compiled=False), rung.batch)
    prepared = _prepared(context, rung, training_pictures(context))
    sent: list[int] = []
    with closing(Pieces(prepared, rung.piece, rung.workers, rung.pinned)) as pieces:
        each = rung.batch // rung.piece
        with closing(Prefetcher(_summed(pieces, sent), context.device, each)) as prefetcher:
            found = []
            for _ in range(CHECKED_BATCHES):
                images, told = prefetcher.take()
                before = bit_sum(images)
                trainer(images, told[:, LABEL])
                found.append(torch.stack([before, bit_sum(images)]))
            arrived = torch.stack(found).tolist()
    expected = [sum(sent[first : first + each]) for first in range(0, each * CHECKED_BATCHES, each)]
    wrong = sum(sums != [one, one] for sums, one in zip(arrived, expected, strict=True))
    if wrong:
        raise DisprovedError(f"{wrong} of {CHECKED_BATCHES} batches are not what the host sent")
    return f"{CHECKED_BATCHES} batches of {rung.batch} bit for bit what the host sent, before and after their use"


def bit_sum(images: Tensor) -> Tensor:
    """int64 []: the exact sum over the bits of float32 values, read as integers."""
    return images.view(torch.int32).sum(dtype=torch.int64)


def _summed(pieces: Iterator[tuple[Tensor, ...]], sent: list[int]) -> Iterator[tuple[Tensor, ...]]:
    for piece in pieces:
        sent.append(int(bit_sum(piece[0])))
        yield piece


@functools.lru_cache(maxsize=16)
def loss_curve(context: Context, rung: Rung, iterations: int) -> tuple[float, ...]:
    """The loss of every iteration from the first; computed once a process, by deterministic kernels.

    Raises DisprovedError where a batch did not consist of the pictures whose turn it was.
    """
    with closing(_deterministic_loop(context, rung, training_pictures(context))) as loop:
        done = [(in_place.all(), loss.clone()) for in_place, loss in (loop.iterate() for _ in range(iterations))]
        if not all(bool(whole) for whole, _ in done):
            raise DisprovedError("a batch did not consist of the pictures whose turn it was")
        return tuple(float(loss) for _, loss in done)


def _learned(
    context: Context, rung: Rung, iterations: int, seen: Pictures, unseen: Pictures, what: str, mirrored: bool
) -> str:
    with closing(_deterministic_loop(context, rung, seen, mirrored)) as loop:
        for _ in range(iterations):
            loop.iterate()
        right = accuracy(loop, unseen)
    words = f"{100 * right:.1f} % of {len(unseen)} unseen {what} after {iterations} iterations"
    if not right >= LEARNED:
        raise DisprovedError(f"it knows {words}, {100 * LEARNED:g} % are wanted")
    return words


def _deterministic_loop(context: Context, rung: Rung, pictures: Pictures, mirrored: bool = True) -> TrainingLoop:
    torch.backends.cudnn.deterministic = True  # the engine puts every flag back after a proof
    return TrainingLoop(context, rung, pictures, mirrored)


@torch.no_grad()
def accuracy(loop: TrainingLoop, pictures: Pictures) -> float:
    """The share of `pictures`, uncropped and not mirrored, whose class the model of `loop` finds in evaluation mode."""
    rung, device = loop.rung, loop.device
    make_images = image_maker(pictures, rung.side_pixels, rung.recipe, device)
    ids = torch.arange(len(pictures), device=device)
    middle = torch.full_like(ids, PADDING)
    images = make_images(padded(pictures.pixels).to(device), ids, middle, middle, torch.zeros_like(ids).bool())
    model = loop.trainer.model.eval()
    with torch.autocast(device.type, dtype=rung.recipe.half, enabled=rung.recipe.half is not None):
        found = model(images).argmax(1)
    return float((found == pictures.labels.to(device)).double().mean())


def _prepared(context: Context, rung: Rung, pictures: Pictures) -> PreparedPictures:
    return PreparedPictures(pictures, sample_order(context.seed, len(pictures), context.items), rung.side_pixels)


def _same_as(far: float) -> str:
    return "bit for bit" if far == 0 else f"within {far:.1g} of"
