"""How busy the GPU was, when it had nothing to do between two activities, and what the host did meanwhile.

The host is the thread whose call ended the gap: it is the one that was late.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpugate.profiling.device_activity import COPY, KERNEL
from gpugate.profiling.export_schema import Export
from gpugate.profiling.projection import find_innermost

LARGEST = 20
OUTSIDE = ""  # no CUDA call: the host was in its own code

# What began before reached so far, for some kinds of activity: what one of them adds to their union is what it reaches
# beyond that. A table of it would take longer to write than to work out anew.
_BEFORE = "OVER (ORDER BY start, stop ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
_ACTIVE = f"""
SELECT
  (MAX(stop) - MIN(start)) / 1e6,
  SUM(MAX(0, stop - MAX(start, COALESCE(any_stop, start)))) / 1e6,
  SUM(MAX(0, stop - MAX(start, COALESCE(kernel_stop, start)))) FILTER (WHERE kind = {KERNEL}) / 1e6,
  SUM(MAX(0, stop - MAX(start, COALESCE(copy_stop, start)))) FILTER (WHERE kind = {COPY}) / 1e6,
  SUM(MAX(0, stop - MAX(start, COALESCE(either_stop, start)))) FILTER (WHERE kind IN ({KERNEL}, {COPY})) / 1e6
FROM (
  SELECT start, stop, kind, MAX(stop) {_BEFORE} AS any_stop,
    MAX(stop) FILTER (WHERE kind = {KERNEL}) {_BEFORE} AS kernel_stop,
    MAX(stop) FILTER (WHERE kind = {COPY}) {_BEFORE} AS copy_stop,
    MAX(stop) FILTER (WHERE kind IN ({KERNEL}, {COPY})) {_BEFORE} AS either_stop
  FROM device)
"""  # noqa: S608 numbers of ours
_GAPS = f"""
SELECT d.any_stop, d.start, c.tid, c.owner
FROM (SELECT start, call, MAX(stop) {_BEFORE} AS any_stop FROM device) d JOIN call c ON c.rowid = d.call
WHERE d.start > d.any_stop
"""  # noqa: S608
# Calls of one thread do not overlap, so that only one of those that began before a gap reaches into it.
_MEANWHILE = """
SELECT g.rowid, c.name, MIN(c.stop, g.stop) - MAX(c.start, g.start)
FROM gap g CROSS JOIN call c
WHERE c.tid = g.tid AND c.start < g.stop AND c.stop > g.start
  AND c.start >= COALESCE((SELECT MAX(b.start) FROM call b WHERE b.tid = g.tid AND b.start <= g.start), g.start)
"""
_BY_CALL = """
SELECT n.name, COUNT(DISTINCT m.gap), SUM(m.ns) / 1e6 FROM meanwhile m JOIN call_name n ON n.rowid = m.name
GROUP BY n.name ORDER BY 3 DESC
"""
_LARGEST = "SELECT rowid, start, stop, tid, owner FROM gap ORDER BY stop - start DESC LIMIT :most"
_IN_CALLS = """
SELECT gap, name, SUM(ns) FROM meanwhile WHERE gap IN (SELECT gap FROM wide) GROUP BY gap, name
"""
_IN_OS = """
SELECT w.gap, o.nameId, SUM(MIN(o.stop, w.stop) - MAX(o.start, w.start))
FROM os_call o CROSS JOIN wide w
WHERE w.tid = o.globalTid AND o.start < w.stop AND o.stop > w.start GROUP BY w.gap, o.nameId
"""
_HALFWAY = "SELECT gap AS point, owner AS tid, (start + stop) / 2 AS at FROM wide"
# SQLite takes the columns without an aggregate from the row that has the maximum.
_TOLD = """
SELECT (w.start - :first) / 1e6, (w.stop - w.start) / 1e6,
  COALESCE((SELECT s.name FROM wide_in i JOIN span s ON s.rowid = i.span WHERE i.point = w.gap), ''),
  COALESCE(n.name, ''), COALESCE(m.ns, 0) / 1e6, COALESCE(v.value, ''), COALESCE(o.ns, 0) / 1e6
FROM wide w
LEFT JOIN (SELECT gap, name, MAX(ns) AS ns FROM in_calls GROUP BY gap) m ON m.gap = w.gap
LEFT JOIN call_name n ON n.rowid = m.name
LEFT JOIN (SELECT gap, name, MAX(ns) AS ns FROM in_os GROUP BY gap) o ON o.gap = w.gap
LEFT JOIN string v ON v.id = o.name
ORDER BY w.stop - w.start DESC, w.start
"""


@dataclass(frozen=True)
class Active:
    """Union of activity, in ms, from the first of it to the last: of anything, kernels, copies, either of these."""

    window_ms: float
    any_ms: float
    kernel_ms: float
    copy_ms: float
    either_ms: float

    @property
    def overlap_ms(self) -> float:
        """While both a kernel and a copy ran."""
        return max(0.0, round(self.kernel_ms + self.copy_ms - self.either_ms, 6))  # to the nanosecond: sums of floats

    @property
    def idle_ms(self) -> float:
        return self.window_ms - self.any_ms


@dataclass(frozen=True)
class Gap:
    """One gap: `at_ms` after the first step began. In it the host spent most time in `call` (CUDA) and in `os_call`.

    `nvtx_range` is the innermost one that the host was in halfway through; each is "" where there was none.
    """

    at_ms: float
    ms: float
    nvtx_range: str
    call: str
    call_ms: float
    os_call: str
    os_call_ms: float


@dataclass(frozen=True)
class IdleWhile:
    """How long the GPU was idle while the host was in one CUDA function; `call` is OUTSIDE for its own code."""

    call: str
    gaps: int
    ms: float


def find_gaps(export: Export) -> None:
    """Makes `gap`, one row per time without activity, and `meanwhile`, the calls that overlap each."""
    export.make("gap", "start stop tid owner", _GAPS)
    export.run("CREATE INDEX call_of_thread ON call (tid, start, stop, name)")
    export.make("meanwhile", "gap name ns", _MEANWHILE)


def active(export: Export) -> Active:
    return Active(*(float(value or 0) for value in export.row(_ACTIVE)))


def largest(export: Export, first: int) -> tuple[Gap, ...]:
    """The longest first; `first` is when the first step began, in ns."""
    export.make("wide", "gap start stop tid owner", _LARGEST, most=LARGEST)
    find_innermost(export, "wide_in", _HALFWAY)
    export.make("in_calls", "gap name ns", _IN_CALLS)
    export.make("in_os", "gap name ns", _IN_OS)
    return tuple(Gap(*row) for row in export.rows(_TOLD, first=first))


def idle_while(export: Export) -> tuple[IdleWhile, ...]:
    """By call, the longest first, what is left as OUTSIDE; the times add up to all of the GPU's idle time."""
    count, idle_ms = export.row("SELECT COUNT(*), COALESCE(SUM(stop - start), 0) / 1e6 FROM gap")
    by_call = [IdleWhile(*row) for row in export.rows(_BY_CALL)]
    own_code = IdleWhile(OUTSIDE, count, max(0.0, idle_ms - sum(one.ms for one in by_call)))
    return tuple(sorted((*by_call, *([own_code] if count else [])), key=lambda one: -one.ms))
