"""The speedup of a case from all its builds."""

from __future__ import annotations

from collections.abc import Sequence

from gpugate.measurement.record import TimedBuild
from gpugate.statistics.intervals import Estimate, speedup_estimate


def speedup_of(builds: Sequence[TimedBuild], of_machine: float | None = None) -> Estimate:
    """Estimates the speedup by `gpugate.statistics.intervals.speedup_estimate`. Raises ValueError without any pair."""
    first = [build.reference_built_first for build in builds]
    return speedup_estimate([build.log_ratios for build in builds], first, of_machine)
