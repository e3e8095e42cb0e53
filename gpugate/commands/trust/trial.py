"""One trial: a case measured against itself, with a known slowdown of one side."""

from __future__ import annotations

from dataclasses import dataclass

from gpugate.measurement.record import Process
from gpugate.units import Natural, NotNegative, Share

SLOWDOWNS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.10)  # 0 is A/A: nothing changed, so every alarm is false


@dataclass(frozen=True)
class Trial:
    """Both sides are the same optimization; the one that `TimedBuild` calls optimized does `slowdown` more work.

    `slowdown` is a share of the time per step: 0.05 is 5 %. `process` numbers the fresh process that took it: trials
    of one process share what varies between processes.
    """

    case_id: str
    process: Natural
    slowdown: Share
    instances: Process
    wall_s: NotNegative
