"""A driving model whose encoder has a thousandth of ResNet-18's work: enough for tests of everything around it."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torchvision
from torch import nn

from workloads.driving import training


class SmallEncoder(nn.Sequential):
    """A stand-in for torchvision's ResNet-18: the same stem, stride and features, then pooling and a classifier."""

    def __init__(self, weights: None = None) -> None:
        super().__init__(
            nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, training.FEATURES, 3, stride=training.STRIDE // 2, padding=1, bias=False),
            nn.BatchNorm2d(training.FEATURES),
            nn.ReLU(),
            nn.Identity(),
            nn.Identity(),
        )


@contextmanager
def small_encoders() -> Iterator[None]:
    """Inside, every driving model that is built has the small encoder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torchvision.models, "resnet18", SmallEncoder)
        training._initialized.cache_clear()
        yield
    training._initialized.cache_clear()


@pytest.fixture(scope="module", autouse=True)
def small_encoder() -> Iterator[None]:
    with small_encoders():
        yield
