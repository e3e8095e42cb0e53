"""Adapters of torch's memory and stream for CV-CUDA's operators, without a copy and without a wait.

CV-CUDA has a stream of its own, and it waits for the whole device where a tensor does not name the stream that wrote
it, as torch's do not. The adapters solve both: operators run on torch's current stream, and tensors declare that this
order is enough.
"""

from __future__ import annotations

import functools
import importlib
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

TYPE_NAMES = {torch.uint8: "|u1", torch.float32: "<f4"}
# In place of a stream, in CV-CUDA's reading of the CUDA Array Interface: the caller has ensured the order.
IN_ORDER = -1


def operators() -> Any:
    """The module cvcuda."""
    return importlib.import_module("cvcuda")


def as_cvcuda(images: Tensor) -> Any:
    """`images`, uint8 or float32 [n, h, w, channels] with packed pixels and rows, as CV-CUDA's NHWC tensor.

    It is the same memory, and keeps it alive. Raises ValueError for pixels that are not packed.
    """
    channels = images.shape[3]
    if images.stride()[2:] != (channels, 1):
        raise ValueError(f"CV-CUDA takes packed pixels, not strides of {list(images.stride())}: make them contiguous")
    interface = {
        "shape": tuple(images.shape),
        "strides": tuple(step * images.element_size() for step in images.stride()),
        "typestr": TYPE_NAMES[images.dtype],
        "data": (images.data_ptr(), False),
        "version": 3,
        "stream": IN_ORDER,
    }
    return operators().as_tensor(SimpleNamespace(images=images, __cuda_array_interface__=interface), "NHWC")


def current_stream(device: torch.device) -> Any:
    """torch's current stream as CV-CUDA's."""
    return _stream(torch.cuda.current_stream(device).cuda_stream)


@functools.lru_cache(maxsize=64)  # torch has 32 of each priority, for good
def _stream(handle: int) -> Any:
    return operators().as_stream(handle)
