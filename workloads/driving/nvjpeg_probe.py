"""A probe of the GPU's JPEG decoder with one picture, in this process: a failing nvJPEG leaves CUDA as it was."""

from __future__ import annotations

import functools

import torch

SIDE = 256  # pixels
# torchvision uses the decoding engine, and works without it only where a GPU has none: not where a container hides it.
NEXT_STEP = (
    "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility,video, or install a CUDA build of torchvision"
)


@functools.cache
def why_not(gpu: int) -> str | None:
    """One sentence why this GPU, by CUDA's index, decodes no JPEG, with the next step; None if it decodes.

    The answer is kept for this process.
    """
    from torchvision.io import ImageReadMode, decode_jpeg, encode_jpeg

    grey = encode_jpeg(torch.full((3, SIDE, SIDE), 128, dtype=torch.uint8))
    try:
        decode_jpeg(grey, ImageReadMode.RGB, device=torch.device("cuda", gpu))
    except (RuntimeError, AttributeError) as error:  # the latter where torchvision was built without CUDA
        said = str(error).strip().partition("\n")[0] or "no message"
        return f"GPU {gpu} decodes no JPEG ({said}): {NEXT_STEP}"
    return None
