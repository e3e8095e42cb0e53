"""The tables that `nsys export --type sqlite` writes, seen through views of our own that hold in every version.

nsys creates tables only where it has rows for them, and its versions add and rename columns. So every query reads a
view: a table that is not there is an empty view, a column that is not there is NULL. `notes` names each table that was
not read. Times are nanoseconds of the report's own clock.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from gpugate.errors import GpugateError

EXPORT_AGAIN = "export it again with `nsys export --type sqlite --force-overwrite true`"
CACHE_KIB = 96 * 1024  # of cache, for the export and for the temporary tables each: they spill to disk beyond it
Found = TypeVar("Found")


class ProfileError(GpugateError):
    """A profile cannot be taken, exported, read or written."""


@dataclass(frozen=True)
class ExportTable:
    """A table of the export. Without one of the columns in `needed` it says nothing; `useful` ones may be missing."""

    name: str
    holds: str
    needed: str
    useful: str = ""


PAYLOADS = "uint64Value int64Value uint32Value int32Value doubleValue floatValue"
SHAPE = "gridX gridY gridZ blockX blockY blockZ"
_DEVICE = "start end correlationId streamId"
# The same for every kind of activity, so that one query reads all kinds: what a table lacks is NULL.
_ACTIVITY = f"globalPid deviceId graphNodeId shortName demangledName {SHAPE} bytes copyKind srcKind dstKind"
# By the name of the view.
TABLES: Mapping[str, ExportTable] = {
    "string": ExportTable("StringIds", "names", "id value"),
    "nvtx": ExportTable(
        "NVTX_EVENTS", "NVTX ranges", "start end eventType globalTid domainId", f"text textId {PAYLOADS}"
    ),
    "api": ExportTable("CUPTI_ACTIVITY_KIND_RUNTIME", "CUDA calls", "start end globalTid correlationId nameId"),
    "kernel": ExportTable("CUPTI_ACTIVITY_KIND_KERNEL", "kernels", f"{_DEVICE} shortName", _ACTIVITY),
    "copy": ExportTable("CUPTI_ACTIVITY_KIND_MEMCPY", "copies", f"{_DEVICE} bytes copyKind", _ACTIVITY),
    "fill": ExportTable("CUPTI_ACTIVITY_KIND_MEMSET", "memsets", _DEVICE, _ACTIVITY),
    "graph": ExportTable("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "whole graphs", _DEVICE, _ACTIVITY),
    "os_call": ExportTable("OSRT_API", "OS calls", "start end globalTid nameId"),
    "thread": ExportTable("ThreadNames", "names of threads", "globalTid nameId"),
    "allocation": ExportTable(
        "CUDA_GPU_MEMORY_USAGE_EVENTS", "allocations", "start globalPid bytes memKind memoryOperationType"
    ),
    "gpu": ExportTable("TARGET_INFO_GPU", "the GPU", "name"),
    "version": ExportTable("META_DATA_EXPORT", "the version", "name value"),
}


@dataclass
class Export:
    """An open export: its views and temporary tables, and what could not be read, a sentence each."""

    connection: sqlite3.Connection
    product: str = ""  # the version of Nsight Systems that exported it
    schema: str = ""
    notes: list[str] = field(default_factory=list)

    def run(self, sql: str, **values: Any) -> None:
        self.connection.execute(sql, values)

    def make(self, table: str, columns: str, select: str = "", **values: Any) -> None:
        """Makes a temporary table from the rows of `select`. A column is of whole numbers unless written `name:TEXT`.

        Without a type an index over them would not serve a comparison with a column of the export.
        """
        typed = ((name, kind or "INTEGER") for name, _, kind in (column.partition(":") for column in columns.split()))
        self.run(f"CREATE TEMP TABLE {table} ({', '.join(' '.join(one) for one in typed)})")
        if select:
            self.run(f"INSERT INTO {table} {select}", **values)

    def rows(self, sql: str, **values: Any) -> list[Any]:
        return self.connection.execute(sql, values).fetchall()

    def row(self, sql: str, **values: Any) -> Any:
        """The one row of an aggregate."""
        return self.connection.execute(sql, values).fetchone()

    def each(self, kind: Callable[..., Found], sql: str, **values: Any) -> tuple[Found, ...]:
        """Every row as a `kind`, whose fields are the columns in their order."""
        return tuple(kind(*row) for row in self.rows(sql, **values))


@contextmanager
def open_export(path: Path) -> Iterator[Export]:
    """Opens the export at `path` read-only, with temporary tables that end with it.

    Raises ProfileError for a file that is not there or is no export of nsys, and for a damaged one, which may show its
    damage only while it is read.
    """
    try:
        with path.open("rb"):  # SQLite does not name the reason why it cannot open a file
            pass
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            connection.text_factory = lambda text: text.decode(errors="replace")
            export = Export(connection)
            _make_views(export, path)
            yield export
    except (OSError, sqlite3.Error, TypeError, ValueError) as error:  # values may be of another type than nsys writes
        if getattr(error, "sqlite_errorname", "") == "SQLITE_ERROR":  # a query of ours is wrong, and not the file
            raise
        problem = getattr(error, "strerror", None) or str(error)
        raise ProfileError(
            f"{path} cannot be read ({problem}): give a .nsys-rep or its SQLite export, or {EXPORT_AGAIN}"
        ) from error


def _make_views(export: Export, path: Path) -> None:
    """Makes every view and reads the versions."""
    for schema in ("main", "temp"):
        export.run(f"PRAGMA {schema}.cache_size = -{CACHE_KIB}")
    export.run("PRAGMA temp.journal_mode = OFF")  # nothing is ever taken back
    present = {name for (name,) in export.rows("SELECT name FROM main.sqlite_master WHERE type IN ('table', 'view')")}
    if not present & {table.name for table in TABLES.values()}:
        raise ProfileError(f"{path} has no table that nsys writes: give the SQLite export of an nsys report")
    for view, table in TABLES.items():
        _make_view(export, view, table, table.name in present)
    versions = dict(export.rows("SELECT name, value FROM version"))
    export.product = versions.get("EXPORT_PRODUCT_VERSION") or ""
    export.schema = versions.get("EXPORT_SCHEMA_VERSION") or ""


def _make_view(export: Export, view: str, table: ExportTable, is_there: bool) -> None:
    there = {row[1] for row in export.rows("SELECT * FROM pragma_table_info(:name)", name=table.name)}
    lacking = [column for column in table.needed.split() if column not in there]
    unusable = bool(lacking) or not is_there
    columns = []
    for name in dict.fromkeys([*table.needed.split(), *table.useful.split()]):
        ours = "stop" if name == "end" else f'"{name}"'  # `end` is a keyword
        columns.append(f"NULL AS {ours}" if unusable or name not in there else f'"{name}" AS {ours}')
    source = "(SELECT 1) WHERE 0" if unusable else f'main."{table.name}"'
    export.run(f"CREATE TEMP VIEW {view} AS SELECT {', '.join(columns)} FROM {source}")  # noqa: S608 names of ours
    if is_there and lacking:
        export.notes.append(
            f"{table.holds} were not read, because {table.name} has no column {', '.join(lacking)}: export the report "
            "with a newer or older nsys"
        )
