"""The store, in SQLite and in PostgreSQL: what is added comes back, and no failure loses or halves a run."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import sqlalchemy as sql

from gpugate.results.run import CaseNight, Night, Provenance
from gpugate.results.verdict import Outcome
from gpugate.store.database import StoreError, open_store
from tests.conftest import H200
from tests.support.full_disk import files_up_to
from tests.support.needed_programs import require
from tests.support.patience import HANGS_S

FIRST = datetime(2030, 1, 1, 3, 0, tzinfo=timezone(timedelta(hours=2)))
CASES = ("tiny/fused/cuda", "video/decode/nvdec/cuda")


def night(day: int = 0, cases: Sequence[str] = CASES, **changed: object) -> Night:
    """The night `day` days after the first, with the commit `a<day>`."""
    timed = dict.fromkeys(("speedup", "optimized_ms", "reference_ms"), (3.0 + day, 2.9 + day, 3.1 + day))
    metrics = {**timed, "kernels": (57.0,), "recorded_speedup": (3.25,)}
    found = Night(
        name=f"night-{day}",
        started=FIRST + timedelta(days=day),
        seed=day,
        machine="nvidia-h200-140-gib-700-w",
        environment=H200,
        source_hashes={"tiny": "0123456789abcdef"},
        provenance=Provenance(commit=f"a{day}", branch="main", host="one", gpu_uuid="GPU-1"),
        interrupted=False,
        cases={case_id: CaseNight(Outcome.PASS, metrics) for case_id in cases},
    )
    return replace(found, **changed)


# --- a PostgreSQL server of the tests' own: a new cluster in a temporary folder, reached by a unix socket alone -------

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


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """A running server; yields its SQLAlchemy URL with `{}` in place of the name of a database.

    The folder is no folder of pytest, whose folders only this user may enter.
    """
    require(name_missing())
    programs, as_root = find_programs(), os.geteuid() == 0
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="gpugate-pg-"))
    try:
        if as_root:
            shutil.chown(folder, USER)
        data = folder / "data"
        _call(programs / "initdb", "-D", data, "-A", "trust", "-U", USER, "-E", "UTF8", "--no-sync")
        control = (programs / "pg_ctl", "-D", data, "-w", "-l", folder / "log")
        _call(*control, "-o", f"-k {folder} {SETTINGS}", "start")
        try:
            yield f"postgresql://{USER}@/{{}}?host={folder}"
        finally:
            _call(*control, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _call(*words: object) -> None:
    command: Sequence[str] = [str(word) for word in words]
    if os.geteuid() == 0:
        command = ["runuser", "-u", USER, "--", *command]
    # What pg_ctl starts keeps its streams open: a pipe would never end.
    with tempfile.TemporaryFile() as output:
        ended = subprocess.run(command, stdout=output, stderr=output, cwd="/", check=False)
        output.seek(0)
        assert ended.returncode == 0, output.read().decode(errors="replace")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that does not exist yet."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/.gpugate/store.sqlite"
    address, name = request.getfixturevalue("cluster"), f"a{abs(hash(str(tmp_path)))}"
    import psycopg

    with psycopg.connect(address.format(USER), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return str(address.format(name))


def read(url: str, **selected: str) -> list[Night]:
    with open_store(url) as store:
        return store.read_nights(**selected)


def add(url: str, *nights: Night) -> int:
    with open_store(url) as store:
        return store.add(*nights)


def test_a_night_comes_back_as_it_was_the_oldest_first(url: str) -> None:
    unknown = night(1, provenance=Provenance(), interrupted=True, cases={})
    nights = [night(2), night(0), unknown]
    assert add(url, *nights) == 3
    assert read(url) == [night(0), unknown, night(2)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("UPDATE run SET night = replace(night, '2030-01-01', 'new year')", "started is "),
        ("UPDATE run SET night = '{'", "Expecting property name"),
        ("UPDATE run SET night = replace(night, '\"l2_bytes\"', '\"colour\"')", "environment has no field 'l2_bytes'"),
    ],
)
def test_a_row_that_another_program_changed_is_one_sentence(tmp_path: Path, change: str, words: str) -> None:
    url = f"sqlite:///{tmp_path}/a.sqlite"
    add(url, night())
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as connection, connection:
        connection.execute(change)
    with pytest.raises(StoreError) as refused:
        print(read(url))
    sentence = str(refused.value)
    assert sentence.startswith(f"{tmp_path}/a.sqlite cannot be read (")
    assert words in sentence
    step = "update gpugate where a newer one wrote it, else delete it and fill it by gpugate store add"
    assert sentence.endswith(f"): {step}")


def test_the_whole_run_replaces_the_one_that_was_cut_off_and_no_run_replaces_a_whole_one(url: str) -> None:
    add(url, night(cases=CASES[:1], interrupted=True), night(1))
    assert add(url, night(interrupted=True)) == 0
    assert add(url, night()) == 1
    assert add(url, night(name="a copy", cases=())) == 0
    assert read(url) == [night(0), night(1)]


SELECTIONS = [
    ({"machine": "H200"}, {0: CASES, 1: CASES}),
    ({"machine": "h100"}, {}),
    ({"branch": "main"}, {0: CASES}),
    ({"case": "DECODE"}, {0: CASES[1:], 1: CASES[1:]}),
    ({"case": "_", "branch": "main"}, {0: ()}),
]


def test_nights_and_cases_are_selected_and_a_night_without_a_case_stays(url: str) -> None:
    add(url, night(0), night(1, provenance=replace(night(1).provenance, branch="topic")))
    for selection, expected in SELECTIONS:
        assert {one.seed: tuple(one.cases) for one in read(url, **selection)} == expected


def test_cases_of_a_machine_that_was_not_well_have_a_name_and_no_numbers(url: str) -> None:
    sick = night(1, cases=CASES[:1], unfit=("tiny/sick/cuda", CASES[1]))
    add(url, night(0), sick)
    assert read(url) == [night(0), sick]
    assert [one.unfit for one in read(url, case="decode")] == [(), (CASES[1],)]
    with open_store(url) as store:
        assert store.read_night_before(night(2, cases=CASES[1:])) == night(0)


def test_the_night_before_is_of_this_host_this_machine_these_cases_and_if_there_is_one_this_branch(url: str) -> None:
    elsewhere = night(3, provenance=replace(night().provenance, host="two"))
    topic = night(5, provenance=replace(night().provenance, branch="topic"))
    add(url, night(0), night(1), night(2, machine="nvidia-h200"), elsewhere, night(4, cases=CASES[1:]), topic, night(9))
    with open_store(url) as store:
        assert store.read_night_before(night(5, cases=CASES[:1])) == night(1)
        assert store.read_night_before(night(5)) == night(4, cases=CASES[1:])
        assert store.read_night_before(night(0)) is None
        assert store.read_night_before(night(6)) == night(4, cases=CASES[1:]), "of its branch"
        assert store.read_night_before(night(6, provenance=replace(topic.provenance, branch="new"))) == topic


def test_a_run_keeps_its_key_and_another_run_has_another() -> None:
    one = night(0)
    elsewhere = replace(one, started=one.started.astimezone(timezone(timedelta(hours=5))), name="a copy", cases={})
    assert elsewhere.key == one.key
    host = replace(one, provenance=replace(one.provenance, host="another"))
    others = [replace(one, seed=one.seed + 1), replace(one, machine="nvidia-h100"), host]
    assert len({one.key, *(other.key for other in others)}) == 4


def start_writer(url: str, first: int) -> BaseProcess:
    """Starts a process that adds twenty nights."""

    def write() -> None:
        with open_store(url) as store:
            for day in range(first, first + 20):
                store.add(night(day))

    writer = get_context("fork").Process(target=write)
    writer.start()
    return writer


def await_status(writer: BaseProcess) -> int | None:
    writer.join(HANGS_S)
    return writer.exitcode


def test_two_writers_at_once_lose_nothing(url: str) -> None:
    """Both also find a store without tables, and ten nights are of both."""
    writers = [start_writer(url, 0), start_writer(url, 10)]
    assert [await_status(writer) for writer in writers] == [0, 0]
    assert read(url) == [night(day) for day in range(30)]


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    add(f"sqlite:///{path}", night(0))
    many = night(1, cases=[f"tiny/{number}/cuda" for number in range(2000)])
    with open_store(f"sqlite:///{path}") as store:
        with files_up_to(path.stat().st_size + 2**16), pytest.raises(StoreError) as refused:
            store.add(many)
        assert str(refused.value).startswith(f"{path} cannot be written (")
        assert str(refused.value).endswith("): make room, mend its permissions, or give another store")
        assert store.read_nights() == [night(0)]
        assert store.add(many) == 1
    assert read(f"sqlite:///{path}") == [night(0), many]


def test_the_table_of_another_gpugate_is_one_sentence(url: str) -> None:
    with open_store(url) as store, store._doing("written") as connection:
        connection.execute(sql.text("ALTER TABLE run RENAME COLUMN night TO started_at"))
    step = "give another store, or delete a damaged one and fill it by gpugate store add"
    for use in (read, lambda url: add(url, night())):
        with pytest.raises(StoreError, match=rf": {step}$"):
            use(url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (
            "nonsense://host/a",
            "the URL of the store is no valid one of SQLite or PostgreSQL: give one such as post",
        ),
        ("postgresql//me:secret@host/a", "the URL of the store is no valid one of"),
        ("sqlite:////bin/true?timeout=secret", "the URL of the store is no valid one of"),
        ("sqlite:////proc/none/store.sqlite", "/proc/none/store.sqlite cannot be made (No such file or directory)"),
        (
            "postgresql://me:secret@127.0.0.1:1/a",
            "postgresql+psycopg://127.0.0.1 cannot be opened (OperationalError): check the server and the URL",
        ),
        (
            "postgresql://me@127.0.0.1:1/a?password=secret&sslpassword=secret",
            "postgresql+psycopg://127.0.0.1 cannot be",
        ),
        ("postgresql://127.0.0.1:1/db;password=secret", "postgresql+psycopg://127.0.0.1 cannot be opened ("),
        ("postgresql://me:se@secret@127.0.0.1:1/a", "postgresql+psycopg://*** cannot be opened ("),
        ("sqlite:////bin/true", "/bin/true cannot be opened (file is not a database): give another store, or"),
    ],
)
def test_a_store_that_cannot_be_opened_is_one_sentence(url: str, words: str) -> None:
    with pytest.raises(StoreError) as refused:
        open_store(url).__enter__()
    assert str(refused.value).startswith(words)
    assert "\n" not in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"needs the package psycopg: pip install 'psycopg\[binary\]'"):
        open_store("postgresql://me@host/a").__enter__()


def test_a_history_makes_no_store(tmp_path: Path) -> None:
    path = tmp_path / ".gpugate/store.sqlite"
    with pytest.raises(StoreError, match=r"there is no store at .*: measure first, or give folders of nights"):
        open_store(f"sqlite:///{path}", make=False).__enter__()
    assert list(tmp_path.iterdir()) == []
