"""The simulated rates of false marks in tables that are looked at every night, and the delay of steps.

`python -m tools.simulated_history` prints the tables of docs/nightly.md. With `--constants` it prints the simulation
from which SPENDING was chosen; its seed is another one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from gpugate.commands.trends import (
    Values,
    critical_sums,
    level_changes,
    level_of_one,
    split_sums,
)
from gpugate.report.table import Table, columns

SEED = 20260131
SEED_OF_CONSTANTS = 11
SUITE = 80  # series: forty cases, of each a speedup and a time
TABLES = 1000  # of SUITE series
SINGLE = 20_000  # tables of one series
LOOKED_AT = (40, 100)  # nights
HORIZON = 365  # nights
STEPS = (1.4, 2.0, 3.0, 5.0)  # standard deviations
BEFORE = 20  # nights
AFTER = 40  # nights
NEAR = 2  # nights
NEVER = 10**6
BATCH = 2000  # series
Looks: TypeAlias = npt.NDArray[np.int64]
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


def first_looks(values: Values, level: float) -> Looks:
    """Returns for each series of shape (series, nights) the number of nights at its first mark, or NEVER."""
    nights, looks = values.shape[-1], []
    critical = critical_sums(nights, 0, level)
    for own in np.array_split(values, max(len(values) * nights**2 // (BATCH * 100**2), 1)):
        marked = (np.abs(split_sums(own)) >= critical).any(axis=-2)
        looks.append(np.where(marked.any(axis=-1), marked.argmax(axis=-1) + 1, NEVER))
    return np.concatenate(looks)


def false_tables(noise: Noise, series: int, repeats: int) -> list[float]:
    """Returns the shares of tables of so many unchanged series that had any mark after each of LOOKED_AT nights.

    These are all series that `level_changes` marks and those whose step is too small for it.
    """
    values = noise(np.random.default_rng(SEED), (repeats * series, max(LOOKED_AT)))
    first = first_looks(values, level_of_one(series)).reshape(repeats, series).min(axis=-1)
    return [float(np.mean(first <= nights)) for nights in LOOKED_AT]


def delays(step: float, series: int, repeats: int = 4000) -> Looks:
    """Returns the nights from a step after BEFORE nights to its mark; NEVER after AFTER nights."""
    looks = first_looks(_stepped(step, repeats), level_of_one(series))
    return np.where((looks > BEFORE) & (looks < NEVER), looks - BEFORE, NEVER)


def near_marks(step: float, series: int, repeats: int = 500) -> float:
    """Returns the share of first marks after a step that name a night at most NEAR nights from its own."""
    changes = (level_changes(list(100 + one), level_of_one(series)) for one in _stepped(step, repeats))
    first = [found[0].first for found in changes if found]
    return float(np.mean(np.abs(np.asarray(first) - BEFORE) <= NEAR))


def _stepped(step: float, repeats: int) -> Values:
    values = _normal(np.random.default_rng(SEED), (repeats, BEFORE + AFTER))
    values[:, BEFORE:] += step
    return values


def tables() -> str:
    """Returns both tables as Markdown."""
    marked = [
        (
            name,
            *(
                _percent(share)
                for series in (1, SUITE)
                for share in false_tables(noise, series, max(TABLES, SINGLE // series))
            ),
        )
        for name, noise in NOISES.items()
    ]
    looked = columns("noise", *(f"{series} series, {nights} nights" for series in (1, SUITE) for nights in LOOKED_AT))
    names = [f"{series} series" for series in (1, SUITE)]
    steps = columns("step, in standard deviations", *names, f"placed within {NEAR} nights")
    caught = [
        (
            f"{step:g}",
            *(_delay(delays(step, series)) for series in (1, SUITE)),
            _percent(near_marks(step, SUITE)),
        )
        for step in STEPS
    ]
    return "\n\n".join([Table("", looked, tuple(marked)).markdown(), Table("", steps, tuple(caught)).markdown()])


def _delay(waited: Looks) -> str:
    """Writes `median; 90th percentile; share found`."""
    middle, late = (int(np.quantile(waited, share, method="higher")) for share in (0.5, 0.9))
    nights = "; ".join(f"> {AFTER}" if one == NEVER else str(one) for one in (middle, late))
    return f"{nights}; {100 * np.mean(waited < NEVER):.0f} %"


def constants(series: int = 20_000) -> str:
    """Returns as Markdown the share of unchanged series that are marked within HORIZON nights, by the error."""
    values = np.random.default_rng(SEED_OF_CONSTANTS).random((series, HORIZON))
    rows = []
    for level in (0.1, 0.03, 0.01, 0.003, 0.001):
        share = np.mean(first_looks(values, level) < NEVER)
        rows.append((f"{100 * level:g} %", f"{100 * share:.2f} %"))
    return Table("", columns("error", "marked"), tuple(rows)).markdown()


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


if __name__ == "__main__":
    sys.stdout.write((constants() if sys.argv[1:] == ["--constants"] else tables()) + "\n")
