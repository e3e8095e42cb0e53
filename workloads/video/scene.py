"""A scene to segment: people and balls that move over a textured background, with the true foreground.

Everything is drawn once and then only moved, so that a frame costs copies alone. The foreground is warm (more red than
blue) and striped, the background cool and cloudy, so that even a linear readout of random convolutions separates them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Values = NDArray[np.float32]
Pair = tuple[float, float]
Swing = Callable[[float], Pair]  # the position x and y at a time in seconds, each from -1 to 1
Colours = tuple[tuple[int, int, int], tuple[int, int, int]]

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
class Actor:
    """An outline, bool [h, w], that swings about `centre` by up to `reach`, shares of the frame's width and height.

    It is filled with a texture, uint8 [more than h, more than w, 3], that slides inside it.
    """

    outline: Mask
    texture: Pixels
    sliding: Swing
    centre: Pair
    reach: Pair
    swing: Swing

    def draw(self, seconds: float, rgb: Pixels, mask: Mask) -> None:
        """Draws the part that is inside the frame."""
        height, width = self.outline.shape
        x, y = self.swing(seconds)
        left = round((self.centre[0] + self.reach[0] * x) * mask.shape[1] - width / 2)
        top = round((self.centre[1] + self.reach[1] * y) * mask.shape[0] - height / 2)
        inside = np.s_[max(0, -top) : max(0, mask.shape[0] - top), max(0, -left) : max(0, mask.shape[1] - left)]
        outline, texture = self.outline[inside], visible(self.texture, self.sliding, height, width, seconds)[inside]
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
    clothes = [CLOTHES[index] for index in random.permutation(len(CLOTHES))]
    actors = [ball(random, height, colours, x) for colours, x in zip(clothes, (0.2, 0.5, 0.82), strict=False)]
    for colours, x in zip(clothes[3:], (0.28, 0.7), strict=True):
        actors += person(random, height, colours, x)
    size = with_slack(height, width)
    sky, forest, where = (clouds(random, size, CLOUD * height)[:, :, None] for _ in range(3))
    background = grainy(random, mixed(SKY, sky) * where + mixed(FOREST, forest) * (1 - where))
    drifting = swing_of(random, (14, 16), (10, 12))

    def at(seconds: float) -> tuple[Pixels, Mask]:
        rgb = visible(background, drifting, height, width, seconds).copy()
        mask = np.zeros((height, width), np.bool_)
        for actor in actors:  # from the back to the front
            actor.draw(seconds, rgb, mask)
        return rgb, mask

    return at


def ball(random: np.random.Generator, height: int, colours: Colours, x: float) -> Actor:
    outline = ellipse(random.uniform(0.18, 0.22) * height, random.uniform(0.2, 0.26) * height, power=2)
    texture = striped(random, outline, height, colours), swing_of(random, (3, 5), (3, 5))
    return Actor(outline, *texture, (x, 0.36), (0.12, 0.14), swing_of(random, (5, 8), (4, 6)))


def person(random: np.random.Generator, height: int, clothes: Colours, x: float) -> Iterator[Actor]:
    """Shoulders that the lower edge of the frame cuts off, and a head over them."""
    swing = swing_of(random, (7, 11), (1.5, 2.5))
    for rows, columns, power, colours, y in ((0.6, 0.36, 4, clothes, 0.8), (0.26, 0.2, 2, SKIN, 0.42)):
        outline = ellipse(rows * height, columns * height, power)
        texture = striped(random, outline, height, colours), swing_of(random, (3, 5), (3, 5))
        yield Actor(outline, *texture, (x, y), (0.14, 0.015), swing)


def ellipse(height: float, width: float, power: int) -> Mask:
    """bool [height, width]: an ellipse, or with a higher power a rounded rectangle."""
    sides = (np.linspace(-1, 1, round(length)).astype(np.float32) for length in (height, width))
    down, across = np.meshgrid(*sides, indexing="ij")
    outline: Mask = across**power + down**power < 1
    return outline


def swing_of(random: np.random.Generator, x_seconds: Pair, y_seconds: Pair) -> Swing:
    """A sine in time for x and one for y, with periods within these and any phases."""
    periods_s = np.array((random.uniform(*x_seconds), random.uniform(*y_seconds)))
    turns = np.array((random.random(), random.random()))

    def at(seconds: float) -> Pair:
        x, y = np.sin(2 * np.pi * (seconds / periods_s + turns))
        return float(x), float(y)

    return at


def visible(texture: Pixels, swing: Swing, height: int, width: int, seconds: float) -> Pixels:
    """The window of a texture that swings over all of it."""
    x, y = swing(seconds)
    top, left = (round((s - n) * (1 + c) / 2) for s, n, c in zip(texture.shape, (height, width), (y, x), strict=False))
    return texture[top : top + height, left : left + width]


def with_slack(height: int, width: int) -> tuple[int, int]:
    return height + round(SLACK * height), width + round(SLACK * height)


def striped(random: np.random.Generator, outline: Mask, height: int, colours: Colours) -> Pixels:
    size, angle = with_slack(*outline.shape), random.uniform(0, np.pi)
    rows, columns = np.indices(size, np.float32)
    wave = np.sin(2 * np.pi * (columns * np.cos(angle) + rows * np.sin(angle)) / (STRIPE * height))
    share = 0.7 * (0.5 + 0.5 * np.tanh(3 * wave)) + 0.3 * clouds(random, size, CLOUD / 4 * height)
    return grainy(random, mixed(colours, share[:, :, None]))


def mixed(colours: Colours, share: Values) -> Values:
    """float32 [h, w, 3]: the first colour where `share`, [h, w, 1], is 0, the second where it is 1."""
    first, second = np.array(colours, np.float32)
    values: Values = first + (second - first) * share
    return values


def grainy(random: np.random.Generator, rgb: Values) -> Pixels:
    grain = random.integers(-GRAIN_LEVELS, GRAIN_LEVELS, rgb.shape[:2], np.int8, endpoint=True)
    pixels: Pixels = np.clip(rgb + grain[:, :, None], 0, 255).astype(np.uint8)
    return pixels


def clouds(random: np.random.Generator, size: tuple[int, int], cell: float) -> Values:
    """Value noise, float32 of `size` in 0..1: random grids, smoothly enlarged, the finer the weaker (Perlin 1985)."""
    total = np.zeros(size, np.float32)
    for octave in range(OCTAVES):
        pixels = max(cell / 2**octave, 2.0)
        grid = random.random([1, 1, *(int(length / pixels) + 2 for length in size)], np.float32)
        total += FADING**octave * F.interpolate(torch.from_numpy(grid), size, mode="bicubic").numpy()[0, 0]
    low, high = np.quantile(total[::8, ::8], (0.02, 0.98))
    values: Values = np.clip((total - low) / (high - low), 0, 1)
    return values
