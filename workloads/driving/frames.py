"""The driving frames: seeded pictures of a road from several cameras, kept on disk with a command and waypoints.

The pictures are structured, so that a model can learn from them and JPEG can compress them: a road that bends, its
markings, sky, a patchy ground and a few vehicles. Every camera has another direction, so no two pictures are alike.

The frames are made once and kept, each picture as raw bytes in one file and as a JPEG of its own: in a temporary folder
beside the final one, which appears whole or not at all.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

VERSION = 1  # of the pictures and of the files: another version is another folder
JPEG_QUALITY = 90
RAW, JPEG, LABELS = "frames.raw", "jpeg", "labels.npz"
LABEL_NAMES = ("commands", "waypoints", "raw_sums", "jpeg_sums")
COMMANDS = ("follow", "left", "right", "straight")
LATERAL_TURN = (0.0, -0.8, 0.8, 0.0)  # of the last waypoint, by command
WAYPOINTS = 8
PATCH_PIXELS = 16
VEHICLES = 3


@dataclass(frozen=True)
class Rig:
    """The cameras of one vehicle; height and width in pixels are multiples of 32, the encoder's stride."""

    cameras: int
    height: int
    width: int

    @property
    def picture_bytes(self) -> int:
        return 3 * self.height * self.width

    @property
    def frame_bytes(self) -> int:
        return self.cameras * self.picture_bytes


def scene(rig: Rig, seed: int, index: int) -> tuple[NDArray[np.uint8], int, NDArray[np.float32]]:
    """Frame `index`: pictures [cameras, 3, height, width], the command's number, waypoints [WAYPOINTS, 2].

    It depends on the arguments alone. A higher speed moves the waypoints ahead, the road's bend and the command aside.
    """
    random = np.random.default_rng((seed, index))
    bend, speed = random.uniform(-1, 1), random.uniform(0.5, 1.5)
    command = int(random.integers(len(COMMANDS)))
    ahead = speed * np.arange(1, WAYPOINTS + 1) / WAYPOINTS
    waypoints = np.stack((ahead, (bend + LATERAL_TURN[command]) * ahead**2), axis=1).astype(np.float32)
    brightness = _patches(rig, random)
    _draw_road(brightness, bend, speed)
    for picture in brightness:
        for _ in range(VEHICLES):
            height = int(random.integers(rig.height // 12, rig.height // 5))
            width = int(random.integers(rig.width // 20, rig.width // 8))
            top = int(random.integers(rig.height // 3, rig.height - height))
            left = int(random.integers(0, rig.width - width))
            picture[top : top + height, left : left + width] = random.uniform(10, 250)
    tint = random.uniform(0.8, 1.1, size=(rig.cameras, 3, 1, 1)).astype(np.float32)
    return np.clip(brightness[:, None] * tint, 0, 255).astype(np.uint8), command, waypoints


def _patches(rig: Rig, random: np.random.Generator) -> NDArray[np.float32]:
    """A mosaic of squares: the JPEG of a smooth picture would be unrealistically small, that of noise too large."""
    rows, columns = -(-rig.height // PATCH_PIXELS), -(-rig.width // PATCH_PIXELS)
    squares: NDArray[Any] = random.uniform(80, 180, size=(rig.cameras, rows, columns)).astype(np.float32)
    mosaic = squares.repeat(PATCH_PIXELS, axis=1).repeat(PATCH_PIXELS, axis=2)
    grain = random.integers(-6, 7, size=(rig.height, rig.width)).astype(np.float32)
    whole: NDArray[np.float32] = mosaic[:, : rig.height, : rig.width] + grain
    return whole


def _draw_road(pictures: NDArray[np.float32], bend: float, speed: float) -> None:
    """Draws on float32 [cameras, height, width]: sky above the horizon, road and markings below."""
    cameras, height, width = pictures.shape
    horizon = height * 2 // 5
    pictures[:, :horizon] += np.linspace(60, 0, horizon, dtype=np.float32)[:, None]
    nearness = np.linspace(0.02, 1, height - horizon, dtype=np.float32)[:, None]  # 1 in the lowest row
    across = np.linspace(-1, 1, width, dtype=np.float32)
    heading = 0.6 * np.sin(2 * np.pi * np.arange(cameras) / cameras).astype(np.float32)
    aside = np.abs(across - (heading[:, None, None] + np.float32(bend) * (1 - nearness) ** 2))
    half_width = 0.05 + 0.5 * nearness
    dashes = np.sin(np.float32(12 * speed) / nearness) > 0  # the faster, the closer together
    road = pictures[:, horizon:]
    road[aside < half_width] *= np.float32(0.6)
    road[np.abs(aside - half_width) < 0.04 * nearness] = 230
    road[(aside < 0.02 * nearness) & dashes] = 220


@dataclass(frozen=True)
class Frames:
    """The stored frames: `raw` is uint8 [frames, cameras, 3, height, width], mapped from the file and read on use.

    `raw_sums` and `jpeg_sums` are the sums of the bytes of every picture, int64 [frames, cameras]: of the raw picture,
    and of the picture that the host's decoder makes of the JPEG. `commands` is int64 [frames], `waypoints` float32
    [frames, WAYPOINTS, 2].
    """

    folder: Path
    rig: Rig
    raw: Tensor
    commands: Tensor
    waypoints: Tensor
    raw_sums: Tensor
    jpeg_sums: Tensor

    def __len__(self) -> int:
        return self.raw.shape[0]

    def jpeg_paths(self, frame: int) -> list[Path]:
        return [_jpeg_path(self.folder, frame, camera) for camera in range(self.rig.cameras)]

    def jpegs(self, frame: int) -> list[Tensor]:
        """The JPEG of every camera as uint8 [bytes]; raises ValueError naming a file that is missing or empty."""
        from torchvision.io import read_file

        return [_read(path, read_file) for path in self.jpeg_paths(frame)]

    def decoded(self, frame: int) -> Tensor:
        """The JPEGs of a frame, decoded by the host: uint8 [cameras, 3, height, width].

        Raises ValueError naming the file that is missing, corrupt or of another size. A decoder only warns of damage
        within a picture and continues, so the sums are compared, which takes a quarter of the decoding time.
        """
        from torchvision.io import decode_image

        pictures, paths = [], self.jpeg_paths(frame)
        for path, stored in zip(paths, self.jpeg_sums[frame].tolist(), strict=True):
            picture = _read(path, decode_image)
            found = int(picture.numpy().sum(dtype=np.int64))  # a tenth of the time of PyTorch's sum
            if picture.shape != self.raw.shape[2:] or found != stored:
                raise ValueError(f"{path} decodes to another picture than was stored: {_made_again(path)}")
            pictures.append(picture)
        return torch.stack(pictures)


def stored_frames(cache_dir: Path, rig: Rig, count: int, seed: int) -> Frames:
    """The frames of a folder below `cache_dir`, made first where it is not there yet.

    Raises ValueError for a folder that is incomplete, OSError where there is no room for it; both name it.
    """
    folder = cache_dir / f"driving-v{VERSION}-{rig.cameras}x{rig.height}x{rig.width}-{count}-seed{seed}"
    if not folder.is_dir():
        _make(folder, rig, count, seed)
    try:
        shape = (count, rig.cameras, 3, rig.height, rig.width)
        raw = torch.from_file(str(folder / RAW), shared=False, size=math.prod(shape), dtype=torch.uint8).view(shape)
        with np.load(folder / LABELS, allow_pickle=False) as stored:
            return Frames(folder, rig, raw, *(torch.from_numpy(stored[name]) for name in LABEL_NAMES))
    except Exception as error:  # a damaged zip file can raise OSError, ValueError, KeyError, BadZipFile ...
        said = f"{folder} cannot be used ({type(error).__name__}: {' '.join(str(error).split())})"
        raise ValueError(f"{said}: delete the folder, it is made again") from error


def _make(folder: Path, rig: Rig, count: int, seed: int) -> None:
    """Makes the frames in a temporary folder that becomes `folder` at the end; after an error nothing of it is left."""
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        (unfinished / JPEG).mkdir()
        with (unfinished / RAW).open("wb") as raw:
            raw.truncate(count * rig.frame_bytes)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            told = list(pool.map(lambda frame: _store(unfinished, rig, seed, frame), range(count)))
        labels = dict(zip(LABEL_NAMES, map(np.stack, zip(*told, strict=True)), strict=True))
        np.savez(unfinished / LABELS, **labels)  # type: ignore[arg-type]  # it takes a mapping for its one switch
        unfinished.rename(folder)
    except OSError as error:
        if not folder.is_dir():  # else another process was faster, and its frames are the same
            reason = error.strerror or str(error)
            raise OSError(f"{folder} cannot be written ({reason}): make room or give the right to write") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _store(folder: Path, rig: Rig, seed: int, frame: int) -> tuple[np.int64, np.ndarray, np.ndarray, np.ndarray]:
    """Writes one frame; returns its command, waypoints, and the sums of its raw and of its decoded pictures."""
    from torchvision.io import decode_image, write_jpeg

    pictures, command, waypoints = scene(rig, seed, frame)
    with (folder / RAW).open("r+b") as raw:
        raw.seek(frame * rig.frame_bytes)
        raw.write(pictures.tobytes())
    jpeg_sums = np.zeros(rig.cameras, dtype=np.int64)
    for camera, picture in enumerate(pictures):
        path = _jpeg_path(folder, frame, camera)
        write_jpeg(torch.from_numpy(picture), str(path), JPEG_QUALITY)
        jpeg_sums[camera] = int(_read(path, decode_image).sum(dtype=torch.int64))
    return np.int64(command), waypoints, pictures.reshape(rig.cameras, -1).sum(axis=1, dtype=np.int64), jpeg_sums


def _jpeg_path(folder: Path, frame: int, camera: int) -> Path:
    return folder / JPEG / f"frame{frame:04d}-camera{camera}.jpg"


def _read(path: Path, read: Callable[[str], Tensor]) -> Tensor:
    """The content of a file as torchvision's function reads it; raises ValueError naming the file."""
    try:
        return read(str(path))
    except RuntimeError as error:
        said = str(error).strip().partition("\n")[0]
        raise ValueError(f"{path} cannot be read as a JPEG ({said}): {_made_again(path)}") from error


def _made_again(path: Path) -> str:
    return f"delete the folder {path.parent.parent}, it is made again"
