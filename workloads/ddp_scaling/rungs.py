"""One training step on every rank, without the update: forward, backward, and the gradients of all ranks averaged.

Each rung spells its step out. Its output has the averaged gradient of each weight by its name, float32. A step takes
the number of a batch, and each rank draws its own part of that batch: the work of a rank does not depend on the number
of ranks, which is weak scaling. The optimizer is left out: it sends nothing, and since the output of a step must depend
on its input alone, each step would have to take the update back.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gpugate.workload import Context, Side
from workloads.ddp_scaling.models import Kind, Model, draw, loss, make

Gradients = dict[str, Tensor]
NO_RANKS = "it needs a job of ranks, which pytest perf_tests alone starts: other commands cannot measure it"


def batch_number(context: Context, index: int) -> Tensor:
    """The number of a batch, int64 [1] on the host."""
    return torch.tensor([index])


def no_sync(context: Context, model: Kind) -> Side:
    """The same job without communication: each rank keeps its own gradient. What a step should cost at best."""
    network = _network(context, model)
    replica = DistributedDataParallel(network, **_on(context))
    ranks = dist.get_world_size()

    def step(number: Tensor) -> Gradients:
        network.zero_grad()
        with replica.no_sync():
            loss(replica, *_batch(context, number)).backward()  # type: ignore[no-untyped-call]
        return _gradients(network)

    def whole_batch_on_one(number: Tensor) -> Gradients:
        """The gradient of the whole batch, by one process: the parts of all ranks one after another."""
        network.zero_grad()
        for rank in range(ranks):
            part = draw(context.items, int(number), rank, context.device)
            (loss(network, *part) / ranks).backward()  # type: ignore[no-untyped-call]
        return _gradients(network)

    return Side(step, expected_step=whole_batch_on_one)


def all_reduce_afterwards(context: Context, model: Kind) -> Side:
    """Averages each weight's gradient once the backward pass is over: nothing overlaps."""
    network = _network(context, model)
    ranks = dist.get_world_size()

    def step(number: Tensor) -> Gradients:
        network.zero_grad()
        loss(network, *_batch(context, number)).backward()  # type: ignore[no-untyped-call]
        for weight in network.parameters():
            dist.all_reduce(_gradient_of(weight))
            _gradient_of(weight).div_(ranks)
        return _gradients(network)

    return Side(step)


def overlap(context: Context, model: Kind) -> Side:
    """DDP as it comes: a bucket of gradients is reduced while the backward pass computes the next bucket."""
    network = _network(context, model)
    replica = DistributedDataParallel(network, **_on(context))

    def step(number: Tensor) -> Gradients:
        network.zero_grad()
        loss(replica, *_batch(context, number)).backward()  # type: ignore[no-untyped-call]
        return _gradients(network)

    return Side(step)


def buckets(context: Context, model: Kind, megabytes: float) -> Side:
    """Small buckets start early and cost a launch each; large ones carry more per launch and leave a longer end."""
    network = _network(context, model)
    replica = DistributedDataParallel(network, bucket_cap_mb=megabytes, **_on(context))

    def step(number: Tensor) -> Gradients:
        network.zero_grad()
        loss(replica, *_batch(context, number)).backward()  # type: ignore[no-untyped-call]
        return _gradients(network)

    return Side(step)


def bucket_view(context: Context, model: Kind) -> Side:
    """Gradients live in the buckets: no copy back from a bucket, and no second memory for them."""
    network = _network(context, model)
    replica = DistributedDataParallel(network, gradient_as_bucket_view=True, **_on(context))

    def step(number: Tensor) -> Gradients:
        network.zero_grad()
        loss(replica, *_batch(context, number)).backward()  # type: ignore[no-untyped-call]
        return _gradients(network)

    return Side(step)


def bf16_gradients(context: Context, model: Kind) -> Side:
    """Buckets cross the wire in bf16: half of the bytes, and 8 bits of mantissa."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    network = _network(context, model)
    replica = DistributedDataParallel(network, gradient_as_bucket_view=True, **_on(context))
    replica.register_comm_hook(None, bf16_compress_hook)

    def step(number: Tensor) -> Gradients:
        network.zero_grad()
        loss(replica, *_batch(context, number)).backward()  # type: ignore[no-untyped-call]
        return _gradients(network)

    return Side(step)


def static_graph(context: Context, model: Kind) -> Side:
    """DDP learns the order of gradients once and trusts it afterwards."""
    network = _network(context, model)
    replica = DistributedDataParallel(network, gradient_as_bucket_view=True, static_graph=True, **_on(context))

    def step(number: Tensor) -> Gradients:
        network.zero_grad()
        loss(replica, *_batch(context, number)).backward()  # type: ignore[no-untyped-call]
        return _gradients(network)

    return Side(step)


def fsdp2(context: Context, model: Kind) -> Side:
    """Each rank keeps its share of weights and gradients: less memory, and the weights cross the wire too, in bf16.

    The shares of the last step are gathered in `finish`, once in a block: a training step does not gather them.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # takes seconds

    network = _network(context, model)
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in (*network.blocks, network):
        fully_shard(part, mp_policy=precision)
    whole = {name: torch.empty(weight.shape, device=context.device) for name, weight in network.named_parameters()}

    def step(number: Tensor) -> Gradients:
        network.zero_grad()
        loss(network, *_batch(context, number)).backward()  # type: ignore[no-untyped-call]
        return whole

    def gather() -> None:
        for name, share in _gradients(network).items():
            whole[name].copy_(share.full_tensor())  # type: ignore[attr-defined]

    return Side(step, finish=gather)


def _network(context: Context, model: Kind) -> Model:
    if not dist.is_initialized():
        raise RuntimeError(NO_RANKS)
    torch.backends.cuda.enable_cudnn_sdp(False)  # flash attention repeats its gradients, see models.py
    if context.device.type == "cpu":
        torch.set_num_threads(1)  # the ranks share the cores, and several threads add in another order each time
    return make(model, context.device)


def _on(context: Context) -> dict[str, Any]:
    return {"device_ids": [context.device]} if context.device.type == "cuda" else {}


def _batch(context: Context, number: Tensor) -> tuple[Tensor, Tensor]:
    """This rank's part of the batch."""
    return draw(context.items, int(number), dist.get_rank(), context.device)


def _gradient_of(weight: nn.Parameter) -> Tensor:
    if weight.grad is None:
        raise RuntimeError("a weight got no gradient")
    return weight.grad


def _gradients(network: nn.Module) -> Gradients:
    """The gradient of each weight, or this rank's share of it."""
    return {name: _gradient_of(weight) for name, weight in network.named_parameters()}
