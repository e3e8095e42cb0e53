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
class Counted:
    """A side's counters, its profile, and its signature (the names of all that ran), each per step."""

    counters: Counters
    profile: StepProfile
    signature: Mapping[str, float]

    def same_work(self, other: Counted) -> bool:
        """True where both signatures are equal and the device is active enough for them to explain a step's time.

        Where the device is idle nearly all the time, the host's work decides, and a signature shows little of it.
        """
        busy = max(counted.counters.get("active_fraction", 1.0) for counted in (self, other))  # no counter on a CPU
        return self.signature == other.signature and busy >= LEAST_ACTIVE


@dataclass
class Known:
    """Outputs and counters of one workload, the last that was measured: its outputs may be large.

    `counted` has the sides as they were declared, by name; a side with a fault is not kept.
    """

    _workload: str = ""
    _expected: dict[tuple[int, int, int], Expected] = field(default_factory=dict)
    counted: dict[str, Counted] = field(default_factory=dict)

    def begin(self, workload: str) -> None:
        """Drops the results of any other workload."""
        if workload != self._workload:
            self._workload, self._expected, self.counted = workload, {}, {}

    def expected(self, inputs: Inputs, find_out: Callable[[], Expected]) -> Expected:
        """Returns the baseline's outputs for inputs of these indices and this checksum; new inputs are computed."""
        key = inputs.fresh_index, len(inputs.timed), inputs.checksum
        if key not in self._expected:
            self._expected = {key: find_out()}
        return self._expected[key]
