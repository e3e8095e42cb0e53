"""Sharp foreground before a blurred background: 31 pixels of Gaussian at 1080p, blended by the network's certainty.

composite = alpha * frame + (1 - alpha) * blurred frame, where alpha is the foreground's probability, enlarged to the
frame bilinearly with half-pixel centres.

OpenCV on the host is compared with blurs and blends on the device. A step gets the numbers of some frames, int64
[items], and returns the luma of the composites at some of their pixels, float32 [items, rows, columns], 0..255. A proof
compares all pixels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gpugate.workload import (
    Context,
    Contract,
    DeviceKind,
    Limit,
    Needs,
    Optimization,
    Proof,
    Side,
    Tolerance,
    Workload,
)
from workloads.video.arrivals import judge_db, luma_of_bgr, luma_of_nv12, psnr_db
from workloads.video.clip import CVCUDA, GPU, ON_HOST, TRITON, VIDEO_SETTING, nv12_size, one_thread_on_cpu, source
from workloads.video.decode import batch_numbers, bgr_frames, chosen, nv12_frames
from workloads.video.frames import planes, rgb_from_nv12
from workloads.video.preprocess import as_cvcuda, cvcuda_operators, cvcuda_stream, input_size

ITEMS: Mapping[DeviceKind, int] = {"cuda": 8, "cpu": 4}
BLUR_PIXELS, BLUR_HEIGHT = 31, 1080
CERTAIN = 4.0  # the logit of a mask: 98 %
LEAST_COMPOSITED_DB = 40.0  # of composites with OpenCV's
MakeStage = Callable[[int, int, torch.device], Callable[[Tensor, Tensor], Tensor]]  # height and width of the frames


class Blur(NamedTuple):
    """A Gaussian over an odd number of pixels."""

    pixels: int
    sigma: float


def blurs_of(height: int) -> tuple[Blur, Blur]:
    """The blur of frames of that height, and its equivalent for chroma of half the size: 31 and 17 pixels for 1080.

    The width grows with the height, and sigma is by OpenCV's rule in getGaussianKernel. Chroma is blurred as if it had
    been shown at full size: repeating every pixel has a variance of 1/4, and so has taking the mean of two.
    """
    pixels = max(3, 2 * round((BLUR_PIXELS * height / BLUR_HEIGHT - 1) / 2) + 1)
    sigma = 0.3 * ((pixels - 1) * 0.5 - 1) + 0.8
    return Blur(pixels, sigma), Blur(2 * ((pixels // 2 + 1) // 2) + 1, math.sqrt(sigma**2 + 0.5) / 2)


def on_host(bgr: NDArray[np.uint8], logits: Tensor) -> NDArray[np.uint8]:
    """OpenCV's composites: uint8 [n, H, W, 3] from BGR of that shape and logits [n, classes, h, w] on any device.

    Alpha is computed where the logits lie: on the host PyTorch's threads would wait for each other beside OpenCV's.
    Alpha and its complement are enlarged separately, since OpenCV enlarges in several threads and NumPy would subtract
    in one.
    """
    import cv2

    height, width = bgr.shape[1:3]
    pixels, sigma = blurs_of(height)[0]
    composited = np.empty_like(bgr)
    for frame, alpha, out in zip(bgr, alpha_of(logits).cpu().numpy(), composited, strict=True):
        sharp, blurry = (
            cv2.resize(share, (width, height), interpolation=cv2.INTER_LINEAR) for share in (alpha, 1 - alpha)
        )
        blurred = cv2.GaussianBlur(frame, (pixels, pixels), sigma)
        cv2.blendLinear(frame, blurred, sharp, blurry, dst=out)
    return composited


def alpha_of(logits: Tensor) -> Tensor:
    """float32 [n, h, w], 0..1: the probability of all classes but the first one, from logits [n, classes, h, w].

    Raises ValueError for fewer than two classes.
    """
    logits, classes = logits.float(), logits.shape[1]
    if classes < 2:
        raise ValueError(f"logits of {classes} class tell no foreground: give [n, 2 or more, h, w], background first")
    if classes == 2:  # an equal formula with one exponential instead of two
        return (logits[:, 1] - logits[:, 0]).sigmoid()
    return 1 - logits.softmax(1)[:, 0]


def in_torch(
    height: int, width: int, device: torch.device, dtype: torch.dtype | None = None
) -> Callable[[Tensor, Tensor], Tensor]:
    """Composites NV12 in place of RGB: Y at full size, UV at half of it, on the device where they lie.

    Converting colours, blurring and blending are linear, so they may change places: half the bytes of RGB are
    processed, and none is converted. Blurring a plane and enlarging its alpha are matrix products; the rest is two
    passes over all of NV12 at once. `dtype` is the precision of the computation, by default float16 on a GPU and
    float32 on a CPU.

    The result is not that of `on_host` to the last bit, in the order of the differences: chroma changes every two
    pixels, as the host's will once it is encoded to 4:2:0; levels of YUV are rounded where the host rounds those of
    RGB; half precision keeps levels to an eighth; and at the edge of the frame chroma is mirrored by itself.
    """
    dtype = dtype or (torch.float16 if device.type == "cuda" else torch.float32)
    matrices = make_matrices(height, width, device, dtype)

    def composite(nv12: Tensor, logits: Tensor) -> Tensor:
        """Composites of NV12 frames, uint8 [n, H*3/2, W], and their logits [n, classes, h, w]."""
        # Half a level more everywhere: the final conversion to bytes truncates, and this makes it round.
        levels = torch.add(nv12, 0.5, out=torch.empty_like(nv12, dtype=dtype))
        background, shares = torch.empty_like(levels), torch.empty_like(levels)
        alpha = alpha_of(logits).to(dtype)
        for rows, (blur_down, blur_across, enlarge_down, enlarge_across) in matrices:
            _map_into(background[:, rows], levels[:, rows], blur_down, blur_across)
            _map_into(shares[:, rows], alpha, enlarge_down, enlarge_across)
        return background.lerp_(levels, shares).to(torch.uint8)

    return composite


def make_matrices(
    height: int, width: int, device: torch.device, dtype: torch.dtype
) -> list[tuple[slice, list[Tensor]]]:
    """The rows of luma and those of chroma in NV12, each with four matrices: the blur down and across, and the
    enlargement of alpha down and across."""
    planes, (luma, chroma), (h, w) = [], blurs_of(height), input_size(height, width)
    # In a row of chroma, U and V alternate: two kinds of samples, which have the same weights.
    for rows, gaussian, kinds in ((slice(height), luma, 1), (slice(height, None), chroma, 2)):
        tall, wide = height // kinds, width // kinds
        across = torch.kron(filtering(gaussian, wide, device), torch.eye(kinds, device=device))
        blur = filtering(gaussian, tall, device), across
        enlarge = resizing(h, tall, device), resizing(w, wide, device).repeat_interleave(kinds, 0)
        planes.append((rows, [matrix.to(dtype) for matrix in (*blur, *enlarge)]))
    return planes


def _map_into(out: Tensor, planes: Tensor, down: Tensor, across: Tensor) -> None:
    """`down @ plane @ across.T` for each of the planes, into `out`, whose rows may lie apart.

    Row i of a matrix has the weights of sample i. Nearly all of a matrix is zeros, and all of it is multiplied: tensor
    cores finish that before any kernel for sparse weights has been launched, and no kernel has to be compiled.
    """
    frames = len(planes)
    half_way = torch.bmm(planes, across.mT.expand(frames, -1, -1))
    torch.bmm(down.expand(frames, -1, -1), half_way, out=out)


def filtering(blur: Blur, pixels: int, device: torch.device) -> Tensor:
    """float32 [pixels, pixels]: the weights of the blur centred on each pixel of a side, by OpenCV itself.

    Beyond the ends the side is mirrored about its outermost pixel: BORDER_REFLECT_101 is OpenCV's default.
    """
    import cv2

    by_pixel = cv2.GaussianBlur(np.eye(pixels, dtype=np.float32), (blur.pixels, 1), blur.sigma)
    return torch.from_numpy(by_pixel).T.contiguous().to(device)


def resizing(pixels: int, samples: int, device: torch.device) -> Tensor:
    """float32 [samples, pixels]: bilinear interpolation with half-pixel centres."""
    apart = torch.eye(pixels, dtype=torch.float64, device=device)[None]
    return F.interpolate(apart, samples, mode="linear", align_corners=False)[0].T.float().contiguous()


# --- CV-CUDA, which `preprocess` has more of --------------------------------------------------------------------------
# Its gaussian multiplies with every weight of a two-dimensional kernel: 961 products a pixel for 31 x 31. The Gaussian
# is the product of one along a row and one along a column, which the same operator does as 31 x 1 and 1 x 31: 62
# products, and the same picture but for the rounding to bytes in between. Of the others, averageblur is not separable
# either, and a box is no Gaussian; conv2d takes lists of single images, each wrapped by the host; blurring a smaller
# picture leaves blocks. The blend is PyTorch's, as CV-CUDA's composite takes pictures of three channels only, and these
# are planes of NV12.


def by_cvcuda(height: int, width: int, device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
    """Composites NV12 on the GPU where it lies, as `in_torch` does, but rounds the blur after each direction."""
    cv, (luma_blur, chroma_blur) = cvcuda_operators(), blurs_of(height)
    # CV-CUDA holds a buffer until it has seen the end of the kernel. Kept until the next call, each one has memory of
    # its own; dropped at once, its memory would be free for the next buffer on a slow host alone.
    used: list[Tensor] = []

    def blurred(images: Tensor, pixels: int, sigma: float) -> Tensor:  # uint8 [n, h, w, 1] to the same
        stream, border = cvcuda_stream(device), cv.Border.REFLECT101
        half_way, result = (torch.empty(images.shape, dtype=torch.uint8, device=images.device) for _ in range(2))
        for given, out, size in ((images, half_way, (1, pixels)), (half_way, result, (pixels, 1))):
            cv.gaussian_into(as_cvcuda(out), as_cvcuda(given), size, (sigma, sigma), border, stream=stream)
        used.extend((half_way, result))
        return result

    def enlarged(alpha: Tensor, height: int, width: int) -> Tensor:  # [n, h, w] to float32 [n, height, width, 1]
        large, stream = alpha.new_empty(len(alpha), height, width, 1), cvcuda_stream(device)
        cv.resize_into(as_cvcuda(large), as_cvcuda(alpha[..., None]), cv.Interp.LINEAR, stream=stream)
        used.append(large)
        return large

    def blend(image: Tensor, background: Tensor, share: Tensor, out: Tensor) -> None:  # [n, h, w, c], rounded
        out.copy_(background.float().lerp_(image.float(), share).round_())

    def composite(nv12: Tensor, logits: Tensor) -> Tensor:
        composites = torch.empty_like(nv12)
        used.clear()
        with torch.cuda.device_of(nv12):  # type: ignore[no-untyped-call]
            alpha, (luma, chroma), (luma_out, chroma_out) = alpha_of(logits), planes(nv12), planes(composites)
            alpha = alpha.contiguous()
            apart = chroma.movedim(3, 1).contiguous()  # [n, 2, h, w]: the operator supports no images of two channels
            background = blurred(luma[..., None], *luma_blur)
            blend(luma[..., None], background, enlarged(alpha, height, width), luma_out[..., None])
            background = blurred(apart.view(-1, height // 2, width // 2, 1), *chroma_blur).view(apart.shape)
            blend(chroma, background.movedim(1, 3), enlarged(alpha, height // 2, width // 2), chroma_out)
        return composites

    return composite


def in_triton(height: int, width: int, device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
    """Composites as `in_torch` does, by a kernel in Triton for each plane: it blurs tiles, and multiplies few zeros."""
    from workloads.video import triton_stages

    blends = [triton_stages.composite(*plane) for plane in make_matrices(height, width, device, torch.float16)]

    def composite(nv12: Tensor, logits: Tensor) -> Tensor:
        result, alpha = torch.empty_like(nv12), alpha_of(logits).contiguous()
        for blend in blends:
            blend(nv12, alpha, result)
        return result

    return composite


# --- the sides, their proof and their promises ------------------------------------------------------------------------


@functools.lru_cache(maxsize=2)
def _logits(height: int, width: int, frames: int, device: torch.device) -> Tensor:
    """float32 [frames, 2, h, w]: a soft disc of foreground that moves from frame to frame."""
    h, w = input_size(height, width)
    rows, columns = torch.arange(h, device=device)[:, None] / h, torch.arange(w, device=device) / w
    turns = torch.arange(frames, device=device)[:, None, None] * (2 * torch.pi / frames)
    distance = ((rows - 0.5 - 0.2 * turns.sin()) ** 2 + (columns - 0.5 - 0.2 * turns.cos()) ** 2).sqrt()
    foreground = ((0.3 - distance) * 40).clamp(-CERTAIN, CERTAIN)
    return torch.stack((torch.zeros_like(foreground), foreground), 1)


def by_opencv(context: Context) -> Side:
    """OpenCV's side. The logits lie on the device, where the network leaves them; the composites stay on the host."""
    matrix, composited = source(context).matrix, composited_by_opencv(context)
    return Side(lambda numbers: luma_of_bgr(composited(numbers), matrix).to(context.device))


def composited_by_opencv(context: Context) -> Callable[[Tensor], Any]:
    frames = bgr_frames(context)
    logits = _logits(*frames.shape[1:3], len(frames), context.device)

    def composited(numbers: Tensor) -> Any:
        these = chosen(numbers)
        return on_host(frames[these], logits[these])

    return composited


def in_nv12(make: MakeStage, context: Context) -> Side:
    """The side that composites NV12 where it lies: on the device, or on the host where there is none."""
    composited = composited_in_nv12(make, context)
    return Side(lambda numbers: luma_of_nv12(composited(numbers)))


def composited_in_nv12(make: MakeStage, context: Context) -> Callable[[Tensor], Tensor]:
    one_thread_on_cpu(context.device)
    info, frames = source(context), nv12_frames(context)
    logits = _logits(info.height, info.width, len(frames), context.device)
    run = make(info.height, info.width, context.device)
    return lambda numbers: run(frames[chosen(numbers)], logits[chosen(numbers)])


def composites_agree(make: MakeStage, context: Context) -> str:
    """Proves that composites are those of OpenCV, before an encoder takes them."""
    numbers = torch.arange(context.items)
    found = rgb_from_nv12(composited_in_nv12(make, context)(numbers), source(context).matrix)
    wanted = composited_by_opencv(context)(numbers)
    pairs = zip(found.flip(1).movedim(1, 3).cpu().numpy(), wanted, strict=True)
    return judge_db([psnr_db(frame, other) for frame, other in pairs], LEAST_COMPOSITED_DB)


# Single pixels show chroma of half the size and the rounding of levels: see `in_torch`.
AT_PIXELS = {dtype: Tolerance(relative_l2=1.5e-2, max_error=6e-2) for dtype in ("float32", "float16")}
STAYS = {"cuda": Contract((Limit("device_to_host_bytes", at_most=4096),))}
OPERATORS = "an operator for each step, with memory between them"
PRODUCTS = "two matrix products blur a plane and two enlarge its mask, in YUV, where half the bytes are"
IN_TILES = "a kernel for each plane blurs a tile by small products and blends it: nothing between lies in memory"
OF_ZEROS = f"{PRODUCTS}; nearly all are products with zero, which a CPU minds more than tensor cores do"


def _variant(
    name: str, make: MakeStage, speedup: Mapping[str, float], needs: Needs, why: str, **more: Any
) -> Optimization:
    proofs = (Proof("composites agree", partial(composites_agree, make)),)
    words = {"tolerance": AT_PIXELS, "needs": needs, "contract": STAYS, "proofs": proofs, "why": why, **more}
    return Optimization(name, partial(in_nv12, make), speedup, **words)


COMPOSITE = Workload(
    name="video/composite",
    baseline=by_opencv,
    inputs=batch_numbers,
    sizes={kind: nv12_size(kind, items, times=2) for kind, items in ITEMS.items()},  # read once and written once
    optimizations=(
        _variant("torch-gpu", in_torch, {"sm_90": 72.0, "cuda": 2.0}, GPU, PRODUCTS),
        _variant(
            *("triton", in_triton, {"sm_90": 2.3, "cuda": 1.0}, TRITON, IN_TILES),
            compared_with="torch-gpu",
            min_speedup_why="the host enqueues for longer than the kernels run: 3.5x, and 2.4x on a slow host",
        ),
        _variant("cvcuda", by_cvcuda, {"sm_90": 9.0, "cuda": 1.0}, CVCUDA, OPERATORS),
        # No speed is promised: the case keeps the path tested where there is no GPU.
        _variant("torch-cpu", in_torch, {"cpu": 0.02}, ON_HOST, OF_ZEROS),
    ),
    cold=False,  # the inputs are numbers of frames, which lie in a bank
    timing="pipeline",
    settings=VIDEO_SETTING,
)
