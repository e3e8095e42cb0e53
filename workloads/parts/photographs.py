"""Batches of real photographs: random crops of a few decoded pictures, never zeros and never noise.

The pictures are those that ship inside scikit-image, or every picture of the folder that the setting `photographs`
names. Each is decoded once a process and kept on the device as bytes; a batch is then
crops, so that hundreds of batches cost little.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gpugate.workload import Context

PHOTOGRAPHS_SETTING = {"photographs": "a folder of your own pictures"}
UNMEASURED_BATCH = 2**31  # an index that no measurement reaches: for calibration, compilation and autotuning
SIDE_PIXELS = 224
LONGEST_PIXELS = 640  # larger pictures are reduced to this while decoding: all crops then cost about the same
SHARE_OF_AREA = (0.25, 1.0)
ASPECT_RATIO = (3 / 4, 4 / 3)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
SCIKIT_IMAGE_PHOTOGRAPHS = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "motorcycle_left.png",
    "motorcycle_right.png",
    "retina.jpg",
    "rocket.jpg",
)


def photograph_batch(context: Context, index: int) -> Tensor:
    """Batch `index` >= 0: float32 [items, 3, 224, 224] on the context's device, normalized as for ImageNet.

    Depends on the context's seed and `index` alone, and differs for every index. Raises ValueError or
    FileNotFoundError, in one sentence, when the photographs cannot be had.
    """
    photographs = decoded_photographs(_own_folder(context), context.device)
    random = np.random.default_rng((context.seed, index))
    batch = torch.stack([_random_crop(photographs, random) for _ in range(context.items)])
    mean = torch.tensor(IMAGENET_MEAN, device=batch.device).view(3, 1, 1)
    std = torch.tensor(IMAGENET_STD, device=batch.device).view(3, 1, 1)
    return batch.div_(255).sub_(mean).div_(std)


def _own_folder(context: Context) -> Path | None:
    given = context.settings.get("photographs")
    return None if given is None else Path(given)


@functools.lru_cache(maxsize=4)
def decoded_photographs(folder: Path | None, device: torch.device) -> tuple[Tensor, ...]:
    """Every photograph as uint8 [3, height, width] on `device`; None as the folder means scikit-image's own."""
    return tuple(_decode(path).to(device) for path in photograph_paths(folder))


def photograph_paths(folder: Path | None) -> list[Path]:
    """Raises FileNotFoundError for a missing folder or package, ValueError for a folder without a picture."""
    if folder is None:
        return _paths_in_scikit_image()
    if not folder.is_dir():
        raise FileNotFoundError(f"--perf-set photographs={folder} is no folder: name one that holds pictures")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    if not paths:
        known = ", ".join(sorted(SUFFIXES))
        raise ValueError(
            f"--perf-set photographs={folder} holds no picture: put files there that end in one of {known}"
        )
    return paths


def _paths_in_scikit_image() -> list[Path]:
    package = find_spec("skimage")
    if package is None or package.origin is None:
        raise FileNotFoundError("scikit-image, whose photographs are the input, is missing: pip install scikit-image")
    return [Path(package.origin).parent / "data" / name for name in SCIKIT_IMAGE_PHOTOGRAPHS]


def _decode(path: Path) -> Tensor:
    """One picture as uint8 [3, height, width] in RGB; raises ValueError naming the file that cannot be decoded."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            picture = image.convert("RGB")
    except Exception as error:  # decoders raise many errors: OSError, ValueError, SyntaxError, struct.error ...
        where = f"--perf-set photographs={path.parent}" if path.parent.name != "data" else f"{path.parent}"
        reason = f"{path.name} cannot be decoded ({type(error).__name__})"
        raise ValueError(f"{where}: {reason}; remove or replace it") from error
    picture.thumbnail((LONGEST_PIXELS, LONGEST_PIXELS))
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()


def _random_crop(photographs: tuple[Tensor, ...], random: np.random.Generator) -> Tensor:
    """A resized crop, mirrored half the time: float32 [3, 224, 224], 0..255 (Szegedy et al., CVPR 2015)."""
    photograph = photographs[random.integers(len(photographs))]
    top, left, height, width = _random_box(photograph.shape[1], photograph.shape[2], random)
    box = photograph[None, :, top : top + height, left : left + width]
    # Only the CPU resizes bytes, several times faster than floats and fastest when channels are innermost.
    box = box.float() if box.is_cuda else box.contiguous(memory_format=torch.channels_last)
    crop = F.interpolate(box, (SIDE_PIXELS, SIDE_PIXELS), mode="bilinear", antialias=True)[0].float()
    return crop.flip(2) if random.random() < 0.5 else crop


def _random_box(rows: int, columns: int, random: np.random.Generator) -> tuple[int, int, int, int]:
    """Top, left, height and width in pixels of a box inside rows x columns: random area and aspect ratio."""
    area = rows * columns * random.uniform(*SHARE_OF_AREA)
    aspect_ratio = np.exp(random.uniform(*np.log(ASPECT_RATIO)))
    height = int(np.clip(np.sqrt(area / aspect_ratio), 1, rows))
    width = int(np.clip(np.sqrt(area * aspect_ratio), 1, columns))
    top, left = random.integers(rows - height + 1), random.integers(columns - width + 1)
    return int(top), int(left), height, width
