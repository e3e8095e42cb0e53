"""Small colour pictures in ten classes: CIFAR-10 where the setting `cifar10` names it, else pictures from a seed."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from gpugate.workload import Context

CIFAR10_SETTING = {"cifar10": "a folder of CIFAR-10's python batches to train on"}
CLASSES, CHANNELS, SIDE_PIXELS = 10, 3, 32
VALUES = CHANNELS * SIDE_PIXELS * SIDE_PIXELS  # of one picture
PICTURES = 50_000  # to train on

# A seeded picture is the smooth pattern of its class around grey, plus noise of equal strength: no single pixel shows
# the class, and a net learns it within some hundred steps.
PATTERN_CELLS, STRENGTH, GREY = 4, 40.0, 128
NOISE_VALUES = 2**20
PICTURES_AT_ONCE = 5_000


@dataclass(frozen=True)
class Pictures:
    """`pixels` is uint8 [n, 3, height, width] in RGB, `labels` int64 [n] from 0 to 9; both on the host."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


def training_pictures(context: Context) -> Pictures:
    """The 50,000 training pictures, read or drawn once a process.

    Raises ValueError, in one sentence, for a folder that does not hold CIFAR-10.
    """
    if "cifar10" not in context.settings:
        return seeded_pictures(context.seed, PICTURES)
    return read_cifar10(Path(context.settings["cifar10"]))


@functools.lru_cache(maxsize=4)
def seeded_pictures(seed: int, count: int) -> Pictures:
    """`count` pictures [count, 3, 32, 32] in ten classes that can be learned; they depend on the arguments alone."""
    generator = torch.Generator().manual_seed(seed)
    cells = torch.randn(CLASSES, CHANNELS, PATTERN_CELLS, PATTERN_CELLS, generator=generator)
    smooth = F.interpolate(cells, size=SIDE_PIXELS, mode="bicubic").flatten(1)  # [10, 3072]
    patterns = (STRENGTH * smooth + GREY).to(torch.int16)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    # Every picture gets its own window of one long row of noise: drawing all of it would take seconds.
    noise = (STRENGTH * torch.randn(NOISE_VALUES, generator=generator)).to(torch.int16)
    windows = noise.unfold(0, VALUES, 1)  # [.., 3072], a view
    starts = torch.randint(len(windows), (count,), generator=generator)
    pixels = torch.empty(count, VALUES, dtype=torch.uint8)
    for first in range(0, count, PICTURES_AT_ONCE):
        some = slice(first, first + PICTURES_AT_ONCE)
        pixels[some] = windows[starts[some]].add_(patterns[labels[some]]).clamp_(0, 255).to(torch.uint8)
    return Pictures(pixels.view(count, CHANNELS, SIDE_PIXELS, SIDE_PIXELS), labels)


@functools.lru_cache(maxsize=2)
def read_cifar10(folder: Path) -> Pictures:
    """The training pictures of CIFAR-10, whose archive was unpacked in `folder` or to it.

    The files are pickles, which may run code: torchvision compares their MD5 sums with the published ones first. Raises
    ValueError, in one sentence, where a file is missing or another one.
    """
    from torchvision.datasets import CIFAR10

    root = folder.parent if folder.name == CIFAR10.base_folder else folder
    try:
        found = CIFAR10(root)
    except RuntimeError as error:
        whole = f"has not all files of CIFAR-10 in {CIFAR10.base_folder}, as they were published"
        raise ValueError(f"--perf-set cifar10={folder} {whole}: unpack cifar-10-python.tar.gz there again") from error
    return Pictures(torch.from_numpy(found.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(found.targets))
