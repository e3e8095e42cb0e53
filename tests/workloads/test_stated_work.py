"""The stated FLOPs of each workload on a CPU are those that PyTorch counts."""

from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gpugate.workload import Context, Workload
from tests.support.one_thread import one_thread  # noqa: F401  # in force by being here
from workloads import WORKLOADS

# Work that is no product of matrices is counted by the workload's own tests; ranks and ResNets have theirs.
ELSEWHERE = (
    *("resnet50-", "resnet18-"),
    *("host-preparation", "memory-access", "operator-", "optimizer-", "video/decode", "video/preprocess"),
    *("video/composite", "video/encode", "ddp-scaling"),
    *(
        "activation-memory",
        "attention-",
        "llm-decode-1k",
        "llm-serving",  # the tokens that every side reads are stated
    ),  # all pairs of tokens are counted, and those that attend are stated
)
COUNTED = [
    one
    for one in WORKLOADS
    if "cpu" in one.sizes
    and any("cpu" in each.device_kinds for each in one.optimizations)
    and (one.name == "operator-attention" or not one.name.startswith(ELSEWHERE))
]


@pytest.mark.parametrize("workload", COUNTED, ids=lambda workload: workload.name)
def test_the_stated_flops_are_those_that_pytorch_counts(workload: Workload, cache_dir: Path) -> None:
    items = workload.sizes["cpu"].items
    context = Context(torch.device("cpu"), min(items, 64) if "operator" in workload.name else items, 0, cache_dir)
    inputs, side = workload.inputs(context, 0), workload.baseline(context)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # a CPU's fused kernel is not counted
        side.step(inputs)
    side.close()
    # A step of text is stated for the middle of the text, and each one attends to as many tokens as stand before it.
    allowed = 0.06 if workload.name.startswith("llm-") else 2e-4
    assert workload.sizes["cpu"].flops == pytest.approx(counter.get_total_flops(), rel=allowed)
