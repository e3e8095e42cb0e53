"""The environments of other processes in what nsys leaves: it writes those down that it could read.

In an export each is one text of StringIds with a NUL between its variables. Those of the profiled processes hold the
variable that names the folder shared with them; what else is theirs went through the allow-list. In a capture that was
not imported nobody can tell variables from other bytes: there only known values can be looked for.
"""

from __future__ import annotations

import mmap
import os
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

from gpugate.profiling.capture_index import FOLDER_VARIABLE
from gpugate.profiling.export_schema import ProfileError
from gpugate.profiling.isolated_environment import allowed

_VARIABLE = re.compile(rb"[A-Za-z_][^=\s(<]*(\(\)|%%)?=")  # and no C++; a shell's function is BASH_FUNC_name%%=
_VERSION = re.compile(r"\d+(\.\d+)+")
SHORTEST = 8  # of a value that is looked for without its name


def scrubbed_of(sqlite: Path) -> list[str]:
    """Takes them out of the export for good; returns the variables, sorted, that no list allows.

    Raises ProfileError for a file that cannot be read or changed: what it holds is then not known.
    """
    found: set[str] = set()
    try:
        with closing(sqlite3.connect(sqlite, isolation_level=None)) as connection:
            connection.text_factory = bytes
            for table, column, row, text in list(_like_environments(connection)):
                if names := _foreign(text):
                    found |= names
                    connection.execute(f'UPDATE "{table}" SET "{column}" = \'\' WHERE rowid = ?', [row])  # noqa: S608
            if found:
                connection.execute("VACUUM")  # an update alone leaves the old text in the file
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise ProfileError(f"{sqlite} could not be searched for foreign variables ({error}): profile again") from None
    return sorted(found)


def values_in(capture: Path, environment: Mapping[str, str]) -> list[str]:
    """The variables of `environment`, sorted, that no list allows and whose values stand in the file, wherever.

    Raises OSError for a file that cannot be read.
    """
    with capture.open("rb") as file:
        if not capture.stat().st_size:
            return []
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return sorted(name for name, value in _hidden(environment) if content.find(value) >= 0)


def _hidden(environment: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """What no list allows and could be a secret: no file, no version, nothing that may be seen anyway."""
    # `_` is what a shell has called last: this program, by a name that may be relative.
    seen = {**allowed(environment), "_": ""}
    for name, value in environment.items():
        plain = len(value) < SHORTEST or _VERSION.fullmatch(value) or any(value in other for other in seen.values())
        if not (name in seen or plain or os.path.exists(value)):  # noqa: PTH110 Path refuses long ones
            yield name, os.fsencode(value)


def _like_environments(connection: sqlite3.Connection) -> Iterator[tuple[str, str, int, bytes]]:
    columns = connection.execute(
        "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c "
        "WHERE t.type = 'table' AND (c.type = '' OR c.type LIKE '%TEXT%' OR c.type LIKE '%BLOB%')"
    ).fetchall()
    for table, column in ((table.decode(), column.decode()) for table, column in columns):
        value = f'CAST("{column}" AS BLOB)'
        alone = f"OR \"{column}\" GLOB '[A-Z_]*=*'" if table == "StringIds" else ""  # a process may have one variable
        rows = connection.execute(
            f"SELECT rowid, {value} FROM \"{table}\" WHERE instr({value}, x'00') {alone}"  # noqa: S608 the file's names
        )
        yield from ((table, column, row, text) for row, text in rows)


def _foreign(text: bytes) -> set[str]:
    """The variables of another process that are not allowed; nothing where the text is no environment.

    A process that has renamed itself has its name among them: one part that looks like a variable is enough.
    """
    parts = [part for part in text.split(b"\0") if _VARIABLE.match(part)]
    variables = dict(part.decode(errors="replace").split("=", 1) for part in parts)
    return set() if FOLDER_VARIABLE in variables else set(variables) - set(allowed(variables))
