"""A layer of experts: each token goes through two of many small networks, which a router chooses for it.

Experts one by one are a loop of small products, and for each expert the host asks the device for its tokens. With the
tokens sorted by their expert, one grouped product runs all experts, and the host asks for nothing. In eight bits with a
scale for each row, tensor cores multiply at twice the rate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpugate.workload import Context, Contract, Limit, Needs, Optimization, Side, Size, Tolerance, Workload
from workloads.parts.compiled import COMPILER, compile_anew
from workloads.parts.quantized import FP8, round_rows
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


def _in_order(model: Experts, run: Callable[[Tensor, Tensor], Tensor]) -> Side:
    """The tokens in the order of their experts; `run` gets their rows, and where those of each expert end."""

    @torch.no_grad()
    def step(x: Tensor) -> Tensor:
        shares, chosen = model.route(x)
        order = chosen.flatten().argsort()  # [tokens * CHOSEN]
        counts = torch.zeros(len(model.widening), device=x.device, dtype=torch.int32)
        counts.scatter_add_(0, chosen.flatten(), torch.ones_like(order, dtype=torch.int32))
        token = order // CHOSEN
        out = run(x[token], counts.cumsum(0, dtype=torch.int32))
        weighted = (out * shares.flatten()[order, None]).float()
        return torch.zeros_like(x, dtype=torch.float32).index_add_(0, token, weighted)

    return Side(step, model)


def grouped(context: Context) -> Side:
    """Each product is a single call for all experts."""
    model = experts(context)

    def run(rows: Tensor, ends: Tensor) -> Tensor:
        wide = F.grouped_mm(rows, model.widening, offs=ends)
        return F.grouped_mm(_gate(wide), model.narrowing, offs=ends)

    return _in_order(model, run)


def grouped_fp8(context: Context) -> Side:
    """The same calls in fp8. The rounding is compiled with the gate before it; the products are not compiled."""
    model = experts(context)
    widening, narrowing = _round_experts(model.widening), _round_experts(model.narrowing)
    round_tokens = compile_anew(lambda rows: round_rows(rows, FP8), dynamic=False, fullgraph=True)
    gate_and_round = compile_anew(lambda wide: round_rows(_gate(wide), FP8), dynamic=False, fullgraph=True)

    def run(rows: Tensor, ends: Tensor) -> Tensor:
        wide = _multiply_fp8(round_tokens(rows), widening, ends)
        return _multiply_fp8(gate_and_round(wide), narrowing, ends)

    return _in_order(model, run)


def _round_experts(weights: Tensor) -> tuple[Tensor, Tensor]:
    """[experts, inputs, outputs] in fp8, whose columns are contiguous, and their scales [experts, outputs]."""
    columns = weights.transpose(1, 2).contiguous()
    values, scales = round_rows(columns.flatten(0, 1), FP8)
    return values.view_as(columns).transpose(1, 2), scales.view(columns.shape[:2])


def _multiply_fp8(rows: tuple[Tensor, Tensor], weights: tuple[Tensor, Tensor], ends: Tensor) -> Tensor:
    by_row, scales = F.ScalingType.RowWise, rows[1].flatten()
    product: Tensor = F.scaled_grouped_mm(rows[0], weights[0], scales, by_row, weights[1], by_row, offs=ends)  # type: ignore[attr-defined]
    return product


def size(kind: str) -> Size:
    """FLOPs: 2 per multiply-add of the router and of three products of the chosen experts.

    Bytes: the weights once, and the tokens, which come in bfloat16 and leave in float32.
    """
    count, width, hidden = TOKENS[kind], WIDTH[kind], HIDDEN[kind]
    weights = EXPERTS[kind] * (width + 3 * width * hidden)
    flops = 2.0 * count * (EXPERTS[kind] * width + CHOSEN * 3 * width * hidden)
    return Size(items=count, flops=flops, bytes=2.0 * weights + 6.0 * count * width)


HOPPER = Needs(compute_capability=(9, 0))  # elsewhere PyTorch runs the experts in a loop
HOPPER_COMPILER = replace(COMPILER, compute_capability=(9, 0))
EIGHT_BITS = {"fp8": Tolerance(relative_l2=1e-1, max_error=2e-1)}  # 6 % on a CPU: three products of rounded factors
OVER_BF16 = "PyTorch 2.11's grouped product in fp8 takes longer than that in bf16 on an H200, and rounding comes on top"
NO_WAIT = Contract(engaged=(Limit("synchronizing_calls", at_most=0),))
AS_FEW_LAUNCHES = Limit("kernel_launches", at_most_of_reference=1.1)
ONE_CALL = Contract(
    engaged=NO_WAIT.engaged,
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
                {"sm_90": 10.8, "cuda": 2.0, "cpu": 1.0},
                dtype="bfloat16",
                needs=HOPPER,
                contract={"cuda": ONE_CALL},
                why="the loop waits for the device once an expert, and its products are too small for a GPU",
            ),
            Optimization(
                "grouped-fp8",
                grouped_fp8,
                {"cuda": 0.58},
                dtype="fp8",
                compared_with="grouped",
                tolerance=EIGHT_BITS,
                needs=HOPPER_COMPILER,
                contract={"cuda": replace(NO_WAIT, limits=(AS_FEW_LAUNCHES,))},
                why=OVER_BF16,
            ),
        ),
        cold=False,
    ),
)
