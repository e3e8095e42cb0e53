"""A scene to segment: figures and balls that move over a textured background, with the true foreground.

Everything is drawn once and then only moved, so that a frame costs copies alone. The foreground is warm (more red than
blue) and striped, the background cool and cloudy, so that even a linear readout of random convolutions separates them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Values = NDArray[np.float32]
Pair = tuple[float, float]
Swing = Callable[[float], Pair]  # the position x and y at a time in seconds
Colour = tuple[int, int, int]
Colours = tuple[Colour, Colour]

# Lengths are shares of the frame's height, colours RGB.
SLACK = 0.08  # the margin of a texture around its visible part
CLOUD, STRIPE = 0.2, 1 / 30
OCTAVES, FADING = 6, 0.65  # of the clouds: each octave is half as large and a little weaker than the one before
GRAIN_LEVELS = 12
SKY: Colours = ((28, 62, 96), (128, 176, 204))
FOREST: Colours = ((16, 72, 72), (120, 190, 190))
SKIN: Colours = ((240, 190, 150), (196, 130, 90))
CLOTHES: tuple[Colours, ...] = (
    ((255, 170, 60), (178, 64, 16)),
    ((240, 110, 96), (140, 16, 24)),
    ((255, 222, 110), (196, 132, 0)),
    ((248, 150, 130), (176, 44, 40)),
    ((255, 190, 100), (160, 30, 30)),
)


@dataclass(frozen=True)
class Texture:
    """uint8 [h, w, 3], larger than its visible part: a window that swings over all of it."""

    pixels: Pixels
    swing: Swing

    def shown(self, height: int, width: int, seconds: float) -> Pixels:
        spare_height, spare_width = self.pixels.shape[0] - height, self.pixels.shape[1] - width
        x, y = self.swing(seconds)
        top, left = round(spare_height * (1 + y) / 2), round(spare_width * (1 + x) / 2)
        return self.pixels[top : top + height, left : left + width]


@dataclass(frozen=True)
class Actor:
    """A moving object: an outline, bool [h, w], filled with a texture that slides inside it.

    Its centre swings about `centre` by up to `reach`, both in shares of the frame's width and height.
    """

    outline: Mask
    texture: Texture
    centre: Pair
    reach: Pair
    swing: Swing

    def draw(self, seconds: float, rgb: Pixels, mask: Mask) -> None:
        """Draws the visible part into a frame."""
        height, width = self.outline.shape
        x, y = self.swing(seconds)
        left = round((self.centre[0] + self.reach[0] * x) * mask.shape[1] - width / 2)
        top = round((self.centre[1] + self.reach[1] * y) * mask.shape[0] - height / 2)
        inside = np.s_[max(0, -top) : max(0, mask.shape[0] - top), max(0, -left) : max(0, mask.shape[1] - left)]
        outline, texture = self.outline[inside], self.texture.shown(height, width, seconds)[inside]
        rows, columns = outline.shape
        place = np.s_[max(0, top) : max(0, top) + rows, max(0, left) : max(0, left) + columns]
        np.copyto(rgb[place], texture, where=outline[:, :, None])
        mask[place] |= outline


@functools.lru_cache(maxsize=2)
def scene(width: int, height: int, seed: int) -> Callable[[float], tuple[Pixels, Mask]]:
    """The scene of that size as a function of the time in seconds: RGB uint8 [H, W, 3] and the foreground, bool [H, W].

    `seed` decides the places and the textures.
    """
    random = np.random.default_rng(seed)
    clothes = random.permutation(len(CLOTHES))
    actors = [_ball(random, height, CLOTHES[clothes[index]], x) for index, x in enumerate((0.2, 0.5, 0.82))]
    for index, x in enumerate((0.28, 0.7)):  # from the back to the front
        actors += _person(random, height, CLOTHES[clothes[index + 3]], x)
    size = _with_slack(height, width)
    sky, forest, where = (_clouds(random, size, CLOUD * height)[:, :, None] for _ in range(3))
    mixed = _mixed(SKY, sky) * where + _mixed(FOREST, forest) * (1 - where)
    background = Texture(_grainy(random, mixed), _swing(random, (14, 16), (10, 12)))

    def at(seconds: float) -> tuple[Pixels, Mask]:
        rgb, mask = background.shown(height, width, seconds).copy(), np.zeros((height, width), np.bool_)
        for actor in actors:
            actor.draw(seconds, rgb, mask)
        return rgb, mask

    return at


def _person(random: np.random.Generator, height: int, clothes: Colours, x: float) -> list[Actor]:
    """Shoulders that the lower edge of the frame cuts off, and a head over them."""
    swing = _swing(random, (7, 11), (1.5, 2.5))
    parts = []
    for size, power, colours, y in (((0.6, 0.36), 4, clothes, 0.8), ((0.26, 0.2), 2, SKIN, 0.42)):
        across, down = _coordinates(*(round(share * height) for share in size))
        outline = across**power + down**power < 1
        parts.append(Actor(outline, _striped(random, outline, height, colours), (x, y), (0.14, 0.015), swing))
    return parts


def _ball(random: np.random.Generator, height: int, colours: Colours, x: float) -> Actor:
    across, down = _coordinates(round(random.uniform(0.18, 0.22) * height), round(random.uniform(0.2, 0.26) * height))
    outline = across**2 + down**2 < 1
    texture = _striped(random, outline, height, colours)
    return Actor(outline, texture, (x, 0.36), (0.12, 0.14), _swing(random, (5, 8), (4, 6)))


def _coordinates(height: int, width: int) -> tuple[Values, Values]:
    """x and y, from -1 to 1, of the pixels of an outline."""
    down, across = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    return across.astype(np.float32), down.astype(np.float32)


def _swing(random: np.random.Generator, x_seconds: Pair, y_seconds: Pair) -> Swing:
    """A sine in time for x and one for y, each from -1 to 1, with periods within these and any phases."""
    periods_s = np.array((random.uniform(*x_seconds), random.uniform(*y_seconds)))
    turns = np.array((random.random(), random.random()))

    def at(seconds: float) -> Pair:
        x, y = np.sin(2 * np.pi * (seconds / periods_s + turns))
        return float(x), float(y)

    return at


def _with_slack(height: int, width: int) -> tuple[int, int]:
    return height + round(SLACK * height), width + round(SLACK * height)


def _striped(random: np.random.Generator, outline: Mask, height: int, colours: Colours) -> Texture:
    size, angle = _with_slack(*outline.shape), random.uniform(0, np.pi)
    rows, columns = np.indices(size, np.float32)
    wave = np.sin(2 * np.pi * (columns * np.cos(angle) + rows * np.sin(angle)) / (STRIPE * height))
    share = 0.7 * (0.5 + 0.5 * np.tanh(3 * wave)) + 0.3 * _clouds(random, size, CLOUD / 4 * height)
    return Texture(_grainy(random, _mixed(colours, share[:, :, None])), _swing(random, (3, 5), (3, 5)))


def _mixed(colours: Colours, share: Values) -> Values:
    """float32 [h, w, 3]: the first colour where `share`, [h, w, 1], is 0, the second where it is 1."""
    first, second = np.array(colours, np.float32)
    mixed: Values = first + (second - first) * share
    return mixed


def _grainy(random: np.random.Generator, rgb: Values) -> Pixels:
    grain = random.integers(-GRAIN_LEVELS, GRAIN_LEVELS, rgb.shape[:2], np.int8, endpoint=True)
    grainy: Pixels = np.clip(rgb + grain[:, :, None], 0, 255).astype(np.uint8)
    return grainy


def _clouds(random: np.random.Generator, size: tuple[int, int], cell: float) -> Values:
    """Value noise, float32 of `size` in 0..1: random grids, smoothly enlarged, the finer the weaker (Perlin 1985)."""
    total = np.zeros(size, np.float32)
    for octave in range(OCTAVES):
        pixels = max(cell / 2**octave, 2.0)
        grid = random.random([1, 1, *(int(length / pixels) + 2 for length in size)], np.float32)
        total += FADING**octave * F.interpolate(torch.from_numpy(grid), size, mode="bicubic").numpy()[0, 0]
    low, high = np.quantile(total[::8, ::8], (0.02, 0.98))
    clouds: Values = np.clip((total - low) / (high - low), 0, 1)
    return clouds
