"""A plugin for one pytest run that lists the workloads its tests would know and ends before a test is collected."""

from __future__ import annotations

import pytest

from gpugate.catalogue import catalogue
from gpugate.errors import CatalogueError


class KnownWorkloads:
    """Lists the workloads after every conftest.py of the run was read, while their imports can still be found."""

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
        """Returns the workloads' names. Raises CatalogueError for a workload that cannot be measured, and RuntimeError
        where pytest ended earlier, with `status`."""
        if isinstance(self._found, CatalogueError):
            raise self._found
        if self._found is None:
            raise RuntimeError(f"pytest ended with status {status} before it collected")
        return self._found
