"""CV-CUDA's compositing: its resize for the mask and its gaussian, one direction at a time, for the background.

The choice of the blur. CV-CUDA's gaussian multiplies with every weight of a two-dimensional kernel: 961 products a
pixel for 31 x 31. The Gaussian is the product of one along a row and one along a column, which the same operator does
as 31 x 1 and 1 x 31: 62 products, and the same picture but for the rounding to bytes in between. Of the others,
averageblur is not separable either, and a box is no Gaussian; conv2d takes lists of single images, each wrapped by the
host; blurring a smaller picture leaves blocks. The blend is PyTorch's, as CV-CUDA's composite takes pictures of three
channels only, and these are planes of NV12.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workloads.video.clip.colour import FrameSize, planes
from workloads.video.composite.compositing import alpha_of, check_alike
from workloads.video.composite.gaussian import blur_pixels, gaussian_sigma, gaussian_weights, halved, halved_sigma
from workloads.video.preprocess.cvcuda_tensors import as_cvcuda, current_stream, operators
from workloads.video.preprocess.preprocessing import input_size


class CvCuda:
    """Composites NV12 on the GPU where it lies, as `compositing.OnDevice` does.

    The differences from that class: the blur is rounded to bytes after each direction (59 dB of PSNR to exact
    arithmetic, as after the last one alone), and chroma's 17 weights are those of a Gaussian of the right sigma: 0.2 %
    of their sum lies elsewhere.

    Raises ImportError without CV-CUDA, and ValueError for odd sizes.
    """

    def __init__(self, height: int, width: int, device: torch.device) -> None:
        pixels = blur_pixels(height)
        sigma = gaussian_sigma(pixels)
        self._luma_blur = pixels, sigma
        self._chroma_blur = len(halved(gaussian_weights(pixels))), halved_sigma(sigma)
        self._size, self._alpha_size, self._device = FrameSize(height, width), input_size(height, width), device
        self._operators = operators()

    def __call__(self, nv12: Tensor, logits: Tensor, out: Tensor | None = None) -> Tensor:
        """Composites like `compositing.OnDevice.__call__`."""
        self._size.check_nv12(nv12)
        check_alike(nv12, logits, self._alpha_size)
        composites = torch.empty_like(nv12) if out is None else out
        with torch.cuda.device_of(nv12):  # type: ignore[no-untyped-call]
            self._composite(nv12, alpha_of(logits), composites)
        return composites

    def _composite(self, frames: Tensor, alpha: Tensor, composites: Tensor) -> None:
        luma, chroma = planes(frames)
        luma_out, chroma_out = planes(composites)
        height, width = luma.shape[1:]
        apart = chroma.movedim(3, 1).contiguous()  # [n, 2, h, w]: the operator supports no images of two channels
        background = self._blurred(luma[..., None], *self._luma_blur)
        _blend(luma[..., None], background, self._enlarged(alpha, height, width), luma_out[..., None])
        background = self._blurred(apart.view(-1, height // 2, width // 2, 1), *self._chroma_blur).view(apart.shape)
        _blend(chroma, background.movedim(1, 3), self._enlarged(alpha, height // 2, width // 2), chroma_out)

    def _blurred(self, images: Tensor, pixels: int, sigma: float) -> Tensor:
        """Blurs uint8 [n, h, w, 1]; returns that shape and type."""
        cv, stream = self._operators, current_stream(self._device)
        half_way, blurred = (torch.empty(images.shape, dtype=torch.uint8, device=images.device) for _ in range(2))
        for source, target, size in ((images, half_way, (1, pixels)), (half_way, blurred, (pixels, 1))):
            border = cv.Border.REFLECT101
            cv.gaussian_into(as_cvcuda(target), as_cvcuda(source), size, (sigma, sigma), border, stream=stream)
        return blurred

    def _enlarged(self, alpha: Tensor, height: int, width: int) -> Tensor:
        """Enlarges [n, h, w] to float32 [n, height, width, 1]."""
        cv = self._operators
        large = alpha.new_empty(len(alpha), height, width, 1)
        stream = current_stream(self._device)
        cv.resize_into(as_cvcuda(large), as_cvcuda(alpha.contiguous()[..., None]), cv.Interp.LINEAR, stream=stream)
        return large


def _blend(image: Tensor, background: Tensor, share: Tensor, out: Tensor) -> None:
    """Blends `share`, float32 [n, h, w, 1], of the image with the background, each uint8 [n, h, w, c]; rounded."""
    out.copy_(background.float().lerp_(image.float(), share).round_())
