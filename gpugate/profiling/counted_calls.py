"""Which events count: the CUDA calls that begin inside the steps, and what the device did because of them.

A step is an NVTX push/pop range "step" of the domain "gpugate" with the step's items as payload. A call of any thread
of that process counts if it begins from the start of the first step to the end of the last; where a started range of
the same domain is around the steps, as `pytest --nsys` makes one, if it begins inside that range. It is the window of a
counting pass (gpugate.measurement.trace): what a pipeline does between two steps belongs to them.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpugate.measurement import cuda_calls
from gpugate.profiling.export_schema import Export, ProfileError
from gpugate.profiling.nvtx_ranges import DOMAIN, STEP

PUSH_POP, STARTED, DOMAIN_NAMED = 59, 60, 75  # of NVTX_EVENTS.eventType
AUTOGRAD_THREADS = "pt_autograd_%"  # what PyTorch calls those that run CUDA's backward passes, a number behind it

_DOMAINS = """
SELECT DISTINCT n.domainId AS id, n.globalTid >> 24 AS pid, COALESCE(n.text, s.value) AS name
FROM nvtx n LEFT JOIN string s ON s.id = n.textId WHERE n.eventType = :named
"""
# A domain whose creation the report does not hold, as the capture began later, is taken for ours; 0 is the default one.
_OURS = """
CREATE TEMP VIEW ours AS
SELECT n.start, n.stop, n.eventType, n.globalTid AS tid, COALESCE(n.text, s.value) AS name, COALESCE(
  n.uint64Value, n.int64Value, n.uint32Value, n.int32Value, n.doubleValue, n.floatValue, 0) AS payload
FROM nvtx n LEFT JOIN string s ON s.id = n.textId
WHERE n.stop > n.start AND n.domainId <> 0 AND '{domain}' = COALESCE(
  (SELECT d.name FROM domain d WHERE d.id = n.domainId AND d.pid = n.globalTid >> 24), '{domain}')
"""
_STEPS = """
SELECT start, stop, tid, payload AS items FROM ours WHERE eventType = :push_pop AND name = :step ORDER BY start
"""
_WHOLE_REPORT = """
INSERT INTO step
SELECT (SELECT MIN(start) FROM api), (SELECT MAX(stop) FROM api), globalTid, 0
FROM api GROUP BY globalTid ORDER BY COUNT(*) DESC LIMIT 1
"""
_WINDOW = """
SELECT MIN(COALESCE(w.start, s.first)), MAX(COALESCE(w.stop, s.last)), s.items, w.name
FROM (SELECT MIN(start) AS first, MAX(stop) AS last, SUM(items) AS items FROM step) s
LEFT JOIN ours w ON w.eventType = :started AND w.start <= s.first AND w.stop >= s.last
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
_CALLS = """
SELECT a.start, a.stop, w.tid, IIF(w.steps, w.step_tid, w.tid), w.steps, a.correlationId, a.nameId
FROM api a CROSS JOIN worker w ON w.tid = a.globalTid WHERE a.start BETWEEN :first AND :last
"""


@dataclass(frozen=True)
class Steps:
    """How many steps there are, of how many items together, and between which two times what they do begins, in ns.

    `window` is what the range around them is called, None where there is none.
    """

    count: int
    items: float
    first: int
    last: int
    window: str | None


def find_steps(export: Export, wanted: int | None) -> Steps:
    """Makes the tables `domain` and `step`. `wanted`: how many there must be, or, where the report has no ranges of
    ours, how many the whole of it is. Raises ProfileError where that does not hold.
    """
    export.make("domain", "id pid name:TEXT", _DOMAINS, named=DOMAIN_NAMED)
    export.run(_OURS.format(domain=DOMAIN))
    export.make("step", "start stop tid items:REAL", _STEPS, push_pop=PUSH_POP, step=STEP)
    found = export.row("SELECT COUNT(*) FROM step")[0]
    if found and wanted not in (None, found):
        raise ProfileError(f"the report holds {found} steps and not {wanted}: profile again, its capture was cut off")
    if not found:
        if wanted is None:
            raise ProfileError(
                f"the report holds no step (an NVTX range {STEP!r} of the domain {DOMAIN!r}): profile with "
                "`pytest --nsys`, or say with --steps how many steps the whole report is"
            )
        export.run(_WHOLE_REPORT)
        export.notes.append(f"it marks no steps: the whole report was taken for {wanted}")
    first, last, items, window = export.row(_WINDOW, started=STARTED)
    if first is None:
        raise ProfileError("the report holds no step and no CUDA call: profile with --trace=cuda,nvtx on a GPU")
    return Steps(wanted or found, float(items), first, last, window)


def find_calls(export: Export, steps: Steps) -> None:
    """Makes `call`, one row per CUDA call that counts, and `call_name`, which says of a name what its calls do."""
    export.make("call_name", "name:TEXT launch graph_launch synchronizing")
    names = export.rows(
        "SELECT a.nameId, COALESCE(s.value, 'unnamed') FROM (SELECT DISTINCT nameId FROM api) a "
        "LEFT JOIN string s ON s.id = a.nameId"
    )
    export.connection.executemany(
        "INSERT INTO call_name (rowid, name, launch, graph_launch, synchronizing) VALUES (?, ?, ?, ?, ?)",
        [(key, *_described(value)) for key, value in names],
    )
    export.make("worker", "tid step_tid steps", _THREADS, autograd=AUTOGRAD_THREADS)
    columns = "start stop tid owner steps correlation name"
    export.make("call", columns, _CALLS, first=steps.first, last=steps.last)
    export.run("CREATE INDEX call_of_correlation ON call (correlation)")


def _described(name: str) -> tuple[str, bool, bool, bool]:
    call = cuda_calls.plain(name)
    patterns = (cuda_calls.LAUNCH, cuda_calls.GRAPH_LAUNCH, cuda_calls.SYNCHRONIZING)
    launch, graph_launch, synchronizing = (bool(pattern.match(call)) for pattern in patterns)
    return call, launch, graph_launch, synchronizing
