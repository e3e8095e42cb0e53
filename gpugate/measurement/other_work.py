"""The limits on the cores of this process while a case is measured: other processes, and a quota of CPU time."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, process_time_ns

from gpugate.machine.cores import count_periods
from gpugate.machine.processes import ended_children_cpu_ns, list_descendants, worker_cpu_ns

PROC = Path("/proc")
MOST_THROTTLED = 0.05  # of the periods of a quota: the median of pairs bears as many slow ones
SHORTEST_S = 0.2  # the system counts ticks of 10 ms, too coarse for less
# Fields of a `cpuN` line that count time in which a core was busy: all but idle, iowait, and the guests' time, which is
# in the first two. `steal` is the time that a hypervisor gave to others. See proc_stat(5).
_BUSY = (1, 2, 3, 6, 7, 8)


class OtherWork:
    """Sums over the timed stretches of a measurement; `cores` is None without readable counts in /proc."""

    def __init__(self) -> None:
        self._busy_s = 0.0
        self._wall_s = 0.0
        self._periods = Counter[tuple[Path, str]]()

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Adds the time of the block, unless /proc cannot be read."""
        before, started, periods = _others_s(), monotonic(), count_periods()
        yield
        after = _others_s()
        self._periods += count_periods() - periods
        if before is not None and after is not None:
            self._busy_s += after - before
            self._wall_s += monotonic() - started

    @property
    def cores(self) -> float | None:
        return round(max(0.0, self._busy_s / self._wall_s), 2) if self._wall_s >= SHORTEST_S else None

    @property
    def throttled(self) -> float | None:
        """The share of the periods in which a quota throttled this process; None for one that does not matter."""
        ran = {group: count for (group, name), count in self._periods.items() if name == "nr_periods"}
        share = max((round(self._periods[group, "nr_throttled"] / ran[group], 2) for group in ran), default=0.0)
        return share if share > MOST_THROTTLED else None


def _others_s() -> float | None:
    """Sums the busy seconds of the cores that this process may use, without those of itself and its descendants."""
    try:
        lines = (PROC / "stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    below = list_descendants(helpers=True)
    mine_ns = process_time_ns() + worker_cpu_ns(below) + ended_children_cpu_ns(below)
    wanted = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    cores = (words for line in lines if (words := line.split()) and words[0] in wanted)
    return sum(int(words[field]) for words in cores for field in _BUSY) / os.sysconf("SC_CLK_TCK") - mine_ns / 1e9
