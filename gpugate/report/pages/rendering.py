"""Templates filled to whole pages of HTML: one file, no script but a page's own, no request to another host."""

from __future__ import annotations

import re
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from gpugate import __version__, units
from gpugate.report.table import STATES
from gpugate.report.visible_text import show_controls

# A browser loads nothing: styles stand in the page itself, pictures are inline SVG.
NOTHING = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
# Colour alone says nothing: the state of an outcome is a class, a sign and a word.
OPEN = "open"  # neither good nor bad: INCONCLUSIVE, NO_BASELINE, ENV_INVALID
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # controls, and directions of text
_UNIT = re.compile(r"(?<=\d) (?=(?:%|ms|s|us|min)(?![\w]))")  # the blank between a number and its unit
SIGNS = {"good": "✓", "better": "▲", "bad": "✕", OPEN: "?", "unsure": "~"}


def render(template: str, policy: str = NOTHING, **values: Any) -> bytes:
    """Fills a page of this folder. `policy` is the Content Security Policy of the page.

    A character that UTF-8 does not have, such as half of a surrogate pair in a hostile name, becomes a question mark.
    """
    return fill(template, policy=policy, version=__version__, **values).encode("utf-8", errors="replace")


def fill(template: str, **values: Any) -> str:
    """Fills a template of this folder, of HTML or, where it ends with .md, of Markdown, which is not escaped."""
    return _environment().get_template(template).render(**values)


def show_obeyed(value: Any) -> Any:
    """Makes the control characters of a text visible; another value, such as finished HTML, stays as it is."""
    return _OBEYED.sub(lambda found: show_controls(found[0]), value) if type(value) is str else value


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        finalize=show_obeyed,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["unbroken"] = lambda words: _UNIT.sub("\N{NO-BREAK SPACE}", words)
    environment.filters["clock"] = _read_clock
    environment.globals["number_of"] = units.number_of
    environment.globals["state"] = state
    environment.globals["sign"] = lambda word: SIGNS[state(word)]
    return environment


def _read_clock(started_at: str) -> str:
    """`2026-11-23 03:00`, on the clock of the machine that measured."""
    return datetime.fromisoformat(started_at).strftime("%Y-%m-%d %H:%M")


def state(word: str) -> str:
    """`good`, `better`, `bad`, `open` or `unsure`, of the words of a verdict such as `REGRESSED speedup`."""
    return STATES.get(word.partition(" ")[0], OPEN)
