"""Stages of a step as ranges for an attached profiler, so that a timeline shows the activity of the host."""

from __future__ import annotations

import zlib
from contextlib import AbstractContextManager, nullcontext

from torch.autograd import profiler
from torch.profiler import record_function

try:
    import nvtx
except ImportError:  # measurements work without it: only a profile shows the stages
    nvtx = None

DOMAIN = "gpugate"  # the domain of the steps around the stages
# A domain without a profiler has no attributes; a profiler is attached at a process's start or never.
_LISTENED_TO = nvtx is not None and nvtx.get_domain(DOMAIN).get_event_attributes("stage") is not None
_NOTHING: AbstractContextManager[object] = nullcontext()


def stage(name: str, payload: int | None = None) -> AbstractContextManager[object]:
    """A range on the calling thread, in a colour by its name; nothing where no profiler is attached.

    Launches are asynchronous: trust the range as projected on the GPU, not the host's.
    """
    if profiler._is_profiler_enabled:  # torch's own sees no NVTX range
        return record_function(name)
    if not _LISTENED_TO:
        return _NOTHING
    colour = zlib.crc32(name.encode()) & 0xFFFFFF
    made: AbstractContextManager[object] = nvtx.annotate(name, color=colour, domain=DOMAIN, payload=payload)
    return made
