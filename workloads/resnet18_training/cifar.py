"""Small colour pictures in ten classes: CIFAR-10 where the setting `cifar10` names it, else a seeded set of its shape.

CIFAR-10's "python batches" are pickles, which may run code: only the types of such a batch may be unpickled.
"""

from __future__ import annotations

import functools
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gpugate.workload import Context

CIFAR10_SETTING = {"cifar10": "a folder of CIFAR-10's python batches to train on"}
CLASSES, CHANNELS, SIDE_PIXELS = 10, 3, 32
VALUES = CHANNELS * SIDE_PIXELS * SIDE_PIXELS  # of one picture
TRAINING_FILES = tuple(f"data_batch_{number}" for number in range(1, 6))
PICTURES_PER_FILE = 10_000
PICTURES = PICTURES_PER_FILE * len(TRAINING_FILES)
INNER_FOLDER = "cifar-10-batches-py"  # the folder inside the archive
NEXT_STEP = "unpack cifar-10-python.tar.gz there again"

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

    Raises FileNotFoundError or ValueError, in one sentence, for a folder that does not hold CIFAR-10.
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
    """The five training files of `folder`, or of `cifar-10-batches-py` inside it, joined in order.

    Raises FileNotFoundError for a missing folder or file, ValueError for a file that is no such batch; one sentence.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"--perf-set cifar10={folder} is no folder: name the one that holds {INNER_FOLDER}")
    inside = folder / INNER_FOLDER
    found = inside if inside.is_dir() else folder
    missing = [name for name in TRAINING_FILES if not (found / name).is_file()]
    if missing:
        raise FileNotFoundError(f"--perf-set cifar10={folder} has no {', '.join(missing)} of CIFAR-10: {NEXT_STEP}")
    parts = [_read_batch(found / name) for name in TRAINING_FILES]
    return Pictures(torch.cat([part.pixels for part in parts]), torch.cat([part.labels for part in parts]))


def _read_batch(path: Path) -> Pictures:
    try:
        with path.open("rb") as file:
            content = _OnlyArrays(file, encoding="bytes").load()
    except Exception as error:  # a damaged pickle can raise EOFError, UnpicklingError, KeyError ...
        reason = str(error).splitlines()[0] if str(error) else "no message"
        what = f"--perf-set cifar10={path.parent}: {path.name} cannot be read ({type(error).__name__}: {reason})"
        raise ValueError(f"{what}: {NEXT_STEP}") from error
    problem = _problem_with(content)
    if problem is not None:
        raise ValueError(f"--perf-set cifar10={path.parent}: {path.name} {problem}: {NEXT_STEP}")
    pixels = torch.from_numpy(content[b"data"].copy()).view(-1, CHANNELS, SIDE_PIXELS, SIDE_PIXELS)
    return Pictures(pixels, torch.tensor(content[b"labels"], dtype=torch.int64))


def _problem_with(content: object) -> str | None:
    """The reason why the content is no file of 10,000 CIFAR-10 pictures, or None."""
    if not isinstance(content, dict):
        return f"holds a {type(content).__name__}, not a dictionary"
    data, labels = content.get(b"data"), content.get(b"labels")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8:
        return "has no pictures in bytes under 'data'"
    if data.shape != (PICTURES_PER_FILE, VALUES):
        return f"has pictures of shape {list(data.shape)} where CIFAR-10 has [{PICTURES_PER_FILE}, {VALUES}]"
    if not isinstance(labels, list) or len(labels) != len(data):
        return f"has {len(labels) if isinstance(labels, list) else 'no'} labels for {len(data)} pictures"
    if not all(type(label) is int and 0 <= label < CLASSES for label in labels):
        return f"has labels that are no numbers from 0 to {CLASSES - 1}"
    return None


class _OnlyArrays(pickle.Unpickler):
    """Unpickles dictionaries, lists, numbers, bytes and NumPy arrays, and refuses everything else by its name."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return _empty_array
        if module == "numpy" and name == "ndarray":
            return np.ndarray
        if module == "numpy" and name == "dtype":
            return _byte_type
        if module == "_codecs" and name == "encode":  # Python 3 writes bytes in the protocol of Python 2 this way
            return _latin1_bytes
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch of pictures needs")


def _empty_array(kind: object, shape: object, code: object) -> Any:
    """An empty array, as NumPy's own `_reconstruct` makes it, which its pickled state then fills."""
    if kind is not np.ndarray:
        raise pickle.UnpicklingError("it holds an array of an unknown kind")
    return np.empty(0, np.uint8)


def _byte_type(code: object, *_: object) -> np.dtype[Any]:
    if code not in ("u1", b"u1"):
        raise pickle.UnpicklingError(f"it holds values of type {code!r}, not bytes")
    return np.dtype("u1", False, True)  # a copy, since its pickled state is set upon it


def _latin1_bytes(text: object, encoding: object = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("it holds text that is not Latin-1")
    return text.encode("latin1")
