"""CV-CUDA's preprocessing and compositing, with its operators on torch's memory and stream: no copy and no wait.

CV-CUDA has a stream of its own, and it waits for the whole device where a tensor does not name the stream that wrote
it, as torch's do not. So operators run on torch's current stream, and tensors declare that this order is enough.

The choice of the blur. CV-CUDA's gaussian multiplies with every weight of a two-dimensional kernel: 961 products a
pixel for 31 x 31. The Gaussian is the product of one along a row and one along a column, which the same operator does
as 31 x 1 and 1 x 31: 62 products, and the same picture but for the rounding to bytes in between. Of the others,
averageblur is not separable either, and a box is no Gaussian; conv2d takes lists of single images, each wrapped by the
host; blurring a smaller picture leaves blocks. The blend is PyTorch's, as CV-CUDA's composite takes pictures of three
channels only, and these are planes of NV12.
"""

from __future__ import annotations

import functools
import importlib
import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from workloads.parts.photographs import IMAGENET_MEAN, IMAGENET_STD
from workloads.video.clip.colour import planes
from workloads.video.clip.video_file import Matrix
from workloads.video.composite import alpha_of, blur_pixels, gaussian_sigma, gaussian_weights, halved
from workloads.video.preprocess import input_size

TYPE_NAMES = {torch.uint8: "|u1", torch.float32: "<f4"}
# In place of a stream, in CV-CUDA's reading of the CUDA Array Interface: the caller has ensured the order.
IN_ORDER = -1


def _operators() -> Any:
    return importlib.import_module("cvcuda")


def as_cvcuda(images: Tensor) -> Any:
    """`images`, uint8 or float32 [n, h, w, channels] with packed pixels and rows, as CV-CUDA's NHWC tensor.

    It is the same memory, and keeps it alive.
    """
    interface = {
        "shape": tuple(images.shape),
        "strides": tuple(step * images.element_size() for step in images.stride()),
        "typestr": TYPE_NAMES[images.dtype],
        "data": (images.data_ptr(), False),
        "version": 3,
        "stream": IN_ORDER,
    }
    return _operators().as_tensor(SimpleNamespace(images=images, __cuda_array_interface__=interface), "NHWC")


def _current_stream(device: torch.device) -> Any:
    return _stream(torch.cuda.current_stream(device).cuda_stream)


@functools.lru_cache(maxsize=64)  # torch has 32 of each priority, for good
def _stream(handle: int) -> Any:
    return _operators().as_stream(handle)


class Preprocess:
    """The network's input, float32 [n, 3, h, w], from NV12 on the same GPU, by three operators.

    cvtcolor converts the whole frame, since no operator samples NV12; resize_crop_convert_reformat samples a ninth of
    that and leaves it in float32; normalize has a mean and a scale for every channel. Per frame of 1080p that moves 9
    MB for the first, 7 MB for the second and 6 MB for the third: five times what sampling first would.

    CV-CUDA converts colours as OpenCV's cvtColor does, rounded to the nearest level, where swscale rounds down: it is
    lighter than `preprocess.on_host` by 1 to 1.6 levels on average and 3 at most, 0.03 and 0.05 after normalization.
    Luma below black is black to it. Raises ValueError for a matrix that is not BT.601, the only one that CV-CUDA has
    for limited range.
    """

    def __init__(self, height: int, width: int, device: torch.device, matrix: Matrix = "bt601") -> None:
        if matrix != "bt601":
            raise ValueError(f"CV-CUDA has no {matrix} for NV12 of limited range: use torch-gpu instead")
        self._size, self._device = (height, width), device
        self._input_size = input_size(height, width)
        self._mean = _per_channel([255 * mean for mean in IMAGENET_MEAN], device)
        self._scale = _per_channel([1 / (255 * std) for std in IMAGENET_STD], device)
        self._operators = _operators()

    def __call__(self, nv12: Tensor) -> Tensor:
        cv, (h, w) = self._operators, self._input_size
        with torch.cuda.device_of(nv12):  # type: ignore[no-untyped-call]
            rgb = nv12.new_empty(len(nv12), *self._size, 3)
            source, code = as_cvcuda(nv12[..., None]), cv.ColorConversion.YUV2RGB_NV12
            cv.cvtcolor_into(as_cvcuda(rgb), source, code, stream=_current_stream(self._device))
            sampled = rgb.new_empty(len(rgb), h, w, 3, dtype=torch.float32)  # levels 0..255, not rounded
            cv.resize_crop_convert_reformat_into(
                as_cvcuda(sampled),
                as_cvcuda(rgb),
                (w, h),
                cv.Interp.LINEAR,
                (0, 0),
                srcCast=False,
                stream=_current_stream(self._device),
            )
            normalized = torch.empty_like(sampled)
            cv.normalize_into(
                as_cvcuda(normalized),
                as_cvcuda(sampled),
                as_cvcuda(self._mean),
                as_cvcuda(self._scale),
                stream=_current_stream(self._device),
            )
        return normalized.movedim(3, 1).contiguous()


def _per_channel(values: list[float], device: torch.device) -> Tensor:
    """float32 [1, 1, 1, 3], as normalize takes them: lists of numbers it takes from version 0.19 on."""
    return torch.tensor(values, device=device).view(1, 1, 1, 3)


class Composite:
    """Composites NV12 on the GPU where it lies, as `composite.OnDevice` does.

    The differences from that class: the blur is rounded to bytes after each direction (59 dB of PSNR to exact
    arithmetic, as after the last one alone), and chroma's 17 weights are those of a Gaussian of the right sigma: 0.2 %
    of their sum lies elsewhere.
    """

    def __init__(self, height: int, width: int, device: torch.device) -> None:
        pixels = blur_pixels(height)
        sigma = gaussian_sigma(pixels)
        self._luma_blur = pixels, sigma
        # Variances add; repeating a pixel has a variance of 1/4, and so has taking the mean of two.
        self._chroma_blur = len(halved(gaussian_weights(pixels))), math.sqrt(sigma**2 + 0.5) / 2
        self._device, self._operators = device, _operators()

    def __call__(self, nv12: Tensor, logits: Tensor) -> Tensor:
        composites = torch.empty_like(nv12)
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
        cv, stream = self._operators, _current_stream(self._device)
        half_way, blurred = (torch.empty(images.shape, dtype=torch.uint8, device=images.device) for _ in range(2))
        for source, target, size in ((images, half_way, (1, pixels)), (half_way, blurred, (pixels, 1))):
            border = cv.Border.REFLECT101
            cv.gaussian_into(as_cvcuda(target), as_cvcuda(source), size, (sigma, sigma), border, stream=stream)
        return blurred

    def _enlarged(self, alpha: Tensor, height: int, width: int) -> Tensor:
        """Enlarges [n, h, w] to float32 [n, height, width, 1]."""
        cv = self._operators
        large = alpha.new_empty(len(alpha), height, width, 1)
        stream = _current_stream(self._device)
        cv.resize_into(as_cvcuda(large), as_cvcuda(alpha.contiguous()[..., None]), cv.Interp.LINEAR, stream=stream)
        return large


def _blend(image: Tensor, background: Tensor, share: Tensor, out: Tensor) -> None:
    """Blends `share`, float32 [n, h, w, 1], of the image with the background, each uint8 [n, h, w, c]; rounded."""
    out.copy_(background.float().lerp_(image.float(), share).round_())
