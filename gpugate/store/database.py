"""The store: every run as one row of a database, of SQLite or PostgreSQL.

The columns are what runs are selected by, and the night as a JSON object, with the metrics of each case as lists: a
value, and behind it the ends of its interval where it has one. A case of a machine that was not well has no metrics.
Files stay the truth: the store is made again from them by `gpugate store add`, also where it has the table of another
gpugate.

This module imports sqlalchemy, and other modules import it on use only: a session pays for it once it has measured.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import StaticPool
from sqlalchemy.schema import CreateTable

from gpugate.errors import GpugateError
from gpugate.results.run import Night
from gpugate.store.codec import FormatError, from_json, to_json
from gpugate.store.json_file import parse
from gpugate.store.store_url import EXAMPLE, find_file
from gpugate.store.writable_folder import make_ignored

INSERTS: Mapping[str, Callable[[sql.Table], Any]] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
IN_MEMORY = "sqlite://"
BUSY_S = 30  # for which a process waits while another one writes to SQLite
CONNECT_S = 10
MAKING_LOCK = 0x67617465  # of PostgreSQL, where two processes cannot make one table
# Of a row that another program changed.
NO_VALUE = (LookupError, ValueError, TypeError, ArithmeticError, AttributeError)
_DAMAGED = re.compile("not a database|malformed|no such column|has no column|column .* does not exist")
_PLACE = re.compile(r"[\w.:-]*")  # the name of a server
RUN = sql.Table(
    "run",
    sql.MetaData(),
    sql.Column("key", sql.String, primary_key=True),  # see `Night.key`
    sql.Column("started", sql.Float(53), nullable=False),  # seconds since 1970 in UTC: the order of runs
    sql.Column("machine", sql.String, nullable=False),
    sql.Column("host", sql.String),
    sql.Column("branch", sql.String),
    sql.Column("interrupted", sql.Boolean, nullable=False),
    sql.Column("night", sql.Text, nullable=False),  # JSON
)


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

    def add(self, *nights: Night) -> int:
        """Adds the nights in one transaction, and returns the number of those that the store had not.

        A night that was cut off is replaced by its whole run.
        """
        adding = INSERTS[self._engine.dialect.name](RUN)
        whole = RUN.c.interrupted & ~adding.excluded.interrupted
        adding = adding.on_conflict_do_update(index_elements=[RUN.c.key], set_=dict(adding.excluded), where=whole)
        with self._doing("written") as connection:
            connection = connection.execution_options(preserve_rowcount=True)
            return sum(connection.execute(adding, _row_of(night)).rowcount for night in nights)

    def read_nights(self, case: str = "", machine: str = "", branch: str | None = None) -> list[Night]:
        """The nights of a machine and a branch with their cases, the oldest first; `machine` and `case` are parts.

        A night without such a case is among them.
        """
        wanted = sql.select(RUN.c.night).where(RUN.c.machine.contains(machine.lower(), autoescape=True))
        if branch is not None:
            wanted = wanted.where(RUN.c.branch == branch)
        with self._doing("read") as connection:
            rows = connection.execute(wanted.order_by(RUN.c.started, RUN.c.key))
            return [_read_night(text, case.lower()) for (text,) in rows]

    def read_night_before(self, night: Night) -> Night | None:
        """The last night before this one that the same host measured on the same machine, with a case of this
        one; of its branch, if there is one."""
        is_of_branch = RUN.c.branch.is_not_distinct_from(night.provenance.branch)
        wanted = (
            sql.select(RUN.c.night)
            .where(RUN.c.machine == night.machine, RUN.c.host.is_not_distinct_from(night.provenance.host))
            .where(RUN.c.key != night.key, RUN.c.started <= night.started.timestamp())
            .order_by(is_of_branch.desc(), RUN.c.started.desc())
        )
        with self._doing("read") as connection:
            before = (_read_night(text) for (text,) in connection.execute(wanted))
            return next((one for one in before if one.cases.keys() & night.cases.keys()), None)

    def count_runs(self) -> int:
        with self._doing("read") as connection:
            return int(connection.execute(sql.select(sql.func.count()).select_from(RUN)).scalar_one())

    def make_table(self) -> None:
        """Makes the table of a new store."""
        with self._doing("opened") as connection:
            if sql.inspect(connection).has_table(RUN.name):
                return
            if connection.dialect.name == "postgresql":
                connection.execute(sql.select(sql.func.pg_advisory_xact_lock(MAKING_LOCK)))
            connection.execute(CreateTable(RUN, if_not_exists=True))

    @contextmanager
    def _doing(self, done: str) -> Iterator[sql.Connection]:
        """A transaction, whose errors are one sentence."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except (SQLAlchemyError, OSError, *NO_VALUE) as error:
            raise StoreError(_sentence(self._engine.url, done, error)) from error


@contextmanager
def open_store(url: str, make: bool = True) -> Iterator[Store]:
    """Opens the store at an SQLAlchemy URL until the block ends, and makes its table where there is none.

    Raises StoreError where that fails, and without `make` where a SQLite file is absent.
    """
    try:
        address, file = _with_driver(make_url(url)), find_file(url)
        if file is not None:
            address = address.set(database=str(file))  # SQLAlchemy 2.0 does not unquote a path, and 2.1 does
        engine = _create_engine(address, make)
    except (ArgumentError, NoSuchModuleError, *NO_VALUE) as error:
        problem = "the URL of the store is no valid one of SQLite or PostgreSQL"
        raise StoreError(f"{problem}: give one such as {EXAMPLE}") from error
    except ImportError as error:
        install = "pip install 'psycopg[binary]'" if address.drivername.startswith("postgresql") else "install it"
        raise StoreError(f"{_describe(address)} needs the package {error.name}: {install}") from error
    except OSError as error:
        raise StoreError(_sentence(address, "made", error)) from error
    try:
        store = Store(engine)
        store.make_table()
        yield store
    finally:
        engine.dispose()


def _create_engine(address: URL, make: bool) -> sql.Engine:
    """Raises LookupError for the URL of another database."""
    INSERTS[address.get_backend_name()]
    if address.get_backend_name() != "sqlite":
        waits = {"connect_timeout": CONNECT_S} if address.get_driver_name() == "psycopg" else {}
        return sql.create_engine(address, connect_args=waits)
    if address.database in (None, "", ":memory:"):
        return sql.create_engine(address, poolclass=StaticPool)
    path = Path(str(address.database))
    if make:
        make_ignored(path.parent)
    elif not path.exists():
        raise StoreError(f"there is no store at {path}: measure first, or give folders of nights")
    return sql.create_engine(address, connect_args={"timeout": BUSY_S})


def _with_driver(address: URL) -> URL:
    """A PostgreSQL URL without a driver gets psycopg 3 in every version of SQLAlchemy."""
    name = "postgresql+psycopg" if address.drivername in ("postgresql", "postgres") else address.drivername
    return address.set(drivername=name)


def _row_of(night: Night) -> dict[str, object]:
    """The row of a night. Its host is known by the provenance, which is stored without its files."""
    stored = to_json(replace(night, provenance=replace(night.provenance, files=None)))
    return {
        "key": night.key,
        "started": night.started.timestamp(),
        "machine": night.machine,
        "host": night.provenance.host,
        "branch": night.provenance.branch,
        "interrupted": night.interrupted,
        "night": json.dumps(stored, allow_nan=False, separators=(",", ":"), default=datetime.isoformat),
    }


def _read_night(text: str, case: str = "") -> Night:
    """The night of a row, with the cases and the names of the unfit ones that have `case` in them."""
    night = from_json(Night, parse(text))
    cases = {case_id: one for case_id, one in night.cases.items() if case in case_id.lower()}
    return replace(night, cases=cases, unfit=tuple(case_id for case_id in night.unfit if case in case_id.lower()))


def _describe(address: URL) -> str:
    """The path of a SQLite file, or the server without what may be secret: a password whose @ is not quoted ends in the
    host."""
    if address.get_backend_name() == "sqlite":
        return str(address.database or "the store in memory")
    return f"{address.drivername}://{address.host if _PLACE.fullmatch(address.host or '') else '***'}"


def _sentence(address: URL, done: str, error: Exception) -> str:
    """The words of a server's driver may have a secret of the URL: its error has its name alone."""
    cause = getattr(error, "orig", None) or error  # SQLAlchemy adds the statement and a link
    text = getattr(cause, "strerror", None) or str(cause)
    words = (text.strip().splitlines() or [type(cause).__name__])[0]
    is_file = address.get_backend_name() == "sqlite"
    step = "make room, mend its permissions, or give another store"
    if isinstance(error, FormatError):
        step = "update gpugate where a newer one wrote it, else delete it and fill it by gpugate store add"
    elif isinstance(error, NO_VALUE) or _DAMAGED.search(words):
        step = "give another store, or delete a damaged one and fill it by gpugate store add"
    elif not is_file:
        step = "check the server and the URL, such as by psql, or give another store"
    return f"{_describe(address)} cannot be {done} ({words if is_file else type(cause).__name__}): {step}"
