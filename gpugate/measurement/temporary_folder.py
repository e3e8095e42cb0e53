"""The folder for temporary files when it is full: an error far from its cause, said in one sentence."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

NEXT_STEP = "make room in it, or set TMPDIR to another one"


def not_taken(error: BaseException) -> str | None:
    """What the folder did not take and what to do, where that is what `error` comes from; None for any other.

    The profiler does not raise when it cannot write its trace: what is missing is the file that is then to be read.
    """
    if not isinstance(error, OSError):
        return None
    if error.filename is None:  # as tempfile raises it, with the folders that it tried
        said = str(error.strerror)
        return f"{said[:1].lower()}{said[1:]}: {NEXT_STEP}" if "usable temporary directory" in said else None
    folder, path = Path(tempfile.gettempdir()), Path(os.fsdecode(error.filename))
    if folder not in path.parents:
        return None
    return f"the folder for temporary files {folder} did not take {path.name} ({error.strerror}): {NEXT_STEP}"
