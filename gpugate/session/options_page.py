"""`python -m gpugate.session.options_page > docs/options.md`: every option of pytest that gpugate adds, as a page."""

from __future__ import annotations

import argparse

import pytest

from gpugate.report.table import Column, Table
from gpugate.session.options import add_options

HEAD = """# Options

Every option that gpugate adds to pytest. The command `python -m gpugate.session.options_page > docs/options.md` writes
this page.
"""


def options_page() -> str:
    """The page as Markdown: one row for each option that `pytest --help` shows."""
    parser = pytest.Parser(_ispytest=True)
    add_options(parser)
    options = [option.attrs() | {"name": option.names()[0]} for option in parser.getgroup("gpugate").options]
    rows = tuple(_row(option) for option in options if option["help"] != argparse.SUPPRESS)
    return f"{HEAD}\n{Table('', (Column('option', left=True), Column('effect', left=True)), rows).markdown()}\n"


def _row(option: dict[str, str]) -> tuple[str, str]:
    """Help texts are formats of argparse, where `%(default)s` stands for the default."""
    metavar = option.get("metavar")
    value = "" if metavar is None else f"[={metavar}]" if option.get("nargs") == "?" else f" {metavar}"
    text = option["help"] % {"default": option.get("default")}
    return f"`{option['name']}{value}`", text


if __name__ == "__main__":
    print(options_page(), end="")
