"""CV-CUDA's preprocessing: three of its operators, from NV12 to the network's input.

cvtcolor converts the whole frame, since no operator of CV-CUDA samples NV12; resize_crop_convert_reformat samples a
ninth of that and leaves it in float32; normalize has a mean and a scale for every channel. Per frame of 1080p that
moves 9 MB for the first, 7 MB for the second and 6 MB for the third: five times what sampling first would.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workloads.parts.photographs import IMAGENET_MEAN, IMAGENET_STD
from workloads.video.clip.colour import FrameSize
from workloads.video.clip.video_file import Matrix
from workloads.video.preprocess.cvcuda_tensors import as_cvcuda, current_stream, operators
from workloads.video.preprocess.preprocessing import input_size


class CvCuda:
    """The network's input, [n, 3, h, w], from NV12 on the same GPU.

    CV-CUDA converts colours as OpenCV's cvtColor does, rounded to the nearest level, where swscale rounds down: it is
    lighter than `preprocessing.on_host` by 1 to 1.6 levels on average and 3 at most, 0.03 and 0.05 after
    normalization. Luma below black is black to it.

    All work runs on the caller's current stream; the result is memory of its own. Raises ImportError without CV-CUDA,
    and ValueError for odd sizes, for a matrix that is not BT.601, the only one that CV-CUDA has for limited range, and
    for a batch that is not uint8 [n, H*3/2, W] of the given size.
    """

    def __init__(
        self,
        height: int,
        width: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        matrix: Matrix = "bt601",
        layout: torch.memory_format = torch.contiguous_format,
    ) -> None:
        if matrix != "bt601":
            raise ValueError(f"CV-CUDA has no {matrix} for NV12 of limited range: use torch-gpu instead")
        self._size, self._device = FrameSize(height, width), device
        self._input_size = input_size(height, width)
        self._form = dtype, layout
        self._mean = _per_channel([255 * mean for mean in IMAGENET_MEAN], device)
        self._scale = _per_channel([1 / (255 * std) for std in IMAGENET_STD], device)
        self._operators = operators()

    def __call__(self, nv12: Tensor) -> Tensor:
        self._size.check_nv12(nv12)
        with torch.cuda.device_of(nv12):  # type: ignore[no-untyped-call]
            normalized = self._normalized(self._sampled(self._rgb(nv12)))
        dtype, layout = self._form
        return normalized.movedim(3, 1).to(dtype, memory_format=layout)

    def _rgb(self, nv12: Tensor) -> Tensor:
        cv = self._operators
        rgb = nv12.new_empty(len(nv12), self._size.height, self._size.width, 3)
        source, code = as_cvcuda(nv12[..., None]), cv.ColorConversion.YUV2RGB_NV12
        cv.cvtcolor_into(as_cvcuda(rgb), source, code, stream=current_stream(self._device))
        return rgb

    def _sampled(self, rgb: Tensor) -> Tensor:
        """float32 [n, h, w, 3], levels 0..255, not rounded."""
        cv = self._operators
        h, w = self._input_size
        sampled = rgb.new_empty(len(rgb), h, w, 3, dtype=torch.float32)
        cv.resize_crop_convert_reformat_into(
            as_cvcuda(sampled),
            as_cvcuda(rgb),
            (w, h),
            cv.Interp.LINEAR,
            (0, 0),
            srcCast=False,
            stream=current_stream(self._device),
        )
        return sampled

    def _normalized(self, sampled: Tensor) -> Tensor:
        normalized = torch.empty_like(sampled)
        self._operators.normalize_into(
            as_cvcuda(normalized),
            as_cvcuda(sampled),
            as_cvcuda(self._mean),
            as_cvcuda(self._scale),
            stream=current_stream(self._device),
        )
        return normalized


def _per_channel(values: list[float], device: torch.device) -> Tensor:
    """float32 [1, 1, 1, 3], as normalize takes them: lists of numbers it takes from version 0.19 on."""
    return torch.tensor(values, device=device).view(1, 1, 1, 3)
