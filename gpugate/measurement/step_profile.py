"""The time of one step by kernel, copy and wait, from the counting pass. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpugate.measurement.trace import Activity, Event, length, union
from gpugate.units import NotNegative, stored_unless

MOST_PARTS = 60  # by name; the rest of a long list is one part
LONGEST_NAME = 160  # C++ templates go on for thousands of characters
OTHERS = "(others)"
DIGITS = 6


Parts = Mapping[str, tuple[NotNegative, NotNegative]]  # by name: count per step, and milliseconds per step in all


@dataclass(frozen=True)
class StepProfile:
    """A step of a side under the profiler: the longest parts first, times in milliseconds per step.

    `kernels` are the kernels of the GPU; on a CPU, the operators, each without the operators that it calls. `copies`
    are by kind, memsets among them; `waits` are host calls in which the stepping thread waits for the device. `after`
    is all the device work that `Side.finish()` adds after the last step. `stages` are the ranges that the side names,
    in order, with the time of their work on the GPU, or their own time on a CPU. `kernel_ms` is the time in which
    kernels run, however many at once; `copy_ms` is the time in which copies run and no kernel does. `layers` are those
    of a compiled engine, by their names, as `Side.layers` lists them.
    """

    kernels: Parts = field(default_factory=dict)
    copies: Parts = field(default_factory=dict)
    waits: Parts = field(default_factory=dict)
    after: Parts = field(default_factory=dict)
    stages: Parts = field(default_factory=dict)
    kernel_ms: NotNegative = 0.0
    copy_ms: NotNegative = 0.0
    layers: tuple[str, ...] = stored_unless(())

    def longer(self, factor: float) -> StepProfile:
        """Returns this profile with every time multiplied by `factor`."""
        return StepProfile(
            _longer(self.kernels, factor),
            _longer(self.copies, factor),
            _longer(self.waits, factor),
            _longer(self.after, factor),
            _longer(self.stages, factor),
            factor * self.kernel_ms,
            factor * self.copy_ms,
            self.layers,
        )


def _longer(parts: Parts, factor: float) -> Parts:
    return {name: (count, factor * ms) for name, (count, ms) in parts.items()}


def step_profile(activity: Activity) -> StepProfile:
    """Computes the profile of an average step among the counted steps."""
    steps, copies = activity.steps, (*activity.copies, *activity.memsets)
    stages = _in_order(activity.stages, steps)
    if not (activity.kernels or copies):
        operators = list(_own_times(activity.operators))
        total_ms = sum(ms for _, ms in operators)
        return StepProfile(kernels=_parts(operators, steps), stages=stages, kernel_ms=total_ms / steps)
    kernel_ms = length(union(activity.kernels)) / 1e3
    return StepProfile(
        kernels=_parts(_list_times(activity.kernels), steps),
        copies=_parts(_list_times(copies), steps),
        waits=_parts(_list_times(activity.waits), steps),
        after=_parts(_list_times(activity.after), 1),
        stages=stages,
        kernel_ms=kernel_ms / steps,
        copy_ms=(length(union((*activity.kernels, *copies))) / 1e3 - kernel_ms) / steps,
    )


_NamedTime = tuple[str, float]  # a name and milliseconds


def _list_times(events: Sequence[Event]) -> list[_NamedTime]:
    return [(event["name"], event["dur"] / 1e3) for event in events]


def _own_times(operators: Sequence[Event]) -> Iterator[_NamedTime]:
    """Yields each operator without the time of the operators that it calls, which lie within it on the same thread."""
    by_thread: dict[object, list[Event]] = defaultdict(list)
    for operator in operators:
        by_thread[operator.get("tid")].append(operator)
    for of_thread in by_thread.values():
        open_ones: list[tuple[float, str, list[float]]] = []  # end, name, own time
        for operator in sorted(of_thread, key=lambda event: (event["ts"], -event["dur"])):
            while open_ones and open_ones[-1][0] <= operator["ts"]:
                _, name, own = open_ones.pop()
                yield name, own[0] / 1e3
            if open_ones:
                open_ones[-1][2][0] -= operator["dur"]
            open_ones.append((operator["ts"] + operator["dur"], operator["name"], [operator["dur"]]))
        for _, name, own in open_ones:
            yield name, own[0] / 1e3


def _in_order(stages: Sequence[Event], steps: int) -> Parts:
    """Orders the stages by their first occurrence."""
    parts = _parts(_list_times(stages), steps)
    return {
        name: parts[name] for name in dict.fromkeys(stage["name"][:LONGEST_NAME] for stage in stages) if name in parts
    }


def _parts(events: Sequence[_NamedTime], steps: int) -> Parts:
    counts: dict[str, int] = defaultdict(int)
    total_ms: dict[str, float] = defaultdict(float)
    for name, ms in events:
        counts[name[:LONGEST_NAME]] += 1
        total_ms[name[:LONGEST_NAME]] += ms
    names = sorted(counts, key=lambda name: (-total_ms[name], name))
    for name in names[MOST_PARTS:]:
        counts[OTHERS] += counts[name]
        total_ms[OTHERS] += total_ms[name]
    kept = names if len(names) <= MOST_PARTS else [*names[:MOST_PARTS], OTHERS]
    return {name: (counts[name] / steps, float(f"{total_ms[name] / steps:.{DIGITS}g}")) for name in kept}
