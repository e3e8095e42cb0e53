"""Preprocessing of decoded frames for the network: a third of the size, RGB, ImageNet mean and standard deviation.

Pixels are sampled as by cv2.INTER_LINEAR and F.interpolate, between the two nearest in each direction, with half-pixel
centres and without a filter before. From 1080p to 360 x 640 that is every third pixel, the middle one of nine.

OpenCV on the host is compared with sampling where the decoder left the frames. A step gets the numbers of some frames,
int64 [items], and returns the network's inputs, float32 [items, 3, h, w] on the device.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpugate.workload import (
    Context,
    Contract,
    DeviceKind,
    Limit,
    Optimization,
    Side,
    Size,
    Tolerance,
    Workload,
)
from workloads.parts.photographs import IMAGENET_MEAN, IMAGENET_STD
from workloads.video.clip import BATCH, CLIPS, CVCUDA, GPU, ON_HOST, TRITON, VIDEO_SETTING, one_thread_on_cpu, source
from workloads.video.decode import batch_numbers, bgr_frames, chosen, nv12_frames
from workloads.video.frames import Matrix, gains_of

SHRUNK, MULTIPLE = 3, 8  # the network's input is a third of the frame, in steps of what its strides can divide
ZEROS = 16, 128, 128  # levels of Y, U and V that stand for none
MakeStage = Callable[[int, int, torch.device, Matrix], Callable[[Tensor], Tensor]]  # height and width of the frames


def input_size(height: int, width: int) -> tuple[int, int]:
    """(h, w) of the network's input for frames of that size: (360, 640) for 1080p."""
    h, w = (max(MULTIPLE, round(side / SHRUNK / MULTIPLE) * MULTIPLE) for side in (height, width))
    return h, w


def on_host(bgr: NDArray[np.uint8], device: torch.device) -> Tensor:
    """float32 [n, 3, h, w] on `device` from BGR, uint8 [n, H, W, 3]; OpenCV, with threads as it likes.

    Normalizing is a table look-up: a channel has 256 levels, and OpenCV reads a table faster than NumPy divides.
    """
    import cv2

    h, w = input_size(*bgr.shape[1:3])
    frames = np.empty((len(bgr), 3, h, w), np.float32)
    levels = np.linspace(0, 1, 256, dtype=np.float32)
    mean, std = (np.array(values, np.float32).reshape(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    tables = (levels - mean) / std  # float32 [3, 1, 256]: of red, green and blue
    for frame, channels in zip(bgr, frames, strict=True):
        small = cv2.resize(frame, (w, h), interpolation=cv2.INTER_LINEAR)
        for channel, table, out in zip((2, 1, 0), tables, channels, strict=True):
            cv2.LUT(cv2.extractChannel(small, channel), table, dst=out)
    return torch.from_numpy(frames).to(device)


def in_torch(height: int, width: int, device: torch.device, matrix: Matrix = "bt601") -> Callable[[Tensor], Tensor]:
    """The network's input, float32 [n, 3, h, w], from NV12, uint8 [n, H*3/2, W], on the same device.

    Pixels are selected first, so that a ninth of them is converted to RGB, or four ninths where neither side is an
    exact multiple and 2 x 2 of them are mixed: the later passes are small. The conversion is swscale's to the last bit.
    For an exact third the result is thus `on_host`'s but for the rounding of FP32. Elsewhere OpenCV mixes with weights
    of 11 bits and rounds to a whole level, and this function does not.
    """
    h, w = input_size(height, width)
    by_tap, shares = list[Tensor](), list[Tensor]()
    for row, down in taps(height, h):
        for column, across in taps(width, w):
            luma, u = row[:, None] * width + column, (height + row // 2)[:, None] * width + column // 2 * 2
            by_tap.append(torch.stack((luma, u, u + 1)))  # of Y, U and V among the bytes of a frame
            shares.append(down[:, None] * across)
    places = torch.stack(by_tap).to(device)  # [taps, 3, h, w]
    weights = torch.stack(shares)[:, None].to(device)  # [taps, 1, h, w]
    zeros = torch.tensor(ZEROS, device=device).view(3, 1, 1).float()
    gains = gains_of(matrix).view(3, 3, 1, 1).to(device)
    scale, shift = (each.to(device) for each in normalization())

    def sample(nv12: Tensor) -> Tensor:
        yuv = nv12.flatten(1)[:, places.flatten()].view(-1, *places.shape)
        parts = (yuv - zeros)[:, :, :, None] * gains
        rgb = parts.floor_().sum(2).clamp_(0, 255)  # [n, taps, 3, h, w], whole levels
        mixed = rgb[:, 0] if len(weights) == 1 else (rgb * weights).sum(1)
        return torch.addcmul(shift, mixed, scale)

    return sample


def taps(pixels: int, samples: int) -> tuple[tuple[Tensor, Tensor], ...]:
    """The pixels of a side that its samples mix: once or twice int64 [samples], and their share, float32.

    Sample i lies at (i + 1/2) pixels / samples - 1/2; beyond the ends the outermost pixel counts. A second tap without
    any share is left out.
    """
    halves = (2 * torch.arange(samples) + 1) * pixels - samples  # positions, in halves of a sample
    lower, share = halves // (2 * samples), (halves % (2 * samples)).float() / (2 * samples)
    if not share.any():
        return ((lower, torch.ones(samples)),)
    return (lower.clamp(0, pixels - 1), 1 - share), ((lower + 1).clamp(0, pixels - 1), share)


def normalization() -> tuple[Tensor, Tensor]:
    """Scale and shift, float32 [3, 1, 1], from red, green and blue, 0..255, to what ImageNet's networks expect."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    return 1 / (255 * std), -mean / std


# --- CV-CUDA ----------------------------------------------------------------------------------------------------------
# CV-CUDA has a stream of its own, and it waits for the whole device where a tensor does not name the stream that wrote
# it, as torch's do not. So operators run on torch's current stream, and tensors declare that this order is enough.

TYPE_NAMES = {torch.uint8: "|u1", torch.float32: "<f4"}
# In place of a stream, in CV-CUDA's reading of the CUDA Array Interface: the caller has ensured the order.
IN_ORDER = -1


def cvcuda_operators() -> Any:
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
    return cvcuda_operators().as_tensor(SimpleNamespace(images=images, __cuda_array_interface__=interface), "NHWC")


def cvcuda_stream(device: torch.device) -> Any:
    return _stream(torch.cuda.current_stream(device).cuda_stream)


@functools.lru_cache(maxsize=64)  # torch has 32 of each priority, for good
def _stream(handle: int) -> Any:
    return cvcuda_operators().as_stream(handle)


def by_cvcuda(height: int, width: int, device: torch.device, matrix: Matrix = "bt601") -> Callable[[Tensor], Tensor]:
    """The network's input, float32 [n, 3, h, w], from NV12 on the same GPU, by three operators.

    cvtcolor converts the whole frame, since no operator samples NV12: that moves five times as many bytes as sampling
    first. It rounds to the nearest level, where swscale rounds down, so the result is lighter than `on_host`'s by 1 to
    3 levels. Raises ValueError for a matrix that is not BT.601, the only one that CV-CUDA has for limited range.
    """
    if matrix != "bt601":
        raise ValueError(f"CV-CUDA has no {matrix} for NV12 of limited range: use torch-gpu instead")
    cv, (h, w) = cvcuda_operators(), input_size(height, width)
    # float32 [1, 1, 1, 3], as normalize takes them: lists of numbers it takes from version 0.19 on.
    mean = torch.tensor([255 * each for each in IMAGENET_MEAN], device=device).view(1, 1, 1, 3)
    scale = torch.tensor([1 / (255 * each) for each in IMAGENET_STD], device=device).view(1, 1, 1, 3)

    def sample(nv12: Tensor) -> Tensor:
        with torch.cuda.device_of(nv12):  # type: ignore[no-untyped-call]
            stream, code = cvcuda_stream(device), cv.ColorConversion.YUV2RGB_NV12
            rgb = nv12.new_empty(len(nv12), height, width, 3)
            cv.cvtcolor_into(as_cvcuda(rgb), as_cvcuda(nv12[..., None]), code, stream=stream)
            small = rgb.new_empty(len(rgb), h, w, 3, dtype=torch.float32)  # levels 0..255, not rounded
            resize = cv.resize_crop_convert_reformat_into
            resize(as_cvcuda(small), as_cvcuda(rgb), (w, h), cv.Interp.LINEAR, (0, 0), srcCast=False, stream=stream)
            normalized = torch.empty_like(small)
            cv.normalize_into(as_cvcuda(normalized), as_cvcuda(small), as_cvcuda(mean), as_cvcuda(scale), stream=stream)
        return normalized.movedim(3, 1).contiguous()

    return sample


def in_triton(height: int, width: int, device: torch.device, matrix: Matrix) -> Callable[[Tensor], Tensor]:
    """One kernel, which samples, converts and normalizes."""
    from workloads.video import triton_stages

    scale, shift = (each.view(3, 1) for each in normalization())
    table = torch.cat((gains_of(matrix).T, scale, shift), 1).contiguous().to(device)
    return triton_stages.preprocess((height, width), input_size(height, width), table)


# --- the sides and their promises -------------------------------------------------------------------------------------


def size(kind: DeviceKind) -> Size:
    """The bytes of a step, a batch: its sampled pixels, read once, and the float32 result, written once."""
    clip = CLIPS[kind]
    h, w = input_size(clip.height, clip.width)
    return Size(items=BATCH, flops=0.0, bytes=float(BATCH * h * w * (3 + 4 * 3)))


def by_opencv(context: Context) -> Side:
    """OpenCV's side: frames are resized, normalized and copied to the device."""
    frames = bgr_frames(context)
    return Side(lambda numbers: on_host(frames[chosen(numbers)], context.device))


def from_nv12(make: MakeStage, context: Context) -> Side:
    """The side that samples and normalizes NV12 where it lies: on the device, or on the host where there is none."""
    one_thread_on_cpu(context.device)
    info, frames = source(context), nv12_frames(context)
    run = make(info.height, info.width, context.device, info.matrix)
    return Side(lambda numbers: run(frames[chosen(numbers)]))


# Both sides round levels of bytes, by one of 255, and CV-CUDA by three; normalized values are about 1.
ROUNDED = {dtype: Tolerance(relative_l2=1.5e-2, max_error=5e-2) for dtype in ("float32", "float16")}
ROUNDED_BY_CVCUDA = {dtype: Tolerance(relative_l2=3e-2, max_error=5e-2) for dtype in ("float32", "float16")}
ON_THE_GPU = {"cuda": Contract((Limit("host_to_device_bytes", at_most=4096),))}
FEWEST_KERNELS = {"cuda": Contract(ON_THE_GPU["cuda"].engaged, (Limit("kernels", at_most=3),))}  # one copies frames
SAMPLED_FIRST = "a ninth of the pixels is sampled first, and only those are converted"
IN_ONE_KERNEL = "one kernel samples, converts and normalizes: nothing between the frame and the result is in memory"
CONVERTED_FIRST = "an operator for each step, with all pixels converted before they are sampled"
LAUNCHED = "the kernel takes a third of the step, and its launch by the host the rest: 5.9x, and 3.6x on a slow host"
IN_PASSES = f"{SAMPLED_FIRST}; PyTorch still makes several passes over them, and OpenCV one"


_rung = partial(Optimization, tolerance=ROUNDED, needs=GPU, contract=ON_THE_GPU)
PREPROCESS = Workload(
    name="video/preprocess",
    baseline=by_opencv,
    inputs=batch_numbers,
    sizes={kind: size(kind) for kind in CLIPS},
    optimizations=(
        _rung(
            *("torch-gpu", partial(from_nv12, in_torch), {"sm_90": 49.0, "cuda": 2.0}),
            why=SAMPLED_FIRST,
        ),
        _rung(
            *("triton", partial(from_nv12, in_triton), {"sm_90": 3.4, "cuda": 1.0}),
            compared_with="torch-gpu",
            needs=TRITON,
            contract=FEWEST_KERNELS,
            why=IN_ONE_KERNEL,
            min_speedup_why=LAUNCHED,
        ),
        _rung(
            *("cvcuda", partial(from_nv12, by_cvcuda), {"sm_90": 18.7, "cuda": 2.0}),
            tolerance=ROUNDED_BY_CVCUDA,
            needs=CVCUDA,
            why=CONVERTED_FIRST,
        ),
        # No speed is promised: the case keeps the path tested where there is no GPU.
        _rung(*("torch-cpu", partial(from_nv12, in_torch), {"cpu": 0.03}), needs=ON_HOST, contract={}, why=IN_PASSES),
    ),
    cold=False,  # the inputs are numbers of frames, which lie in a bank
    timing="pipeline",
    settings=VIDEO_SETTING,
)
