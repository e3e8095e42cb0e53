"""The tool that fills a store with a year of a fleet: its runs are real ones, and its page has every limit."""

from contextlib import closing
from pathlib import Path

from gpugate.store.database import open_store
from tools.store_size import CASES, MACHINES, QUERIES, make_nights, measure, write_page


def test_a_night_has_all_machines_with_all_cases_of_ten_metrics() -> None:
    nights = list(make_nights(1))
    assert len({night.machine for night in nights}) == len(nights) == MACHINES
    assert {len(night.cases) for night in nights} == {CASES}
    assert {len(case.metrics) for night in nights for case in night.cases.values()} == {10}


def test_the_page_has_each_limit_and_a_column_for_each_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.sqlite"
    figures = measure(url, nights=2)
    with closing(open_store(url)) as store:
        assert store.count_runs() == 2 * MACHINES + 5  # that were added one by one
    page = write_page({"SQLite": figures})
    assert "|  | limit | SQLite |" in page
    for limit in ("10 s", "120 MB", *(limit.removeprefix("<= ") for _, limit, _ in QUERIES)):
        assert f"`<= {limit}`" in page
    assert figures.size_mb > 0.1
