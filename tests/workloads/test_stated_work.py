"""The stated FLOPs are those that PyTorch counts, and the stated bytes of networks those of their layers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gpugate.workload import Context, DeviceKind, Size, Workload
from tests.support.one_thread import one_thread  # noqa: F401  # in force by being here
from workloads import WORKLOADS, resnet50_inference
from workloads.driving import WORK
from workloads.driving.frames import Rig
from workloads.driving.training import DrivingModel
from workloads.resnet18_training import WORKLOADS as TRAINING
from workloads.video import segment
from workloads.video.clip import CLIPS
from workloads.video.preprocess import input_size
from workloads.video.segment import Segmenter, without_weights

# Work that is no product of matrices is counted by the workload's own tests; ranks and ResNets have theirs.
ELSEWHERE = (
    *("resnet50-", "resnet18-", "host-preparation", "memory-access", "operator-", "optimizer-", "ddp-scaling"),
    *("video/decode", "video/preprocess", "video/composite", "video/encode"),
    # All pairs of tokens are counted, and those that attend are stated; of a server, those that every side reads.
    *("activation-memory", "attention-", "llm-decode-1k", "llm-serving"),
    "llm-batch",  # a token of llm-decode for each of its sequences
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


@dataclass(frozen=True)
class Work:
    """`read` and `written` are values of the inputs and outputs of convolutions and linear layers, `weights` of all."""

    flops: int
    read: int
    written: int
    weights: int


def count_work(model: nn.Module, images: Tensor, backward: bool = False) -> Work:
    values = {"read": 0, "written": 0}

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        values["read"] += inputs[0].numel()
        values["written"] += output.numel()

    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(count)
    with FlopCounterMode(display=False) as counter:
        output = model(images)
        if backward:
            output.sum().backward()
    weights = sum(weight.numel() for weight in model.parameters())
    return Work(counter.get_total_flops(), **values, weights=weights)


def segmenter(kind: str) -> tuple[Size, nn.Module, tuple[int, int]]:
    model = Segmenter(without_weights(kind).eval())  # type: ignore[arg-type]
    return segment.size(kind), model, input_size(CLIPS[kind].height, CLIPS[kind].width)  # type: ignore[arg-type,index]


def resnet50() -> tuple[Size, nn.Module, tuple[int, int]]:
    return resnet50_inference.size(3), torchvision.models.resnet50().eval(), (224, 224)


@pytest.mark.parametrize("of", [resnet50, partial(segmenter, "cuda"), partial(segmenter, "cpu")])
@torch.no_grad()
def test_an_inference_reads_weights_and_inputs_and_writes_outputs_once(of: Callable[[], Any]) -> None:
    with torch.device("meta"):
        size, model, pixels = of()
        work = count_work(model, torch.empty(size.items, 3, *pixels))
    assert (size.flops, size.bytes) == (work.flops, 4 * (work.weights + work.read + work.written))


WEIGHT_PASSES = 8  # read forward, backward and by the update; gradient and momentum written and read; weights written


@pytest.mark.parametrize(("workload", "kind", "pixels"), [(TRAINING[0], "cuda", 224), (TRAINING[1], "cpu", 32)])
def test_a_training_step_reads_and_writes_more_often(workload: Workload, kind: DeviceKind, pixels: int) -> None:
    size = workload.sizes[kind]
    with torch.device("meta"):
        model, images = torchvision.models.resnet18(num_classes=10), torch.empty(size.items, 3, pixels, pixels)
        work = count_work(model, images, backward=True)
    assert size.flops == work.flops
    assert size.bytes == 4 * (3 * work.read - images.numel() + 2 * work.written + WEIGHT_PASSES * work.weights)


@pytest.mark.parametrize("rig", WORK)
def test_a_driving_models_work_is_in_a_table(rig: Rig) -> None:
    with torch.device("meta"):
        model = DrivingModel(rig).eval()
        images, command = torch.empty(1, rig.cameras, 3, rig.height, rig.width), torch.zeros(1, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(images, command).sum().backward()
    flops, parameters = WORK[rig]
    assert flops == pytest.approx(counter.get_total_flops(), rel=2e-4)
    assert parameters == sum(weight.numel() for weight in model.parameters())
