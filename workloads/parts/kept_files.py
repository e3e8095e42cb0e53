"""Files that outlive a process, such as compiled engines: each holds the SHA-256 of its content before the content."""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

DIGEST_BYTES = 32


def key_of(*facts: object) -> str:
    """A file name that changes with any of the facts; bytes count by their content, all else by its `repr`."""
    digest = hashlib.sha256()
    for fact in facts:
        content = fact if isinstance(fact, bytes) else repr(fact).encode()
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()[:32]


def read_kept(path: Path) -> bytes | None:
    """The content that `keep` wrote to `path`; None without such a file.

    A damaged file is deleted with a RuntimeWarning that names it. The hash finds damage, not somebody who writes both.
    """
    if not path.is_file():
        return None
    stored = path.read_bytes()
    digest, content = stored[:DIGEST_BYTES], stored[DIGEST_BYTES:]
    if hashlib.sha256(content).digest() == digest:
        return content
    discard(path, "is damaged")
    return None


def discard(path: Path, problem: str) -> None:
    """Deletes the file with a RuntimeWarning that names it and the problem."""
    path.unlink(missing_ok=True)
    warnings.warn(f"{path} {problem}: it was deleted and is made again", RuntimeWarning, stacklevel=3)


def keep(path: Path, content: bytes) -> None:
    """Writes a file that appears whole or not at all, also beside other writers; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        file.write(hashlib.sha256(content).digest() + content)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(path)


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """A path to write to: its file becomes `path` when the block ends, and vanishes where the block fails."""
    partial = path.absolute().with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_or_make(path: Path, make: Callable[[], bytes]) -> bytes:
    """The content of `path`; the first process that finds none makes and keeps it, while the others wait for a lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        content = read_kept(path)
        if content is None:
            content = make()
            keep(path, content)
        return content
