"""The fused segmenter on disk: the same numbers as the one that was fused, bit for bit, in any process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from tests.support.code_in_child import run_code
from workloads.parts.cudnn_fusion import (
    STEM_CHANNELS,
    Operators,
    fuse,
    max_pool,
    plain_conv,
    to_channels_last_half,
)
from workloads.video.clip.clip import Clip
from workloads.video.segment import fused_network as module
from workloads.video.segment.dilated_fusion import conv_add_relu, conv_relu, pool_relu
from workloads.video.segment.fused_network import fused_network, packed, unpacked
from workloads.video.segment.segmenter import Segmenter

CPU = torch.device("cpu")
CLIP = Clip(160, 96, 24)
OPERATORS = Operators(plain_conv, conv_relu, conv_add_relu, max_pool, pool_relu)


class Small(nn.Module):
    """A bit of everything that FCN-ResNet101 has."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.pool = nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.MaxPool2d(3, 2)
        self.wide, self.wide_norm = nn.Conv2d(16, 24, 1, bias=False), nn.BatchNorm2d(24)
        self.dilated, self.short = nn.Conv2d(24, 24, 3, padding=2, dilation=2), nn.Conv2d(16, 24, 1)
        self.last, self.relu = nn.Conv2d(24, 2, 1), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.norm(self.stem(x))))
        y = self.dilated(self.relu(self.wide_norm(self.wide(x))))
        return self.last(self.relu(y + self.short(x)))


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return Small().eval().requires_grad_(False)


@pytest.fixture
def fused(model: nn.Module) -> fx.GraphModule:
    return to_channels_last_half(fuse(model, OPERATORS))


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    yield
    fused_network.cache_clear()


@pytest.fixture
def built(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> list[Clip]:
    """For which clips a segmenter was built, to be fused."""
    clips: list[Clip] = []

    def segmenter(kind: str, context: Any, clip: Clip) -> Segmenter:
        clips.append(clip)
        return Segmenter(model)

    monkeypatch.setattr(module, "segmenter", segmenter)
    return clips


def frames() -> Tensor:
    padded = torch.zeros(2, STEM_CHANNELS, 40, 56)
    padded[:, :3] = torch.randn(2, 3, 40, 56, generator=torch.Generator().manual_seed(1))
    return padded.to(torch.float16, memory_format=torch.channels_last)


def as_in_another_process(cache_dir: Path, seed: int = 0) -> Tensor:
    fused_network.cache_clear()
    return fused_network(CLIP, seed, CPU, cache_dir).on(CPU, OPERATORS)(frames())


def test_what_was_packed_computes_the_same_to_the_last_bit(model: nn.Module, fused: fx.GraphModule) -> None:
    again = unpacked(packed(fused)).on(CPU, OPERATORS)
    wanted = fused(frames())
    assert torch.equal(again(frames()), wanted)
    exact = model(frames()[:, :3].float())
    assert (wanted.float() - exact).norm() / exact.norm() < 5e-3


def test_it_is_fused_once_and_read_ever_after(built: list[Clip], fused: fx.GraphModule, tmp_path: Path) -> None:
    first, second = (as_in_another_process(tmp_path) for _ in range(2))
    assert built == [CLIP]
    assert torch.equal(first, second)
    assert torch.equal(first, fused(frames()))
    as_in_another_process(tmp_path, seed=1)
    assert built == [CLIP, CLIP]


IMPORTED = """
import sys, torch
from pathlib import Path
before = set(sys.modules)
from workloads.video.pipeline.chain import Chain
from workloads.video.clip.clip import Clip
from workloads.video.composite.compositing import OnDevice
from workloads.video.encode.motion_jpeg import MotionJpeg
from workloads.video.segment.fused_network import fused_network
from workloads.video.segment.dilated_fusion import operators
fused_network(Clip(160, 96, 24), 0, torch.device("cpu"), Path("{folder}")).on(torch.device("cpu"), operators()[0])
OnDevice(96, 160, torch.device("cpu"))
slow = {{"torchvision", "torch._dynamo", "torch._inductor", "sklearn", "cv2"}}
print(sorted(slow & sys.modules.keys() - before))
"""


@pytest.mark.usefixtures("built", "warm_children")
def test_a_pipeline_that_finds_it_imports_nothing_that_takes_seconds(tmp_path: Path) -> None:
    as_in_another_process(tmp_path)
    assert run_code(IMPORTED.format(folder=tmp_path)).split() == ["[]"]
