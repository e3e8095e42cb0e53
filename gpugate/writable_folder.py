"""Folders that a run will write to: tried before it measures anything."""

from __future__ import annotations

import tempfile
from pathlib import Path


def made_writable(folder: Path) -> None:
    """Makes the folder and writes a nameless file in it: permissions do not tell of /proc or of a read-only disk.

    Raises OSError where either cannot be done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass
