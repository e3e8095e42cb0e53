"""The folder of a profiled run's artifacts: one run at a time, and nothing left behind by one that was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpugate.errors import OptionError
from gpugate.report.night_files import RUN
from gpugate.session.termination import delay_signals

LOCK_NAME = ".lock"
_UNFINISHED = ".capturing-"


@contextmanager
def held(folder: Path, option: str) -> Iterator[Path]:
    """Makes the folder, keeps other runs out of it, and yields one inside it that goes when all is over.

    Raises OptionError, naming `option`, where it cannot be written, holds a night, or another run is at work in it.
    """
    if (folder / RUN).exists():  # whose summary.md would be replaced
        raise OptionError(f"{option} {folder} is the record of a night, with its {RUN}: give a folder beside it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise OptionError(f"{option} {folder} cannot be written ({error.strerror}): give another folder") from None
    try:
        _lock(descriptor, folder, option)
        for left in folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)
        with _temporary(folder, option) as inside:
            yield inside
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path, option: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        problem = (
            "is in use by another run" if isinstance(error, BlockingIOError) else f"has no locks ({error.strerror})"
        )
        raise OptionError(f"{option} {folder} {problem}: give another folder") from None


@contextmanager
def _temporary(folder: Path, option: str) -> Iterator[Path]:
    try:
        inside = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder))
    except OSError as error:
        raise OptionError(f"{option} {folder} cannot be written ({error.strerror}): give another folder") from None
    try:
        yield inside
    finally:
        with delay_signals():  # a second Ctrl-C would end the removal halfway
            shutil.rmtree(inside, ignore_errors=True)
