"""`python -m tools.options_page > docs/options.md`: the options and settings that gpugate adds to pytest."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import pytest

from gpugate.report.table import Column, Markdown, Table
from gpugate.session.options import SETTINGS, add_options

HEAD = """# Options

Every option that gpugate adds to pytest. The command `python -m tools.options_page > docs/options.md` writes
this page.
"""
SETTINGS_HEAD = """## Settings

Values that rarely change stand in pytest's configuration: `[tool.pytest.ini_options]` of `pyproject.toml`, or
`pytest.ini`. For one run, `-o NAME=VALUE` gives another value.
"""


def options_page() -> str:
    """The page as Markdown: one row for each option that `pytest --help` shows, and one for each setting."""
    parser = pytest.Parser(_ispytest=True)
    add_options(parser)
    options = [option.attrs() | {"name": option.names()[0]} for option in parser.getgroup("gpugate").options]
    rows = tuple(_row(option) for option in options if option["help"] != argparse.SUPPRESS)
    settings = tuple((f"`{name}`", default or "none", text) for name, (default, text) in SETTINGS.items())
    tables = _markdown(("option", "effect"), rows), _markdown(("setting", "default", "effect"), settings)
    return f"{HEAD}\n{tables[0]}\n{SETTINGS_HEAD}\n{tables[1]}"


def _markdown(columns: Sequence[str], rows: tuple[tuple[str, ...], ...]) -> str:
    own = tuple(tuple(map(Markdown, row)) for row in rows)
    return f"{Table('', tuple(Column(name, left=True) for name in columns), own).markdown()}\n"


def _row(option: dict[str, str]) -> tuple[str, str]:
    """Help texts are formats of argparse, where `%(default)s` stands for the default."""
    metavar = option.get("metavar")
    value = "" if metavar is None else f"[={metavar}]" if option.get("nargs") == "?" else f" {metavar}"
    text = option["help"] % {"default": option.get("default")}
    return f"`{option['name']}{value}`", text


if __name__ == "__main__":
    print(options_page(), end="")
