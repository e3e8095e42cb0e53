"""`python -m tests.support.page_costs`: the sizes of the pages, the times to write them, and the time to open a site.

The night has the 87 cases of an H200, and the night before beside it. The site has 365 nights of them. A time is the
middle one of five; another program on the machine makes it longer.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from gpugate.commands.history.trends import build_histories
from gpugate.commands.site import write_site
from gpugate.report.night import write_night
from gpugate.report.table import Table, columns
from gpugate.report.terminal import render_text
from gpugate.store import run_file
from gpugate.store.night_files import PAGE, RUN
from tests.support.browser import Browser, name_missing, open_browser
from tests.support.recorded_nights import Faults, recorded_night
from tests.support.simulated_years import simulated_nights

TIMES = 5
NIGHTS = 365
IN_VIEW = """
const cases = [...document.querySelectorAll('section.case')];
const seen = cases.filter(one => one.getBoundingClientRect().top < innerHeight);
const drawn = seen.every(one => one.querySelector('.chart svg'));
return drawn ? performance.getEntriesByName('drawn').at(-1).startTime / 1e3 : null;
"""


def main() -> int:
    """Prints the table."""
    with tempfile.TemporaryDirectory() as name:
        rows = [*measure_night(Path(name)), *measure_site(Path(name) / "site")]
    table = Table("", columns("page", "size", "time"), tuple(rows))
    sys.stdout.write(render_text(table.rich(100), 100, False))
    return 0


def measure_night(folder: Path) -> list[tuple[str, str, str]]:
    last, tonight = folder / "last", folder / "tonight"
    for path in (last, tonight):
        path.mkdir()
    run = recorded_night(1, Faults(slower={"two-layer-net/all/cuda": 1.2}))
    run_file.write(last / RUN, recorded_night(0))
    write_night(tonight, run)
    whole_s = median(measure(lambda: write_night(tonight, run)) for _ in range(TIMES))
    without_page_s = median(measure(lambda: run_file.write(tonight / RUN, run)) for _ in range(TIMES))
    size = f"{(tonight / PAGE).stat().st_size / 1e3:.0f} kB"
    return [(f"night of {len(run.cases)} cases", size, f"{whole_s - without_page_s:.2f} s to write, with summary.md")]


def measure_site(folder: Path) -> list[tuple[str, str, str]]:
    nights = simulated_nights(NIGHTS)
    began = time.perf_counter()
    histories = build_histories(nights, NIGHTS)
    trends_s = time.perf_counter() - began
    page = write_site(folder, histories)
    size = f"{sum(path.stat().st_size for path in folder.rglob('*') if path.is_file()) / 1e6:.2f} MB"
    name = f"site of {NIGHTS} nights x {len(nights[0].cases)} cases"
    write_s = median(measure(lambda: write_site(folder, histories)) for _ in range(TIMES))
    rows = [(name, size, f"{write_s:.2f} s to write, after {trends_s:.1f} s for level changes")]
    missing = name_missing()
    if missing is not None:
        return [*rows, ("opening it", "", missing)]
    with tempfile.TemporaryDirectory() as profile, open_browser(Path(profile)) as browser:
        opened_s = median(open_site(browser, page) for _ in range(TIMES))
    return [*rows, ("opening it", "", f"{opened_s:.2f} s until the charts in view are drawn")]


def open_site(browser: Browser, page: Path) -> float:
    """Seconds from the begin of the navigation until the last chart in view."""
    browser.show(page.as_uri(), 1280)
    browser.wait_until(IN_VIEW)
    return float(browser.run(IN_VIEW))


def measure(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
