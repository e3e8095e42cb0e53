"""What a process finds out once for all cases of a workload: its baseline's outputs and its sides' counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpugate.measurement.cold_inputs import Inputs
from gpugate.measurement.outputs import Expected
from gpugate.measurement.record import Counters
from gpugate.measurement.step_profile import StepProfile

LEAST_ACTIVE = 0.05  # of the time, for kernels to say what a step is made of


@dataclass(frozen=True)
class Counted:
    """A side's counters, where its time goes and what ran, by name, all of one step."""

    counters: Counters
    profile: StepProfile
    signature: Mapping[str, float]

    def same_work(self, other: Counted) -> bool:
        """Whether all that was seen to run is the same, and is what a step's time can depend on.

        Where the device is idle nearly all the time, what the host does decides, and the signature shows little of it.
        """
        busy = max(counted.counters.get("active_fraction", 1.0) for counted in (self, other))  # no counter on a CPU
        return self.signature == other.signature and busy >= LEAST_ACTIVE


@dataclass
class Known:
    """Of one workload alone, the last one that was asked for: its outputs may be large.

    Counters are those of the side as it was declared; what a fault was put into is not kept.
    """

    _workload: str = ""
    _expected: dict[tuple[int, int, int], Expected] = field(default_factory=dict)
    counted: dict[str, Counted] = field(default_factory=dict)

    def begin(self, workload: str) -> None:
        """Forgets what is known of another workload."""
        if workload != self._workload:
            self._workload, self._expected, self.counted = workload, {}, {}

    def expected(self, inputs: Inputs, find_out: Callable[[], Expected]) -> Expected:
        """The baseline's outputs for inputs of these indices and this checksum; computed where they are new."""
        key = inputs.fresh_index, len(inputs.timed), inputs.checksum
        if key not in self._expected:
            self._expected = {key: find_out()}
        return self._expected[key]
