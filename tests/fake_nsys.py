"""Stands in for nsys: a program that does what a test says when it is asked for one of its commands."""

from pathlib import Path

import pytest


def on_path(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Puts an nsys on PATH that runs `script` in a shell; `$1` is the command."""
    program = folder / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
