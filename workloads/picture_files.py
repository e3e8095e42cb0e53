"""Decoding of JPEG files to small pictures: one by one, by two threads, and at a quarter of the size.

A JPEG decoder can leave out the high frequencies of each block of 8 x 8 pixels: a quarter of the width then costs a
fraction of the time, and the small picture is nearly the same.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gpugate.workload import TOLERANCE_BY_DTYPE, Context, Needs, Optimization, Side, Size, Tolerance, Workload
from workloads.parts.random_inputs import host_generator

FILES, WIDTH, HEIGHT, REDUCED = 4, 1024, 768, 4
PER_STEP = 4
QUALITY = 90
SMALL = (WIDTH // REDUCED, HEIGHT // REDUCED)


def numbers(context: Context, index: int) -> Tensor:
    """Numbers of the files of one step: int64 [items]."""
    random = host_generator(context, index)
    return torch.randint(FILES, (context.items,), generator=random)


def _files(context: Context) -> list[bytes]:
    """Seeded pictures, smooth with a little noise, as JPEG."""
    from PIL import Image

    random = torch.Generator().manual_seed(context.seed)
    coarse = torch.rand(FILES, 3, HEIGHT // 32, WIDTH // 32, generator=random)
    smooth = F.interpolate(coarse, (HEIGHT, WIDTH), mode="bicubic")
    noisy = 0.95 * smooth + 0.05 * torch.rand(FILES, 3, HEIGHT, WIDTH, generator=random)
    files = []
    for picture in (noisy.clamp(0, 1) * 255).to(torch.uint8).permute(0, 2, 3, 1).numpy():
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "JPEG", quality=QUALITY)
        files.append(file.getvalue())
    return files


def decode(file: bytes, reduced: bool = False) -> Tensor:
    """float32 [3, height, width] of the small picture; `reduced` decodes it at its size."""
    from PIL import Image

    with Image.open(io.BytesIO(file)) as picture:
        if reduced:
            picture.draft("RGB", SMALL)
        small = picture if reduced else picture.reduce(REDUCED)
        return torch.from_numpy(np.array(small)).permute(2, 0, 1).float() / 255


Map = Callable[[Callable[[bytes], Tensor], Iterable[bytes]], Iterable[Tensor]]


def _side(decode_one: Callable[[bytes], Tensor], context: Context, threads: int = 0) -> Side:
    files = _files(context)
    pool = ThreadPoolExecutor(threads) if threads else None
    decode_all: Map = pool.map if pool else map

    def step(wanted: Tensor) -> Tensor:
        return torch.stack(list(decode_all(decode_one, [files[number] for number in wanted.tolist()])))

    return Side(step, close=pool.shutdown if pool else lambda: None)


def one_by_one(context: Context) -> Side:
    return _side(decode, context)


def threads(context: Context) -> Side:
    return _side(decode, context, threads=2)


def reduced(context: Context) -> Side:
    return _side(partial(decode, reduced=True), context)


# Leaving out frequencies is another filter than the mean of 4 x 4 pixels.
FILTERED = {**TOLERANCE_BY_DTYPE, "float32": Tolerance(relative_l2=2e-2, max_error=1e-1)}
PILLOW = Needs(("PIL",), install="pip install pillow")

WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "picture-files",
        one_by_one,
        numbers,
        {"cpu": Size(PER_STEP, 0.0, 3.0 * PER_STEP * WIDTH * HEIGHT)},
        (
            Optimization("threads-2", threads, {"cpu": 1.0}, needs=PILLOW),
            Optimization("reduced", reduced, {"cpu": 1.5}, needs=PILLOW, tolerance=FILTERED),
        ),
        timing="pipeline",
        cold=False,
    ),
)
