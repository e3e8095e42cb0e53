"""One training step on every rank, without the update: forward, backward, and the gradients of all ranks averaged.

Its output has the averaged gradient of each weight by its name, float32. A step takes the number of a batch, and each
rank draws its own part of that batch: the work of a rank does not depend on the number of ranks, which is weak scaling.
The optimizer is left out: it sends nothing, and since the output of a step must depend on its input alone, each step
would have to take the update back.

Two models have gradients that cross GPUs, and tiny ones a CPU: all compute in bf16 as autocast does. A transformer
computes for long. A perceptron has as many weights and a quarter of the kernels, so that the wire bounds its step of
few tokens: the step of the transformer on 1,024 tokens was bound by launches, 7 ms of 9 on an H200.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from gpugate.workload import Context, Side

Gradients = dict[str, Tensor]
NO_RANKS = "it needs a job of ranks, which pytest perf_tests alone starts: other commands cannot measure it"


WORDS, SMALL_WORDS = 8192, 2048
TOKENS, SMALL_TOKENS = 64, 16
LAYERS = 2


class Language(nn.Module):
    """A transformer that predicts each next token from the tokens before it, without dropout.

    A backward pass of flash attention adds the gradient of a query in any order, over blocks of 128 keys: 64 tokens are
    one block, and a step repeats its gradients.
    """

    def __init__(self, words: int, width: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.logits = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        """The logits [batch, tokens, words] of int64 [batch, tokens]."""
        later = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], ids.device)
        logits: Tensor = self.logits(self.layers(self.words(ids), mask=later, is_causal=True))
        return logits

    @property
    def blocks(self) -> list[nn.Module]:
        """The parts that are computed one after another."""
        return list(self.layers.layers)


class Perceptron(nn.Module):
    """A network that predicts each next token from one token."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.Sequential(*(_wide_layer(width) for _ in range(LAYERS)))
        self.logits = nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """The logits [batch, tokens, words] of int64 [batch, tokens]."""
        logits: Tensor = self.logits(self.layers(self.words(ids)))
        return logits

    @property
    def blocks(self) -> list[nn.Module]:
        """The parts that are computed one after another."""
        return list(self.layers)


def _wide_layer(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width, bias=False), nn.GELU(), nn.Linear(width, width, bias=False))


Kind = Literal["transformer", "perceptron"]
Model = Language | Perceptron


def make(kind: Kind, device: torch.device) -> Model:
    """Makes the model with the same float32 weights on every rank."""
    torch.manual_seed(0)
    on_gpu = device.type == "cuda"
    words = WORDS if on_gpu else SMALL_WORDS
    if kind == "transformer":
        width, heads = (2048, 16) if on_gpu else (128, 4)
        return Language(words, width, heads).to(device)
    return Perceptron(words, 4096 if on_gpu else 128).to(device)


def draw(items: int, number: int, rank: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Draws batch `number` of a rank on the device: token ids and the ids that follow, int64 [items, tokens]."""
    chance = torch.Generator(device).manual_seed(1_000_003 * (number + 1) + rank)
    words, tokens = (WORDS, TOKENS) if device.type == "cuda" else (SMALL_WORDS, SMALL_TOKENS)
    ids = torch.randint(words, (items, tokens + 1), generator=chance, device=device)
    return ids[:, :-1], ids[:, 1:]


def loss(model: nn.Module, ids: Tensor, wanted: Tensor) -> Tensor:
    """The mean loss [] of one batch of one rank, float32. Matrix products have bf16 inputs and outputs."""
    with torch.autocast(ids.device.type, torch.bfloat16):
        logits = model(ids)
        return F.cross_entropy(logits.flatten(0, -2), wanted.flatten())


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


def ddp(context: Context, model: Kind, bf16_gradients: bool = False, **settings: Any) -> Side:
    """DDP by these settings: a bucket of gradients is reduced while the backward pass computes the next bucket.

    Small buckets (`bucket_cap_mb`) start early and cost a launch each; large ones carry more per launch and leave a
    longer end. With `gradient_as_bucket_view` gradients live in the buckets: no copy back from a bucket, and no second
    memory for them. With `static_graph` DDP learns the order of gradients once and trusts it afterwards. With
    `bf16_gradients` buckets cross the wire in bf16: half of the bytes, and 8 bits of mantissa.
    """
    network = _network(context, model)
    replica = DistributedDataParallel(network, **settings, **_on(context))
    if bf16_gradients:
        replica.register_comm_hook(None, bf16_compress_hook)

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
    torch.backends.cuda.enable_cudnn_sdp(False)  # flash attention repeats its gradients, see Language
    if context.device.type == "cpu":
        torch.set_num_threads(1)  # the ranks share the cores, and several threads add in another order each time
    return make(model, context.device)


def _on(context: Context) -> dict[str, Any]:
    return {"device_ids": [context.device]} if context.device.type == "cuda" else {}


def _batch(context: Context, number: Tensor) -> tuple[Tensor, Tensor]:
    """This rank's part of the batch."""
    return draw(context.items, int(number), dist.get_rank(), context.device)


def _gradient_of(weight: nn.Parameter) -> Tensor:
    return cast(Tensor, weight.grad)


def _gradients(network: nn.Module) -> Gradients:
    """The gradient of each weight, or this rank's share of it."""
    return {name: _gradient_of(weight) for name, weight in network.named_parameters()}
