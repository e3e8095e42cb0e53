"""Sharp foreground before a blurred background: 31 pixels of Gaussian at 1080p, blended by the network's certainty.

composite = alpha * frame + (1 - alpha) * blurred frame, where alpha is the foreground's probability, enlarged to the
frame bilinearly with half-pixel centres.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workloads.video.clip.colour import FrameSize
from workloads.video.composite.gaussian import Weights, blur_pixels, gaussian_sigma, gaussian_weights, halved
from workloads.video.composite.separable import Separable, filtering, in_turns, resizing
from workloads.video.preprocess.preprocessing import input_size


def on_host(bgr: NDArray[np.uint8], logits: Tensor) -> NDArray[np.uint8]:
    """OpenCV's composites: uint8 [n, H, W, 3] from BGR of that shape and logits [n, classes, h, w] on the host.

    Alpha and its complement are enlarged separately, since OpenCV enlarges in several threads and NumPy would subtract
    in one.
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
    if classes == 2:  # an equal formula with one exponential instead of two
        return (logits[:, 1] - logits[:, 0]).sigmoid()
    return 1 - logits.softmax(1)[:, 0]


class OnDevice:
    """Composites NV12 in place of RGB: Y at full size, UV at half of it, on the device where they lie.

    Converting colours, blurring and blending are linear, so they may change places: half the bytes of RGB are
    processed, and none is converted. Blurring a plane and enlarging its alpha are matrix products; the rest is two
    passes over all of NV12 at once. `dtype` is the precision of the computation, by default float16 on a GPU and
    float32 on a CPU.

    In RGB the result agrees with that of `on_host` by 51 dB of PSNR on our clip at 1080p, and by 47 dB at 360p. The
    differences, each alone:
    - Chroma. A blurred background changes from pixel to pixel on the host and every two pixels here, as it will once
      the host's is encoded to 4:2:0 too: 53.5 dB at 1080p, 47 dB at 360p, where the blur is narrower.
    - Rounding to levels of YUV, and by swscale's arithmetic where it is shown as RGB again: 52.6 and 51 dB. Compared in
      NV12, to which the host's result has to be converted, all of it is 48 dB.
    - OpenCV's rounding to levels of RGB, once for the blur, in fixed point, and once for the blend: 60.5 dB.
    - Half precision, where it is used, holds levels to an eighth: one byte in 33 is a level off, 63 dB.
    - The host clips values outside of RGB before it blurs. Within half a blur of the frame's edge, chroma is mirrored
    here by itself, and there with the picture that it belongs to.
    """

    def __init__(self, height: int, width: int, device: torch.device, dtype: torch.dtype | None = None) -> None:
        self._size, self._alpha_size = FrameSize(height, width), input_size(height, width)
        self._dtype = dtype or (torch.float16 if device.type == "cuda" else torch.float32)
        weights = gaussian_weights(blur_pixels(height))
        self._luma = slice(height), *self._maps(weights, height, width, 1, device)
        self._chroma = slice(height, None), *self._maps(halved(weights), height // 2, width // 2, 2, device)

    def __call__(self, nv12: Tensor, logits: Tensor, out: Tensor | None = None) -> Tensor:
        """Composites of NV12 frames, uint8 [n, H*3/2, W], and their logits [n, classes, h, w]: `out`, or new memory.

        All work runs on the caller's current stream, and no call waits for it. `out` is NV12 too and no part of `nv12`.
        Raises ValueError for any other frames than NV12 of the given size, and for logits of another number of frames
        or of another size than the network's.
        """
        self._size.check_nv12(nv12)
        check_alike(nv12, logits, self._alpha_size)
        # Half a level more everywhere: the final conversion to bytes truncates, and this makes it round.
        levels = torch.add(nv12, 0.5, out=torch.empty_like(nv12, dtype=self._dtype))
        background, shares = torch.empty_like(levels), torch.empty_like(levels)
        alpha = alpha_of(logits).to(self._dtype)
        for rows, blur, enlarge in (self._luma, self._chroma):
            blur.into(background[:, rows], levels[:, rows])
            enlarge.into(shares[:, rows], alpha)
        blended = background.lerp_(levels, shares)
        return blended.to(torch.uint8) if out is None else out.copy_(blended)

    def _maps(
        self, weights: Weights, height: int, width: int, kinds: int, device: torch.device
    ) -> tuple[Separable, Separable]:
        """Maps of a plane of that size, whose rows interleave `kinds` samples: its blur, and the resize of alpha."""
        h, w = self._alpha_size
        blur = filtering(weights, height, device), in_turns(filtering(weights, width, device), kinds)
        enlarge = resizing(h, height, device), resizing(w, width, device).repeat_interleave(kinds, 0)
        return Separable(*blur).to(self._dtype), Separable(*enlarge).to(self._dtype)


def check_alike(frames: Tensor, logits: Tensor, size: tuple[int, int]) -> None:
    """Raises ValueError unless there is one of the logits for each frame, [n, classes, *size]."""
    if len(frames) != len(logits):
        raise ValueError(f"{len(logits)} logits do not fit {len(frames)} frames: give one of each")
    if logits.shape[2:] != size:
        found, wanted = ("x".join(map(str, each)) for each in (logits.shape[2:], size))
        raise ValueError(f"logits of {found} do not fit these frames, whose network sees {wanted}: give those")
