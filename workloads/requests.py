"""A network that answers requests: one by one, all together, and together with int8 weights.

One request reads every weight for a few multiplications, so memory decides. Together, the requests share each weight
that was read. FLOPs: 2 per multiply-add. The sizes are for a CPU.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from gpugate.workload import TOLERANCE_BY_DTYPE, Context, Optimization, Side, Size, Tolerance, Workload
from workloads.parts.random_inputs import host_generator

FEATURES, HIDDEN, REQUESTS = 1024, 4096, 16
WEIGHTS = 2 * FEATURES * HIDDEN


def requests(context: Context, index: int) -> Tensor:
    """[requests, features]."""
    return torch.randn(context.items, FEATURES, generator=host_generator(context, index))


def network(context: Context) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(context.seed)
        layers = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, FEATURES))
    return layers.eval().requires_grad_(False)


def one_by_one(context: Context) -> Side:
    model = network(context)
    return Side(torch.inference_mode()(lambda inputs: torch.cat([model(one) for one in inputs.split(1)])), model)


def batched(context: Context) -> Side:
    model = network(context)
    return Side(torch.inference_mode()(model), model)


def int8(context: Context) -> Side:
    """Weights and activations are int8 in the products; the scale of the activations is chosen for each batch."""
    from torch.ao.quantization import quantize_dynamic

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch names a package of its own as the successor
        model = quantize_dynamic(network(context), {nn.Linear}, dtype=torch.qint8)  # type: ignore[no-untyped-call]
    return Side(torch.inference_mode()(model), engaged=lambda: _not_int8(model))


def _not_int8(model: nn.Module) -> str | None:
    left = [name for name, module in model.named_modules() if type(module) is nn.Linear]
    return f"{', '.join(left)} has float weights" if left else None


INT8 = {**TOLERANCE_BY_DTYPE, "int8": Tolerance(relative_l2=5e-2, max_error=1e-1)}

WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "requests",
        one_by_one,
        requests,
        {"cpu": Size(REQUESTS, flops=2.0 * REQUESTS * WEIGHTS, bytes=4.0 * (WEIGHTS + 2 * REQUESTS * FEATURES))},
        (
            Optimization("batched", batched, {"cpu": 1.5}),
            Optimization("int8", int8, {"cpu": 1.0}, dtype="int8", compared_with="batched", tolerance=INT8),
        ),
        cold=False,
    ),
)
