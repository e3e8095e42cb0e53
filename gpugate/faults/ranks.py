"""Faults between the ranks of a job: one bucket, no overlap, no average, a rank that skips, a rank that is slow.

Each rank changes its own build of `DistributedDataParallel` alike; a fault of one rank is in the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter, sleep
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpugate.workload import Build, Context, Side

BUCKET_OF_ALL_MB = 2**20
Hook = Callable[[Any, Any], "torch.futures.Future[torch.Tensor]"]


def put_into_ranks(kind: str, build: Build, amount: float) -> Build:
    """Returns a build function whose side has the fault `kind`. Raises ValueError for a side that cannot have it."""

    def build_faulty(context: Context) -> Side:
        if kind == "slow-rank":
            return _slow_last_rank(context, build(context))
        with _change_replicas(kind) as changed:
            side = build(context)
        if not changed:
            raise ValueError(f"{kind} needs a side that uses DistributedDataParallel, and this one does not")
        return side

    return build_faulty


def _slow_last_rank(context: Context, side: Side) -> Side:
    """Makes every step of the last rank take twice its time."""
    if not _is_last_rank():
        return side

    def step(inputs: Any) -> Any:
        started = perf_counter()
        output = side.step(inputs)
        if context.device.type == "cuda":
            torch.cuda.synchronize(context.device)  # cuda only
        sleep(perf_counter() - started)
        return output

    return replace(side, step=step)


def _is_last_rank() -> bool:
    return dist.get_rank() == dist.get_world_size() - 1


@contextmanager
def _change_replicas(kind: str) -> Iterator[list[DistributedDataParallel]]:
    """Inside, each new replica has the fault; yields the replicas that were made."""
    changed: list[DistributedDataParallel] = []
    replica_class: Any = DistributedDataParallel
    make, register = replica_class.__init__, replica_class.register_comm_hook

    def make_faulty(replica: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        if kind == "one-bucket":
            kwargs["bucket_cap_mb"] = BUCKET_OF_ALL_MB
        make(replica, *args, **kwargs)
        changed.append(replica)

    def register_faulty(replica: DistributedDataParallel, state: object, hook: Hook) -> None:
        hooked.append(replica)
        register(replica, state, _change(kind, hook) if kind in _HOOKS else hook)

    hooked: list[DistributedDataParallel] = []
    replica_class.__init__, replica_class.register_comm_hook = make_faulty, register_faulty
    try:
        yield changed
        for replica in changed:
            if replica not in hooked and kind in _HOOKS:
                register(replica, None, _change(kind, _average))
    finally:
        replica_class.__init__, replica_class.register_comm_hook = make, register


def _change(kind: str, hook: Hook) -> Hook:
    changed = _HOOKS[kind](hook)
    changed.__annotations__ = {}  # torch rejects annotations that are strings, as they all are in this file
    return changed


def _average(state: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """The reduction of a replica that has no hook."""
    return _sum(bucket.buffer().div_(dist.get_world_size()))


def _sum(tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    work: Any = dist.all_reduce(tensor, async_op=True)
    future: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
    return future


def _without_average(hook: Hook) -> Hook:
    """Every rank adds the gradients of all, and none divides by their number."""
    return lambda state, bucket: _sum(bucket.buffer())


def _without_last_rank(hook: Hook) -> Hook:
    """The last rank sends zeros, as `torch.distributed.algorithms.Join` does for a rank that has no input."""

    def reduce(state: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        if _is_last_rank():
            bucket.buffer().zero_()
        return hook(state, bucket)

    return reduce


def _without_overlap(hook: Hook) -> Hook:
    """The hook of each bucket runs when the last bucket is ready."""
    waiting: list[tuple[Any, Any, torch.futures.Future[torch.Tensor]]] = []

    def reduce(state: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        device = bucket.buffer().device
        waiting.append((state, bucket, torch.futures.Future(devices=[device] if device.type == "cuda" else None)))
        promised = waiting[-1][2]
        if bucket.is_last():
            for its_state, its_bucket, future in waiting:
                future.set_result(hook(its_state, its_bucket).wait())
            waiting.clear()
        return promised

    return reduce


_HOOKS = {"no-average": _without_average, "skip-rank": _without_last_rank, "no-overlap": _without_overlap}
