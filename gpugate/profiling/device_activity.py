"""The device's side of an export: kernels, copies, memsets, allocations, and the times when it had nothing to do."""

from __future__ import annotations

from dataclasses import dataclass

from gpugate.measurement import cuda_calls
from gpugate.profiling.export_schema import SHAPE, Export
from gpugate.profiling.host_calls import Steps, find_innermost

# Values of device.kind, by the views of the export. A graph whose nodes were not recorded is one activity.
KERNEL, COPY, FILL, GRAPH = range(4)
VIEWS = ("kernel", "copy", "fill", "graph")
ALLOCATES = 0  # allocation.memoryOperationType; 1 frees
DIRECTIONS = {1: "host to device", 2: "device to host", 8: "device to device", 9: "host to host", 10: "peer to peer"}
# As ENUM_CUDA_MEM_KIND has them.
MEMORIES = ("pageable", "pinned", "device", "array", "managed", "device static", "managed static", "unknown")

_SHAPE = ", ".join(SHAPE.split())
# A correlation id is unique in a process only. A view without globalPid is of one process.
_DEVICE = f"""
INSERT INTO device
SELECT :kind, d.start, d.stop, d.streamId, d.deviceId, d.graphNodeId, COALESCE(d.demangledName, d.shortName), {_SHAPE},
  d.bytes, d.copyKind, d.srcKind, d.dstKind, (
  SELECT c.rowid FROM call c
  WHERE c.correlation = d.correlationId AND c.tid >> 24 = COALESCE(d.globalPid >> 24, c.tid >> 24) LIMIT 1)
FROM {{view}} d
"""  # noqa: S608 names of ours
# SQLite takes the columns without an aggregate from the row that has the maximum.
_KERNELS = f"""
WITH shaped AS (
  SELECT name, {_SHAPE}, SUM(stop - start) AS ns, COUNT(*) AS count FROM device WHERE kind = {KERNEL}
  GROUP BY name, {_SHAPE})
SELECT COALESCE(s.value, 'unnamed'), SUM(d.ns) / 1e6, SUM(d.count), COUNT(*), MAX(d.ns), {_SHAPE}
FROM shaped d LEFT JOIN string s ON s.id = d.name GROUP BY d.name ORDER BY 2 DESC, 3 DESC
"""  # noqa: S608
_COPIES = f"""
SELECT copy_kind, source, target, COUNT(*), SUM(bytes), SUM(stop - start) / 1e6
FROM device WHERE kind = {COPY} GROUP BY copy_kind, source, target ORDER BY 6 DESC, 5 DESC
"""  # noqa: S608
STREAMS = f"""
SELECT COALESCE(device, 0), stream, SUM(kind = {KERNEL}), SUM(kind = {COPY}), SUM(kind = {FILL}),
  SUM(stop - start) / 1e6
FROM device GROUP BY device, stream ORDER BY 6 DESC
"""  # noqa: S608
GRAPHS = f"""
SELECT COUNT(DISTINCT node), COUNT(node), COALESCE(SUM(stop - start) FILTER (WHERE node IS NOT NULL), 0) / 1e6,
  COUNT(*) FILTER (WHERE kind = {GRAPH})
FROM device
"""  # noqa: S608
# Of an average step the 15 longest kernels: of the 15 x steps longest.
LONGEST_MEAN_MS = f"""
SELECT COALESCE(AVG(ns), 0) / 1e6 FROM (
  SELECT stop - start AS ns FROM device WHERE kind = {KERNEL} ORDER BY ns DESC LIMIT 15 * :steps)
"""  # noqa: S608
_MEMORY = """
WITH running AS (
  SELECT start, memKind, memoryOperationType = :allocates AS takes, bytes,
    SUM(IIF(memoryOperationType = :allocates, bytes, -bytes)) OVER (
      PARTITION BY memKind ORDER BY start ROWS UNBOUNDED PRECEDING) AS held
  FROM allocation WHERE globalPid >> 24 IN (SELECT tid >> 24 FROM step))
SELECT memKind, SUM(takes), SUM(NOT takes), SUM(takes * bytes), SUM((NOT takes) * bytes), MAX(MAX(held), 0)
FROM running WHERE start BETWEEN :first AND :last GROUP BY memKind ORDER BY 4 DESC
"""


@dataclass(frozen=True)
class Kernel:
    """All runs of one kernel. `grid` and `block` are the ones of `shapes` that took most of its time."""

    name: str
    ms: float
    share: float  # of the time of all kernels
    count: int
    mean_ms: float
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shapes: int
    tensor_cores: bool
    framework: bool


@dataclass(frozen=True)
class Copies:
    """All copies of one direction between two kinds of memory; `gb_per_s` is bytes over the sum of their times."""

    direction: str
    source: str
    target: str
    count: int
    bytes: int
    ms: float
    gb_per_s: float | None


@dataclass(frozen=True)
class Stream:
    """The activity of one stream; `ms` is the sum of times."""

    device: int
    stream: int
    kernels: int
    copies: int
    memsets: int
    ms: float


@dataclass(frozen=True)
class Graphs:
    """CUDA graphs: different nodes that ran, runs of nodes and their time, and graphs recorded only whole."""

    nodes: int
    ran: int
    ms: float
    whole: int


@dataclass(frozen=True)
class Memory:
    """Allocations and frees of one kind of memory during the steps; `peak_bytes` is above the start of the capture."""

    kind: str
    allocations: int
    frees: int
    allocated_bytes: int
    freed_bytes: int
    peak_bytes: int


def find_activity(export: Export) -> None:
    """Makes `device`, one row per activity that a call of the steps caused."""
    export.make("device", f"kind start stop stream device node name {SHAPE} bytes copy_kind source target call")
    for kind, view in enumerate(VIEWS):
        export.run(_DEVICE.format(view=view), kind=kind)
    export.run("DELETE FROM device WHERE call IS NULL")  # of no step
    export.run("CREATE INDEX device_in_order ON device (start, stop, kind, call)")


def kernels(export: Export) -> tuple[Kernel, ...]:
    """Kernels by name, the longest first."""
    rows = export.rows(_KERNELS)
    total_ms = sum(row[1] for row in rows) or 1.0
    found = []
    for name, ms, count, shapes, _, *shape in rows:
        sizes = tuple(size or 0 for size in shape)
        kinds = (bool(pattern.search(name)) for pattern in (cuda_calls.TENSOR_CORES, cuda_calls.FRAMEWORK))
        found.append(Kernel(name, ms, ms / total_ms, count, ms / count, sizes[:3], sizes[3:], shapes, *kinds))
    return tuple(found)


def copies(export: Export) -> tuple[Copies, ...]:
    """Copies by direction and kinds of memory, the longest first."""
    return tuple(
        Copies(
            DIRECTIONS.get(kind, f"of kind {kind}"), _memory(source), _memory(target), count, size, ms,
            size / ms / 1e6 if ms else None,
        )
        for kind, source, target, count, size, ms in export.rows(_COPIES)
    )  # fmt: skip


def memory_use(export: Export, steps: Steps) -> tuple[Memory, ...]:
    """Allocations by kind of memory; empty where nsys did not record allocations (--cuda-memory-usage=true)."""
    rows = export.rows(_MEMORY, allocates=ALLOCATES, first=steps.first, last=steps.last)
    return tuple(Memory(_memory(kind), *counts) for kind, *counts in rows)


def _memory(kind: int | None) -> str:
    return MEMORIES[kind] if kind is not None and 0 <= kind < len(MEMORIES) else "unknown"


LARGEST = 20
OUTSIDE = ""  # no CUDA call: the host was in its own code

# What began before reached so far, for some kinds of activity: what one of them adds to their union is what it reaches
# beyond that. A table of it would take longer to write than to work out anew.
_BEFORE = "OVER (ORDER BY start, stop ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
ACTIVE = f"""
SELECT
  COALESCE(MAX(stop) - MIN(start), 0) / 1e6,
  TOTAL(MAX(0, stop - MAX(start, COALESCE(any_stop, start)))) / 1e6,
  TOTAL(MAX(0, stop - MAX(start, COALESCE(kernel_stop, start)))) FILTER (WHERE kind = {KERNEL}) / 1e6,
  TOTAL(MAX(0, stop - MAX(start, COALESCE(copy_stop, start)))) FILTER (WHERE kind = {COPY}) / 1e6,
  TOTAL(MAX(0, stop - MAX(start, COALESCE(either_stop, start)))) FILTER (WHERE kind IN ({KERNEL}, {COPY})) / 1e6
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
_HALFWAY = "SELECT gap AS point, owner AS tid, (start + stop) / 2 AS at FROM wide"
# SQLite takes the columns without an aggregate from the row that has the maximum.
_GAP = """
WITH in_calls AS (
  SELECT gap, name, SUM(ns) AS ns FROM meanwhile WHERE gap IN (SELECT gap FROM wide) GROUP BY gap, name),
in_os AS (
  SELECT w.gap, o.nameId AS name, SUM(MIN(o.stop, w.stop) - MAX(o.start, w.start)) AS ns
  FROM os_call o CROSS JOIN wide w
  WHERE w.tid = o.globalTid AND o.start < w.stop AND o.stop > w.start GROUP BY w.gap, o.nameId)
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
        """The time in which both a kernel and a copy ran."""
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
    """Idle time of the GPU while the host was in one CUDA function; `call` is OUTSIDE for its own code."""

    call: str
    gaps: int
    ms: float


def find_gaps(export: Export) -> None:
    """Makes `gap`, one row per time without activity, and `meanwhile`, the calls that overlap each."""
    export.make("gap", "start stop tid owner", _GAPS)
    export.run("CREATE INDEX call_of_thread ON call (tid, start, stop, name)")
    export.make("meanwhile", "gap name ns", _MEANWHILE)


def largest(export: Export, first: int) -> tuple[Gap, ...]:
    """The longest gaps; `first` is the start of the first step, in ns."""
    export.make("wide", "gap start stop tid owner", _LARGEST, most=LARGEST)
    find_innermost(export, "wide_in", _HALFWAY)
    return export.each(Gap, _GAP, first=first)


def idle_while(export: Export) -> tuple[IdleWhile, ...]:
    """Idle times by call, the longest first, the rest as OUTSIDE; they add up to all of the GPU's idle time."""
    count, idle_ms = export.row("SELECT COUNT(*), COALESCE(SUM(stop - start), 0) / 1e6 FROM gap")
    by_call = export.each(IdleWhile, _BY_CALL)
    own_code = IdleWhile(OUTSIDE, count, max(0.0, idle_ms - sum(one.ms for one in by_call)))
    return tuple(sorted((*by_call, *([own_code] if count else [])), key=lambda one: -one.ms))
