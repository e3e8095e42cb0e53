"""The state of one side at one time: its time per step, its counters and its profile. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gpugate.counter_names import CPU_COUNTERS
from gpugate.measurement.record import Counters, Mismatch
from gpugate.measurement.step_profile import StepProfile
from gpugate.results.moved_side import Times, mostly_the_reference


@dataclass(frozen=True)
class State:
    """A counter that is absent was not measured; `reference_counters` are those of the side that it is compared with.

    `steps_per_block` is the number of steps that share the work after the last one. `reference_ms` is the time of a
    step of the reference. `wrong` gives the error of outputs outside of the tolerance, `disproved` the failed proof.
    `output_error` is the largest relative L2 error of an output, where that is what is wrong and finite.
    """

    step_ms: float
    counters: Counters = field(default_factory=dict)
    profile: StepProfile | None = None
    sm_clock_mhz: float | None = None
    steps_per_block: float = 1.0
    not_engaged: str | None = None
    wrong: str | None = None
    disproved: str | None = None
    mismatch: Mismatch | None = None
    output_error: float | None = None
    reference_ms: float | None = None
    reference_counters: Counters = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        """True where kernels were counted; the operating system's counters exist on every machine."""
        return bool(self.counters.keys() - CPU_COUNTERS)

    def in_the_pace_of(self, other: State) -> State:
        """This state on a machine as fast as `other`'s: a CPU's pace changes from minute to minute, and the time of
        the reference shows by how much, unless the reference moved alone. A GPU's clock is known.
        """
        if self.on_gpu or not (self.reference_ms and other.reference_ms) or other.left_by_its_reference(self):
            return self
        pace = other.reference_ms / self.reference_ms
        profile = self.profile.longer(pace) if self.profile else None
        return replace(self, step_ms=pace * self.step_ms, profile=profile, reference_ms=other.reference_ms)

    def left_by_its_reference(self, then: State) -> bool:
        """True where the time of the reference changed since `then` and the time of this side hardly did."""
        if not (self.reference_ms and then.reference_ms):
            return False
        return mostly_the_reference(Times(then.reference_ms, then.step_ms), Times(self.reference_ms, self.step_ms))

    def within_its_step(self) -> State:
        """Returns this state with the operators' times of a CPU scaled down to the time of a step.

        Under the profiler, and in threads that run at once, the operators' times may add up to more than the step.
        """
        if self.on_gpu or self.profile is None or self.profile.kernel_ms <= self.step_ms:
            return self
        return replace(self, profile=self.profile.longer(self.step_ms / self.profile.kernel_ms))

    def more(self, then: State, counter: str) -> float:
        """Subtracts the counter of `then` from this one; 0 where either state did not measure it."""
        known = counter in self.counters and counter in then.counters
        return self.counters[counter] - then.counters[counter] if known else 0.0
