"""How often the interval of a speedup is wrong: the builds of stored trials, each predicted from those before it.

`python -m tools.interval_coverage` writes `results/intervals.md` from the trials of duets below `results/`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from statistics import median

from gpugate.measurement.record import TimedBuild
from gpugate.measurement.speedup import speedup_of
from gpugate.report.table import Table, columns
from gpugate.store.json_file import write_atomically
from gpugate.units import percent
from tools.archive import RESULTS
from tools.duet_figures import Bound, find_folders
from tools.markdown_table import write_markdown
from tools.trust.duets import read_duets

PAGE = RESULTS / "intervals.md"
BUILDS = (1, 2, 3)  # from which the next build is predicted
COLUMNS = columns("machine", "builds", "predictions", "wrong", "at most", "half-width", "of the widest tenth")
TEXT = """# Intervals of speedups

`python -m tools.interval_coverage` writes this page from the trials of duets below this folder.

A process has several builds, and [speedup_estimate](../gpugate/statistics/intervals.py) gives their speedup with an
interval that may be wrong in 2 of 100 cases. Here it gives the interval of the first builds of a stored process, and
the next build tests it: the speedup of that build must lie within the interval, widened by sqrt(1 + builds) for its own
variation. No number of the rule was chosen on builds: `PRIOR_WORTH` is that of processes, of the records of an H200 and
of trials of the CPUs `cpu` and `xeon`.

{table}

- wrong: the share of predictions that the next build contradicts; at most: its upper bound, one-sided 95 %
  (Clopper-Pearson)
- half-width: of the interval of the first builds, in the median and in the widest tenth
"""


def predict_next(builds: Sequence[TimedBuild], count: int) -> tuple[bool, float]:
    """True where the build after the first `count` ones contradicts their interval; and the interval's half-width."""
    found = speedup_of(builds[:count])
    distance = median(builds[count].log_ratios) - math.log(found.median)
    allowed = (found.high if distance > 0 else found.low) / found.median
    return abs(distance) > math.sqrt(1 + count) * abs(math.log(allowed)), found.half_width


def read_processes(folder: Path) -> Iterator[Sequence[TimedBuild]]:
    """Yields the builds with pairs of each case of each process of the trials in a folder."""
    for process in (process for trial in read_duets(folder) for process in trial.processes):
        for measurement in process.measured.values():
            yield [build for build in measurement.instances if build.pairs]


def list_rows() -> Iterator[tuple[str, ...]]:
    """Yields the rows of the page, by machine and number of builds."""
    for machine, folders in groupby(find_folders(), lambda folder: folder.relative_to(RESULTS).parts[0]):
        processes = [builds for folder in folders for builds in read_processes(folder)]
        for count in BUILDS:
            found = [predict_next(builds, count) for builds in processes if len(builds) > count]
            wrong, widths = sum(one for one, _ in found), sorted(width for _, width in found)
            shares = (wrong / len(found), Bound(wrong, len(found)).high, median(widths), widths[len(widths) * 9 // 10])
            yield machine, f"{count}", f"{len(found)}", *map(percent, shares)


def main() -> None:
    write_atomically(PAGE, TEXT.format(table=write_markdown(Table("", COLUMNS, tuple(list_rows())))))


if __name__ == "__main__":
    main()
