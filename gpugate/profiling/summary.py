"""A profile in numbers: the work of the host and the device in the steps of one report.

Counts and times are of all steps together. `counters` and `profile` are of an average step, by the functions and with
the names of a counting pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpugate.explaining.state import State
from gpugate.measurement.record import StepProfile
from gpugate.measurement.trace import Event, counters, step_profile
from gpugate.profiling.capture_index import STEP
from gpugate.profiling.export import CapturedSteps, Gap, ProfileError, read_export
from gpugate.store.json_file import JsonFile, NextSteps
from gpugate.units import Natural, Positive

MOST_GAPS = 8
NO_KERNEL = "no kernel ran because of the steps: profile with --trace=cuda if some should have"


@dataclass(frozen=True)
class Work:
    """All events of one name: their number, the sum of their times and the longest time; `bytes` are those of copies.

    `gpu_ms` of NVTX ranges is the time from the first to the last activity that was launched inside.
    """

    name: str
    count: int
    ms: float
    longest_ms: float
    bytes: int = 0
    gpu_ms: float = 0.0


@dataclass(frozen=True)
class IdleTime:
    """A time without work of the device, `at_ms` after the steps began, and the place of the host meanwhile.

    `nvtx_range` is the innermost range of the thread that ended it, halfway through; `call` (CUDA) and `os_call` are
    the calls in which the thread spent most of it. Each is "" where there was none.
    """

    at_ms: float
    ms: float
    nvtx_range: str
    call: str
    call_ms: float
    os_call: str
    os_call_ms: float


@dataclass(frozen=True)
class ProfileSummary:
    """Everything that is kept of a report. `items` is the sum of the steps' payloads, 0 where they have none."""

    report: str  # the file's name
    product: str  # the version of Nsight Systems that exported it
    gpu: str
    steps: Natural
    items: int
    span_ms: Positive  # from the start of the first step to the end of the last, on the host
    counters: Mapping[str, float]
    profile: StepProfile
    kernels: tuple[Work, ...]
    ranges: tuple[Work, ...]
    idle: tuple[IdleTime, ...]
    waits: tuple[Work, ...]  # calls of the steps' threads, by the range that they are in
    calls: tuple[Work, ...]
    copies: tuple[Work, ...]
    notes: tuple[str, ...]


def summarize(sqlite: Path, steps: int | None = None, window: str | None = None) -> ProfileSummary:
    """Summarizes an export. `steps` and `window` are as in `read_export`; raises ProfileError as it does."""
    found = read_export(sqlite, steps, window)
    activity, ranges, stages = found.activity, [], []
    for one, gpu_us in found.project_ranges():
        ranges.append(Work(one.name, 1, (one.stop - one.start) / 1e3, 0.0, gpu_ms=gpu_us / 1e3))
        if one.ours and one.name != STEP:
            stages.append({"name": one.name, "ts": one.start, "dur": gpu_us or one.stop - one.start})
    unmarked = () if found.steps else (f"it marks no steps: the whole report was taken for {found.count}",)
    waits = ({**wait, "name": _in_range(found, wait)} for wait in activity.waits)
    return ProfileSummary(
        report=sqlite.name,
        product=found.product,
        gpu=found.gpu,
        steps=found.count,
        items=sum(step.items for step in found.steps),
        span_ms=(found.stop - found.start) / 1e3,
        counters={**counters(activity), **_enqueue_time(found)},
        profile=step_profile(replace(activity, stages=stages)),
        kernels=_by_name(map(_work, activity.kernels)),
        ranges=_by_name(ranges),
        idle=tuple(_idle_time(found, gap) for gap in found.find_gaps()[:MOST_GAPS]),
        waits=_by_name(map(_work, waits)),
        calls=_by_name(map(_work, activity.calls)),
        copies=_by_name(map(_work, activity.copies)),
        notes=(*unmarked, *(() if activity.kernels else (NO_KERNEL,))),
    )


def _work(event: Event) -> Work:
    ms = event["dur"] / 1e3
    return Work(event["name"], 1, ms, ms, event["args"]["bytes"])


def _by_name(works: Iterable[Work]) -> tuple[Work, ...]:
    """The work of each name together, the longest first."""
    named: dict[str, list[Work]] = defaultdict(list)
    for work in works:
        named[work.name].append(work)
    found = [
        Work(
            name, len(alike), sum(one.ms for one in alike), max(one.longest_ms for one in alike),
            sum(one.bytes for one in alike), sum(one.gpu_ms for one in alike),
        )
        for name, alike in named.items()
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda one: (-one.gpu_ms, -one.ms, -one.count)))


def _in_range(found: CapturedSteps, call: Event) -> str:
    name = found.find_innermost(call["tid"], call["ts"])
    return f"{call['name']} in {name}" if name else str(call["name"])


def _idle_time(found: CapturedSteps, gap: Gap) -> IdleTime:
    calls, os_calls = (_longest_inside(gap, events) for events in (found.activity.calls, found.os_calls))
    name = found.find_innermost(gap.tid, (gap.start + gap.stop) / 2)
    return IdleTime((gap.start - found.start) / 1e3, (gap.stop - gap.start) / 1e3, name, *calls, *os_calls)


def _longest_inside(gap: Gap, events: Iterable[Event]) -> tuple[str, float]:
    """The name of the calls in which the gap's thread spent most of it, and their time in ms."""
    inside: dict[str, float] = defaultdict(float)
    for event in events:
        us = min(event["ts"] + event["dur"], gap.stop) - max(event["ts"], gap.start)
        if us > 0 and event["tid"] == gap.tid:
            inside[event["name"]] += us / 1e3
    return max(inside.items(), key=lambda item: item[1], default=("", 0.0))


def _enqueue_time(found: CapturedSteps) -> dict[str, float]:
    """The host's time in a step without its waits for the device; empty where no range is a step."""
    if not found.steps:
        return {}
    waited = (wait["dur"] for wait in found.activity.waits if found.find_innermost(wait["tid"], wait["ts"]))
    us = sum(step.stop - step.start for step in found.steps) - sum(waited)
    return {"enqueue_ms": max(0.0, us) / 1e3 / found.count}


FILE = JsonFile(
    "gpugate-profile",
    2,  # History: 1: with tables that nobody read. 2: ProfileSummary as it is.
    ProfileSummary,
    ProfileError,
    NextSteps(
        unreadable="give the summary of a profile",
        damaged="make it again with `gpugate profile --json`",
        other_version="make the summary again",
        unwritable="give another path",
    ),
    oldest_version=2,
)
summary_text, write_summary, read_summary = FILE.encode, FILE.write, FILE.read


def step_state(summary: ProfileSummary) -> State:
    """The state of an average step. Its time is the profiled one, which is longer than without a profiler."""
    return State(summary.span_ms / summary.steps, summary.counters, summary.profile)
