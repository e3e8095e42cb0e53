"""torchvision's JPEG encoder without the rest of torchvision.

Importing the package takes longer than encoding some thousand frames, since it imports the whole of torch.compile. The
encoder is an operator in a library beside it, which registers itself with PyTorch when it is loaded.
"""

from __future__ import annotations

import functools
import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def encode_jpegs(frames: list[Tensor], quality: int) -> list[Tensor]:
    """uint8 [bytes] for each of the frames, uint8 [3, H, W] RGB in host memory, by libjpeg.

    `quality` is JPEG's, 1 to 100. Raises ImportError without torchvision.
    """
    operators = _operators()
    return [operators.encode_jpeg(frame, quality) for frame in frames]


@functools.cache
def _operators() -> Any:
    found = find_spec("torchvision")
    if found is None or found.origin is None:
        raise ImportError("JPEG is encoded by torchvision, which is missing: pip install 'gpugate[workloads]'")
    try:
        torch.ops.load_library(Path(found.origin).with_name("image.so"))  # type: ignore[no-untyped-call]
    except OSError:  # the library lies elsewhere, or needs the imports of the package
        importlib.import_module("torchvision.io")
    return torch.ops.image
