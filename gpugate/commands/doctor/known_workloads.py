"""A plugin of one pytest run that ends before it collects a test: which workloads would its tests know?"""

from __future__ import annotations

import pytest

from gpugate.catalogue import catalogue
from gpugate.errors import CatalogueError


class KnownWorkloads:
    """Looks when every conftest.py of the run has been read, and what it imports can still be found."""

    def __init__(self) -> None:
        self._found: list[str] | CatalogueError | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        try:
            catalogue.load()
            self._found = [workload.name for workload in catalogue.workloads()]
        except CatalogueError as error:
            self._found = error
        return True

    def names(self, status: int) -> list[str]:
        """Raises CatalogueError for what cannot be measured, RuntimeError where pytest ended with `status` before."""
        if isinstance(self._found, CatalogueError):
            raise self._found
        if self._found is None:
            raise RuntimeError(f"pytest ended with status {status} before it collected")
        return self._found
