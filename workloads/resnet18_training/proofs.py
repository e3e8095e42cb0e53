"""Proofs of a training beside its speed: its losses, its accuracy, and that every batch arrives whole."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, update_bn

from gpugate.workload import Context, DisprovedError, Proof
from workloads.parts.loader import Prefetcher
from workloads.resnet18_training.pictures import (
    CHANNELS,
    PADDING,
    PICTURES,
    SIDE_PIXELS,
    Pictures,
    byte_sums,
    byte_sums_on_host,
    checked,
    padded,
    sample_order,
    seeded_pictures,
    training_pictures,
)
from workloads.resnet18_training.training import BOTTOM, ITEMS, ITEMS_ON_CPU, PictureTrainer, Rung, TrainingLoop, load

CURVE_ITERATIONS = 20
SAME = 1e-4  # relative, of every loss: the same arithmetic in the same order, by cuDNN's deterministic algorithms
# For a curve computed with other rounding: the first loss, before any update, differs by rounding alone, and bfloat16
# rounds eight times as far as FP16; later losses also differ by what training makes of it, so their mean is compared.
CLOSE_FIRST = {None: 1e-3, torch.float16: 0.01, torch.bfloat16: 0.05}
CLOSE_MEAN = {None: 0.1, torch.float16: 0.1, torch.bfloat16: 0.3}
MANY_WORKERS = 8
LEARNED = 0.97
AVERAGED_FROM = 0.5  # of the iterations: the weights of those after it are averaged
SETTLING, SETTLING_BATCH = 1024, 256  # pictures
CHECKED_BATCHES = 12
LINGERING_CYCLES = 400_000_000  # 0.2 s at 2 GHz: 8 workers prepare 512 pictures in less
BRIGHTEST = 16  # of scikit-learn's values
UNSEEN = 5  # every so many digits, one is kept for the test; the file mixes the writers
HELD_OUT = 512  # seeded pictures that no training has seen
# Iterations by batch. At 224 in bfloat16, batches of 32 know 348 digits of 360 after 160, 352 after 240.
DIGIT_ITERATIONS = {32: 400, ITEMS: 90}
PICTURE_ITERATIONS = {8: 60, ITEMS_ON_CPU: 30}


def same(rung: Rung, below: Rung = BOTTOM) -> Proof:
    return Proof("same losses", partial(same_losses, rung=rung, below=below))


def learns(rung: Rung) -> Proof:
    if rung.side_pixels == BOTTOM.side_pixels:
        return Proof("learns digits", partial(learns_digits, rung=rung, iterations=DIGIT_ITERATIONS[rung.batch]))
    return Proof("learns pictures", partial(learns_pictures, rung=rung, iterations=PICTURE_ITERATIONS[rung.batch]))


def close(rung: Rung) -> tuple[Proof, ...]:
    return Proof("close losses", partial(close_losses, rung=rung)), learns(rung)


def arrives(rung: Rung) -> Proof:
    return Proof("batches arrive", partial(batches_arrive, rung=rung))


def same_losses(context: Context, rung: Rung, below: Rung) -> str:
    """Proves that every loss of `rung` is that of `below`, which computes the same in the same order.

    Neither side is compiled for the proof: Inductor's output for one program may differ from build to build by more
    than rounding after training, and the proof concerns the data that feeds it.
    """
    eager = (replace(one, recipe=replace(one.recipe, compiled=False)) for one in (rung, below))
    losses, expected = (loss_curve(context, one, CURVE_ITERATIONS) for one in eager)
    far = max(abs(loss - one) / one for loss, one in zip(losses, expected, strict=True))
    if not far <= SAME:
        raise DisprovedError(f"its losses are up to {far:.2g} off those of the rung before, {SAME:g} are allowed")
    return f"{len(losses)} losses {'bit for bit' if far == 0 else f'within {far:.1g} of'} those of the rung before"


def close_losses(context: Context, rung: Rung) -> str:
    """Proves that the losses of `rung` follow those of plain FP32 training on the same batches."""
    workers = MANY_WORKERS if rung.resident else rung.workers  # their number changes no loss, only the time
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
    """Proves that training on scikit-learn's handwritten digits recognizes at least 97 % of the unseen digits.

    There are 1,437 digits to train on and 360 to test with: 8 x 8 resized to 32 x 32, three equal channels. Raises
    ImportError, in one sentence, without scikit-learn.
    """
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise ImportError(
            f"scikit-learn, whose handwritten digits are learned, is not importable ({error}): pip install scikit-learn"
        ) from error
    found = load_digits()
    small = torch.from_numpy(found.images).float().div(BRIGHTEST)[:, None]  # [1797, 1, 8, 8]
    large = F.interpolate(small, size=SIDE_PIXELS, mode="bilinear", align_corners=False).mul(255).round()
    pixels = large.to(torch.uint8).expand(-1, CHANNELS, -1, -1).contiguous()
    digits = Pictures(pixels, torch.from_numpy(found.target).long())
    return _learned(context, rung, iterations, digits, torch.arange(len(digits)) % UNSEEN == 0, "digits")


def learns_pictures(context: Context, rung: Rung, iterations: int) -> str:
    """Proves the learning on seeded pictures, which need no package with real ones."""
    drawn = seeded_pictures(context.seed, PICTURES)
    return _learned(context, rung, iterations, drawn, torch.arange(len(drawn)) < HELD_OUT, "pictures", mirrored=True)


def batches_arrive(context: Context, rung: Rung) -> str:
    """Proves that the bytes of every picture from a copy stream sum up to the host's, before and after its training.

    Buffers are freed or filled too early where the device lags behind the host. So no call in this loop waits for the
    device: the fused update needs no answer from it, where another update asks whether a gradient overflowed. And every
    batch stays in use for LINGERING_CYCLES more, in which the next copy may begin.
    """
    trainer = PictureTrainer(context, replace(rung.recipe, compiled=False, fused=True), rung.batch)
    pictures = training_pictures(context)
    order = sample_order(context.seed, len(pictures), context.items)
    sent: list[Tensor] = []
    with closing(load(pictures, order, rung)) as pieces:
        each = rung.batch // rung.piece
        with closing(Prefetcher(_summed(pieces, sent), context.device, each)) as prefetcher:
            found = []
            for _ in range(CHECKED_BATCHES):
                images, told = prefetcher.take(ahead=False)
                before, batch = byte_sums(images), checked(images, told)
                trainer(batch.images, batch.labels, prefetcher.copy_next)
                if context.device.type == "cuda":  # long kernels, since many short ones would fill the queue
                    torch.cuda._sleep(LINGERING_CYCLES)  # type: ignore[no-untyped-call]  # cuda only
                found.append((before, byte_sums(images)))
    expected = torch.split(torch.cat(sent[: each * CHECKED_BATCHES]), rung.batch)
    whole = [all(torch.equal(one.cpu(), wanted) for one in sums) for sums, wanted in zip(found, expected, strict=True)]
    wrong = whole.count(False)
    if wrong:
        raise DisprovedError(f"{wrong} of {CHECKED_BATCHES} batches are not what the host sent")
    return f"{CHECKED_BATCHES} batches of {rung.batch} bit for bit what the host sent, before and after their use"


def _summed(pieces: Iterator[tuple[Tensor, ...]], sent: list[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    for piece in pieces:
        sent.append(byte_sums_on_host(piece[0]))
        yield piece


@functools.lru_cache(maxsize=16)
def loss_curve(context: Context, rung: Rung, iterations: int) -> tuple[float, ...]:
    """The loss of every iteration from the first; computed once a process, by cuDNN's deterministic algorithms.

    Raises DisprovedError where a batch did not consist of the pictures whose turn it was.
    """
    with _deterministic_loop(context, _quickly_loaded(rung, context.device), training_pictures(context)) as loop:
        done = [(in_place.all(), loss.clone()) for in_place, loss in (loop.iterate() for _ in range(iterations))]
        if not all(bool(whole) for whole, _ in done):
            raise DisprovedError("a batch did not consist of the pictures whose turn it was")
        return tuple(float(loss) for _, loss in done)


def _learned(
    context: Context, rung: Rung, iterations: int, all_: Pictures, held: Tensor, what: str, mirrored: bool = False
) -> str:
    """`held` is bool [pictures]: those that no training sees."""
    seen, unseen = (Pictures(all_.pixels[chosen], all_.labels[chosen]) for chosen in (~held, held))
    with _deterministic_loop(context, _quickly_loaded(rung, context.device), seen, mirrored) as loop:
        # At a constant rate single weights swing: one iteration reaches 99 %, the next one 95 %. Their mean does not.
        mean = AveragedModel(loop.trainer.model)
        for iteration in range(iterations):
            loop.iterate()
            if iteration >= AVERAGED_FROM * iterations:
                mean.update_parameters(loop.trainer.model)
        few = Pictures(seen.pixels[:SETTLING], seen.labels[:SETTLING])
        with loop.trainer.autocast():  # the running statistics of the mean are computed anew
            update_bn(torch.split(_images(loop, few), SETTLING_BATCH), mean.module)
        right = accuracy(loop, mean.module, unseen)
    words = f"{100 * right:.1f} % of {len(unseen)} unseen {what} after {iterations} iterations"
    if not right >= LEARNED:
        raise DisprovedError(f"it knows {words}, {100 * LEARNED:g} % are wanted")
    return words


@contextmanager
def _deterministic_loop(
    context: Context, rung: Rung, pictures: Pictures, mirrored: bool = True
) -> Iterator[TrainingLoop]:
    torch.backends.cudnn.deterministic = True  # the engine puts every flag back after a proof
    with closing(TrainingLoop(context, rung, pictures, mirrored)) as loop:
        yield loop


def _quickly_loaded(rung: Rung, device: torch.device) -> Rung:
    """`rung` with a worker for every core: the number of workers changes no loss, only the time."""
    cores = len(os.sched_getaffinity(0))
    return replace(rung, workers=max(rung.workers, cores)) if rung.workers and device.type == "cuda" else rung


@torch.no_grad()
def accuracy(loop: TrainingLoop, model: nn.Module, pictures: Pictures) -> float:
    """The share of `pictures`, uncropped and not mirrored, whose class `model` finds in evaluation mode."""
    with loop.trainer.autocast():
        found = model.eval()(_images(loop, pictures)).argmax(1)
    return float((found == pictures.labels.to(loop.device)).double().mean())


def _images(loop: TrainingLoop, pictures: Pictures) -> Tensor:
    ids = torch.arange(len(pictures), device=loop.device)
    middle, pixels = torch.full_like(ids, PADDING), padded(pictures.pixels).to(loop.device)
    return loop.make_images_of(pictures)(pixels, ids, middle, middle, torch.zeros_like(ids).bool())
