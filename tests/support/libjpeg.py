"""A JPEG encoder of the host, which stands for nvJPEG."""

import io

import torch
from PIL import Image
from torch import Tensor

from workloads.video.encoders import QUALITY


def jpeg(frame: Tensor) -> Tensor:
    """uint8 [bytes] of uint8 [3, H, W] RGB."""
    file = io.BytesIO()
    Image.fromarray(frame.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=QUALITY, subsampling=0)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
