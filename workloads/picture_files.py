"""Decoding of JPEG files to small pictures: one by one, by two threads, and at a quarter of the size.

A JPEG decoder can leave out the high frequencies of each block of 8 x 8 pixels: a quarter of the width then costs a
fraction of the time, and the small picture is nearly the same.
"""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gpugate.workload import (
    TOLERANCE_BY_DTYPE,
    Context,
    Needs,
    Optimization,
    Side,
    Size,
    Tolerance,
    Workload,
    no_engagement_problem,
)
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


def decode(file: bytes, reduced: bool, sizes: set[tuple[int, int]]) -> Tensor:
    """float32 [3, height, width] of the small picture; `reduced` decodes it at its size. `sizes` gets that of the
    decoded picture."""
    from PIL import Image

    with Image.open(io.BytesIO(file)) as picture:
        if reduced:
            picture.draft("RGB", SMALL)
        sizes.add(picture.size)
        small = picture if reduced else picture.reduce(REDUCED)
        return torch.from_numpy(np.array(small)).permute(2, 0, 1).float() / 255


def decoding(context: Context, threads: int = 0, reduced: bool = False) -> Side:
    """The side that decodes the files of a step one by one, or by so many threads."""
    files, sizes = _files(context), set[tuple[int, int]]()
    pool = ThreadPoolExecutor(threads) if threads else None
    decode_all: Any = pool.map if pool else map

    def step(wanted: Tensor) -> Tensor:
        chosen = [files[number] for number in wanted.tolist()]
        return torch.stack(list(decode_all(partial(decode, reduced=reduced, sizes=sizes), chosen)))

    engaged = partial(describe_sizes, sizes, SMALL) if reduced else no_engagement_problem
    return Side(step, engaged=engaged, close=pool.shutdown if pool else lambda: None)


def describe_sizes(sizes: set[tuple[int, int]], wanted: tuple[int, int]) -> str | None:
    """The sizes at which pictures were decoded, unless all have the one that was wanted."""
    return None if sizes == {wanted} else f"pictures were decoded at {sorted(sizes)}, not at {wanted}"


# Leaving out frequencies is another filter than the mean of 4 x 4 pixels.
FILTERED = {**TOLERANCE_BY_DTYPE, "float32": Tolerance(relative_l2=2e-2, max_error=1e-1)}
PILLOW = Needs(("PIL",), install="pip install pillow")
AT_A_QUARTER = partial(decoding, reduced=True)

WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "picture-files",
        decoding,
        numbers,
        {"cpu": Size(PER_STEP, 0.0, 3.0 * PER_STEP * WIDTH * HEIGHT)},
        (
            Optimization("threads-2", partial(decoding, threads=2), {"cpu": 1.0}, needs=PILLOW),
            Optimization("reduced", AT_A_QUARTER, {"cpu": 1.5}, needs=PILLOW, tolerance=FILTERED),
        ),
        timing="pipeline",
        cold=False,
    ),
)
