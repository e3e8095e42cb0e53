"""The driving frames: seeded pictures of a road from several cameras, kept on disk with a command and waypoints.

The pictures are structured, so that a model can learn from them and JPEG can compress them: a road that bends, its
markings, sky, a patchy ground and a few vehicles. Every camera has another direction, so no two pictures are alike.

The frames are made once and kept in one file, each picture as raw bytes and as a JPEG.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workloads.parts.kept_files import replacing_file

VERSION = 3  # of the pictures and of the file: another version is another file
JPEG_QUALITY = 90
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
    def frame_bytes(self) -> int:
        return self.cameras * 3 * self.height * self.width


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
    """The stored frames, mapped from their file and read on use.

    `raw` is uint8 [frames, cameras, 3, height, width], and `jpegs` has uint8 [bytes] for each frame and camera.
    `raw_sums` and `jpeg_sums` are the sums of the bytes of every picture, int64 [frames, cameras]: of the raw picture,
    and of the picture that the host's decoder makes of the JPEG. `commands` is int64 [frames], `waypoints` float32
    [frames, WAYPOINTS, 2].
    """

    path: Path
    rig: Rig
    raw: Tensor
    jpegs: list[list[Tensor]]
    commands: Tensor
    waypoints: Tensor
    raw_sums: Tensor
    jpeg_sums: Tensor

    def __len__(self) -> int:
        return self.raw.shape[0]

    def decoded(self, frame: int) -> Tensor:
        """The JPEGs of a frame, decoded by the host: uint8 [cameras, 3, height, width].

        Raises ValueError naming the JPEG that is corrupt or of another size. A decoder only warns of damage within a
        picture and continues, so the sums are compared, which takes a quarter of the decoding time.
        """
        from torchvision.io import decode_jpeg

        pictures = []
        for camera, jpeg in enumerate(self.jpegs[frame]):
            try:
                picture = decode_jpeg(jpeg)
                found = int(picture.numpy().sum(dtype=np.int64))  # a tenth of the time of PyTorch's sum
                is_intact = picture.shape == self.raw.shape[2:] and found == int(self.jpeg_sums[frame, camera])
            except RuntimeError:  # it is no JPEG
                is_intact = False
            if not is_intact:
                name = f"the JPEG of frame {frame} and camera {camera} in {self.path}"
                raise ValueError(f"{name} is not the picture that was stored: delete the file, it is made again")
            pictures.append(picture)
        return torch.stack(pictures)


def _sum_labels(stored: dict[str, Any]) -> int:
    return sum(int(stored[name].view(torch.uint8).sum()) for name in ("commands", "waypoints"))


def stored_frames(cache_dir: Path, rig: Rig, count: int, seed: int) -> Frames:
    """The frames of a file in `cache_dir`, made first where it is not there yet.

    Raises ValueError for a file that is damaged, OSError where there is no room for it; both name it.
    """
    path = cache_dir / f"driving-v{VERSION}-{rig.cameras}x{rig.height}x{rig.width}-{count}-seed{seed}.pt"
    if not path.is_file():
        _make(path, rig, count, seed)
    try:
        stored = torch.load(path, mmap=True, weights_only=True)
        if stored.pop("label_sum") != _sum_labels(stored):
            raise ValueError("the commands or waypoints are not those that were stored")
        return Frames(path, rig, **stored)
    except Exception as error:  # torch raises many errors for a file that is none of its own
        said = f"{path} cannot be used ({type(error).__name__}: {' '.join(str(error).split())})"
        raise ValueError(f"{said}: delete the file, it is made again") from error


def _make(path: Path, rig: Rig, count: int, seed: int) -> None:
    """Makes the frames on all cores, and writes a file that appears whole."""
    from torchvision.io import decode_jpeg, encode_jpeg

    raw = torch.empty(count, rig.cameras, 3, rig.height, rig.width, dtype=torch.uint8)

    def draw(frame: int) -> tuple[list[Tensor], list[int], int, Tensor]:
        pictures, command, waypoints = scene(rig, seed, frame)
        raw[frame] = torch.from_numpy(pictures)
        jpegs = [encode_jpeg(picture, JPEG_QUALITY) for picture in raw[frame]]
        sums = [int(decode_jpeg(jpeg).sum(dtype=torch.int64)) for jpeg in jpegs]
        return jpegs, sums, command, torch.from_numpy(waypoints)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        jpegs, jpeg_sums, commands, waypoints = zip(*pool.map(draw, range(count)), strict=True)
    stored: dict[str, Any] = {
        "raw": raw,
        "jpegs": list(jpegs),
        "commands": torch.tensor(commands),
        "waypoints": torch.stack(waypoints),
        "raw_sums": raw.flatten(2).sum(2, dtype=torch.int64),
        "jpeg_sums": torch.tensor(jpeg_sums),
    }
    stored["label_sum"] = _sum_labels(stored)
    try:
        with replacing_file(path) as unfinished, unfinished.open("wb") as file:
            torch.save(stored, file)  # which takes no name that begins with a dot
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise OSError(f"{path} cannot be written ({reason}): make room or give the right to write") from error
