"""A layer of experts: each token goes through two of many small networks, which a router chooses for it.

Experts one by one are a loop of small products, and each turn asks the device which tokens are its own. With the tokens
sorted by their expert, one grouped product runs all experts, and the host asks for nothing.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpugate.workload import Context, Contract, Limit, Needs, Optimization, Side, Size, Workload
from workloads.parts.random_inputs import draw

EXPERTS, CHOSEN = {"cuda": 64, "cpu": 8}, 2
WIDTH, HIDDEN = {"cuda": 1024, "cpu": 64}, {"cuda": 1408, "cpu": 96}
TOKENS = {"cuda": 8192, "cpu": 512}


class Experts(nn.Module):
    """The router and the experts' weights in bfloat16: an expert is SwiGLU without a bias."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        experts, width, hidden = EXPERTS[kind], WIDTH[kind], HIDDEN[kind]
        self.router = nn.Parameter(torch.randn(width, experts) / width**0.5)
        self.widening = nn.Parameter(torch.randn(experts, width, 2 * hidden) / width**0.5)
        self.narrowing = nn.Parameter(torch.randn(experts, hidden, width) / hidden**0.5)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The shares and the numbers of the chosen experts of each token: [tokens, CHOSEN]."""
        shares, chosen = torch.topk((x @ self.router).float().softmax(-1), CHOSEN)
        return (shares / shares.sum(-1, keepdim=True)).to(x.dtype), chosen


def _gate(wide: Tensor) -> Tensor:
    gate, up = wide.chunk(2, dim=-1)
    return F.silu(gate) * up


def experts(context: Context) -> Experts:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(context.seed)
        model = Experts(context.device.type)
    return model.requires_grad_(False).to(context.device, torch.bfloat16)


def tokens(context: Context, index: int) -> Tensor:
    """bfloat16 [tokens, width]."""
    return draw(context, index, context.items, WIDTH[context.device.type]).to(torch.bfloat16)


def one_by_one(context: Context) -> Side:
    """Each expert finds its tokens, computes them and adds them to the result."""
    model = experts(context)

    @torch.no_grad()
    def step(x: Tensor) -> Tensor:
        shares, chosen = model.route(x)
        result = torch.zeros_like(x, dtype=torch.float32)
        for number in range(len(model.widening)):
            token, place = torch.where(chosen == number)  # asks the device for their number
            out = _gate(x[token] @ model.widening[number]) @ model.narrowing[number]
            result.index_add_(0, token, (out * shares[token, place, None]).float())
        return result

    return Side(step, model)


def grouped(context: Context) -> Side:
    """The tokens in the order of their experts, and each product a single call for all experts."""
    model = experts(context)

    @torch.no_grad()
    def step(x: Tensor) -> Tensor:
        shares, chosen = model.route(x)
        order = chosen.flatten().argsort()  # [tokens * CHOSEN]
        counts = torch.zeros(len(model.widening), device=x.device, dtype=torch.int32)
        counts.scatter_add_(0, chosen.flatten(), torch.ones_like(order, dtype=torch.int32))
        ends = counts.cumsum(0, dtype=torch.int32)
        token = order // CHOSEN
        wide = F.grouped_mm(x[token], model.widening, offs=ends)
        out = F.grouped_mm(_gate(wide), model.narrowing, offs=ends)
        weighted = (out * shares.flatten()[order, None]).float()
        return torch.zeros_like(x, dtype=torch.float32).index_add_(0, token, weighted)

    return Side(step, model)


def size(kind: str) -> Size:
    """FLOPs: 2 per multiply-add of the router and of three products of the chosen experts.

    Bytes: the weights once, and the tokens, which come in bfloat16 and leave in float32.
    """
    count, width, hidden = TOKENS[kind], WIDTH[kind], HIDDEN[kind]
    weights = EXPERTS[kind] * (width + 3 * width * hidden)
    flops = 2.0 * count * (EXPERTS[kind] * width + CHOSEN * 3 * width * hidden)
    return Size(items=count, flops=flops, bytes=2.0 * weights + 6.0 * count * width)


HOPPER = Needs(compute_capability=(9, 0))  # elsewhere PyTorch runs the experts in a loop
ONE_CALL = Contract(
    engaged=(Limit("synchronizing_calls", at_most=0),),
    # A share of 0.20 on an H200: two thirds of the 37 kernels sort, gather and add up.
    limits=(Limit("kernel_launches", at_most_of_reference=0.1), Limit("matmul_share", at_least=0.16)),
)
WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "mixture-of-experts",
        one_by_one,
        tokens,
        {"cuda": size("cuda"), "cpu": size("cpu")},
        (
            Optimization(
                "grouped",
                grouped,
                {"sm_90": 10.3, "cuda": 2.0, "cpu": 1.0},
                dtype="bfloat16",
                needs=HOPPER,
                contract={"cuda": ONE_CALL},
                why="the loop waits for the device once an expert, and its products are too small for a GPU",
            ),
        ),
        cold=False,
    ),
)
