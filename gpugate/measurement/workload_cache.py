"""Results that all cases of a workload share in one process: the baseline's outputs and the sides' counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpugate.measurement.cold_inputs import Inputs
from gpugate.measurement.outputs import Expected
from gpugate.measurement.record import Counters
from gpugate.measurement.step_profile import StepProfile

LEAST_ACTIVE = 0.05  # of the time; where the GPU is active for less, kernels do not show what a step does


@dataclass(frozen=True)
class CountedSide:
    """A side's counters, its profile, and its signature (the names of all that ran), each per step."""

    counters: Counters
    profile: StepProfile
    signature: Mapping[str, float]

    def same_work(self, other: CountedSide) -> bool:
        """True where both signatures are equal and the device is active enough for them to explain a step's time.

        Where the device is idle nearly all the time, the host's work decides, and a signature shows little of it.
        """
        busy = max(side.counters.get("active_fraction", 1.0) for side in (self, other))  # no counter on a CPU
        return self.signature == other.signature and busy >= LEAST_ACTIVE


@dataclass
class WorkloadCache:
    """Outputs and counters of one workload, the last that was measured: its outputs may be large.

    `sides` has the counted sides as they were declared, by name; a side with a fault is not kept.
    """

    _workload: str = ""
    _expected: dict[tuple[object, ...], Expected] = field(default_factory=dict)
    sides: dict[str, CountedSide] = field(default_factory=dict)

    def begin(self, workload: str) -> None:
        """Drops the results of any other workload."""
        if workload != self._workload:
            self._workload, self._expected, self.sides = workload, {}, {}

    def expected_outputs(self, inputs: Inputs, compute: Callable[[], Expected]) -> Expected:
        """Returns the baseline's outputs for inputs of these indices and these checksums; computes new ones."""
        key = inputs.fresh_index, len(inputs.timed), tuple(inputs.checksums.items())
        if key not in self._expected:
            self._expected = {key: compute()}
        return self._expected[key]
