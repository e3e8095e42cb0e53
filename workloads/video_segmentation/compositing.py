"""Sharp foreground before a blurred background: 31 pixels of Gaussian at 1080p, blended by the network's certainty.

composite = alpha * frame + (1 - alpha) * blurred frame, where alpha is the foreground's probability, enlarged to the
frame bilinearly with half-pixel centres.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from workloads.video_segmentation.colour import planes
from workloads.video_segmentation.frame_size import FrameSize
from workloads.video_segmentation.fused import WholeBatch, fused
from workloads.video_segmentation.separable_blur import (
    Weights,
    across,
    blur_pixels,
    bordered,
    down,
    gaussian_sigma,
    gaussian_weights,
    halved,
)


def on_host(bgr: NDArray[np.uint8], logits: Tensor) -> NDArray[np.uint8]:
    """uint8 [n, H, W, 3] from BGR of that shape and logits [n, classes, h, w] on the host; OpenCV, in its own threads.

    Alpha and its complement are enlarged each for itself, since OpenCV does that in several threads and NumPy would
    subtract in one.
    """
    import cv2

    height, width = bgr.shape[1:3]
    pixels = blur_pixels(height)
    composited = np.empty_like(bgr)
    for frame, alpha, out in zip(bgr, alpha_of(logits), composited, strict=True):
        sharp, blurry = (
            cv2.resize(share.numpy(), (width, height), interpolation=cv2.INTER_LINEAR) for share in (alpha, 1 - alpha)
        )
        blurred = cv2.GaussianBlur(frame, (pixels, pixels), gaussian_sigma(pixels))
        cv2.blendLinear(frame, blurred, sharp, blurry, dst=out)
    return composited


def alpha_of(logits: Tensor) -> Tensor:
    """float32 [n, h, w], 0..1: the probability of all classes but the first one, from logits [n, classes, h, w].

    Raises ValueError for fewer than two classes.
    """
    classes = logits.shape[1]
    if classes < 2:
        raise ValueError(f"logits of {classes} class tell no foreground: give [n, 2 or more, h, w], background first")
    logits = logits.float()
    if classes == 2:  # the same, with one exponential instead of two
        return (logits[:, 1] - logits[:, 0]).sigmoid()
    return 1 - logits.softmax(1)[:, 0]


class OnDevice:
    """Composites NV12 in place of RGB: Y at full size, UV at half of it, on the device where they lie.

    Converting colours, blurring and blending are linear, so they may change places: half the bytes of RGB are touched,
    and none is converted. On a GPU Inductor makes three kernels a plane of it, and two for alpha.

    In RGB the result agrees with that of `on_host` by 51 dB of PSNR on our clip at 1080p, and by 47 dB at 360p. What
    differs, each alone:
    - Chroma. A blurred background changes from pixel to pixel on the host and every two pixels here, as it will once
      the host's is encoded to 4:2:0 too: 53.5 dB at 1080p, 47 dB at 360p, where the blur is narrower.
    - Rounding to levels of YUV, and by swscale's arithmetic where it is shown as RGB again: 52.6 and 51 dB. Compared in
      NV12, to which the host's result has to be converted, all of it is 48 dB.
    - OpenCV's rounding to levels of RGB, once for the blur, in fixed point, and once for the blend: 60.5 dB.
    - The host clips what is outside of RGB before it blurs. Within half a blur of the frame's edge, chroma is mirrored
      here by itself, and there with the picture that it belongs to.
    """

    def __init__(self, height: int, width: int, device: torch.device) -> None:
        luma = gaussian_weights(blur_pixels(height))
        self._weights = luma, halved(luma)
        self._size = FrameSize(height, width)
        self._whole = WholeBatch()
        self._begin, self._down, self._across = (fused(step, device) for step in (_begin, _down, _across))

    def __call__(self, nv12: Tensor, logits: Tensor, out: Tensor | None = None) -> Tensor:
        """Composites of NV12 frames, uint8 [n, H*3/2, W], and their logits [n, classes, h, w]: `out`, or new memory.

        Everything runs on the caller's current stream; nothing waits for it. `out` is NV12 too and no part of `nv12`.
        Raises ValueError for any other frames than NV12 of the given size, and for logits of another number of frames.
        """
        self._size.check_nv12(nv12)
        check_alike(nv12, logits)
        frames, logits = self._whole(nv12), self._whole(logits)
        composites = out if out is not None and frames is nv12 else torch.empty_like(frames)
        *bordered_planes, alpha = self._begin(frames, logits, *self._weights)
        columns = self._down(*bordered_planes, *self._weights)
        self._across(*columns, frames, alpha, *planes(composites), *self._weights)
        if out is None:
            return composites[: len(nv12)]
        if composites is not out:
            out.copy_(composites[: len(nv12)])
        return out


def check_alike(frames: Tensor, logits: Tensor) -> None:
    if len(frames) != len(logits):
        raise ValueError(f"{len(logits)} logits do not fit {len(frames)} frames: give one of each")


def enlarged(alpha: Tensor, size: tuple[int, int]) -> Tensor:
    """float32 [n, *size, 1] from [n, h, w], bilinearly with half-pixel centres."""
    return F.interpolate(alpha[:, None], size, mode="bilinear", align_corners=False)[:, 0, :, :, None]


def mixed(image: Tensor, background: Tensor, share: Tensor) -> Tensor:
    """uint8 [n, h, w, c]: `share` of `image`, uint8, and the rest of `background`, both 0..255; rounded once."""
    return (background + share * (image - background)).round().to(torch.uint8)


def _begin(nv12: Tensor, logits: Tensor, luma_weights: Weights, chroma_weights: Weights) -> tuple[Tensor, ...]:
    luma, chroma = planes(nv12)
    return bordered(luma[..., None], luma_weights), bordered(chroma, chroma_weights), alpha_of(logits)


def _down(luma: Tensor, chroma: Tensor, luma_weights: Weights, chroma_weights: Weights) -> tuple[Tensor, Tensor]:
    return down(luma, luma_weights), down(chroma, chroma_weights)


def _across(
    luma_columns: Tensor,
    chroma_columns: Tensor,
    nv12: Tensor,
    alpha: Tensor,
    luma_out: Tensor,
    chroma_out: Tensor,
    luma_weights: Weights,
    chroma_weights: Weights,
) -> None:
    luma, chroma = planes(nv12)
    height, width = luma.shape[1:]
    background = across(luma_columns, luma_weights)
    luma_out.copy_(mixed(luma[..., None], background, enlarged(alpha, (height, width)))[..., 0])
    background = across(chroma_columns, chroma_weights)
    chroma_out.copy_(mixed(chroma, background, enlarged(alpha, (height // 2, width // 2))))
