"""The simulated rates of false marks on unchanged nights, and of steps that are found.

`python -m tools.simulated_history` prints the tables of docs/nightly.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import numpy as np

from gpugate.commands.history.level_changes import MIN_SIDE, Values, corrected_p_values, level_of_one
from gpugate.report.table import Table, columns

SEED = 20260131
SERIES = 4000
LENGTHS = (10, 20, 30, 60, 100, 365)
SUITE = 80  # series: forty cases, of each a speedup and a time
STEPS = (2.0, 3.0, 5.0)  # standard deviations
NIGHTS_SINCE = (3, 4, 5, 7, 10)
BEFORE = 20  # nights
Noise = Callable[[np.random.Generator, tuple[int, int]], Values]


def _normal(draw: np.random.Generator, shape: tuple[int, int]) -> Values:
    return draw.normal(size=shape)


def _heavy_tails(draw: np.random.Generator, shape: tuple[int, int]) -> Values:
    return draw.standard_t(2, size=shape)


def _bad_nights(draw: np.random.Generator, shape: tuple[int, int]) -> Values:
    """One night in ten is ten times as noisy."""
    return draw.normal(size=shape) * np.where(draw.random(shape) < 0.1, 10.0, 1.0)


def _correlated(with_the_night_before: float) -> Noise:
    def noise(draw: np.random.Generator, shape: tuple[int, int]) -> Values:
        values = draw.normal(size=shape)
        for night in range(1, shape[1]):
            new = np.sqrt(1 - with_the_night_before**2) * values[:, night]
            values[:, night] = with_the_night_before * values[:, night - 1] + new
        return values

    return noise


NOISES: Mapping[str, Noise] = {
    "normal": _normal,
    "heavy tails (Student's t, 2 degrees)": _heavy_tails,
    "one night in ten ten times as noisy": _bad_nights,
    "correlated with the night before, 0.2": _correlated(0.2),
    "correlated with the night before, 0.5": _correlated(0.5),
}


def false_marks(noise: Noise, length: int, level: float, series: int = SERIES) -> float:
    """Returns the share of unchanged series that `level_changes` marks: it splits only series that it has marked."""
    values = noise(np.random.default_rng(SEED + length), (series, length))
    return float(np.mean(corrected_p_values(values).min(axis=-1) <= level))


def found_steps(step: float, nights_since: int, level: float, series: int = SERIES) -> float:
    """Returns the share of series with a step after BEFORE nights that are marked on its night or one beside it."""
    values = _normal(np.random.default_rng(SEED), (series, BEFORE + nights_since))
    values[:, BEFORE:] += step
    p_values = corrected_p_values(values)
    near = np.abs(p_values.argmin(axis=-1) + MIN_SIDE - BEFORE) <= 1
    return float(np.mean((p_values.min(axis=-1) <= level) & near))


def tables() -> str:
    """Returns both tables as Markdown."""
    alone, in_suite = level_of_one(1), level_of_one(SUITE)
    marked = [
        (name, *(_percent(false_marks(noise, length, alone)) for length in LENGTHS), _percent(_of_suite(noise)))
        for name, noise in NOISES.items()
    ]
    caught = [
        (
            f"{step:g}",
            *(_percent(found_steps(step, since, level)) for level in (alone, in_suite) for since in NIGHTS_SINCE),
        )
        for step in STEPS
    ]
    headings = [f"one of {series}: {since} nights" for series in (1, SUITE) for since in NIGHTS_SINCE]
    lengths = columns("noise", *(f"{length} nights" for length in LENGTHS), f"{SUITE} series of 30")
    steps = columns("step, in standard deviations", *headings)
    return "\n\n".join([Table("", lengths, tuple(marked)).markdown(), Table("", steps, tuple(caught)).markdown()])


def _of_suite(noise: Noise) -> float:
    """Returns the share of tables of SUITE unchanged series that have any mark."""
    each = false_marks(noise, 30, level_of_one(SUITE), series=10 * SERIES)
    return 1 - (1 - each) ** SUITE


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


if __name__ == "__main__":
    sys.stdout.write(tables() + "\n")
