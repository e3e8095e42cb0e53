"""NVTX ranges: the innermost one around a call, and each range projected onto the GPU.

A range is open on the host while its kernels are launched; they run later. Its projection is the time from the start of
the first to the end of the last thing that the device did because of a call inside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpugate.profiling.counted_calls import PUSH_POP, Steps
from gpugate.profiling.export_schema import Export

MOST_RANGES = 100  # of different names; a program that marks every operator has thousands

_RANGES = """
SELECT n.start, n.stop, n.globalTid AS tid, COALESCE(n.text, s.value, '') AS name,
  COALESCE((SELECT d.name FROM domain d WHERE d.id = n.domainId AND d.pid = n.globalTid >> 24), '') AS domain
FROM nvtx n LEFT JOIN string s ON s.id = n.textId
WHERE n.eventType = :push_pop AND n.stop > n.start AND n.stop >= :first AND n.start <= :last
  AND n.globalTid >> 24 IN (SELECT tid >> 24 FROM step)
"""
# Every opening and closing in order, with how many ranges of the thread are then open. At one instant what closes goes
# first; of ranges that open together the longer one is outside.
_EDGES = """
SELECT tid, at, opens, span, SUM(opens) OVER (
  PARTITION BY tid ORDER BY at, opens, other DESC ROWS UNBOUNDED PRECEDING) AS depth
FROM (
  SELECT tid, start AS at, 1 AS opens, rowid AS span, stop AS other FROM span
  UNION ALL SELECT tid, stop, -1, rowid, start FROM span)
ORDER BY tid, at, opens, other DESC
"""
# What is innermost after an edge: the last range that opened to that depth.
_INNERMOST = """
SELECT e.tid, e.at, e.rowid AS edge, (
  SELECT o.span FROM edge o
  WHERE o.tid = e.tid AND o.opens = 1 AND o.depth = e.depth AND o.rowid <= e.rowid
  ORDER BY o.rowid DESC LIMIT 1) AS span
FROM edge e
"""
_PARENTS = """
SELECT e.span AS child, (
  SELECT o.span FROM edge o
  WHERE o.tid = e.tid AND o.opens = 1 AND o.depth = e.depth - 1 AND o.rowid < e.rowid
  ORDER BY o.rowid DESC LIMIT 1) AS span
FROM edge e WHERE e.opens = 1 AND e.depth > 1
"""
_PROJECTED = """
WITH RECURSIVE
  own AS (
    SELECT c.inside AS span, MIN(d.start) AS start, MAX(d.stop) AS stop, SUM(d.stop - d.start) AS busy,
      COUNT(*) AS activities
    FROM device d JOIN call c ON c.rowid = d.call WHERE c.inside IS NOT NULL GROUP BY c.inside),
  up AS (
    SELECT * FROM own
    UNION ALL
    SELECT p.span, u.start, u.stop, u.busy, u.activities FROM up u JOIN parent p ON p.child = u.span),
  whole AS (
    SELECT span, MIN(start) AS start, MAX(stop) AS stop, SUM(busy) AS busy, SUM(activities) AS activities
    FROM up GROUP BY span)
SELECT s.domain, s.name, COUNT(*), SUM(s.stop - s.start) / 1e6, COALESCE(SUM(w.stop - w.start), 0) / 1e6,
  COALESCE(SUM(w.busy), 0) / 1e6, COALESCE(SUM(w.activities), 0),
  AVG(w.start - s.start) / 1e6, AVG(w.stop - s.stop) / 1e6, (MIN(s.start) - :first) / 1e6
FROM span s LEFT JOIN whole w ON w.span = s.rowid
WHERE s.start >= :first AND s.stop <= :last
GROUP BY s.domain, s.name ORDER BY 5 DESC, 4 DESC LIMIT :most
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
    """Makes `span`, one row per NVTX range, `parent`, and `innermost`, which says it by thread and time."""
    columns = "start stop tid name:TEXT domain:TEXT"
    export.make("span", columns, _RANGES, push_pop=PUSH_POP, first=steps.first, last=steps.last)
    export.make("edge", "tid at opens span depth", _EDGES)
    export.run("CREATE INDEX edge_of_depth ON edge (tid, opens, depth)")
    export.make("innermost", "tid at edge span", _INNERMOST)
    export.run("CREATE INDEX innermost_at ON innermost (tid, at, edge, span)")
    export.make("parent", "child span", _PARENTS)
    export.run("CREATE INDEX parent_of ON parent (child)")


def projected(export: Export, steps: Steps) -> tuple[ProjectedRange, ...]:
    """The ranges inside the steps and the steps themselves, those first whose work is longest on the GPU."""
    rows = export.rows(_PROJECTED, first=steps.first, last=steps.last, most=MOST_RANGES)
    return tuple(ProjectedRange(*row) for row in rows)
