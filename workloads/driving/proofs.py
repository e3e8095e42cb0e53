"""Proofs of driving beyond the records of its steps: it learns, repeats itself, resumes and copies intact."""

from __future__ import annotations

import functools
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpugate.errors import DisprovedError
from gpugate.workload import Context, Proof
from workloads.driving import checkpoint as driving_checkpoint
from workloads.driving.loading import Batch, batch_order, order_table
from workloads.driving.training import Pipeline, Plan, Recipe, Trainer, frames_of

WORKSPACE, WORKSPACE_SIZE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
UNABLE = "does not have a deterministic implementation"
REPEATED_FRAMES = 2  # in a batch of the runs that are repeated
BEFORE, AFTER = 3, 3  # iterations on either side of an interruption
TIMED_FRAMES, TIMED_ITERATIONS = {"cuda": 8, "cpu": 2}, {"cuda": 10, "cpu": 3}  # for the cost of deterministic mode
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
        pipeline.prepare()
        losses = torch.stack([pipeline.iterate()[1] for _ in range(_iterations(min(plan.batch, context.items)))])
        return [float(loss) for loss in losses.cpu()]


def _iterations(batch: int) -> int:
    return max(FEWEST_ITERATIONS, min(MOST_ITERATIONS, LEARNING_FRAMES // batch))


@functools.lru_cache(maxsize=4)
def _fp32_losses(device: torch.device, items: int, seed: int, cache_dir: Path, batch: int) -> list[float]:
    return _losses(Context(device, items, seed, cache_dir), Plan("resident", batch=batch))


def _repeats(context: Context) -> str:
    """Proves that two runs of one seed end in the same bits."""
    run = _Run(context)
    with _own_random_numbers(context):
        with deterministic():
            first, second = run.from_the_start(), run.from_the_start()
            strict_ms = run.ms_an_iteration()
        free_ms = run.ms_an_iteration()
    _demand_equal(first.state(), second.state(), "the first run's")
    cost = f"deterministic mode costs {strict_ms / free_ms:.2f}x: {strict_ms:.1f} against {free_ms:.1f} ms an iteration"
    return f"two runs of {BEFORE + AFTER} iterations end in the same bits; {cost}"


def _resumes(context: Context) -> str:
    """Proves that an interrupted and resumed run ends in the same bits as an uninterrupted one."""
    run = _Run(context)
    with _own_random_numbers(context), deterministic(), _temporary_folder(context) as folder:
        whole, path = run.from_the_start(), Path(folder) / "interrupted.safetensors"
        interrupted = run.from_the_start(BEFORE)
        driving_checkpoint.save(path, interrupted, BEFORE * REPEATED_FRAMES)
        size_mb = path.stat().st_size / 1e6
        torch.manual_seed(context.seed + 1)  # other weights and random numbers: the file must contain all
        resumed = run.trainer(more_seed=1)
        position = driving_checkpoint.resume(path, resumed)
        run.train(resumed, position, AFTER)
    _demand_equal(whole.state(), resumed.state(), "the uninterrupted run's")
    return f"resumed after {BEFORE} of {BEFORE + AFTER} iterations from {size_mb:.0f} MB, it ends in the same bits"


def _copies_intact(plan: Plan, context: Context) -> str:
    """Proves that every batch's checksums, computed on the device after training on it, are those of the host."""
    taken, beside = [], 0
    with closing(Pipeline(context, plan)) as pipeline:
        pipeline.prepare()
        for _ in range(COPIED_BATCHES):
            taken.append(pipeline.iterate()[0])
            beside += pipeline.source.copying()
        pipeline.finish()
        records = torch.stack(taken)  # [batches, batch, 3]
        wrong = [number for number, record in enumerate(records.tolist()) if not all(map(all, record))]
    if wrong:
        reason = f"{len(wrong)} of {COPIED_BATCHES} batches, the first of them number {wrong[0]}, are not the host's"
        raise DisprovedError(f"{reason}: a buffer was overwritten, freed or read too early")
    if plan.path == "prefetched" and context.device.type == "cuda" and not beside:
        reason = f"each of {COPIED_BATCHES} copies was over before the batch before it had been trained on"
        raise DisprovedError(f"{reason}, so that none could have done harm: the host is slower than the GPU")
    said = f"{COPIED_BATCHES} batches of {records.shape[1]} frames: every checksum on the device is the host's"
    return f"{said}; {beside} were still being copied while the one before was used"


def copies_intact(plan: Plan) -> Proof:
    return Proof("copies intact", partial(_copies_intact, plan))


def _pipeline_repeats(plan: Plan, context: Context) -> str:
    """Proves that two runs of one seed, each with its data path, end in the same bits."""
    with deterministic():
        first, second = (_end_of_run(plan, context) for _ in range(2))
    _demand_equal(first, second, "the first run's")
    return f"two runs of {BEFORE + AFTER} iterations with batches that are {plan.path} end in the same bits"


def _end_of_run(plan: Plan, context: Context) -> dict[str, Tensor]:
    """Every tensor that training changes, and the losses; by name."""
    with _own_random_numbers(context), closing(Pipeline(context, plan)) as pipeline:
        pipeline.prepare()
        losses = torch.stack([pipeline.iterate()[1] for _ in range(BEFORE + AFTER)])
        pipeline.finish()
        return {**pipeline.trainer.state(), "losses": losses}


def repeats(plan: Plan) -> Proof:
    return Proof("bit-reproducible", partial(_pipeline_repeats, plan))


REPRODUCIBLE = (Proof("bit-reproducible", _repeats), Proof("resumes bit for bit", _resumes))


class _Run:
    """Short training runs over the same few frames, in FP32."""

    def __init__(self, context: Context) -> None:
        self._context, self._frames = context, frames_of(context)
        self._table = order_table(len(self._frames), context.seed)

    def trainer(self, more_seed: int = 0) -> Trainer:
        seed = self._context.seed + more_seed
        return Trainer(self._frames.rig, Recipe(), seed, self._context.device)

    def from_the_start(self, iterations: int = BEFORE + AFTER) -> Trainer:
        """A trainer after `iterations`; the random numbers stay at the end of the run, as a checkpoint needs them."""
        torch.manual_seed(self._context.seed)
        trainer = self.trainer()
        self.train(trainer, 0, iterations)
        return trainer

    def train(self, trainer: Trainer, position: int, iterations: int) -> None:
        for numbers in islice(batch_order(self._table, REPEATED_FRAMES, position), iterations):
            trainer.train(self._batch(torch.tensor(numbers)))
        self._finish()

    def ms_an_iteration(self) -> float:
        """The median time of an iteration in ms, once a trainer is warm, on a batch that lies on the device."""
        kind = self._context.device.type
        trainer, batch = self.trainer(), self._batch(self._table[: TIMED_FRAMES[kind]])
        times_ms = [self._timed_ms(trainer, batch) for _ in range(BEFORE + TIMED_ITERATIONS[kind])]
        return statistics.median(times_ms[BEFORE:])

    def _timed_ms(self, trainer: Trainer, batch: Batch) -> float:
        started = time.perf_counter()
        trainer.train(batch)
        self._finish()
        return (time.perf_counter() - started) * 1e3

    def _batch(self, indices: Tensor) -> Batch:
        frames = self._frames
        host = Batch(frames.raw[indices], frames.commands[indices], frames.waypoints[indices], indices)
        return Batch(*(tensor.to(self._context.device) for tensor in host))

    def _finish(self) -> None:
        if self._context.device.type == "cuda":
            torch.cuda.synchronize(self._context.device)  # cuda only


def _own_random_numbers(context: Context) -> AbstractContextManager[None]:
    """Inside, the process uses random numbers of the context's seed; afterwards its own state is restored."""
    return _forked(context.seed, [context.device] if context.device.type == "cuda" else [])


@contextmanager
def _forked(seed: int, devices: list[torch.device]) -> Iterator[None]:
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


def _temporary_folder(context: Context) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir=context.cache_dir, prefix="driving-checkpoint-")


def _demand_equal(wanted: dict[str, Tensor], found: dict[str, Tensor], whose: str) -> None:
    other = [name for name in wanted if name not in found or not _same_bits(wanted[name], found[name])]
    if other:
        raise DisprovedError(f"{len(other)} of {len(wanted)} tensors are not {whose}, the first of them {other[0]}")


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one, other) and bool(one.isfinite().all())


@contextmanager
def deterministic() -> Iterator[None]:
    """Inside, torch chooses deterministic algorithms; an operation that has none raises DisprovedError at the end.

    torch reads cuBLAS's variable once a process, at the first matrix product, which may be over: torch would then
    refuse every later product. The guarantee of the variable holds here without it: torch sets a workspace of its own
    for every cuBLAS handle and stream, and a single stream runs here. So operations warn instead of refusing, and all
    warnings count but cuBLAS's.
    """
    torch_before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    autotuned, workspace = torch.backends.cudnn.benchmark, os.environ.get(WORKSPACE)
    try:
        with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            os.environ[WORKSPACE] = WORKSPACE_SIZE
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.backends.cudnn.benchmark = False  # autotuning might choose another algorithm in the next run
            yield
    finally:
        torch.use_deterministic_algorithms(torch_before[0], warn_only=torch_before[1])
        torch.backends.cudnn.benchmark = autotuned
        os.environ.pop(WORKSPACE, None)
        if workspace is not None:
            os.environ[WORKSPACE] = workspace
    unable = sorted({str(each.message).split(maxsplit=1)[0] for each in said if UNABLE in str(each.message)})
    if unable:
        raise DisprovedError(f"deterministic mode leaves {', '.join(unable)} as it is: use another operation")
