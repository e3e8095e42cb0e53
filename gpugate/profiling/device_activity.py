"""The device's side of an export: kernels, copies, memsets, allocations, and the times when it had nothing to do."""

from __future__ import annotations

from dataclasses import dataclass

from gpugate.measurement import cuda_calls
from gpugate.profiling.export_schema import SHAPE, Export
from gpugate.profiling.host_calls import Steps, find_innermost

KERNEL, COPY, FILL, GRAPH = 0, 1, 2, 3  # device.kind; a graph is there as a whole where its nodes were not recorded
LONGEST = 15
ALLOCATES = 0  # allocation.memoryOperationType; 1 frees
DIRECTIONS = {1: "host to device", 2: "device to host", 8: "device to device", 9: "host to host", 10: "peer to peer"}
# As ENUM_CUDA_MEM_KIND has them.
MEMORIES = ("pageable", "pinned", "device", "array", "managed", "device static", "managed static", "unknown")

# A correlation id is unique in a process only. A view without globalPid is of one process.
_DEVICE = """
INSERT INTO device
SELECT {kind} AS kind, d.start, d.stop, d.streamId, d.deviceId, {columns}, (
  SELECT c.rowid FROM call c
  WHERE c.correlation = d.correlationId AND c.tid >> 24 = COALESCE(d.globalPid >> 24, c.tid >> 24) LIMIT 1)
FROM {view} d
"""
_SHAPE = ", ".join(SHAPE.split())
_NO_SHAPE = ", ".join(["NULL"] * len(SHAPE.split()))
_COLUMNS = {
    "kernel": (KERNEL, f"d.graphNodeId, COALESCE(d.demangledName, d.shortName), {_SHAPE}, NULL, NULL, NULL, NULL"),
    "copy": (COPY, f"d.graphNodeId, NULL, {_NO_SHAPE}, d.bytes, d.copyKind, d.srcKind, d.dstKind"),
    "fill": (FILL, f"d.graphNodeId, NULL, {_NO_SHAPE}, d.bytes, NULL, NULL, NULL"),
    "graph": (GRAPH, f"NULL, NULL, {_NO_SHAPE}, NULL, NULL, NULL, NULL"),
}
# SQLite takes the columns without an aggregate from the row that has the maximum.
_KERNELS = f"""
WITH shaped AS (
  SELECT name, {_SHAPE}, SUM(stop - start) AS ns, COUNT(*) AS count FROM device WHERE kind = {KERNEL}
  GROUP BY name, {_SHAPE})
SELECT name, SUM(ns) / 1e6, SUM(count), COUNT(*), MAX(ns), {_SHAPE} FROM shaped GROUP BY name ORDER BY 2 DESC, 3 DESC
"""  # noqa: S608 names of ours
_COPIES = f"""
SELECT copy_kind, source, target, COUNT(*), SUM(bytes), SUM(stop - start) / 1e6
FROM device WHERE kind = {COPY} GROUP BY copy_kind, source, target ORDER BY 6 DESC, 5 DESC
"""  # noqa: S608
_STREAMS = f"""
SELECT device, stream, SUM(kind = {KERNEL}), SUM(kind = {COPY}), SUM(kind = {FILL}), SUM(stop - start) / 1e6
FROM device GROUP BY device, stream ORDER BY 6 DESC
"""  # noqa: S608
_GRAPHS = f"""
SELECT COUNT(DISTINCT node), COUNT(node), COALESCE(SUM(IIF(node IS NULL, 0, stop - start)), 0) / 1e6,
  COUNT(IIF(kind = {GRAPH}, 1, NULL))
FROM device
"""  # noqa: S608

_LONGEST = f"""
SELECT COALESCE(AVG(ns), 0) / 1e6 FROM (
  SELECT stop - start AS ns FROM device WHERE kind = {KERNEL} ORDER BY ns DESC LIMIT :most)
"""  # noqa: S608


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
class Kernel:
    """All runs of one kernel. `grid` and `block` are those it spent most time with, of `shapes` different ones."""

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
    """What ran on one stream; `ms` is the sum of times."""

    device: int
    stream: int
    kernels: int
    copies: int
    memsets: int
    ms: float


@dataclass(frozen=True)
class Graphs:
    """CUDA graphs: different nodes that ran, how often nodes ran and for how long, and graphs recorded only whole."""

    nodes: int
    ran: int
    ms: float
    whole: int


def find_activity(export: Export) -> None:
    """Makes `device`, one row per activity that a call of the steps caused."""
    export.make("device", f"kind start stop stream device node name {SHAPE} bytes copy_kind source target call")
    for view, (kind, columns) in _COLUMNS.items():
        export.run(_DEVICE.format(kind=kind, columns=columns, view=view))
    export.run("DELETE FROM device WHERE call IS NULL")  # of no step
    export.run("CREATE INDEX device_in_order ON device (start, stop, kind, call)")


def kernels(export: Export) -> tuple[Kernel, ...]:
    """By name, the longest first."""
    rows = export.rows(_KERNELS)
    total_ms = sum(row[1] for row in rows)
    names = dict(export.rows("SELECT id, value FROM string WHERE id IN (SELECT DISTINCT name FROM device)"))
    found = []
    for key, ms, count, shapes, _, *shape in rows:
        name, sizes = names.get(key) or "unnamed", tuple(size or 0 for size in shape)
        patterns = (cuda_calls.TENSOR_CORES, cuda_calls.FRAMEWORK)
        tensor_cores, framework = (bool(pattern.search(name)) for pattern in patterns)
        times = (ms, ms / total_ms if total_ms else 0.0, count, ms / count)
        found.append(Kernel(name, *times, sizes[:3], sizes[3:], shapes, tensor_cores, framework))
    return tuple(found)


def copies(export: Export) -> tuple[Copies, ...]:
    """By direction and kinds of memory, the longest first."""
    return tuple(
        Copies(
            DIRECTIONS.get(kind, f"of kind {kind}"), memory(source), memory(target), count, size, ms,
            size / ms / 1e6 if ms else None,
        )
        for kind, source, target, count, size, ms in export.rows(_COPIES)
    )  # fmt: skip


def memory(kind: int | None) -> str:
    """The word for a value of ENUM_CUDA_MEM_KIND."""
    return MEMORIES[kind] if kind is not None and 0 <= kind < len(MEMORIES) else "unknown"


def streams(export: Export) -> tuple[Stream, ...]:
    return tuple(Stream(device or 0, *others) for device, *others in export.rows(_STREAMS))


def graphs(export: Export) -> Graphs:
    return Graphs(*export.row(_GRAPHS))


def longest_kernels_mean_ms(export: Export, steps: int) -> float:
    """Mean of the 15 longest kernels of an average step: of the 15 x steps longest."""
    return float(export.row(_LONGEST, most=LONGEST * steps)[0])


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


@dataclass(frozen=True)
class Memory:
    """Allocations and frees during the steps of one kind of memory; `peak_bytes` above what the capture began with."""

    kind: str
    allocations: int
    frees: int
    allocated_bytes: int
    freed_bytes: int
    peak_bytes: int


def memory_use(export: Export, steps: Steps) -> tuple[Memory, ...]:
    """By kind of memory; empty where nsys was not asked to record allocations (--cuda-memory-usage=true)."""
    rows = export.rows(_MEMORY, allocates=ALLOCATES, first=steps.first, last=steps.last)
    return tuple(Memory(memory(kind), *counts) for kind, *counts in rows)
