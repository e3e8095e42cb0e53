"""Models with a thousandth of the work, for tests of everything around a model: they begin and end as the real ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch
import torchvision
from torch import Tensor, nn

from workloads import llm_serving, resnet50_inference
from workloads.driving import training as driving_training
from workloads.llm import context as llm_context
from workloads.llm.model import Shape
from workloads.resnet18_training import training
from workloads.video.clip import CLIPS, Clip
from workloads.video.segment import fitted_weights

TINY = Shape(vocabulary=97, width=32, layers=2, heads=4, kv_heads=2, hidden=48)
SERVING = {"SHAPES": TINY, "REQUESTS": 6, "ROWS": 2, "LONGEST": 8, "SHARED": 16, "OWN": 8, "CHUNK": 8}


class SmallEncoder(nn.Sequential):
    """A stand-in for torchvision's ResNet-18: the same stem, stride and features, then pooling and a classifier."""

    def __init__(self, weights: None = None) -> None:
        super().__init__(
            nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, driving_training.FEATURES, 3, stride=driving_training.STRIDE // 2, padding=1, bias=False),
            nn.BatchNorm2d(driving_training.FEATURES),
            nn.ReLU(),
            nn.Identity(),
            nn.Identity(),
        )


@contextmanager
def small_encoders() -> Iterator[None]:
    """Inside, every driving model that is built has the small encoder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torchvision.models, "resnet18", SmallEncoder)
        yield


@pytest.fixture(scope="module", autouse=True)
def small_encoder() -> Iterator[None]:
    with small_encoders():
        yield


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
        patch.setattr(llm_context, "SMALL", TINY)
        for name, small in SERVING.items():
            patch.setitem(getattr(llm_serving, name), "cpu", small)
        patch.setattr("torchvision.models.resnet50", partial(ResNet, Bottleneck, [1, 1, 1, 1]))
        patch.setattr(resnet50_inference, "CALIBRATION_PHOTOGRAPHS", 2)
        resnet50_inference.seeded_weights.cache_clear()
        yield
    resnet50_inference.seeded_weights.cache_clear()


@contextmanager
def clip_on_cpu(monkeypatch: pytest.MonkeyPatch, clip: Clip) -> Iterator[None]:
    """Gives the workloads `clip`; afterwards torch has its threads again, and no weights fitted to it stay."""
    threads = torch.get_num_threads()
    monkeypatch.setitem(CLIPS, "cpu", clip)  # type: ignore[arg-type]
    yield
    torch.set_num_threads(threads)
    fitted_weights.cache_clear()
