"""Templates filled to whole pages of HTML: one file, no script but a page's own, no request to another host; and the
geometry of their pictures."""

from __future__ import annotations

import math
import re
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gpugate import __version__, units
from gpugate.report.table import STATES
from gpugate.report.visible_text import show_controls

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
    environment.globals.update(number_of=units.number_of, state=state, sign=lambda word: SIGNS[state(word)])
    environment.globals.update(place=place, is_beyond=is_beyond, ticks=TICKS)
    return environment


def state(word: str) -> str:
    """`good`, `better`, `bad` or `open`, of the words of a verdict such as `REGRESSED speedup`."""
    return STATES.get(word.partition(" ")[0], OPEN)


# --- the geometry of pictures: places in percent of their width, so that an SVG needs no fixed size

INSET = 2.0  # percent on either side, in which a mark beyond the scale stands
REACH = 0.5  # of the scale of shares, such as changes from a record: every night has the same scale
TICKS = {-0.5: "-50 %", -0.1: "-10 %", -0.02: "", 0.0: "0 %", 0.02: "", 0.1: "+10 %", 0.5: "+50 %"}  # 2 % has no room


def place(share: float) -> float:
    """Percent of the width, by square roots, which show an interval of 1 % beside one of 40 %; what is beyond the scale
    is at its end."""
    inside = max(-1.0, min(1.0, share / REACH))
    return round(50 + (50 - INSET) * math.copysign(math.sqrt(abs(inside)), inside), 2)


def is_beyond(share: float) -> bool:
    return abs(share) > REACH
