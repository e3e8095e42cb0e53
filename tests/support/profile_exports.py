"""Writes what `nsys export --type sqlite` writes: the tables and columns of a real export, with made-up events."""

from __future__ import annotations

import functools
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

PROCESS = 1000 << 24
MAIN, BACKWARD, LOADER = PROCESS + 1000, PROCESS + 1001, PROCESS + 1002
DOMAIN = 3
# A real export of schema 3.20.3 of an H200, without the rows and texts that describe its machine.
REAL = Path(__file__).parents[1] / "data" / "two-layer-net+all+cuda.optimized.sqlite"


@functools.cache
def schema() -> str:
    with closing(sqlite3.connect(f"{REAL.as_uri()}?mode=ro", uri=True)) as real:
        rows = real.execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'ENUM%'").fetchall()
    return ";\n".join(sql for (sql,) in rows)


HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
PAGEABLE, PINNED, DEVICE = 0, 1, 2


class ExportWriter:
    """Builds an export in the order of the calls; times are in ns. Tables without a row are left out, as nsys does."""

    def __init__(self, path: Path, domain: str | None = "gpugate") -> None:
        path.unlink(missing_ok=True)
        self.path = path
        self.db = sqlite3.connect(path)
        self.db.executescript(f"PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY; BEGIN; {schema()}")
        self._strings: dict[str, int] = {}
        self._required: dict[str, dict[str, int]] = {}
        self._correlation = 0
        self.insert("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value="2026.1.1.204")
        self.insert("TARGET_INFO_GPU", vmId=0, id=0, name="NVIDIA H200")
        if domain is not None:
            self.insert("NVTX_EVENTS", start=0, eventType=75, text=domain, globalTid=MAIN, domainId=DOMAIN)

    def insert(self, table: str, **values: Any) -> None:
        """A row, with 0 for what it must have and nobody asks for."""
        if table not in self._required:
            rows = self.db.execute(f"PRAGMA table_info({table})").fetchall()
            self._required[table] = {row[1]: 0 for row in rows if row[3] and not row[5]}
        values = {**self._required[table], **values}
        places = ", ".join("?" * len(values))
        self.db.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({places})", tuple(values.values()))  # noqa: S608

    def string(self, value: str) -> int:
        if value not in self._strings:
            self._strings[value] = len(self._strings) + 1
            self.insert("StringIds", id=self._strings[value], value=value)
        return self._strings[value]

    def step(self, start: int, end: int, items: int = 4, tid: int = MAIN) -> None:
        self.range("step", start, end, tid, int64Value=items)

    def range(self, name: str, start: int, end: int, tid: int = MAIN, domain: int = DOMAIN, **values: Any) -> None:
        """Writes a range as the nvtx package does: pushed and popped, under a registered name."""
        facts = {"globalTid": tid, "domainId": domain, "textId": self.string(name), "eventType": 59, **values}
        self.insert("NVTX_EVENTS", start=start, end=end, **facts)

    def thread(self, tid: int, name: str) -> None:
        self.insert("ThreadNames", nameId=self.string(name), globalTid=tid)

    def call(self, name: str, start: int, end: int, tid: int = MAIN) -> int:
        """Returns its correlation id."""
        self._correlation += 1
        names = {"globalTid": tid, "correlationId": self._correlation, "nameId": self.string(name)}
        self.insert("CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, **names)
        return self._correlation

    def kernel(
        self, correlation: int, start: int, end: int, name: str = "void at::native::add()", **values: Any
    ) -> None:
        names = {"demangledName": self.string(name), "shortName": self.string(name.partition("(")[0])}
        self._activity("KERNEL", correlation, start, end, {**names, **values})

    def copy(
        self, correlation: int, start: int, end: int, size: int, kinds: tuple[int, int, int], **values: Any
    ) -> None:
        """`kinds`: of the copy, its source and its target."""
        kind, source, target = kinds
        own = {"bytes": size, "copyKind": kind, "srcKind": source, "dstKind": target}
        self._activity("MEMCPY", correlation, start, end, {**own, **values})

    def memset(self, correlation: int, start: int, end: int, size: int = 64) -> None:
        self._activity("MEMSET", correlation, start, end, {"bytes": size, "value": 0})

    def launch(self, start: int, end: int, name: str = "cudaLaunchKernel_v7000", tid: int = MAIN, **values: Any) -> int:
        """A call of 1000 ns at `start - 2000`, and its kernel from `start` to `end`."""
        correlation = self.call(name, start - 2000, start - 1000, tid)
        self.kernel(correlation, start, end, **values)
        return correlation

    def _activity(self, kind: str, correlation: int, start: int, end: int, values: dict[str, Any]) -> None:
        facts = {"correlationId": correlation, "streamId": 7, "globalPid": PROCESS, **values}
        self.insert(f"CUPTI_ACTIVITY_KIND_{kind}", start=start, end=end, **facts)

    def written(self) -> Path:
        for (table,) in self.db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            if self.db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is None:  # noqa: S608
                self.db.execute(f"DROP TABLE {table}")
        self.db.commit()
        self.db.close()
        return self.path
