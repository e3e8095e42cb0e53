"""CPU counters of one side: page faults and context switches per step of its timed blocks.

The operating system counts them for all threads of this process, not for its worker processes. They are read before
and after a block, outside of its time.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

_FIELDS = {
    "minor_faults": "ru_minflt",
    "major_faults": "ru_majflt",
    "voluntary_switches": "ru_nvcsw",
    "involuntary_switches": "ru_nivcsw",
}


class CpuCounters:
    """Totals over the timed blocks of one side, in all builds of a measurement."""

    def __init__(self) -> None:
        self._totals = dict.fromkeys(_FIELDS, 0)
        self._steps = 0

    @contextmanager
    def count(self, steps: int) -> Iterator[None]:
        """Counts a block of `steps` steps."""
        before = _read()
        yield
        for name, count in _read().items():
            self._totals[name] += count - before[name]
        self._steps += steps

    def per_step(self) -> dict[str, float]:
        """Divides the totals by the timed steps, by the names of gpugate.counter_names; empty without timed blocks."""
        return {name: round(total / self._steps, 3) for name, total in self._totals.items()} if self._steps else {}


def _read() -> dict[str, int]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {name: getattr(used, field) for name, field in _FIELDS.items()}
