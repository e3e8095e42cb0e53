"""The lock of a folder: one process at a time works in it, and a second one is refused with the id of the first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from gpugate.errors import GpugateError
from gpugate.store.writable_folder import make_ignored

LOCK_NAME = ".lock"


@contextmanager
def lock_folder(
    folder: Path, error: type[GpugateError], name: str = "", is_committed: bool = False, lock_name: str = LOCK_NAME
) -> Iterator[None]:
    """Makes the folder and locks it until the block ends. The kernel unlocks the folder of a process that is killed.

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
            holder = path.read_text(encoding="utf-8", errors="replace") or "unknown"
            raise error(f"{name} is in use by another process (pid {holder}): wait for its end") from None
        except OSError as problem:
            raise error(f"{name} cannot be written ({problem.strerror}): give another folder") from problem
        try:
            yield
        finally:
            with suppress(OSError):
                os.truncate(path, 0)
