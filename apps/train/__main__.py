"""Training of the driving model as a program: `python -m apps.train --batch 32 --steps 300 --num-workers 0`.

Trains on the suite's own frames and prints the frames per second and the loss. A run that goes on from a checkpoint
ends as the uninterrupted run does, bit for bit. Runs in the checkout.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

from gpugate.workload import Context
from workloads.driving import checkpoint
from workloads.driving.loading import FrameSet, Source, batch_order, blocking, order_table, prefetched
from workloads.driving.training import DrivingTrainer, frames_of
from workloads.parts.trainer import Recipe

WARM_UP = 10  # steps whose time does not count
PRECISIONS = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program; returns 0 after the last step, else 1 after one sentence on stderr."""
    asked = _parser().parse_args(arguments)
    try:
        _train(asked, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    except (ValueError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m apps.train", description=__doc__)
    parser.add_argument("--batch", type=int, default=32, help="frames in a step (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=300, help="steps of this run (default: %(default)s)")
    parser.add_argument("--num-workers", type=int, default=0, help="processes that read frames (default: %(default)s)")
    parser.add_argument("--path", choices=("blocking", "pinned", "prefetched"), default="blocking", help="to the GPU")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of weights, frames and their order")
    parser.add_argument("--checkpoint", metavar="FILE", type=Path, help="written after the last step")
    parser.add_argument("--resume", metavar="FILE", type=Path, help="a checkpoint from which the run goes on")
    parser.add_argument("--cache", metavar="DIR", type=Path, default=Path(".gpugate-cache"), help="for the frames")
    return parser


def _train(asked: argparse.Namespace, device: torch.device) -> None:
    torch.manual_seed(asked.seed)
    asked.cache.mkdir(parents=True, exist_ok=True)
    frames = frames_of(Context(device, asked.batch, asked.seed, asked.cache))
    trainer = DrivingTrainer(frames.rig, Recipe(PRECISIONS[asked.precision]), asked.seed, device)
    position = checkpoint.resume(asked.resume, trainer) if asked.resume else 0
    order = batch_order(order_table(len(frames), asked.seed), asked.batch, position)
    losses, began = [], 0.0
    with closing(_source(asked, FrameSet(frames), order, device)) as source:
        for step in track(range(asked.steps), "training", console=Console(stderr=True)):
            if step == min(WARM_UP, asked.steps - 1):
                began = _now(device)
            losses.append(trainer.train(source.take()))
        seconds = _now(device) - began
    timed = asked.steps - min(WARM_UP, asked.steps - 1)
    said = f"{asked.steps} steps of {asked.batch} frames, {timed * asked.batch / seconds:.1f} frames/s"
    print(f"{said}; the loss went from {losses[0]:.4f} to {losses[-1]:.4f}")
    if asked.checkpoint:
        checkpoint.save(asked.checkpoint, trainer, position + asked.steps * asked.batch)


def _source(asked: argparse.Namespace, frame_set: FrameSet, order: Iterator[list[int]], device: torch.device) -> Source:
    """The way of the batches to the device, as the cases `pinned` and `prefetcher` of the workload have it."""
    if asked.path != "blocking" and device.type != "cuda":
        raise ValueError(f"--path {asked.path} needs a GPU: leave it out")
    if asked.path == "prefetched":
        return prefetched(frame_set.frames, order, asked.batch, device)  # cuda only
    return blocking(frame_set, order, asked.num_workers, device, pinned=asked.path == "pinned")


def _now(device: torch.device) -> float:
    """The time in seconds, after all work of the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # cuda only
    return time.perf_counter()


if __name__ == "__main__":
    sys.exit(main())
