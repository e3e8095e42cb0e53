"""One sentence for the errors of a full folder for temporary files, which appear far from their cause."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

NEXT_STEP = "make room in it, or set TMPDIR to another one"


def not_taken(error: BaseException) -> str | None:
    """Returns the file that the folder did not take and the next step; None for an error with another cause.

    The profiler does not raise when it cannot write its trace: the error comes when the missing file is read.
    """
    if not isinstance(error, OSError):
        return None
    if error.filename is None:  # tempfile raises such an error, with the folders that it tried
        said = str(error.strerror)
        return f"{said[:1].lower()}{said[1:]}: {NEXT_STEP}" if "usable temporary directory" in said else None
    folder, path = Path(tempfile.gettempdir()), Path(os.fsdecode(error.filename))
    if folder not in path.parents:
        return None
    return f"the folder for temporary files {folder} did not take {path.name} ({error.strerror}): {NEXT_STEP}"
