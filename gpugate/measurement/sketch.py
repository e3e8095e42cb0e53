"""Sums of outputs that estimate the size of a difference, at the cost of one pass over the values on their device."""

from __future__ import annotations

import math
import random
from collections.abc import Container, Iterator
from typing import Literal

import torch

from gpugate.measurement.difference import codes_of, is_discrete, numbers_of, readable
from gpugate.parts import Parts
from gpugate.workload import Tolerance

Kind = Literal["numbers", "hashes"]
Sums = dict[tuple[str, Kind], torch.Tensor]
SUMS, HASHES = 64, 2**16
# The sums estimate an error that is spread over the output within 10 %. An error in one part alone appears four times
# as large as it is in 1 of 16,000 steps.
SURE = 4.0
UNRELATED = (
    0.5  # of the norm of what is expected, or of unequal hashes: zeros and unrelated values are off by all of it
)


class Sketch:
    """Sums of an output's values with random signs, over 64 parts: their norm estimates the norm of the output.

    The tug-of-war sketch: for independent signs, E ||sums||^2 = ||values||^2 (Alon, Matias and Szegedy, The space
    complexity of approximating the frequency moments, 1996). No side knows the signs. Of what must be equal, integers
    and the places of infinity and NaN, hashes are summed. `special` names the parts that have such places.
    """

    def __init__(self, draw: random.Random, tolerance: Tolerance, special: Container[str] = ()) -> None:
        self._generator = torch.Generator().manual_seed(draw.randrange(2**62))
        self._signs: dict[tuple[int, str], torch.Tensor] = {}
        self._tolerance, self._special = tolerance, special

    def __call__(self, output: Parts) -> Sums:
        """float64 [64] for each tensor and kind of value, on the output's device, in stream order without waiting."""
        parts = [(name, part) for name, part in output.items() if isinstance(part, torch.Tensor)]
        found = ((name, kind, values) for name, part in parts for kind, values in self._values_of(name, part))
        return {(name, kind): self._sum(values) for name, kind, values in found}

    def _values_of(self, name: str, part: torch.Tensor) -> Iterator[tuple[Kind, torch.Tensor]]:
        """Yields the values to sum, in one dimension: floats, or hashes as int64."""
        if is_discrete(part) and self._tolerance.equal_share is not None:
            yield "hashes", _hash(codes_of(part))
            return
        values = readable(part)
        values = (torch.view_as_real(values) if values.is_complex() else values).reshape(-1)
        values = values.to(torch.float64 if values.dtype in (torch.float64, torch.int64) else torch.float32)
        if name in self._special:
            places = values.isnan() + 2 * values.isposinf() + 3 * values.isneginf()
            yield "hashes", _hash(places)
            values = torch.where(places == 0, values, 0.0)
        yield "numbers", values

    def _sum(self, values: torch.Tensor) -> torch.Tensor:
        signs = self._signs_of(values.numel(), values.device)
        padded = torch.nn.functional.pad(values, (0, signs.numel() - values.numel()))
        exact = torch.float64 if values.is_floating_point() else torch.int64
        return (padded * signs).view(SUMS, -1).sum(1, dtype=exact).double()

    def limits(self, expected: Parts) -> dict[tuple[str, Kind], float]:
        """Computes the largest norm of the difference of the sums of an output that is within the tolerance.

        Two hashes are uniform below HASHES: the mean square of their difference is HASHES^2 / 6.
        """
        found: dict[tuple[str, Kind], float] = {}
        for name, part in expected.items():
            if isinstance(part, torch.Tensor):
                share = self._tolerance.equal_share if is_discrete(part) else None
                unequal = 0.0 if share is None else 1 - share
                numbers = numbers_of(part)
                found[name, "hashes"] = _limit(math.sqrt(unequal)) * HASHES * math.sqrt(part.numel() / 6)
                found[name, "numbers"] = _limit(self._tolerance.relative_l2) * float(numbers[numbers.isfinite()].norm())
        return found

    def _signs_of(self, count: int, device: torch.device) -> torch.Tensor:
        """int8 [count, rounded up to whole parts], each -1 or 1."""
        on_host = self._signs.get((count, "cpu"))
        if on_host is None:
            length = -(-count // SUMS) * SUMS
            drawn = torch.randint(0, 2, (length,), generator=self._generator, dtype=torch.int8)
            on_host = self._signs[count, "cpu"] = drawn * 2 - 1
        return self._signs.setdefault((count, str(device)), on_host.to(device) if device.type != "cpu" else on_host)


def _limit(tolerated: float) -> float:
    return min(SURE * tolerated, max(UNRELATED, 1.25 * tolerated))


def _hash(codes: torch.Tensor) -> torch.Tensor:
    """Hashes integers to 0..HASHES - 1, as int64, by their product with an odd constant (Knuth's multiplicative
    hashing)."""
    wide = codes.to(torch.int64)
    return (((wide ^ (wide >> 32)) * 0x9E3779B1) >> 16) % HASHES
