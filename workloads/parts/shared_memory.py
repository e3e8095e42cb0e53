"""A check of shared memory for worker processes: a worker without room dies of a bus error that names no cause."""

from __future__ import annotations

import shutil
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # where workers leave what they send
SMALL_TENSORS_BYTES = 2**20  # messages other than pictures are far smaller than this


def check_shared_memory(needed_bytes: int) -> None:
    """Raises OSError, in one sentence, where `needed_bytes` of pictures do not fit into shared memory."""
    if not needed_bytes or not SHARED_MEMORY.is_dir():
        return
    free_bytes = shutil.disk_usage(SHARED_MEMORY).free
    if free_bytes < needed_bytes + SMALL_TENSORS_BYTES:
        raise OSError(
            f"the loader's workers keep {needed_bytes / 2**20:.0f} MiB ready and {SHARED_MEMORY} has "
            f"{free_bytes / 2**20:.0f} MiB free: give it more, such as by docker run --shm-size=2g"
        )
