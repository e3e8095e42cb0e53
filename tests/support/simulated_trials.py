"""Trials whose noise is known, from seeded random numbers: how much processes, instances and pairs differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpugate.measurement.record import Pair, TimedBuild
from tools.trust.trials import SLOWDOWNS, Trial

STEP_MS = 5.0


@dataclass(frozen=True)
class Noise:
    """Standard deviations of the log-ratio: between processes, fresh instances and pairs.

    `drift` is that of the log-time of both sides together from one pair to the next: pairs do not see it, unpaired
    samples do.
    """

    process: float = 0.0
    instance: float = 0.0
    pair: float = 0.0
    drift: float = 0.0


def trials(
    noise: Noise,
    slowdowns: Sequence[float] = SLOWDOWNS,
    *,
    processes: int = 10,
    repeats: int = 4,
    instances: int = 4,
    pairs: int = 4,
    case_id: str = "toy/fast/cpu",
    seed: int = 0,
) -> list[Trial]:
    """`repeats` trials of each slowdown in each process, of `instances` instances with `pairs` pairs each."""
    return list(_trials(noise, slowdowns, processes, repeats, (instances, pairs), case_id, np.random.default_rng(seed)))


def _trials(
    noise: Noise,
    slowdowns: Sequence[float],
    processes: int,
    repeats: int,
    shape: tuple[int, int],
    case_id: str,
    draw: np.random.Generator,
) -> Iterator[Trial]:
    for process in range(processes):
        offsets = _both_sides(draw, noise.process, (1, 1))
        for _ in range(repeats):
            for slowdown in slowdowns:
                differ = (
                    offsets + _both_sides(draw, noise.instance, (shape[0], 1)) + _both_sides(draw, noise.pair, shape)
                )
                drift = draw.normal(0.0, noise.drift, shape)
                reference_ms, optimized_ms = STEP_MS * np.exp(drift + differ)
                optimized_ms *= 1 + slowdown
                built = tuple(map(_instance, reference_ms.tolist(), optimized_ms.tolist()))
                yield Trial(case_id, process, slowdown, built, wall_s=2.0 + process)


def _both_sides(draw: np.random.Generator, sd: float, shape: tuple[int, int]) -> np.ndarray:
    """Log-times of both sides, independent, whose difference has this standard deviation. Shape (2, *shape)."""
    return draw.normal(0.0, sd / np.sqrt(2), (2, *shape))


def _instance(reference_ms: Sequence[float], optimized_ms: Sequence[float]) -> TimedBuild:
    times = enumerate(zip(reference_ms, optimized_ms, strict=True))
    return TimedBuild(True, tuple(Pair(*both, reference_first=index % 2 == 0) for index, both in times))
