"""The engine's own ranges on a profiler's timeline, in the domain that the stages of the workloads are in too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

DOMAIN = "gpugate"
STEP = "step"
STEP_COLOUR, WINDOW_COLOUR = 0x76B900, 0x999999


@contextmanager
def window_range(text: str, number: int) -> Iterator[None]:
    """What is profiled of one side, on all threads: that is what a started, not pushed, range is for."""
    import nvtx

    domain: Any = nvtx.get_domain(DOMAIN)
    started = domain.start_range(domain.get_event_attributes(message=text, color=WINDOW_COLOUR, payload=number))
    try:
        yield
    finally:
        domain.end_range(started)


@contextmanager
def step_range(items: int) -> Iterator[None]:
    """One step of `items` items on the thread that runs it."""
    import nvtx

    with nvtx.annotate(STEP, color=STEP_COLOUR, domain=DOMAIN, payload=items):
        yield
