"""A PostgreSQL server of the tests' own: a new cluster in a temporary folder, reached by a unix socket alone."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.needed_programs import require

DEBIAN = Path("/usr/lib/postgresql")  # which is not on the PATH
USER = "postgres"  # the server refuses to run as root
SETTINGS = "-c listen_addresses='' -c fsync=off -c shared_buffers=64MB"


def find_programs() -> Path | None:
    """The folder of initdb and pg_ctl, of the newest version that Debian's packages installed or of the PATH."""
    versions = sorted(DEBIAN.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    found = shutil.which("initdb")
    return versions[-1].parent if versions else Path(found).resolve().parent if found else None


def name_missing() -> str | None:
    """One sentence about what a test with PostgreSQL lacks on this machine; None where it has all."""
    if find_programs() is None:
        return "PostgreSQL's server is missing: apt-get install postgresql"
    if importlib.util.find_spec("psycopg") is None:
        return "the package psycopg is missing: pip install -c constraints.txt 'psycopg[binary]'"
    if os.geteuid() == 0 and shutil.which("runuser") is None:
        return "runuser is missing, and the server does not run as root: run the tests as another user"
    return None


def require_postgresql() -> None:
    """Skips the test with the reason, or fails it in CI, where the machine lacks what it needs."""
    require(name_missing())


@contextmanager
def start_cluster(settings: str = SETTINGS) -> Iterator[str]:
    """A running server; yields its SQLAlchemy URL with `{}` in place of the name of a database.

    The folder is no folder of pytest, whose folders only this user may enter.
    """
    programs, as_root = find_programs(), os.geteuid() == 0
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="gpugate-pg-"))
    try:
        if as_root:
            shutil.chown(folder, USER)
        data = folder / "data"
        _call(programs / "initdb", "-D", data, "-A", "trust", "-U", USER, "-E", "UTF8", "--no-sync")
        control = (programs / "pg_ctl", "-D", data, "-w", "-l", folder / "log")
        _call(*control, "-o", f"-k {folder} {settings}", "start")
        try:
            yield f"postgresql://{USER}@/{{}}?host={folder}"
        finally:
            _call(*control, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_database(cluster: str, name: str) -> str:
    """Makes an empty database and returns its URL."""
    import psycopg

    with psycopg.connect(cluster.format(USER), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return cluster.format(name)


def _call(*words: object) -> None:
    command: Sequence[str] = [str(word) for word in words]
    if os.geteuid() == 0:
        command = ["runuser", "-u", USER, "--", *command]
    # What pg_ctl starts keeps its streams open: a pipe would never end.
    with tempfile.TemporaryFile() as output:
        ended = subprocess.run(command, stdout=output, stderr=output, cwd="/", check=False)
        output.seek(0)
        assert ended.returncode == 0, output.read().decode(errors="replace")
