"""The folders that a run writes to: their choice, check and lock before anything is measured."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from gpugate.errors import GpugateError
from gpugate.machine.cores import read_or_empty

LOCK_NAME = ".lock"


def choose_folder(folder: Path) -> Path:
    """Returns `folder` of a project, or where it cannot be written one in the user's cache, the same in each run."""
    folder = folder.resolve()
    if os.access(next(path for path in (folder, *folder.parents) if os.access(path, os.F_OK)), os.W_OK):
        return folder
    project = f"{folder.parent.name}-{hashlib.sha256(os.fsencode(folder.parent)).hexdigest()[:8]}"
    with suppress(OSError, RuntimeError):  # the latter of a user who has no home
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "gpugate")
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        return cache / project / folder.name
    return folder


def make_ignored(folder: Path) -> None:
    """Makes a folder whose files git ignores; a folder that exists stays as it is. Raises OSError where that fails."""
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")


@contextmanager
def lock_folder(
    folder: Path, error: type[GpugateError], name: str = "", is_committed: bool = False, lock_name: str = LOCK_NAME
) -> Iterator[None]:
    """Makes the folder and locks it by a file in it until the block ends.

    The kernel unlocks the folder of a process that is killed, whose file stays and does not matter.

    Git ignores the files of a folder that is made, unless it `is_committed`. Raises `error` where another process has
    the lock or the folder cannot be written. `name` (default: the path) begins the sentence.
    """
    from filelock import FileLock, Timeout  # imports asyncio, which a session without a lock does not need

    path, name = folder / lock_name, name or str(folder)
    with ExitStack() as stack:
        try:
            if is_committed:
                folder.mkdir(parents=True, exist_ok=True)
            make_ignored(folder)
            stack.enter_context(FileLock(path).acquire(blocking=False))
            path.write_text(str(os.getpid()), encoding="utf-8")
        except Timeout:
            holder = read_or_empty(path) or "unknown"
            raise error(f"{name} is in use by another process (pid {holder}): wait for its end") from None
        except OSError as problem:
            raise error(f"{name} cannot be written ({problem.strerror}): give another folder") from problem
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink()
