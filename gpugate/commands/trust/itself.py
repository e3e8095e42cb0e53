"""A case whose both sides are the same optimization, one of them slowed by a known share."""

from __future__ import annotations

from dataclasses import replace

from gpugate.faults.slow import slowed
from gpugate.workload import BASELINE, Case


def against_itself(case: Case, slowdown: float) -> Case:
    """The optimization against itself; the optimized side takes `slowdown`, a share, longer per step."""
    mine = case.optimization
    plain = replace(mine, compared_with=BASELINE)
    again = replace(
        mine,
        name=f"{mine.name} again",
        compared_with=mine.name,
        build=slowed(mine.build, slowdown) if slowdown else mine.build,
    )
    return replace(case, workload=replace(case.workload, optimizations=(plain, again)), optimization=again)
