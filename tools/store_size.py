"""The time and the size of a store of a year of a fleet: 365 nights of 8 machines, 89 cases of 10 metrics each.

`python -m tools.store_size` fills a new SQLite file and a new PostgreSQL cluster (Debian's package `postgresql`), both
in a temporary folder, in some minutes, and writes `results/cpu/store.md`. The case ids are those of the recorded cases,
the values are drawn.
"""

from __future__ import annotations

import datetime
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import sqlalchemy as sql

from gpugate.machine.environment import machine_key
from gpugate.report.table import Table, columns
from gpugate.results.run import CaseNight, Metric, Night, Provenance
from gpugate.results.verdict import Outcome
from gpugate.store import baseline
from gpugate.store.database import Selection, Store, open_store
from gpugate.store.json_file import write_atomically
from gpugate.store.nights import BATCH
from tests.support.postgresql import find_programs, make_database, start_cluster

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "results/cpu/store.md"
NIGHTS, MACHINES, CASES = 365, 8, 89
WITH_INTERVAL = ("speedup", "optimized_ms", "reference_ms")
ALONE = ("anchor_speedup", "recorded_speedup", "speedup_tolerance", "start_up_s")
COUNTED = ("kernels", "kernel_launches", "peak_bytes")
FIRST = datetime.datetime(2030, 1, 1, 3, 0, tzinfo=datetime.timezone.utc)
REPEATS = 21
HEAD = f"""# The store of a fleet

`python -m tools.store_size` writes this page: {NIGHTS} nights of {MACHINES} machines, {CASES} cases of ten metrics, of
which three have an interval, added by one process in transactions of {BATCH} runs, as `gpugate store add` does. The
time is that of the store alone: reading the files comes before. PostgreSQL runs on the same machine, is reached by a
unix socket and writes to the disk at each commit. A query is the fastest of {REPEATS} repetitions, its result made into
the objects that the program uses.

"""


@dataclass(frozen=True)
class Figures:
    """The figures of one database. The size is that of the tables with their indices."""

    insert_s: float
    cpu_s: float  # of this process; a server has its own
    size_mb: float
    one_more_ms: float
    queries_ms: tuple[float, ...]


QUERIES: tuple[tuple[str, str, Callable[[Night], Selection]], ...] = (
    (
        "one series: the speedups of a case on one machine",
        "<= 20 ms",
        lambda night: Selection(case_id=next(iter(night.cases)), machine=night.machine, metrics=("speedup",)),
    ),
    (
        "one series: all metrics of a case on one machine",
        "<= 20 ms",
        lambda night: Selection(case_id=next(iter(night.cases)), machine=night.machine),
    ),
)


def make_nights(nights: int = NIGHTS) -> Iterator[Night]:
    """The nights of all machines, the oldest first; each night has one commit."""
    draw = random.Random(1)  # noqa: S311  # drawn values, no secret
    folder = ROOT / "baselines/nvidia-h200"
    files = baseline.load_all(folder).values()
    ids = sorted(f"{file.workload}/{key}" for file in files for key in file.cases)
    ids = [_number_again(name, number // len(ids)) for number, name in enumerate(islice(cycle(ids), CASES))]
    environment = next(entry.current.environment for file in files for entry in file.cases.values())
    hashes = {file.workload: "0123456789abcdef" for file in files}
    for day in range(nights):
        commit = f"{draw.getrandbits(160):040x}"
        for machine in range(MACHINES):
            here = replace(environment, power_limit_w=400.0 + 50 * machine)
            yield Night(
                name=(FIRST + datetime.timedelta(days=day)).strftime("%Y-%m-%d"),
                started=FIRST + datetime.timedelta(days=day, minutes=machine),
                seed=draw.getrandbits(32),
                machine=machine_key(here, 150 * 10**9),
                environment=here,
                source_hashes=hashes,
                provenance=Provenance(
                    "https://example.org/models.git",
                    commit,
                    None,
                    "main",
                    None,
                    f"{machine:012x}",
                    f"GPU-{machine}",
                    None,
                ),
                interrupted=False,
                cases={case_id: _make_case(case_id, draw) for case_id in ids},
            )


def _number_again(case_id: str, turn: int) -> str:
    """The id, with the number of the turn behind the optimization's name from the second turn on."""
    case, _, device_kind = case_id.rpartition("/")
    return f"{case}-{turn}/{device_kind}" if turn else case_id


def _make_case(case_id: str, draw: random.Random) -> CaseNight:
    values = {name: draw.uniform(1, 10) for name in (*WITH_INTERVAL, *ALONE)}
    metrics = {name: Metric(values[name], values[name] * 0.99, values[name] * 1.01) for name in WITH_INTERVAL}
    metrics |= {name: Metric(values[name]) for name in ALONE}
    metrics |= {name: Metric(float(draw.randrange(1, 1000))) for name in COUNTED}
    return CaseNight(case_id, Outcome.PASS, metrics)


def measure(url: str, nights: int = NIGHTS) -> Figures:
    """Fills an empty store and measures it."""
    made = make_nights(nights)
    wall_s = cpu_s = 0.0
    with closing(open_store(url)) as store:
        while batch := list(islice(made, BATCH)):
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            store.add(*batch)
            wall_s += time.perf_counter() - began_s
            cpu_s += time.process_time() - began_cpu_s
            last = batch[-1]
        _settle(store)
        size_mb = _measure_mb(store)
        middle = store.read_nights(Selection(since=FIRST + datetime.timedelta(days=nights // 2), machine=last.machine))[
            0
        ]
        queries = tuple(_time_ms(partial(store.read_nights, choose(middle))) for _, _, choose in QUERIES)
    return Figures(wall_s, cpu_s, size_mb, _time_one_more(url, last), queries)


def _settle(store: Store) -> None:
    """Lets PostgreSQL count its rows, as its background process does within minutes; a query plan needs that."""
    if store._engine.dialect.name == "postgresql":
        with store._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sql.text("VACUUM ANALYZE"))


def _measure_mb(store: Store) -> float:
    with store._begin(writing=False) as connection:
        if connection.dialect.name == "sqlite":
            pages, page = (connection.exec_driver_sql(f"PRAGMA page_{word}").scalar_one() for word in ("count", "size"))
            return float(pages * page / 1e6)
        tables = "SELECT sum(pg_total_relation_size(relname::regclass)) FROM pg_stat_user_tables"
        return float(connection.execute(sql.text(tables)).scalar_one()) / 1e6


def _time_one_more(url: str, night: Night) -> float:
    """The time in which a session opens the full store, reads the run before, adds its own, and closes the store."""
    times_ms = []
    for number in range(1, 6):
        added = replace(night, started=night.started + datetime.timedelta(days=number), seed=number)
        began_s = time.perf_counter()
        with closing(open_store(url)) as store:
            store.read_night_before(added)
            store.add(added)
        times_ms.append((time.perf_counter() - began_s) * 1e3)
    return statistics.median(times_ms)


def _time_ms(query: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        began_s = time.perf_counter()
        query()
        times.append((time.perf_counter() - began_s) * 1e3)
    return min(times)


@contextmanager
def _databases() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        urls = {"SQLite": f"sqlite:///{folder}/store.sqlite"}
        if find_programs() is None:
            yield urls
            return
        with start_cluster("-c listen_addresses=''") as cluster:
            yield {**urls, "PostgreSQL": make_database(cluster, "gpugate")}


def write_page(figures: dict[str, Figures]) -> str:
    """The page with one column for each database."""
    rows = [
        ("insert, elapsed", "<= 10 s", [f"{one.insert_s:.1f} s" for one in figures.values()]),
        ("insert, CPU time of the process", "", [f"{one.cpu_s:.1f} s" for one in figures.values()]),
        ("size", "<= 120 MB", [f"{one.size_mb:.0f} MB" for one in figures.values()]),
    ]
    for index, (name, limit, _) in enumerate(QUERIES):
        rows.append((name, limit, [f"{one.queries_ms[index]:.1f} ms" for one in figures.values()]))
    one_more = [f"{one.one_more_ms:.0f} ms" for one in figures.values()]
    rows.append(("one more run: open, read the run before, add, close", "", one_more))
    cells = tuple((name, limit, *found) for name, limit, found in rows)
    where = f"{os.cpu_count()} CPU cores, load {os.getloadavg()[1]:.1f} over the last five minutes"
    return f"{HEAD}{Table('', columns('', 'limit', *figures), cells).markdown()}\n\nMeasured on {where}.\n"


def main() -> None:
    with _databases() as urls:
        page = write_page({name: measure(url) for name, url in urls.items()})
    print(page)
    write_atomically(PAGE, page)


if __name__ == "__main__":
    main()
