"""What a step of each side costs, item by item, per step: the bill, which repeats on every host of one GPU kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpugate.measurement.record import Counters, Measurement
from gpugate.measurement.step_profile import StepProfile
from gpugate.units import NotNegative


@dataclass(frozen=True)
class Bill:
    """The bill of one side."""

    counters: Counters  # of gpugate.counter_names, per step; an absent one was not measured
    # Time of each kernel by its name, in ms per step; empty where not counted.
    kernels_ms: Mapping[str, NotNegative] = field(default_factory=dict)


@dataclass(frozen=True)
class Bills:
    """The bills of both sides in one process."""

    reference: Bill
    optimized: Bill


def bills_of(measurement: Measurement) -> Bills | None:
    """The bills of a measured process; None where nothing was counted."""
    if not measurement.optimized_counters:
        return None
    counted = measurement.counters_missing is None
    return Bills(
        Bill(measurement.reference_counters, _kernels_ms(measurement.reference_profile if counted else None)),
        Bill(measurement.optimized_counters, _kernels_ms(measurement.optimized_profile if counted else None)),
    )


def _kernels_ms(profile: StepProfile | None) -> dict[str, float]:
    return {name: ms for name, (_, ms) in profile.kernels.items()} if profile is not None else {}
