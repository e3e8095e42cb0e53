"""Templates filled to whole pages of HTML: one file, no script but a page's own, no request to another host; and the
geometry of their pictures."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gpugate import __version__, units
from gpugate.report.table import STATES
from gpugate.report.visible_text import show_controls
from gpugate.statistics.intervals import Estimate

# A browser loads nothing: styles stand in the page itself, pictures are inline SVG.
NOTHING = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
# Colour alone says nothing: the state of an outcome is a class, a sign and a word.
OPEN = "open"  # neither good nor bad: UNDECIDED, NO_BASELINE, ENV_INVALID
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # controls, and directions of text
_UNIT = re.compile(r"(?<=\d) (?=(?:%|ms|s|us|min)(?![\w]))")  # the blank between a number and its unit
SIGNS = {"good": "✓", "better": "▲", "bad": "✕", OPEN: "?"}


def render(template: str, policy: str = NOTHING, **values: Any) -> bytes:
    """Fills a page of this folder. `policy` is the Content Security Policy of the page.

    A character that UTF-8 does not have, such as half of a surrogate pair in a hostile name, becomes a question mark.
    """
    page: str = _environment().get_template(template).render(policy=policy, version=__version__, **values)
    return page.encode("utf-8", errors="replace")


def show_obeyed(value: Any) -> Any:
    """Makes the control characters of a text visible; another value, such as finished HTML, stays as it is."""
    return _OBEYED.sub(lambda found: show_controls(found[0]), value) if type(value) is str else value


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=show_obeyed,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["unbroken"] = lambda words: _UNIT.sub("\N{NO-BREAK SPACE}", words)
    environment.filters["clock"] = lambda started_at: f"{datetime.fromisoformat(started_at):%Y-%m-%d %H:%M}"
    environment.filters["duration"] = units.duration
    environment.globals["number_of"] = units.number_of
    environment.globals["state"] = state
    environment.globals["sign"] = lambda word: SIGNS[state(word)]
    return environment


def state(word: str) -> str:
    """`good`, `better`, `bad` or `open`, of the words of a verdict such as `REGRESSED speedup`."""
    return STATES.get(word.partition(" ")[0], OPEN)


# --- the geometry of pictures: places in percent of their width, so that an SVG needs no fixed size

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)  # of a scale, by powers of ten
INSET = 2.0  # percent on either side, in which a mark beyond the scale stands
LEAST_REACH, MOST_REACH = 0.02, 0.5  # of a scale
COVERED = 0.95  # of the strips
TICKS = (0.04, 0.2, 1.0)  # parts of the reach, of which the smallest has no room for words


@dataclass(frozen=True)
class Scale:
    """A scale of square roots from -`reach` to +`reach`, of shares such as changes from a record: it shows an interval
    of 1 % beside one of 40 %."""

    reach: float

    def place(self, share: float) -> float:
        """Percent of the width; what is beyond the scale is at its end."""
        inside = max(-1.0, min(1.0, share / self.reach))
        return round(50 + (50 - INSET) * math.copysign(math.sqrt(abs(inside)), inside), 2)

    def is_beyond(self, share: float) -> bool:
        return abs(share) > self.reach * (1 + 1e-9)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Places with their words, such as `-10 %`."""
        shares = [sign * self.reach * part for sign in (-1, 1) for part in TICKS]
        least = self.reach * TICKS[1]
        words = [f"{100 * one:+.3g} %" if abs(one) >= least else "" for one in shares]
        return [(50.0, "0 %"), *zip(map(self.place, shares), words, strict=True)]


@dataclass(frozen=True)
class Strip:
    """One interval on a scale. The numbers are shares of the value at 0; `words` describe the picture to a screen
    reader."""

    value: float
    low: float
    high: float
    words: str

    @classmethod
    def of_estimate(cls, found: Estimate, base: float, against: str) -> Strip:
        """The change of an estimate from `base`: `speedup against its record: -16.7 % (-17.0 %..-16.3 %)`."""
        value, low, high = (one / base - 1 for one in (found.median, found.low, found.high))
        change, ends = units.signed_percent(value), f"{units.signed_percent(low)}..{units.signed_percent(high)}"
        return cls(value, low, high, f"{against}: {change} ({ends})")

    @property
    def extent(self) -> float:
        return max(map(abs, (self.value, self.low, self.high)))


def reach_of(strips: Sequence[Strip]) -> float:
    """The round number up to which a scale contains nearly all of the strips whole."""
    extents = sorted(strip.extent for strip in strips)
    wanted = extents[math.ceil(COVERED * len(extents)) - 1] if extents else LEAST_REACH
    return _round_up(min(max(wanted, LEAST_REACH), MOST_REACH))


def _round_up(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in STEPS if step * power >= value * (1 - 1e-9))
