"""What nsys could read of other processes is found in an export, whatever stands around it, and is gone for good."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gpugate.profiling.capture_index import FOLDER_VARIABLE
from gpugate.profiling.foreign_variables import scrubbed_of

SECRET = "hunter2"


def export(path: Path, *texts: str) -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        connection.executemany("INSERT INTO StringIds (value) VALUES (?)", [(text,) for text in texts])
    return path


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (f"PATH=/bin\0CI_JOB_TOKEN={SECRET}\0", ["CI_JOB_TOKEN"]),
        (f"CI_JOB_TOKEN={SECRET}", ["CI_JOB_TOKEN"]),
        (f"sshd: root@pts/0\0CI_JOB_TOKEN={SECRET}\0", ["CI_JOB_TOKEN"]),  # it has renamed itself
        (f"BASH_FUNC_f%%=() {{ true; }}\0TOKEN={SECRET}\0", ["BASH_FUNC_f%%", "TOKEN"]),
        (f"BASH_FUNC_f()=() {{ true; }}\0TOKEN={SECRET}\0", ["BASH_FUNC_f()", "TOKEN"]),
        (f"\0\0JUNK\0TOKEN={SECRET}", ["TOKEN"]),
    ],
)
def test_variables_of_another_process_are_named_and_gone(tmp_path: Path, text: str, names: list[str]) -> None:
    path = export(tmp_path / "a.sqlite", "cudaLaunchKernel", text)
    assert scrubbed_of(path) == names
    assert SECRET.encode() not in path.read_bytes()
    assert scrubbed_of(path) == []


@pytest.mark.parametrize(
    "text",
    [
        "PATH=/bin\0HOME=/home/me\0",  # what every process may show
        f"{FOLDER_VARIABLE}=/tmp/x\0EXTRA=1\0",  # the profiled program, whose variables went through the list
        "void gemm<a=b, (int)1>(float*)",
        "python\0-m\0pytest\0--nsys=folder\0-k\0net",
        "cudaMemcpyAsync_v3020",
    ],
)
def test_other_texts_stay(tmp_path: Path, text: str) -> None:
    path = export(tmp_path / "a.sqlite", text)
    assert scrubbed_of(path) == []
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT CAST(value AS BLOB) FROM StringIds").fetchone()[0] == text.encode()
