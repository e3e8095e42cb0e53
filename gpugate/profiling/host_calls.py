"""What the host did: its CUDA calls, the ones that waited for the device and where, and allocations."""

from __future__ import annotations

from dataclasses import dataclass

from gpugate.profiling.counted_calls import Steps
from gpugate.profiling.device_activity import memory
from gpugate.profiling.export_schema import Export
from gpugate.profiling.projection import find_innermost

ALLOCATES = 0  # allocation.memoryOperationType; 1 frees

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
_MEMORY = """
WITH running AS (
  SELECT start, memKind, memoryOperationType = :allocates AS takes, bytes,
    SUM(IIF(memoryOperationType = :allocates, bytes, -bytes)) OVER (
      PARTITION BY memKind ORDER BY start ROWS UNBOUNDED PRECEDING) AS held
  FROM allocation WHERE globalPid >> 24 IN (SELECT tid >> 24 FROM step))
SELECT memKind,
  COUNT(IIF(takes, 1, NULL)), COUNT(IIF(takes, NULL, 1)),
  COALESCE(SUM(IIF(takes, bytes, 0)), 0), COALESCE(SUM(IIF(takes, 0, bytes)), 0), MAX(MAX(held), 0)
FROM running WHERE start BETWEEN :first AND :last GROUP BY memKind ORDER BY 4 DESC
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


@dataclass(frozen=True)
class Memory:
    """Allocations and frees during the steps of one kind of memory; `peak_bytes` above what the capture began with."""

    kind: str
    allocations: int
    frees: int
    allocated_bytes: int
    freed_bytes: int
    peak_bytes: int


def calls(export: Export) -> tuple[Call, ...]:
    """By name, the longest first."""
    rows = export.rows(_CALLS)
    return tuple(Call(*row[:4], *(bool(flag) for flag in row[4:])) for row in rows)


def waits(export: Export) -> tuple[Wait, ...]:
    """By call, range and kind of thread, the longest first."""
    find_innermost(export, "waits_in", _WAITING)
    rows = export.rows(_WAITS)
    return tuple(Wait(call, name, domain, bool(of_steps), *sums) for call, name, domain, of_steps, *sums in rows)


def memory_use(export: Export, steps: Steps) -> tuple[Memory, ...]:
    """By kind of memory; empty where nsys was not asked to record allocations (--cuda-memory-usage=true)."""
    rows = export.rows(_MEMORY, allocates=ALLOCATES, first=steps.first, last=steps.last)
    return tuple(Memory(memory(kind), *counts) for kind, *counts in rows)
