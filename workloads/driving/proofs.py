"""Proofs of driving beyond the records of its steps: it learns, repeats itself, resumes and copies intact."""

from __future__ import annotations

import functools
import os
import statistics
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpugate.workload import Context, DisprovedError, Proof
from workloads.driving import checkpoint as driving_checkpoint
from workloads.driving.loading import Batch, batch_order, order_table
from workloads.driving.training import DrivingTrainer, Pipeline, Plan, frames_of
from workloads.parts.trainer import Recipe

WORKSPACE, WORKSPACE_SIZE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
UNABLE = "does not have a deterministic implementation"
REPEATED_FRAMES = 2  # in a batch of the runs that are repeated
BEFORE, AFTER = 3, 3  # iterations on either side of an interruption
LEARNING_FRAMES, MOST_ITERATIONS, FEWEST_ITERATIONS = 192, 24, 12
FALLEN = 0.75  # the end's loss, at most, as a share of the loss at the beginning
CLOSE = 0.3  # the largest distance from the end of FP32's loss curve, as a share of it
COPIED_BATCHES = 48


def learns(plan: Plan) -> Proof:
    """Proves that the loss falls as far as FP32's on the same frames in the same order."""
    return Proof("learns", partial(_loss_falls, plan))


def _loss_falls(plan: Plan, context: Context) -> str:
    batch = min(plan.batch, context.items)
    exact = _fp32_losses(context.device, context.items, context.seed, context.cache_dir, batch)
    losses = _losses(context, plan)
    quarter = len(losses) // 4
    start, end, exact_end = (statistics.fmean(part) for part in (exact[:quarter], losses[-quarter:], exact[-quarter:]))
    curve = f"the loss went from {start:.3f} to {end:.3f} in {len(losses)} iterations, FP32's to {exact_end:.3f}"
    if not end <= FALLEN * start:
        raise DisprovedError(f"{curve}: it must fall to {FALLEN:.0%} or less")
    if not abs(end - exact_end) <= CLOSE * exact_end:
        raise DisprovedError(f"{curve}: they may end {CLOSE:.0%} apart")
    return curve


def _losses(context: Context, plan: Plan) -> list[float]:
    with _own_random_numbers(context), closing(Pipeline(context, plan)) as pipeline:
        iterations = max(FEWEST_ITERATIONS, min(MOST_ITERATIONS, LEARNING_FRAMES // min(plan.batch, context.items)))
        losses = torch.stack([pipeline.iterate()[1] for _ in range(iterations)])
        return [float(loss) for loss in losses.cpu()]


@functools.lru_cache(maxsize=4)
def _fp32_losses(device: torch.device, items: int, seed: int, cache_dir: Path, batch: int) -> list[float]:
    return _losses(Context(device, items, seed, cache_dir), Plan("resident", batch=batch))


def repeats(plan: Plan) -> Proof:
    return Proof("bit-reproducible", partial(_repeats, plan))


def _repeats(plan: Plan, context: Context) -> str:
    """Proves that two runs of one seed, each with its data path, end in the same bits."""
    with deterministic():
        first, second = (_end_of_run(plan, context) for _ in range(2))
    _demand_equal(first, second, "the first run's")
    return f"two runs of {BEFORE + AFTER} iterations with batches that are {plan.path} end in the same bits"


def _end_of_run(plan: Plan, context: Context) -> dict[str, Tensor]:
    """Every tensor that training changes, and the losses; by name."""
    with _own_random_numbers(context), closing(Pipeline(context, plan)) as pipeline:
        losses = torch.stack([pipeline.iterate()[1] for _ in range(BEFORE + AFTER)])
        pipeline.finish()
        return {**pipeline.trainer.state(), "losses": losses}


def _resumes(context: Context) -> str:
    """Proves that an interrupted and resumed run, in FP32, ends in the same bits as an uninterrupted one."""
    frames = frames_of(context)
    table = order_table(len(frames), context.seed)

    def train(trainer: DrivingTrainer, position: int, iterations: int) -> DrivingTrainer:
        for numbers in islice(batch_order(table, REPEATED_FRAMES, position), iterations):
            at = torch.tensor(numbers)
            batch = Batch(frames.raw[at], frames.commands[at], frames.waypoints[at], at)
            trainer.train(Batch(*(tensor.to(context.device) for tensor in batch)))
        return trainer

    def begin(seed: int) -> DrivingTrainer:
        torch.manual_seed(seed)
        return DrivingTrainer(frames.rig, Recipe(), seed, context.device)

    folder = tempfile.TemporaryDirectory(dir=context.cache_dir, prefix="driving-checkpoint-")
    with _own_random_numbers(context), deterministic(), folder as name:
        whole, path = train(begin(context.seed), 0, BEFORE + AFTER), Path(name) / "interrupted"
        driving_checkpoint.save(path, train(begin(context.seed), 0, BEFORE), BEFORE * REPEATED_FRAMES)
        size_mb = path.stat().st_size / 1e6
        resumed = begin(context.seed + 1)  # other weights and random numbers: the file must contain all
        train(resumed, driving_checkpoint.resume(path, resumed), AFTER)
        _demand_equal(whole.state(), resumed.state(), "the uninterrupted run's")
    return f"resumed after {BEFORE} of {BEFORE + AFTER} iterations from {size_mb:.0f} MB, it ends in the same bits"


RESUMES = Proof("resumes bit for bit", _resumes)


def copies_intact(plan: Plan) -> Proof:
    return Proof("copies intact", partial(_copies_intact, plan))


def _copies_intact(plan: Plan, context: Context) -> str:
    """Proves that every batch's checksums, computed on the device after training on it, are those of the host."""
    with closing(Pipeline(context, plan)) as pipeline:
        records = torch.stack([pipeline.iterate()[0] for _ in range(COPIED_BATCHES)])  # [batches, batch, 3]
        pipeline.finish()
        wrong = [number for number, record in enumerate(records.tolist()) if not all(map(all, record))]
    if wrong:
        reason = f"{len(wrong)} of {COPIED_BATCHES} batches, the first of them number {wrong[0]}, are not the host's"
        raise DisprovedError(f"{reason}: a buffer was overwritten, freed or read too early")
    return f"{COPIED_BATCHES} batches of {records.shape[1]} frames: every checksum on the device is the host's"


@contextmanager
def _own_random_numbers(context: Context) -> Iterator[None]:
    """Inside, the process uses random numbers of the context's seed; afterwards its own state is restored."""
    with torch.random.fork_rng([context.device] if context.device.type == "cuda" else []):
        torch.manual_seed(context.seed)
        yield


def _demand_equal(wanted: dict[str, Tensor], found: dict[str, Tensor], whose: str) -> None:
    intact = {name for name, one in found.items() if one.isfinite().all() and torch.equal(one, wanted[name])}
    other = [name for name in wanted if name not in intact]
    if other:
        raise DisprovedError(f"{len(other)} of {len(wanted)} tensors are not {whose}, the first of them {other[0]}")


@contextmanager
def deterministic() -> Iterator[None]:
    """Inside, torch chooses deterministic algorithms; an operation that has none raises DisprovedError at the end.

    torch reads cuBLAS's variable once a process, at the first matrix product, which may be over: torch would then
    refuse every later product. The guarantee of the variable holds here without it: torch sets a workspace of its own
    for every cuBLAS handle and stream, and a single stream runs here. So operations warn instead of refusing, and all
    warnings count but cuBLAS's.
    """
    with (
        sdpa_kernel(SDPBackend.MATH),
        patch.dict(os.environ, {WORKSPACE: WORKSPACE_SIZE}),
        warnings.catch_warnings(record=True) as said,
    ):
        warnings.simplefilter("always")
        torch.use_deterministic_algorithms(True, warn_only=True)  # the engine puts both flags back after a proof
        torch.backends.cudnn.benchmark = False  # autotuning might choose another algorithm in the next run
        yield
    unable = sorted({str(each.message).split(maxsplit=1)[0] for each in said if UNABLE in str(each.message)})
    if unable:
        raise DisprovedError(f"deterministic mode leaves {', '.join(unable)} as it is: use another operation")
