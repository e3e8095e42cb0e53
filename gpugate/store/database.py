"""The store: every run in two tables of a database, of SQLite or PostgreSQL.

`run` has the provenance of a run, and `result` its cases, each with its metrics as a JSON object of lists: a value, and
behind it the ends of its interval where it has one. A case of a machine that was not well has no metrics. Files stay
the truth: the store is made again from them by `gpugate store add`, also where it has the tables of another gpugate. A
change that a statement would not notice gets tables of another name. A result has the number of its run and its own
number within the run: by this primary key the table is sorted on disk, so that the results of a run lie together, and
SQLite keeps no row ids beside them.

This module imports sqlalchemy, and other modules import it on use only: a session pays for it once it has measured.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from sqlite3 import OperationalError
from time import monotonic, sleep
from types import MappingProxyType
from typing import Any

import sqlalchemy as sql
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from gpugate.errors import GpugateError
from gpugate.machine.environment import Environment
from gpugate.results.run import CaseNight, Metric, Night, Provenance
from gpugate.results.verdict import Outcome
from gpugate.store.codec import to_json
from gpugate.store.run_file import parse_time
from gpugate.store.store_url import EXAMPLE, describe_url, hide_secrets
from gpugate.store.version import make_store_folder
from gpugate.units import round_stored

DATABASES = ("sqlite", "postgresql")
IN_MEMORY = "sqlite://"
BUSY_S = 30  # for which a writer waits while another one writes
CONNECT_S = 10
WRITING_LOCK = 0x67617465  # of PostgreSQL; SQLite has one writer at a time by itself
TABLES = sql.MetaData()
NO_VALUE = (ValueError, TypeError, ArithmeticError)  # of a row that another program changed
_DAMAGED = re.compile(
    "not a database|malformed|no such (column|table)|has no column|(column|relation) .* does not exist"
)
_PROVENANCE = tuple(field.name for field in fields(Provenance) if field.name != "files")
RUN = sql.Table(
    "run",
    TABLES,
    sql.Column("id", sql.Integer, primary_key=True),
    sql.Column("key", sql.String, nullable=False, unique=True),  # see `Night.key`
    sql.Column("name", sql.String, nullable=False),
    sql.Column("started", sql.BigInteger, nullable=False),  # seconds since 1970 in UTC: the order of runs
    sql.Column("started_at", sql.String, nullable=False),  # ISO 8601 with the UTC offset
    sql.Column("seed", sql.BigInteger, nullable=False),
    sql.Column("machine", sql.String, nullable=False),
    sql.Column("interrupted", sql.Boolean, nullable=False),
    *(sql.Column(name, sql.String) for name in _PROVENANCE),
    sql.Column("environment", sql.Text, nullable=False),  # JSON
    sql.Column("source_hashes", sql.Text, nullable=False),  # JSON
    sql.Index("run_of_machine", "machine", "started"),
    sql.Index("run_of_commit", "commit"),
)
RESULT = sql.Table(
    "result",
    TABLES,
    sql.Column("run_id", sql.Integer, sql.ForeignKey("run.id"), primary_key=True, autoincrement=False),
    sql.Column("number", sql.SmallInteger, primary_key=True, autoincrement=False),
    sql.Column("case_id", sql.String, nullable=False),
    sql.Column("outcome", sql.String),
    sql.Column("metrics", sql.Text),  # JSON; NULL: the machine was not well
    sql.Index("result_of_case", "case_id", "run_id"),
    sqlite_with_rowid=False,
)
# Statements that are built once: SQLAlchemy takes as long to build them as SQLite to insert a run.
_FIND_RUN = sql.select(RUN.c.id, RUN.c.interrupted).where(RUN.c.key == sql.bindparam("sought"))
_INSERT_RUN = RUN.insert()
_OF_NIGHT = ("id", "name", "started_at", "seed", "machine", "environment", "source_hashes", "interrupted", *_PROVENANCE)


class StoreError(GpugateError):
    """The store cannot be opened, read or written."""


class Store:
    """An open store. The methods raise StoreError where the database fails."""

    def __init__(self, engine: sql.Engine) -> None:
        self._engine = engine

    @property
    def name(self) -> str:
        """The URL without its secrets; of a SQLite file, the path."""
        return _describe(self._engine.url)

    def close(self) -> None:
        self._engine.dispose()

    def add(self, *nights: Night) -> int:
        """Adds the nights in one transaction, and returns the number of those that the store had not.

        A night that was cut off is replaced by its whole run.
        """
        try:
            with self._begin(writing=True) as connection:
                return sum(_add(connection, night) for night in nights)
        except (SQLAlchemyError, OSError, ValueError) as error:  # the last of a number that JSON cannot carry
            raise self._error("written", error) from error

    def read_nights(self, case: str = "", machine: str = "", branch: str | None = None) -> list[Night]:
        """The nights of a machine and a branch with their cases, the oldest first; `machine` and `case` are parts.

        A night without such a case is among them.
        """
        with self._reading() as connection:
            return _read_nights(connection, _conditions(connection, machine, branch), case)

    def read_night_before(self, night: Night) -> Night | None:
        """The last night before this one that the same host measured on the same machine, with a case of this
        one; of its branch, if there is one."""
        with self._reading() as connection:
            at_host = RUN.c.host.is_(None) if night.provenance.host is None else RUN.c.host == night.provenance.host
            of_branch = sql.case((RUN.c.branch == night.provenance.branch, 1), else_=0)
            newest = (
                sql.select(RUN.c.id)
                .join(RESULT, RESULT.c.run_id == RUN.c.id)
                .where(RESULT.c.metrics.is_not(None))
                .where(RUN.c.machine == night.machine, at_host, RUN.c.started <= _seconds(night.started))
                .where(RUN.c.key != night.key, RESULT.c.case_id.in_(list(night.cases)))
                .order_by(of_branch.desc(), RUN.c.started.desc(), RUN.c.id.desc())
                .limit(1)
            )
            found = connection.execute(newest).scalar()
            return None if found is None else _read_nights(connection, [RUN.c.id == found])[0]

    def count_runs(self) -> int:
        with self._reading() as connection:
            return int(connection.execute(sql.select(sql.func.count()).select_from(RUN)).scalar_one())

    @contextmanager
    def _reading(self) -> Iterator[sql.Connection]:
        try:
            with self._begin(writing=False) as connection:
                yield connection
        except (SQLAlchemyError, OSError, *NO_VALUE) as error:
            raise self._error("read", error) from error

    @contextmanager
    def _begin(self, writing: bool) -> Iterator[sql.Connection]:
        """Begins a transaction. One process at a time writes, so that none adds a run that another one is adding."""
        with self._engine.connect().execution_options(gpugate_writes=writing) as connection, connection.begin():
            if writing and connection.dialect.name == "postgresql":
                connection.execute(sql.select(sql.func.pg_advisory_xact_lock(WRITING_LOCK)))
            yield connection

    def _error(self, done: str, error: Exception) -> StoreError:
        return StoreError(_sentence(self._engine.url, done, error))


def open_store(url: str, make: bool = True) -> Store:
    """Opens the store at an SQLAlchemy URL, and makes its tables where there are none.

    Raises StoreError where that fails, and without `make` where a SQLite file is absent.
    """
    try:
        address = _with_driver(make_url(url))
        if address.get_backend_name() not in DATABASES:
            raise ValueError(f"{address.get_backend_name()} is neither {' nor '.join(DATABASES)}")
        engine = _create_engine(address, make)
    except (ArgumentError, NoSuchModuleError, *NO_VALUE) as error:
        problem = f"is no URL of a store ({hide_secrets(_first_line(error), url)})"
        raise StoreError(f"{describe_url(url)!r} {problem}: give one such as {EXAMPLE}") from error
    except ImportError as error:
        install = "pip install 'psycopg[binary]'" if address.drivername.startswith("postgresql") else "install it"
        raise StoreError(f"{_describe(address)} needs the package {error.name}: {install}") from error
    except OSError as error:
        raise StoreError(_sentence(address, "made", error)) from error
    store = Store(engine)
    try:
        _prepare(store)
    except (SQLAlchemyError, OSError, TypeError, ValueError) as error:  # the last two of a driver, for a query
        store.close()
        raise StoreError(_sentence(address, "opened", error)) from error
    except StoreError:
        store.close()
        raise
    return store


def _create_engine(address: URL, make: bool) -> sql.Engine:
    if address.get_backend_name() != "sqlite":
        waits = {"connect_timeout": CONNECT_S} if address.get_driver_name() == "psycopg" else {}
        return sql.create_engine(address, connect_args=waits)
    if address.database in (None, "", ":memory:"):
        engine = sql.create_engine(address, poolclass=StaticPool)
    else:
        path = Path(str(address.database))
        if not make and not path.exists():
            raise StoreError(f"there is no store at {path}: measure first, or give folders of nights")
        if make:
            make_store_folder(path.parent)
        engine = sql.create_engine(address, connect_args={"timeout": BUSY_S})
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, record: object) -> None:
    """Lets readers read while a process writes (WAL), and leaves the begin of transactions to `_begin_sqlite`."""
    connection.isolation_level = None
    cursor, until = connection.cursor(), monotonic() + BUSY_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            break
        except OperationalError as error:  # SQLite itself waits for no other process that makes this change
            if "locked" not in str(error) or monotonic() > until:
                raise
            sleep(0.01)
    # The last close writes to the disk. A power failure before may lose the newest runs, and damages nothing.
    cursor.execute("PRAGMA synchronous=NORMAL")
    # Otherwise SQLite copies the pages that a statement of many rows changes to a temporary file, to undo it alone.
    cursor.execute("PRAGMA temp_store=MEMORY")
    cursor.close()


def _begin_sqlite(connection: sql.Connection) -> None:
    """Python's sqlite3 begins no transaction before it writes, and SQLite refuses a reader that writes too late."""
    writes = connection.get_execution_options().get("gpugate_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _with_driver(address: URL) -> URL:
    """A PostgreSQL URL without a driver gets psycopg 3 in every version of SQLAlchemy."""
    name = "postgresql+psycopg" if address.drivername in ("postgresql", "postgres") else address.drivername
    return address.set(drivername=name)


def _prepare(store: Store) -> None:
    """Makes the tables of a new store."""
    with store._begin(writing=False) as connection:
        if sql.inspect(connection).has_table(RUN.name):
            return
    with store._begin(writing=True) as connection:
        TABLES.create_all(connection)  # those that another process did not make meanwhile


def _add(connection: sql.Connection, night: Night) -> bool:
    there = connection.execute(_FIND_RUN, {"sought": night.key}).one_or_none()
    if there is not None:
        if night.interrupted or not there.interrupted:
            return False
        connection.execute(RESULT.delete().where(RESULT.c.run_id == there.id))
        connection.execute(RUN.delete().where(RUN.c.id == there.id))
    row = {
        "key": night.key,
        "name": night.name,
        "started": _seconds(night.started),
        "started_at": night.started.isoformat(),
        "seed": night.seed,
        "machine": night.machine,
        "interrupted": night.interrupted,
        **{name: getattr(night.provenance, name) for name in _PROVENANCE},
        "environment": _to_text(night.environment),
        "source_hashes": json.dumps(dict(night.source_hashes)),
    }
    run_id = connection.execute(_INSERT_RUN, row).inserted_primary_key[0]  # type: ignore[index]  # each insert has one
    results: list[tuple[str, Outcome | None, str | None]] = [
        (case.case_id, case.outcome, _write_metrics(case.metrics)) for case in night.cases.values()
    ]
    results += [(case_id, Outcome.ENV_INVALID, None) for case_id in night.unfit]
    rows = [
        {
            "run_id": run_id,
            "number": number,
            "case_id": case_id,
            "outcome": outcome and outcome.value,
            "metrics": metrics,
        }
        for number, (case_id, outcome, metrics) in enumerate(results)
    ]
    if rows:
        connection.execute(RESULT.insert(), rows)
    return True


def _write_metrics(metrics: Mapping[str, Metric]) -> str:
    found = {
        name: [round_stored(number) for number in metric if number is not None] for name, metric in metrics.items()
    }
    return json.dumps(found, allow_nan=False, separators=(",", ":"))


def _conditions(connection: sql.Connection, machine: str, branch: str | None) -> list[sql.ColumnElement[bool]]:
    found: list[sql.ColumnElement[bool]] = []
    if machine:
        every = connection.execute(sql.select(RUN.c.machine).distinct()).scalars()
        found.append(RUN.c.machine.in_([name for name in every if machine.lower() in name.lower()]))
    if branch is not None:
        found.append(RUN.c.branch == branch)
    return found


def _read_nights(connection: sql.Connection, of_runs: Sequence[sql.ColumnElement[bool]], case: str = "") -> list[Night]:
    columns = [RUN.c[name] for name in _OF_NIGHT]
    runs = connection.execute(sql.select(*columns).where(*of_runs).order_by(RUN.c.started, RUN.c.id)).all()
    cases, unfit = dict[int, dict[str, CaseNight]](), dict[int, list[str]]()
    of_results: list[sql.ColumnElement[bool]] = [RESULT.c.run_id.in_(sql.select(RUN.c.id).where(*of_runs))]
    if case:
        of_results.append(sql.func.lower(RESULT.c.case_id).contains(case.lower(), autoescape=True))
    rows = connection.execute(sql.select(RESULT).where(*of_results).order_by(RESULT.c.run_id, RESULT.c.number))
    for run_id, _, case_id, outcome, text in rows:
        if text is None:
            unfit.setdefault(run_id, []).append(case_id)
        else:
            metrics = {name: Metric(*numbers) for name, numbers in dict(json.loads(text)).items()}
            found = CaseNight(case_id, None if outcome is None else Outcome(outcome), metrics)
            cases.setdefault(run_id, {})[case_id] = found
    return [_night_of(run, cases.get(run[0], {}), unfit.get(run[0], ())) for run in runs]


def _night_of(run: Sequence[Any], cases: Mapping[str, CaseNight], unfit: Sequence[str]) -> Night:
    """The night of a row with the columns _OF_NIGHT, which are many times faster to read by position than by name."""
    _, name, started_at, seed, machine, environment, source_hashes, interrupted, *provenance = run
    return Night(
        name=name,
        started=parse_time(started_at),
        seed=int(seed),
        machine=machine,
        environment=_to_environment(environment),
        source_hashes=_to_hashes(source_hashes),
        provenance=Provenance(*provenance),
        interrupted=interrupted,
        cases=cases,
        unfit=tuple(unfit),
    )


def _to_text(environment: Environment) -> str:
    return json.dumps(to_json(environment))


@lru_cache(maxsize=1024)
def _to_environment(text: str) -> Environment:
    """Most nights have the environment of the night before. Another gpugate may have stored more fields, or fewer."""
    stored = json.loads(text)
    return Environment(**{field.name: stored[field.name] for field in fields(Environment) if field.name in stored})


@lru_cache(maxsize=1024)
def _to_hashes(text: str) -> Mapping[str, str]:
    return MappingProxyType(json.loads(text))


def _seconds(time: datetime.datetime) -> int:
    return int(time.timestamp())


def _describe(address: URL) -> str:
    if address.get_backend_name() == "sqlite":
        return str(address.database or "the store in memory")
    return describe_url(address.render_as_string())


def _sentence(address: URL, done: str, error: Exception) -> str:
    url = address.render_as_string(hide_password=False)
    problem, step = hide_secrets(_first_line(error), url), "make room, mend its permissions, or give another store"
    if isinstance(error, NO_VALUE) or _DAMAGED.search(problem):
        step = "delete it, then add the files of its runs with gpugate store add"
    elif address.get_backend_name() != "sqlite":
        step = "check the server and the URL, or give another store"
    return f"{_describe(address)} cannot be {done} ({problem}): {step}"


def _first_line(error: Exception) -> str:
    """The words of the driver where there are some: SQLAlchemy adds the statement and a link."""
    cause = getattr(error, "orig", None) or error
    text = getattr(cause, "strerror", None) or str(cause)
    return (text.strip().splitlines() or [type(cause).__name__])[0]
