"""Stages on a GPU give the numbers that the same code gives on a CPU, where they are held against OpenCV's."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from gpugate.workload import Context
from tests.support.plain_operators import PLAIN
from workloads.parts.cudnn_fusion import STEM_CHANNELS, FusedConv, FusedMaxPool, LastConv
from workloads.video import composite, preprocess
from workloads.video.clip import CLIPS, Clip
from workloads.video.segment import fused

DEVICE, CPU = torch.device("cuda", 0), torch.device("cpu")
SIZES = [(1080, 1920), (360, 640), (100, 158)]


def frames(size: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """NV12 of noise that is smooth enough to be blurred by halves, and logits."""
    height, width = size
    random = torch.Generator().manual_seed(0)
    coarse = 255 * torch.rand(2, 1, height // 4, width // 4, generator=random)
    nv12 = F.interpolate(coarse, (height * 3 // 2, width), mode="bilinear")[:, 0].to(torch.uint8)
    logits = 4 * torch.randn(2, 2, *preprocess.input_size(height, width), generator=random)
    return nv12, logits


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("make", [composite.in_torch, composite.in_triton], ids=["torch", "triton"])
def test_composites_are_those_of_a_cpu(make: composite.MakeStage, size: tuple[int, int]) -> None:
    nv12, logits = frames(size)
    wanted = composite.in_torch(*size, CPU)(nv12, logits)
    found = make(*size, DEVICE)(nv12.to(DEVICE), logits.to(DEVICE)).cpu()
    assert (wanted.int() - nv12.int()).abs().max() > 16, "there is something to blur"
    assert (found.int() - wanted.int()).abs().max() <= 1
    assert (found != wanted).float().mean() < 0.08


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("make", [preprocess.in_torch, preprocess.in_triton], ids=["torch", "triton"])
def test_what_the_network_sees_is_what_it_sees_on_a_cpu(make: preprocess.MakeStage, size: tuple[int, int]) -> None:
    nv12, _ = frames(size)
    found = make(*size, DEVICE, "bt601")(nv12.to(DEVICE))
    torch.testing.assert_close(found.cpu(), preprocess.in_torch(*size, CPU)(nv12), atol=2e-6, rtol=0)


def test_the_fused_network_is_cudnns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.get_device_capability(DEVICE) < (8, 0):
        pytest.skip("the network is fused for capability 8.0: run this on an A100 or newer")
    monkeypatch.setitem(CLIPS, "cuda", Clip(320, 192, 24))
    context = Context(DEVICE, 2, 0, tmp_path)
    pictures = torch.randn(2, STEM_CHANNELS, 64, 104, generator=torch.Generator().manual_seed(0))
    pictures[:, 3:] = 0
    x = pictures.to(DEVICE, torch.float16, memory_format=torch.channels_last)
    network, apart = fused(context).coarse, fused(context).coarse
    for module in apart.modules():
        if isinstance(module, FusedConv | FusedMaxPool | LastConv):
            module.operators = PLAIN
    with torch.inference_mode():
        found, wanted = (each(x).float() for each in (network, apart))
    assert (found - wanted).norm() / wanted.norm() < 5e-3
