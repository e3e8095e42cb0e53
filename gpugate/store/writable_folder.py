"""Checks that a run can write to its folders, before it measures, and the removal of unfinished files."""

from __future__ import annotations

import glob
import os
import tempfile
from pathlib import Path


def make_ignored(folder: Path) -> None:
    """Makes a folder whose files git ignores; a folder that exists stays as it is. Raises OSError where that fails."""
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")


def make_writable(folder: Path) -> None:
    """Makes the folder, whose files git ignores, and writes a nameless file in it: permissions do not show /proc or a
    read-only disk.

    Raises OSError where one of the two fails.
    """
    make_ignored(folder)
    with tempfile.TemporaryFile(dir=folder):
        pass


def prepare_unfinished(target: Path) -> Path:
    """Returns the path beside `target` to which this process writes until the file is whole.

    Removes the unfinished files of killed processes. Raises OSError where that fails.
    """
    for left in target.parent.glob(f".{glob.escape(target.name)}.*.tmp"):
        writer = left.name.removesuffix(".tmp").rpartition(".")[2]
        if writer.isdecimal() and not is_running(int(writer)):
            left.unlink(missing_ok=True)
    return target.with_name(f".{target.name}.{os.getpid()}.tmp")


def is_running(process: int) -> bool:
    """True for a process of this machine that has not ended."""
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def hide_own_files(folder: Path) -> None:
    """Makes git ignore locks and unfinished files in a folder that is committed. Raises OSError as writing does."""
    path = folder / ".gitignore"
    if not path.exists():
        path.write_text(".*\n", encoding="utf-8")  # which ignores this file, too
