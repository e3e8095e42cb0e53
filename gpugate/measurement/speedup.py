"""The speedup of a case from all its builds."""

from __future__ import annotations

from collections.abc import Sequence

from gpugate.measurement.record import Instance
from gpugate.statistics.intervals import Estimate, speedup_estimate


def speedup_of(instances: Sequence[Instance]) -> Estimate:
    """Estimates the speedup by `gpugate.statistics.intervals.speedup_estimate`. Raises ValueError without any pair."""
    return speedup_estimate(
        [instance.log_ratios for instance in instances], [instance.reference_built_first for instance in instances]
    )
