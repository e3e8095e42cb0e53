"""Makes a small export without secrets out of a real one: `python -m tests.support.scrub_profile IN OUT`.

The export keeps the tables and columns that a summary reads, of the profiled process alone. Unreferenced texts are
dropped, and with them the environments, arguments, paths and outputs that nsys stores.
"""

import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

# Tables that describe the run and its machine, or that no test needs.
DROPPED = (
    "ANALYSIS_DETAILS", "ANALYSIS_FILE", "CUDA_GRAPH_NODE_EVENTS", "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "DIAGNOSTIC_EVENT", "META_DATA_CAPTURE", "PROCESSES", "PROFILER_OVERHEAD",
    "ProcessStreams", "TARGET_INFO_CUDA_CONTEXT_INFO", "TARGET_INFO_CUDA_DEVICE", "TARGET_INFO_CUDA_STREAM",
    "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV",
)  # fmt: skip
ENUMS = ("ENUM_CUDA_DEV_MEM_EVENT_OPER", "ENUM_CUDA_MEM_KIND", "ENUM_CUDA_MEMCPY_OPER", "ENUM_NSYS_EVENT_TYPE")
EXPORT_FACTS = ("EXPORT_PRODUCT_NAME", "EXPORT_PRODUCT_VERSION")  # and EXPORT_SCHEMA_...


def scrub(export: Path, out: Path) -> None:
    shutil.copyfile(export, out)
    with closing(sqlite3.connect(out, isolation_level=None)) as db:
        for table in tables(db):
            if table in DROPPED or (table.startswith("ENUM_") and table not in ENUMS):
                db.execute(f"DROP TABLE {table}")
        db.execute(
            "DELETE FROM META_DATA_EXPORT WHERE name NOT LIKE 'EXPORT_SCHEMA_%' AND name NOT IN (?, ?)", EXPORT_FACTS
        )
        db.execute("DELETE FROM ThreadNames WHERE globalTid >> 24 NOT IN (SELECT globalTid >> 24 FROM NVTX_EVENTS)")
        db.execute("DELETE FROM TARGET_INFO_GPU WHERE rowid > 1")
        db.execute("UPDATE TARGET_INFO_GPU SET busLocation = '', uuid = ''")
        used = {text for table in tables(db) for text in referred(db, table)}
        for (text,) in db.execute("SELECT id FROM StringIds").fetchall():
            if text not in used:
                db.execute("DELETE FROM StringIds WHERE id = ?", [text])
        db.execute("VACUUM")


def tables(db: sqlite3.Connection) -> list[str]:
    return [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]


def referred(db: sqlite3.Connection, table: str) -> Iterator[int]:
    """The texts that rows of a table name; of none where it is that of the texts."""
    columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    for column in columns if table != "StringIds" else ():
        if column in ("nameId", "textId", "jsonTextId") or column.endswith("Name"):
            yield from (text for (text,) in db.execute(f"SELECT DISTINCT {column} FROM {table}") if text is not None)  # noqa: S608


if __name__ == "__main__":
    scrub(Path(sys.argv[1]), Path(sys.argv[2]))
