"""Seeded pictures of a road from several cameras, with a command and the waypoints that follow from both.

The pictures are structured, so that a model can learn from them and JPEG can compress them: a road that bends, its
markings, sky, a patchy ground and a few vehicles. Every camera has another direction, so no two pictures are alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


@dataclass(frozen=True)
class Scene:
    """One frame: pictures [cameras, 3, height, width], the command's number, waypoints [WAYPOINTS, 2]: ahead, aside."""

    pictures: NDArray[np.uint8]
    command: int
    waypoints: NDArray[np.float32]


def scene(rig: Rig, seed: int, index: int) -> Scene:
    """Frame `index`: it depends on the rig, `seed` and `index` alone."""
    random = np.random.default_rng((seed, index))
    bend, speed = random.uniform(-1, 1), random.uniform(0.5, 1.5)
    command = int(random.integers(len(COMMANDS)))
    return Scene(_pictures(rig, bend, speed, random), command, _waypoints(bend, speed, command))


def _waypoints(bend: float, speed: float, command: int) -> NDArray[np.float32]:
    """The future places of the vehicle: a higher speed moves them ahead, the road's bend and the command aside."""
    ahead = speed * np.arange(1, WAYPOINTS + 1) / WAYPOINTS
    aside = (bend + LATERAL_TURN[command]) * ahead**2
    return np.stack((ahead, aside), axis=1).astype(np.float32)


def _pictures(rig: Rig, bend: float, speed: float, random: np.random.Generator) -> NDArray[np.uint8]:
    brightness = _brightness(rig, bend, speed, random)
    for camera in range(rig.cameras):
        _park_vehicles(brightness[camera], random)
    tint = random.uniform(0.8, 1.1, size=(rig.cameras, 3, 1, 1)).astype(np.float32)
    pictures: NDArray[np.uint8] = np.clip(brightness[:, None] * tint, 0, 255).astype(np.uint8)
    return pictures


def _brightness(rig: Rig, bend: float, speed: float, random: np.random.Generator) -> NDArray[np.float32]:
    """float32 [cameras, height, width], 0..255: sky above the horizon, ground, road and markings below."""
    horizon = rig.height * 2 // 5
    pictures = _patches(rig, random)
    pictures[:, :horizon] += np.linspace(60, 0, horizon, dtype=np.float32)[:, None]
    nearness = np.linspace(0.02, 1, rig.height - horizon, dtype=np.float32)[:, None]  # 1 in the lowest row
    across = np.linspace(-1, 1, rig.width, dtype=np.float32)
    heading = 0.6 * np.sin(2 * np.pi * np.arange(rig.cameras) / rig.cameras).astype(np.float32)
    centre = heading[:, None, None] + np.float32(bend) * (1 - nearness) ** 2
    aside = np.abs(across - centre)
    half_width = 0.05 + 0.5 * nearness
    dashes = np.sin(np.float32(12 * speed) / nearness) > 0  # the faster, the closer together
    road = pictures[:, horizon:]
    road[aside < half_width] *= np.float32(0.6)
    road[np.abs(aside - half_width) < 0.04 * nearness] = 230
    road[(aside < 0.02 * nearness) & dashes] = 220
    return pictures


def _patches(rig: Rig, random: np.random.Generator) -> NDArray[np.float32]:
    """A mosaic of squares: the JPEG of a smooth picture would be unrealistically small, that of noise too large."""
    rows, columns = -(-rig.height // PATCH_PIXELS), -(-rig.width // PATCH_PIXELS)
    squares: NDArray[Any] = random.uniform(80, 180, size=(rig.cameras, rows, columns)).astype(np.float32)
    mosaic = squares.repeat(PATCH_PIXELS, axis=1).repeat(PATCH_PIXELS, axis=2)
    grain = random.integers(-6, 7, size=(rig.height, rig.width)).astype(np.float32)
    whole: NDArray[np.float32] = mosaic[:, : rig.height, : rig.width] + grain
    return whole


def _park_vehicles(picture: NDArray[np.float32], random: np.random.Generator) -> None:
    rows, columns = picture.shape
    for _ in range(VEHICLES):
        height, width = int(random.integers(rows // 12, rows // 5)), int(random.integers(columns // 20, columns // 8))
        top, left = int(random.integers(rows // 3, rows - height)), int(random.integers(0, columns - width))
        picture[top : top + height, left : left + width] = random.uniform(10, 250)
