"""Names of files that are being written, which tell whose they are, so that what a killed process left can go.

Several hosts and containers may share a folder, and the number of a process means something in one of them alone: it
tells nothing about a file of another, which may be alive there.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import os
import socket
from contextlib import suppress
from pathlib import Path


def partial_file(path: Path) -> Path:
    """Beside `path` and with its suffix, hidden: of this process and no other."""
    return path.with_name(f".{path.stem}.{_where()}-{os.getpid()}{path.suffix}")


def remove_left_over(path: Path) -> None:
    """Removes what processes that are gone left beside `path`. Raises OSError."""
    begin, end = f".{path.stem}.{_where()}-", path.suffix
    for left in path.parent.glob(f"{glob.escape(begin)}*{glob.escape(end)}"):
        process = left.name[len(begin) : len(left.name) - len(end)]
        if process.isdigit() and not Path("/proc", process).exists():
            left.unlink(missing_ok=True)


@functools.lru_cache(maxsize=1)
def _where() -> str:
    """Differs between hosts, and between containers, which count their processes each for itself."""
    told = [socket.gethostname()]
    with suppress(OSError):
        told.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    with suppress(OSError):
        told.append(str(Path("/proc/self/ns/pid").readlink()))
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:8]
