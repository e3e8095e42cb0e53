"""What the device did because of the steps' calls: kernels, copies, memsets; on which streams, and how busy it was."""

from __future__ import annotations

from dataclasses import dataclass

from gpugate.measurement import cuda_calls
from gpugate.profiling.export_schema import SHAPE, Export

KERNEL, COPY, FILL, GRAPH = 0, 1, 2, 3  # device.kind; a graph is there as a whole where its nodes were not recorded
LONGEST = 15
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
    return tuple(_kernel(names.get(row[0]) or "unnamed", total_ms, row) for row in rows)


def _kernel(name: str, total_ms: float, row: tuple[int, ...]) -> Kernel:
    _, ms, count, shapes, _, *shape = row
    sizes = tuple(size or 0 for size in shape)
    return Kernel(
        name=name,
        ms=ms,
        share=ms / total_ms if total_ms else 0.0,
        count=count,
        mean_ms=ms / count,
        grid=sizes[:3],
        block=sizes[3:],
        shapes=shapes,
        tensor_cores=bool(cuda_calls.TENSOR_CORES.search(name)),
        framework=bool(cuda_calls.FRAMEWORK.search(name)),
    )


def copies(export: Export) -> tuple[Copies, ...]:
    """By direction and kinds of memory, the longest first."""
    return tuple(_copies(*row) for row in export.rows(_COPIES))


def _copies(kind: int, source: int | None, target: int | None, count: int, size: int, ms: float) -> Copies:
    rate = size / ms / 1e6 if ms else None
    direction = DIRECTIONS.get(kind, f"of kind {kind}")
    return Copies(direction, memory(source), memory(target), count, size, ms, rate)


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
