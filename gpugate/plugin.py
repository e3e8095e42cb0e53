"""pytest's hooks. Each is a few lines; the ideas are elsewhere. Importing this imports no torch."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from gpugate.catalogue import catalogue
from gpugate.errors import GpugateError
from gpugate.options import add_options, read_options

if TYPE_CHECKING:
    from gpugate.session import PerfSession

_CLOSING = pytest.StashKey[ExitStack]()


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)
