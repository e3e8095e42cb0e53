"""The activations that a backward pass reads: kept, computed again, or sent to the host for time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from gpugate.workload import Build, Context, Contract, DeviceKind, Limit, Optimization, Side, Size, Workload
from workloads.parts.random_inputs import draw

WIDTH, LAYERS = {"cuda": 768, "cpu": 128}, {"cuda": 8, "cpu": 2}
WIDER = 3  # of the layer between the two products
HEAD, TOKENS = 64, {"cuda": 1024, "cpu": 128}
KEPT = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)  # the results that are dear to compute again


class Block(nn.Module):
    """A block of a decoder: causal attention and two products with a GELU between them, each with a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, WIDER * width), nn.Linear(WIDER * width, width)

    def forward(self, x: Tensor) -> Tensor:
        texts, tokens, width = x.shape
        heads = self.heads(self.norm_1(x)).view(texts, tokens, 3, width // HEAD, HEAD).permute(2, 0, 3, 1, 4)
        queries, keys, values = heads  # [texts, heads, tokens, HEAD]
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.joined(attended.transpose(1, 2).reshape(texts, tokens, width))
        added: Tensor = self.narrow(F.gelu(self.wide(self.norm_2(x))))
        return x + added


def texts(context: Context, index: int) -> Tensor:
    """float32 [texts, tokens, width]."""
    kind = context.device.type
    return draw(context, index, context.items, TOKENS[kind], WIDTH[kind])


def _training(context: Context, run: Callable[[nn.Module, Tensor], Tensor]) -> Side:
    """A forward and a backward pass: the output is the gradient of every weight."""
    kind = context.device.type
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(context.seed)
        blocks = nn.Sequential(*(Block(WIDTH[kind]) for _ in range(LAYERS[kind]))).to(context.device)

    def step(x: Tensor) -> list[Tensor]:
        for block in blocks:
            x = run(block, x)
        return list(torch.autograd.grad(x.square().mean(), list(blocks.parameters())))

    return Side(step, blocks)


def keep_all(context: Context) -> Side:
    """PyTorch's default: each result that the backward pass reads stays in memory."""
    return _training(context, lambda block, x: block(x))


def checkpointed(context: Context) -> Side:
    """Only the input of each block stays; the backward pass computes the block again (Chen et al., 2016)."""
    return _training(context, lambda block, x: checkpoint(block, x, use_reentrant=False))


def selective(context: Context) -> Side:
    """The results of the products stay as well; attention and what is cheap are computed again."""

    def keep(context: object, operator: object, *arguments: object, **named: object) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if operator in KEPT else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, keep)
    return _training(context, lambda block, x: checkpoint(block, x, use_reentrant=False, context_fn=contexts))


def offloaded(context: Context) -> Side:
    """Each kept result waits in page-locked memory of the host."""

    def run(block: nn.Module, x: Tensor) -> Tensor:
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            result: Tensor = block(x)
        return result

    return _training(context, run)


def size(kind: str, texts: int) -> Size:
    """FLOPs: forward 2 per multiply-add of the products, and of attention's two over earlier tokens; backward twice.

    Bytes: weights and their gradients once, the texts once.
    """
    width, tokens = WIDTH[kind], texts * TOKENS[kind]
    weights = LAYERS[kind] * (4 + 2 * WIDER) * width * width
    attention = LAYERS[kind] * TOKENS[kind] * width
    return Size(items=texts, flops=6.0 * tokens * (weights + attention), bytes=4.0 * (2 * weights + tokens * width))


def _rung(name: str, build: Build, promises: dict[str, float], why: str, *limits: Limit) -> Optimization:
    return Optimization(name, build, promises, contract={"cuda": Contract(limits=limits)}, why=why)


AGAIN = "a second forward pass is a third of the step's work more, and its price is what the memory costs"
ATTENTION_AGAIN = "attention and what lies between the products are computed again, a tenth of the step's work"
OVER_THE_BUS = "the bus carries every kept result twice, at a fiftieth of the memory's rate"
# An H200 had 0.21, 0.26 and 0.71.
FEWEST, FEW, LESS = (Limit("peak_bytes", at_most_of_reference=share) for share in (0.3, 0.35, 0.8))
PINNED = Limit("pageable_copies", at_most=0)
RUNGS = (
    _rung("checkpoint", checkpointed, {"cuda": 0.65, "cpu": 0.6}, AGAIN, FEW),
    _rung("selective", selective, {"sm_90": 0.75, "cuda": 0.7, "cpu": 0.6}, ATTENTION_AGAIN, LESS),
    _rung("offload", offloaded, {"sm_90": 0.28, "cuda": 0.1}, OVER_THE_BUS, FEWEST, PINNED),
)
SIZES: dict[DeviceKind, Size] = {"cuda": size("cuda", 8), "cpu": size("cpu", 2)}
WORKLOADS: tuple[Workload, ...] = (Workload("activation-memory", keep_all, texts, SIZES, RUNGS, cold=False),)
