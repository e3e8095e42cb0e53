"""The environments of other processes in an export: nsys writes those into its report that it could read.

Each is one text of StringIds with a NUL between its variables. Those of the profiled processes hold the variable that
names the folder shared with them; what else is theirs went through the allow-list.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from gpugate.profiling.capture_index import FOLDER_VARIABLE
from gpugate.profiling.environment_allow_list import allowed
from gpugate.profiling.export_schema import ProfileError

_VARIABLE = re.compile(rb"[A-Za-z_][^=\s(<]*(\(\)|%%)?=")  # and no C++; a shell's function is BASH_FUNC_name%%=


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
    except sqlite3.Error as error:
        raise ProfileError(f"{sqlite} could not be searched for foreign variables ({error}): profile again") from None
    return sorted(found)


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
