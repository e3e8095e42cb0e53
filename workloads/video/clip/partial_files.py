"""Names of files that are being written, which name their process, so that the file of a killed process can be removed.

Several hosts and containers may share a folder, and a process number is valid in one of them alone: it does not
identify a process of another host, which may still be alive.
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
    """The hidden path beside `path`, with its suffix, for this process alone."""
    return path.with_name(f".{path.stem}.{_where()}-{os.getpid()}{path.suffix}")


def remove_left_over(path: Path) -> None:
    """Removes the files that ended processes left beside `path`. Raises OSError."""
    begin, end = f".{path.stem}.{_where()}-", path.suffix
    for left in path.parent.glob(f"{glob.escape(begin)}*{glob.escape(end)}"):
        process = left.name[len(begin) : len(left.name) - len(end)]
        if process.isdigit() and not Path("/proc", process).exists():
            left.unlink(missing_ok=True)


@functools.lru_cache(maxsize=1)
def _where() -> str:
    """A name of this host and container; containers number their processes separately."""
    told = [socket.gethostname()]
    with suppress(OSError):
        told.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    with suppress(OSError):
        told.append(str(Path("/proc/self/ns/pid").readlink()))
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:8]
