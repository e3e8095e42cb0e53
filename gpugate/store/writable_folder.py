"""The folders that a run writes to: their choice, their check before anything is measured, and unfinished files."""

from __future__ import annotations

import glob
import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path


def choose_folder(folder: Path) -> Path:
    """Returns `folder` of a project, or where it cannot be written one outside: in the user's cache, else in TMPDIR.

    The folder outside is the same in each run, below one of this user alone: others could put results there. Returns
    `folder` where nothing can be written.
    """
    folder = folder.resolve()
    if os.access(next(path for path in (folder, *folder.parents) if os.access(path, os.F_OK)), os.W_OK):
        return folder
    project = f"{folder.parent.name}-{hashlib.sha256(os.fsencode(folder.parent)).hexdigest()[:8]}"
    caches = [Path(os.environ.get("XDG_CACHE_HOME") or os.path.expandvars("$HOME/.cache"), "gpugate")]
    with suppress(OSError):
        caches.append(Path(tempfile.gettempdir(), f"gpugate-{os.getuid()}"))
    for own in filter(Path.is_absolute, caches):
        with suppress(OSError):
            own.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.access(own, os.W_OK) and own.lstat().st_uid == os.getuid():
                return own / project / folder.name
    return folder


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
