"""Whose weights a checkpoint holds, where one option names it for networks of two kinds."""

from __future__ import annotations

import functools
from pathlib import Path

import torch


def is_of_classifier(path: Path) -> bool:
    """Whether it is a state_dict that ends in torchvision's fully connected layer; False also for a damaged file."""
    return "fc.weight" in _names(path)


def is_of_segmenter(path: Path) -> bool:
    """Whether it is a state_dict of a backbone with a head; False also for a damaged file, which its reader refuses."""
    return any(name.startswith("backbone.") for name in _names(path))


@functools.lru_cache(maxsize=2)
def _names(path: Path) -> frozenset[str]:
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
        return frozenset(name for name in stored if isinstance(name, str))
    except Exception:  # whoever wants the weights reads the file again, and says what is wrong with it
        return frozenset()
