"""The sharpness of the recorded cases: the slowdown that each one's record detects, and the false alarms of a night.

`python -m tools.sharpness` writes `results/h200/sharpness.md`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from gpugate import units
from gpugate.catalogue import Catalogue
from gpugate.report.findings import SHARP
from gpugate.report.table import Table, columns
from gpugate.results.summary import History
from gpugate.statistics.tolerance import (
    BOUNDS_NOTHING,
    detectable_slowdown,
    false_alarm_chance,
    time_tolerance,
)
from gpugate.store import baseline
from gpugate.store.json_file import write_atomically
from gpugate.workload import for_device_class

ROOT = Path(__file__).parents[1]
RECORDS, PAGE = ROOT / "baselines/nvidia-h200", ROOT / "results/h200/sharpness.md"
H200_CLASSES = ("sm_90", "cuda")
HEAD = """# Sharpness of the recorded cases

`python -m tools.sharpness` writes this page from the records. A case catches a slowdown by its speedup or by its time,
whichever detects the smaller one, 95 times in 100. The variation is that of the recorded processes, so these figures
are in-sample: a night on another host may differ by more.
"""


class CaseSharpness(NamedTuple):
    """Tolerances and detectable slowdowns of one case are shares; `alarms` is the number expected a night."""

    case_id: str
    by_speedup: float
    by_time: float
    speedup_tolerance: float
    time_tolerance: float
    alarms: float

    @property
    def detectable(self) -> float:
        return min(self.by_speedup, self.by_time)


def cases() -> list[CaseSharpness]:
    """Every recorded case of the H200, the sharpest first."""
    known = Catalogue()
    known.register_module("workloads")
    known.load()
    promises = {case.id: for_device_class(case.optimization.min_speedup, H200_CLASSES) for case in known.cases()}
    files = baseline.load_all(RECORDS)
    checks = 2 * sum(len(file.cases) for file in files.values())
    recorded = baseline.histories_of(files)
    found = (_case(case_id, then, checks, promises[case_id]) for case_id, (then, _) in recorded.items())
    return sorted(found, key=lambda one: (one.detectable, one.case_id))


def _case(case_id: str, then: History, checks: int, promise: float | None) -> CaseSharpness:
    of_speedup = then.tolerance(checks)
    of_time = time_tolerance(then.optimized_ms_cv, then.processes, then.sittings, checks)
    alarms = false_alarm_chance(checks)
    bounded = of_speedup < BOUNDS_NOTHING or promise is None
    alarms += alarms if bounded else then.shortfall_chance(promise or 0)
    by_time = detectable_slowdown(then.optimized_ms_cv, then.processes, then.sittings, of_time)
    return CaseSharpness(case_id, then.detectable_slowdown(of_speedup), by_time, of_speedup, of_time, alarms)


def page(found: list[CaseSharpness]) -> str:
    sharp, median = sum(one.detectable <= SHARP for one in found), found[(len(found) - 1) // 2].detectable
    summary = (
        f"**{sharp} of {len(found)} cases** catch a slowdown of {units.percent(SHARP)}; the median detectable slowdown "
        f"is {units.percent(median)}; {sum(one.alarms for one in found):.2g} false alarms are expected a night."
    )
    headings = columns("case", "detectable", "by speedup", "by time", "tolerance of the speedup", "of the time")
    shares = [(one.detectable, one.by_speedup, one.by_time, one.speedup_tolerance, one.time_tolerance) for one in found]
    rows = tuple((one.case_id, *map(_percent, values)) for one, values in zip(found, shares, strict=True))
    return f"{HEAD}\n{summary}\n\n{Table('', headings, rows).markdown()}\n"


def _percent(share: float) -> str:
    return units.percent(share) if math.isfinite(share) else "none"


if __name__ == "__main__":
    write_atomically(PAGE, page(cases()))
