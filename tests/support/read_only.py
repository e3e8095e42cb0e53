"""A stand-in for folders that cannot be written: root, as which CI runs, writes through permissions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def refuse_writes(monkeypatch: pytest.MonkeyPatch, *folders: Path, but: Path | None = None) -> None:
    """Makes `os.access` refuse writes in these folders and all that is below them, `but` in one."""
    access = os.access

    def refuse(path: str | Path, mode: int, **options: bool) -> bool:
        refused = any(Path(path).is_relative_to(folder) for folder in folders)
        writes = bool(mode & os.W_OK) and not (but is not None and Path(path).is_relative_to(but))
        return not (refused and writes) and access(path, mode, **options)

    monkeypatch.setattr(os, "access", refuse)
