"""Compositing by CV-CUDA: its resize for the mask and its gaussian, one direction at a time, for the background.

The choice of the blur. CV-CUDA's gaussian multiplies with every weight of a two-dimensional kernel: 961 products a
pixel for 31 x 31. The Gaussian is the product of one along a row and one along a column, which the same operator does
as 31 x 1 and 1 x 31: 62 products, and the same picture but for the rounding to bytes in between. Of the others,
averageblur is not separable either, and a box is no Gaussian; conv2d takes lists of single images, each wrapped by the
host; blurring a smaller picture leaves blocks. The blend is one kernel of Inductor's, as CV-CUDA's composite takes
pictures of three channels only, and these are planes of NV12.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workloads.video_segmentation.colour import planes
from workloads.video_segmentation.compositing import alpha_of, check_alike, mixed
from workloads.video_segmentation.cvcuda_tensors import as_cvcuda, current_stream, operators
from workloads.video_segmentation.frame_size import FrameSize
from workloads.video_segmentation.fused import WholeBatch, fused
from workloads.video_segmentation.separable_blur import (
    blur_pixels,
    gaussian_sigma,
    gaussian_weights,
    halved,
    halved_sigma,
)


class CvCuda:
    """Composites NV12 on the GPU where it lies, as `compositing.OnDevice` does.

    What differs from that: the blur is rounded to bytes after each direction (59 dB of PSNR to exact arithmetic, as
    after the last one alone), and chroma's 17 weights are those of a Gaussian of the right sigma: 0.2 % of their sum
    lies elsewhere.

    Raises ImportError without CV-CUDA, and ValueError for odd sizes.
    """

    def __init__(self, height: int, width: int, device: torch.device) -> None:
        pixels = blur_pixels(height)
        sigma = gaussian_sigma(pixels)
        self._luma_blur = pixels, sigma
        self._chroma_blur = len(halved(gaussian_weights(pixels))), halved_sigma(sigma)
        self._size, self._device = FrameSize(height, width), device
        self._whole = WholeBatch()
        self._blend = fused(_blend, device)
        self._operators = operators()

    def __call__(self, nv12: Tensor, logits: Tensor, out: Tensor | None = None) -> Tensor:
        """As `compositing.OnDevice.__call__`."""
        self._size.check_nv12(nv12)
        check_alike(nv12, logits)
        frames, logits = self._whole(nv12), self._whole(logits)
        composites = out if out is not None and frames is nv12 else torch.empty_like(frames)
        with torch.cuda.device_of(nv12):  # type: ignore[no-untyped-call]
            self._composite(frames, alpha_of(logits), composites)
        if out is None:
            return composites[: len(nv12)]
        if composites is not out:
            out.copy_(composites[: len(nv12)])
        return out

    def _composite(self, frames: Tensor, alpha: Tensor, composites: Tensor) -> None:
        luma, chroma = planes(frames)
        height, width = luma.shape[1:]
        apart = chroma.movedim(3, 1).contiguous()  # [n, 2, h, w]: the operator knows no images of two channels
        self._blend(
            frames,
            self._blurred(luma[..., None], *self._luma_blur),
            self._blurred(apart.view(-1, height // 2, width // 2, 1), *self._chroma_blur).view(apart.shape),
            self._enlarged(alpha, height, width),
            self._enlarged(alpha, height // 2, width // 2),
            *planes(composites),
        )

    def _blurred(self, images: Tensor, pixels: int, sigma: float) -> Tensor:
        """uint8 [n, h, w, 1] from the like."""
        cv, stream = self._operators, current_stream(self._device)
        half_way, blurred = (torch.empty(images.shape, dtype=torch.uint8, device=images.device) for _ in range(2))
        for source, target, size in ((images, half_way, (1, pixels)), (half_way, blurred, (pixels, 1))):
            border = cv.Border.REFLECT101
            cv.gaussian_into(as_cvcuda(target), as_cvcuda(source), size, (sigma, sigma), border, stream=stream)
        return blurred

    def _enlarged(self, alpha: Tensor, height: int, width: int) -> Tensor:
        """float32 [n, height, width, 1] from [n, h, w]."""
        cv = self._operators
        large = alpha.new_empty(len(alpha), height, width, 1)
        stream = current_stream(self._device)
        cv.resize_into(as_cvcuda(large), as_cvcuda(alpha.contiguous()[..., None]), cv.Interp.LINEAR, stream=stream)
        return large


def _blend(
    nv12: Tensor,
    luma_background: Tensor,
    chroma_background: Tensor,
    luma_share: Tensor,
    chroma_share: Tensor,
    luma_out: Tensor,
    chroma_out: Tensor,
) -> None:
    luma, chroma = planes(nv12)
    luma_out.copy_(mixed(luma[..., None], luma_background.float(), luma_share)[..., 0])
    chroma_out.copy_(mixed(chroma, chroma_background.movedim(1, 3).float(), chroma_share))
