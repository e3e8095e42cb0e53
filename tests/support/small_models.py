"""Models with a thousandth of the work, for tests of everything around a model: they begin and end as the real ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from tests.support.small_encoder import small_encoders
from workloads import llm_serving, resnet50_inference
from workloads.llm import tokens
from workloads.llm.model import Shape
from workloads.resnet18_training import training
from workloads.video.clip.clip import CLIPS, Clip

TINY = Shape(vocabulary=97, width=32, layers=2, heads=4, kv_heads=2, hidden=48)
SERVING = {"SHAPES": TINY, "REQUESTS": 6, "ROWS": 2, "LONGEST": 8, "SHARED": 16, "OWN": 8, "CHUNK": 8}


class SmallNet(nn.Module):
    """A stand-in for the ResNet-18 that is trained on small pictures."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 16, 3, stride=2, bias=False), nn.BatchNorm2d(16)
        self.fc = nn.Linear(16, classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.bn1(self.conv1(images)))
        return self.fc(torch.relu(self.bn2(self.conv2(hidden))).mean((2, 3)))


@contextmanager
def small_models() -> Iterator[None]:
    """Inside, every decoder, every network that is trained and the clip are small, and ResNet-50 has a block of each
    width.

    Its weights come from two photographs.
    """
    from torchvision.models.resnet import Bottleneck, ResNet

    with small_encoders(), pytest.MonkeyPatch.context() as patch:
        patch.setitem(CLIPS, "cpu", Clip(312, 192, 24))  # type: ignore[arg-type]
        patch.setattr(training, "architecture", SmallNet)
        patch.setattr(tokens, "SMALL", TINY)
        for name, small in SERVING.items():
            patch.setitem(getattr(llm_serving, name), "cpu", small)
        patch.setattr("torchvision.models.resnet50", partial(ResNet, Bottleneck, [1, 1, 1, 1]))
        patch.setattr(resnet50_inference, "CALIBRATION_PHOTOGRAPHS", 2)
        resnet50_inference.seeded_weights.cache_clear()
        yield
    resnet50_inference.seeded_weights.cache_clear()
