"""The networks of torchvision that segment: FCN-ResNet101 on CUDA, the light LR-ASPP on a CPU."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from gpugate.workload import DeviceKind

CLASSES = 2  # background and foreground


@dataclass(frozen=True)
class Architecture:
    """torchvision's name of a network, and its last convolutions: the sum of their outputs is the coarse logits."""

    name: str
    readouts: tuple[str, ...]


ARCHITECTURES: Mapping[DeviceKind, Architecture] = {
    "cuda": Architecture("fcn_resnet101", ("classifier.4",)),
    "cpu": Architecture("lraspp_mobilenet_v3_large", ("classifier.low_classifier", "classifier.high_classifier")),
}


def coarse_network(kind: DeviceKind, classes: int = CLASSES) -> nn.Module:
    """[n, 3, h, w] -> [n, classes, h/8, w/8], initialized as torchvision does; its weights have torchvision's names."""
    from torchvision.models import get_model

    whole = get_model(ARCHITECTURES[kind].name, weights=None, weights_backbone=None, num_classes=classes)
    backbone = whole.backbone
    if kind == "cuda":  # this head takes the features alone, without the dictionary around them
        backbone = nn.Sequential(OrderedDict(backbone.named_children()))
    return nn.Sequential(OrderedDict(backbone=backbone, classifier=whole.classifier))


def without_weights(kind: DeviceKind, classes: int = CLASSES) -> nn.Module:
    """The network of `coarse_network` on the meta device: shapes alone."""
    with torch.device("meta"):
        return coarse_network(kind, classes)
