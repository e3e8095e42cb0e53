"""The host's side of an export: steps, NVTX ranges, and the CUDA calls that begin inside the steps.

A step is an NVTX push/pop range "step" of the domain "gpugate" with the step's items as payload. A call of any thread
of that process counts if it begins from the start of the first step to the end of the last; where a started range of
the same domain is around the steps, as `pytest --nsys` makes one, if it begins inside that range. It is the window of a
counting pass (gpugate.measurement.trace): what a pipeline does between two steps belongs to them.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpugate.measurement import cuda_calls
from gpugate.profiling.capture_index import DOMAIN, STEP
from gpugate.profiling.export_schema import PAYLOADS, Export, ProfileError

PUSH_POP, STARTED, DOMAIN_NAMED = 59, 60, 75  # of NVTX_EVENTS.eventType
AUTOGRAD_THREADS = "pt_autograd_%"  # what PyTorch calls those that run CUDA's backward passes, a number behind it

_MARKED = f"""
CREATE TEMP VIEW marked AS
SELECT n.start, n.stop, n.eventType AS kind, n.globalTid AS tid, n.domainId, COALESCE(n.text, s.value) AS name,
  (SELECT d.name FROM domain d WHERE d.id = n.domainId AND d.pid = n.globalTid >> 24) AS domain,
  COALESCE({", ".join(f"n.{name}" for name in PAYLOADS.split())}, 0) AS payload
FROM nvtx n LEFT JOIN string s ON s.id = n.textId
"""  # noqa: S608 names of ours
_DOMAINS = "INSERT INTO domain SELECT DISTINCT domainId, tid >> 24, name FROM marked WHERE kind = :named"
# A domain whose creation the report does not hold, as the capture began later, is taken for ours; 0 is the default one.
_OURS = f"""
CREATE TEMP VIEW ours AS
SELECT * FROM marked WHERE stop > start AND domainId <> 0 AND COALESCE(domain, '{DOMAIN}') = '{DOMAIN}'
"""  # noqa: S608
_STEPS = """
SELECT start, stop, tid, payload AS items FROM ours WHERE kind = :push_pop AND name = :step ORDER BY start
"""
_WHOLE_REPORT = """
INSERT INTO step
SELECT (SELECT MIN(start) FROM api), (SELECT MAX(stop) FROM api), globalTid, 0
FROM api GROUP BY globalTid ORDER BY COUNT(*) DESC LIMIT 1
"""
_WINDOW = """
SELECT MIN(COALESCE(w.start, s.first)), MAX(COALESCE(w.stop, s.last)), s.items, w.name
FROM (SELECT MIN(start) AS first, MAX(stop) AS last, SUM(items) AS items FROM step) s
LEFT JOIN ours w ON w.kind = :started AND w.start <= s.first AND w.stop >= s.last
"""
# `steps`: whether a thread's waits count, as in a counting pass: a pipeline's own threads wait as their work.
# `owner`: the thread in whose NVTX ranges its calls stand, for a backward pass the one that asked for it.
_THREADS = """
SELECT t.tid, s.tid AS step_tid, t.tid IN (
  SELECT tid FROM step
  UNION SELECT n.globalTid FROM thread n JOIN string v ON v.id = n.nameId WHERE v.value LIKE :autograd) AS steps
FROM (SELECT DISTINCT globalTid AS tid FROM api) t
JOIN (SELECT tid, MIN(start) FROM step GROUP BY tid >> 24) s ON s.tid >> 24 = t.tid >> 24
"""
_COUNTED = """
SELECT a.start, a.stop, w.tid, IIF(w.steps, w.step_tid, w.tid), w.steps, a.correlationId, a.nameId
FROM api a CROSS JOIN worker w ON w.tid = a.globalTid WHERE a.start BETWEEN :first AND :last
"""
_NAMES = """
SELECT a.nameId, COALESCE(s.value, 'unnamed') FROM (SELECT DISTINCT nameId FROM api) a
LEFT JOIN string s ON s.id = a.nameId
"""
_NAME = "INSERT INTO call_name (rowid, name, launch, graph_launch, synchronizing) VALUES (?, ?, ?, ?, ?)"


@dataclass(frozen=True)
class Steps:
    """The number of steps, the sum of their items, and the times in ns between which their calls begin. `window` is the
    name of the range around them, None without one."""

    count: int
    items: float
    first: int
    last: int
    window: str | None


def find_steps(export: Export, wanted: int | None) -> Steps:
    """Makes the tables `domain` and `step`. `wanted` is the number that there must be, or, where no range marks a step,
    the number that the whole report is. Raises ProfileError for another number."""
    export.make("domain", "id pid name:TEXT")
    export.run(_MARKED)
    export.run(_DOMAINS, named=DOMAIN_NAMED)
    export.run(_OURS)
    export.make("step", "start stop tid items:REAL", _STEPS, push_pop=PUSH_POP, step=STEP)
    found = export.row("SELECT COUNT(*) FROM step")[0]
    if found and wanted not in (None, found):
        raise ProfileError(
            f"the report contains {found} steps and not {wanted}: profile again, its capture was cut off"
        )
    if not found:
        if wanted is None:
            raise ProfileError(
                f"the report contains no step (an NVTX range {STEP!r} of the domain {DOMAIN!r}): profile with "
                "`pytest --nsys`, or give --steps, the number of steps of the whole report"
            )
        export.run(_WHOLE_REPORT)
        export.notes.append(f"it marks no steps: the whole report was taken for {wanted}")
    first, last, items, window = export.row(_WINDOW, started=STARTED)
    if first is None:
        raise ProfileError("the report contains no step and no CUDA call: profile with --trace=cuda,nvtx on a GPU")
    return Steps(wanted or found, float(items), first, last, window)


def find_calls(export: Export, steps: Steps) -> None:
    """Makes `call`, one row per CUDA call that counts, and `call_name`, the kind of each name."""
    export.make("call_name", "name:TEXT launch graph_launch synchronizing")
    for key, name in export.rows(_NAMES):
        call = cuda_calls.plain(name)
        patterns = (cuda_calls.LAUNCH, cuda_calls.GRAPH_LAUNCH, cuda_calls.SYNCHRONIZING)
        values = (key, call, *(bool(pattern.match(call)) for pattern in patterns))
        export.connection.execute(_NAME, values)
    export.make("worker", "tid step_tid steps", _THREADS, autograd=AUTOGRAD_THREADS)
    columns = "start stop tid owner steps correlation name"
    export.make("call", columns, _COUNTED, first=steps.first, last=steps.last)
    export.run("CREATE INDEX call_of_correlation ON call (correlation)")


MOST_RANGES = 100  # of different names; a program that marks every operator has thousands

# In the order in which they open, which is their rowid; of ranges that open together the longer one is outside.
_RANGES = """
SELECT start, stop, tid, COALESCE(name, ''), COALESCE(domain, '') FROM marked
WHERE kind = :push_pop AND stop > start AND stop >= :first AND start <= :last
  AND tid >> 24 IN (SELECT tid >> 24 FROM step)
ORDER BY start, stop DESC
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
    """All ranges of one name. Times are sums over them, lags means over those that caused activity of the device.

    `gpu_span_ms` is from first to last activity, `gpu_busy_ms` the sum of the activities' times. `start_lag_ms` is from
    the opening of a range to its first activity, `end_lag_ms` from its closing to the end of the last one; None without
    activity. `opens_ms` is from the start of the first step to the opening of the first range.
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
    """Makes `table` with the innermost span of each point that is in one. `points` selects points with the columns
    `point`, `tid` and the time `at`. The spans, which are many, are read once."""
    export.make(f"{table}_points", "point tid at", points)
    export.run(f"CREATE INDEX {table}_points_at ON {table}_points (tid, at, point)")
    export.make(table, "point span", _INNERMOST.format(points=f"{table}_points"))
    export.run(f"CREATE INDEX {table}_of ON {table} (point)")


def project_ranges(export: Export, steps: Steps) -> tuple[ProjectedRange, ...]:
    """The ranges inside the steps and the steps themselves, those first whose work is longest on the GPU."""
    export.make("work", "owner at start stop", _WORK)
    export.run("CREATE INDEX work_at ON work (owner, at, start, stop)")
    return export.each(ProjectedRange, _PROJECTED, first=steps.first, last=steps.last, most=MOST_RANGES)


_CALLS = """
SELECT n.name, SUM(c.ns) / 1e6, SUM(c.count), MAX(c.longest_ns) / 1e6, n.launch, n.graph_launch, n.synchronizing
FROM (
  SELECT name, SUM(stop - start) AS ns, COUNT(*) AS count, MAX(stop - start) AS longest_ns FROM call GROUP BY name) c
JOIN call_name n ON n.rowid = c.name GROUP BY n.name ORDER BY 2 DESC, 3 DESC
"""
_WAITS = """
SELECT n.name, COALESCE(s.name, ''), COALESCE(s.domain, ''), c.steps, COUNT(*), SUM(c.stop - c.start) / 1e6
FROM call c CROSS JOIN call_name n ON n.rowid = c.name
LEFT JOIN waits_in i ON i.point = c.rowid LEFT JOIN span s ON s.rowid = i.span
WHERE c.name IN (SELECT rowid FROM call_name WHERE synchronizing)
GROUP BY n.name, s.name, s.domain, c.steps ORDER BY 6 DESC, 5 DESC
"""
_WAITING = """
SELECT rowid AS point, owner AS tid, start AS at FROM call
WHERE name IN (SELECT rowid FROM call_name WHERE synchronizing)
"""


@dataclass(frozen=True)
class Call:
    """All calls of one CUDA function, of every thread of the process; `ms` is the sum of their times on the host."""

    name: str
    ms: float
    count: int
    longest_ms: float
    launch: bool
    graph_launch: bool
    synchronizing: bool


@dataclass(frozen=True)
class Wait:
    """Calls that block their thread until the device is done, from inside one NVTX range, the innermost ("" for none).

    `of_steps`: by the thread that runs the steps or one of their backward pass, which is what the counter
    synchronizing_calls counts.
    """

    call: str
    nvtx_range: str
    domain: str
    of_steps: bool
    count: int
    ms: float


def calls(export: Export) -> tuple[Call, ...]:
    """CUDA calls by name, the longest first."""
    rows = export.rows(_CALLS)
    return tuple(Call(*row[:4], *(bool(flag) for flag in row[4:])) for row in rows)


def waits(export: Export) -> tuple[Wait, ...]:
    """Waits by call, range and kind of thread, the longest first."""
    find_innermost(export, "waits_in", _WAITING)
    rows = export.rows(_WAITS)
    return tuple(Wait(call, name, domain, bool(of_steps), *sums) for call, name, domain, of_steps, *sums in rows)
