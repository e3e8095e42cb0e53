"""NVTX ranges: the innermost one around a call, and each range projected onto the GPU.

A range is open on the host while its kernels are launched; they run later. Its projection is the time from the start of
the first to the end of the last thing that the device did because of a call inside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpugate.profiling.counted_calls import PUSH_POP, Steps
from gpugate.profiling.export_schema import Export

MOST_RANGES = 100  # of different names; a program that marks every operator has thousands

# In the order in which they open, which is their rowid; of ranges that open together the longer one is outside.
_RANGES = """
SELECT n.start, n.stop, n.globalTid AS tid, COALESCE(n.text, s.value, '') AS name,
  COALESCE((SELECT d.name FROM domain d WHERE d.id = n.domainId AND d.pid = n.globalTid >> 24), '') AS domain
FROM nvtx n LEFT JOIN string s ON s.id = n.textId
WHERE n.eventType = :push_pop AND n.stop > n.start AND n.stop >= :first AND n.start <= :last
  AND n.globalTid >> 24 IN (SELECT tid >> 24 FROM step)
ORDER BY n.start, n.stop DESC
"""
# The last one that has opened of those that are still open.
_INNERMOST = """
SELECT p.point, MAX(s.rowid) FROM span s CROSS JOIN {points} p ON p.tid = s.tid AND p.at >= s.start AND p.at < s.stop
GROUP BY p.point
"""
_WORK = "SELECT c.owner, c.start, d.start, d.stop FROM device d CROSS JOIN call c ON c.rowid = d.call"
_PROJECTED = """
SELECT domain, name, COUNT(*), SUM(stop - start) / 1e6, COALESCE(SUM(work_stop - work_start), 0) / 1e6,
  COALESCE(SUM(busy), 0) / 1e6, SUM(activities), AVG(work_start - start) / 1e6, AVG(work_stop - stop) / 1e6,
  (MIN(start) - :first) / 1e6
FROM (
  SELECT s.domain, s.name, s.start, s.stop, MIN(w.start) AS work_start, MAX(w.stop) AS work_stop,
    SUM(w.stop - w.start) AS busy, COUNT(w.start) AS activities
  FROM span s LEFT JOIN work w ON w.owner = s.tid AND w.at >= s.start AND w.at < s.stop
  WHERE s.start >= :first AND s.stop <= :last
  GROUP BY s.rowid)
GROUP BY domain, name ORDER BY 5 DESC, 4 DESC LIMIT :most
"""


@dataclass(frozen=True)
class ProjectedRange:
    """All ranges of one name. Times are sums over them, lags means over those that made the device do something.

    `gpu_span_ms` is from first to last activity, `gpu_busy_ms` the sum of the activities' times. `start_lag_ms` says
    how long after a range opens its first activity begins, `end_lag_ms` how long after it closes its last one ends:
    by so much the host is ahead. Both are None where the device did nothing. `opens_ms` is when the first one opens,
    from the start of the first step.
    """

    domain: str
    name: str
    count: int
    host_ms: float
    gpu_span_ms: float
    gpu_busy_ms: float
    activities: int
    start_lag_ms: float | None
    end_lag_ms: float | None
    opens_ms: float


def find_ranges(export: Export, steps: Steps) -> None:
    """Makes `span`, one row per NVTX range, in the order in which they open."""
    columns = "start stop tid name:TEXT domain:TEXT"
    export.make("span", columns, _RANGES, push_pop=PUSH_POP, first=steps.first, last=steps.last)


def find_innermost(export: Export, table: str, points: str) -> None:
    """Makes `table`, which says of a `point` in which span its thread then was, where it was in one.

    `points` selects them with their `tid` and the time `at`. The spans, which are many, are looked through once.
    """
    export.make(f"{table}_points", "point tid at", points)
    export.run(f"CREATE INDEX {table}_points_at ON {table}_points (tid, at, point)")
    export.make(table, "point span", _INNERMOST.format(points=f"{table}_points"))
    export.run(f"CREATE INDEX {table}_of ON {table} (point)")


def projected(export: Export, steps: Steps) -> tuple[ProjectedRange, ...]:
    """The ranges inside the steps and the steps themselves, those first whose work is longest on the GPU."""
    export.make("work", "owner at start stop", _WORK)
    export.run("CREATE INDEX work_at ON work (owner, at, start, stop)")
    rows = export.rows(_PROJECTED, first=steps.first, last=steps.last, most=MOST_RANGES)
    return tuple(ProjectedRange(*row) for row in rows)
