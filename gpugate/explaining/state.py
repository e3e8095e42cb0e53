"""The state of one side at one time, and the difference of two states as a sum of terms, with their words. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from gpugate import units
from gpugate.measurement.record import Counters, Parts, Resemblance, StepProfile
from gpugate.workload.counter_names import CPU_COUNTERS

NOTHING = (0.0, 0.0)
LEAST_MOVE = 0.003  # log-time: the tightest tolerance there is
LEFT_BEHIND = 0.5  # a side that moved by less than this share of the other's move did not move
LEAST_MS = 0.00005  # what is shorter would be written as 0.0000 ms
LONGER = 0.01  # of a step


@dataclass(frozen=True)
class State:
    """A counter that is absent was not measured; `reference_counters` are those of the side that it is compared with.

    `steps_per_block` is the number of steps that share the work after the last one. `reference_ms` is the time of a
    step of the reference. `wrong` gives the error of outputs outside of the tolerance, or the failed proof. `resembles`
    is the kind of the first wrong output of a timed step.
    """

    step_ms: float
    counters: Counters = field(default_factory=dict)
    profile: StepProfile | None = None
    sm_clock_mhz: float | None = None
    steps_per_block: float = 1.0
    not_engaged: str | None = None
    wrong: str | None = None
    resembles: Resemblance = ""
    reference_ms: float | None = None
    reference_counters: Counters = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        """True where kernels were counted; the operating system's counters exist on every machine."""
        return bool(self.counters.keys() - CPU_COUNTERS)

    def in_the_pace_of(self, other: State, ratio: float | None = None) -> State:
        """This state on a machine as fast as `other`'s: a CPU's pace changes from minute to minute, and the time of
        the reference shows by how much, unless the reference moved alone. A GPU's clock is known.

        `ratio` is that of the steps at one pace, where it is known.
        """
        if self.on_gpu or not (self.reference_ms and other.reference_ms) or other.left_by_its_reference(self):
            return self
        pace = other.step_ms / ratio / self.step_ms if ratio else other.reference_ms / self.reference_ms
        profile = self.profile.longer(pace) if self.profile else None
        return replace(self, step_ms=pace * self.step_ms, profile=profile, reference_ms=other.reference_ms)

    def left_by_its_reference(self, then: State) -> bool:
        """True where the reference's time changed since `then`, up or down, and this side's by less than half as much.

        A machine that became slower or faster changes the times of both sides by the same factor.
        """
        if not (self.reference_ms and then.reference_ms):
            return False
        reference = abs(math.log(self.reference_ms / then.reference_ms))
        return reference >= LEAST_MOVE and abs(math.log(self.step_ms / then.step_ms)) < LEFT_BEHIND * reference

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


@dataclass(frozen=True)
class PartChange:
    """A kernel, copy or operator of both states, of the newer alone (`is_new`) or of the older alone (`is_gone`).

    `count` and `ms` say how much more often it comes in a step and how much longer it takes there.
    """

    name: str
    count: float
    ms: float
    is_new: bool
    is_gone: bool
    is_kernel: bool = True  # of the steps, or a CPU's operator


def account(then: State, now: State) -> dict[str, float] | None:
    """Splits the difference of two states into terms in milliseconds per step, by name; None where a state has no
    profile. A CPU has no term for copies, gaps and clocks.

    `kernels` is the change of the kernels, with those that `finish()` adds and without `clocks`, the change that a
    lower SM clock explains; on a CPU it is the change of the operators. `copies` is the change of the copies while no
    kernel runs. Idle time of the device is `launch gaps` where it came with a longer time to enqueue a step, `syncs`
    where it came with new waiting calls, and else `host`.
    """
    if then.profile is None or now.profile is None:
        return None
    whole = now.step_ms - then.step_ms
    after = _after_ms(now) - _after_ms(then)
    kernels = now.profile.kernel_ms - then.profile.kernel_ms + after
    if not now.on_gpu:
        return {"operators": kernels, "host": whole - kernels}
    clocks = _by_clocks(then, now)
    copies = now.profile.copy_ms - then.profile.copy_ms
    idle = whole - kernels - copies
    if now.more(then, "synchronizing_calls") >= 0.5:
        syncs, launches = idle, 0.0
    else:
        syncs, launches = 0.0, _within(now.more(then, "enqueue_ms"), idle)
    found = {"kernels": kernels - clocks, "launch gaps": launches, "copies": copies, "syncs": syncs, "clocks": clocks}
    return {**found, "host": idle - syncs - launches}


def list_changed_parts(then: State, now: State) -> list[PartChange]:
    """Lists every part of either profile, what moved most first; the list is empty where a state has no profile."""
    if then.profile is None or now.profile is None:
        return []
    before, after = _merge_parts(then.profile), _merge_parts(now.profile)
    found = []
    for name in dict.fromkeys((*after, *before)):
        (was_count, was_ms), (count, ms) = before.get(name, NOTHING), after.get(name, NOTHING)
        is_kernel = name in then.profile.kernels or name in now.profile.kernels
        found.append(PartChange(name, count - was_count, ms - was_ms, name not in before, name not in after, is_kernel))
    return sorted(found, key=lambda move: -abs(move.ms))


def first_longer_stage(then: State, now: State) -> str | None:
    """`segment +0.500 ms`: the first stage that takes longer by more than 1 % of a step; None where no stage does."""
    before, after = (state.profile.stages if state.profile else {} for state in (then, now))
    longer = ((name, ms - before.get(name, NOTHING)[1]) for name, (_, ms) in after.items())
    return next((f"{name} {write_signed(ms)}" for name, ms in longer if ms > LONGER * then.step_ms), None)


def _merge_parts(profile: StepProfile) -> Parts:
    """Merges the parts of every step with the parts after the last step, which get `, after the steps` in the name."""
    after = {f"{name}, after the steps": part for name, part in profile.after.items()}
    return {**profile.kernels, **profile.copies, **after}


def _after_ms(state: State) -> float:
    """Computes the time that `finish()` adds to a step of a block."""
    return sum(ms for _, ms in state.profile.after.values()) / state.steps_per_block if state.profile else 0.0


def _by_clocks(then: State, now: State) -> float:
    """Computes the time that a lower SM clock can explain of the kernels in both states: memory has its own clock."""
    if not then.sm_clock_mhz or not now.sm_clock_mhz or then.profile is None or now.profile is None:
        return 0.0
    before, after = then.profile.kernels, now.profile.kernels
    both = [(before[name][1], after[name][1]) for name in after if name in before]
    grown = sum(ms - was_ms for was_ms, ms in both)
    expected = sum(was_ms for was_ms, _ in both) * (then.sm_clock_mhz / now.sm_clock_mhz - 1)
    return _within(grown, expected)


def _within(value: float, bound: float) -> float:
    """Clips `value` to the range from 0 to `bound`."""
    low, high = sorted((0.0, bound))
    return max(low, min(high, value))


def write_signed(ms: float) -> str:
    """`+0.12 ms`."""
    return f"{'+' if ms >= 0 else '-'}{units.milliseconds(abs(ms))}"


def change(then_ms: float, now_ms: float) -> str:
    """`3.2 ms -> 3.4 ms (+6.3 %)`."""
    share = now_ms / then_ms - 1
    percent = f"{'+' if share >= 0 else '-'}{units.percent(abs(share))}"
    return f"{units.milliseconds(then_ms)} -> {units.milliseconds(now_ms)} ({percent})"
