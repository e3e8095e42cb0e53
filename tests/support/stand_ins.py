"""Runs a script with stand-ins for the programs that it calls."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

# GitHub runs a step so; the scripts of Slurm and Kubernetes set the same options themselves.
STEP = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")


def write_programs(folder: Path, **bodies: str) -> None:
    for name, body in bodies.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)


def run_script(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in `folder`, whose programs come before those of the machine."""
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", **variables}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
