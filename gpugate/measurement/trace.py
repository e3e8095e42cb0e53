"""Counts per step, and the time of a step by its parts, from the events of one counted window of a trace. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpugate.measurement.record import OTHERS, Parts, StepProfile

LAUNCH = re.compile(r"cu(da)?Launch(Cooperative)?Kernel")
GRAPH_LAUNCH = re.compile(r"cu(da)?GraphLaunch")
# cudaMemcpy without Async blocks the host; so do the synchronize calls. cudaStreamWaitEvent does not.
SYNCHRONIZING = re.compile(
    r"cu(da|Ctx|Stream|Event|Device)*Synchronize|cudaMem(cpy|set)(2D|3D)?(_v\d+)?$|cuMemcpy[HD]to[HD](_v2)?$|cuda(Free|Malloc)$"
)
# Names of tensor-core kernels in cuDNN, cuBLAS and CUTLASS; plain f32f32 kernels run on the FP32 cores. A number alone
# proves nothing: Triton ends a kernel's name with one. nvjet is cuBLAS on Hopper, warpgroup MMA throughout.
TENSOR_CORES = re.compile(
    r"tensorop|gmma|[hi]mma_|nvjet_|[hsi](884|1688|16816)|xmma_\w*(f16|tf32|i8|e4m3|e5m2)",
    re.IGNORECASE,
)
# Kernels of PyTorch itself and of Inductor: the program chooses them. A library chooses the others, by shape, or by a
# race of algorithms whose winner can differ between processes.
FRAMEWORK = re.compile(r"\bat::|\btriton_|\bc10::")
COMMUNICATION = re.compile(r"nccl", re.IGNORECASE)

OURS = "gpugate: "
WINDOW = f"{OURS}counted steps"
JOIN = f"{OURS}join after"  # followed by the name of the window
FILLING = f"{OURS}filling up in"  # followed by the name of the window, for a side that works ahead
LONGEST = 15
STREAMS = f"{OURS}streams"

_CAPTURE = re.compile(r"cu(da)?StreamBeginCapture")
_AUTOGRAD = "autograd::engine::"  # begins the names of backward passes, which run in threads of their own on CUDA
_DIRECTIONS = {"HtoD": "host_to_device", "DtoH": "device_to_host", "DtoD": "device_to_device"}
Event = Mapping[str, Any]
Span = tuple[float, float]


@dataclass(frozen=True)
class Activity:
    """The activity in a counted window: API calls of the host, and the device's kernels, copies and memsets from them.

    `waits` are the calls in which the thread that runs the steps, or a thread that runs their backward pass, waited for
    the device. Waits of a pipeline's own threads do not count: their number depends on chance. Nor does the wait of a
    side that works ahead, at the end of the window until its queues are full again: it belongs to no step. `after` are
    the kernels and copies of the join after the window, which belong to no step. `stages` are the ranges that a side
    names, with the time of their work on the device, or their own time on a CPU. `attached` is False on a GPU whose
    calls the profiler did not see.
    """

    steps: int
    calls: Sequence[Event]
    kernels: Sequence[Event]
    copies: Sequence[Event]
    memsets: Sequence[Event]
    operators: Sequence[Event]
    waits: Sequence[Event] = ()
    after: Sequence[Event] = ()
    stages: Sequence[Event] = ()
    attached: bool = True


def read_activity(events: Sequence[Event], steps: int, name: str = WINDOW) -> Activity:
    """Picks the events of the window called `name`; device events belong to it by correlation id, not by time.

    Raises ValueError when the trace has no such window.
    """
    window = _range(events, name)
    if window is None:
        raise ValueError(f"the trace has no range {name!r}")
    inside = _within(window, events)
    calls = _calls(inside)
    device = _device_events(calls, events)
    backward = (e for e in inside if e.get("cat") == "cpu_op" and e["name"].startswith(_AUTOGRAD))
    stepping = {window.get("tid"), *(e.get("tid") for e in backward)}
    join, filling = (_range(events, f"{kind} {name}") for kind in (JOIN, FILLING))
    at_end = {id(e) for e in _within(filling, inside)} if filling else set()
    return Activity(
        steps=steps,
        calls=calls,
        waits=[e for e in calls if SYNCHRONIZING.match(e["name"]) and e.get("tid") in stepping and id(e) not in at_end],
        kernels=[e for e in device if e.get("cat") == "kernel"],
        copies=[e for e in device if e.get("cat") == "gpu_memcpy"],
        memsets=[e for e in device if e.get("cat") == "gpu_memset"],
        operators=[e for e in inside if e.get("cat") == "cpu_op"],
        stages=_stages(inside, device, events),
        after=_device_events(_calls(_within(join, events)), events) if join else (),
    )


def _range(events: Sequence[Event], name: str) -> Event | None:
    return next((e for e in events if e.get("name") == name and e.get("cat") == "user_annotation"), None)


def _within(window: Event, events: Sequence[Event]) -> list[Event]:
    start, end = window["ts"], window["ts"] + window["dur"]
    return [e for e in events if e.get("ph") == "X" and start <= e["ts"] <= end]


def _calls(events: Sequence[Event]) -> list[Event]:
    return list(filter(is_call, events))


def is_call(event: Event) -> bool:
    """True for a call of the CUDA API."""
    return event.get("cat") in ("cuda_runtime", "cuda_driver")


def _stages(inside: Sequence[Event], device: Sequence[Event], events: Sequence[Event]) -> list[Event]:
    """Sorts the stages by time. Stages on the device belong to the window by time: they have no correlation id."""
    kind, among = "user_annotation", inside
    if device:
        start, end = min(e["ts"] for e in device), max(e["ts"] + e["dur"] for e in device)
        kind, among = "gpu_user_annotation", [e for e in events if start <= e["ts"] <= end]
    found = (e for e in among if e.get("cat") == kind and not e["name"].startswith(OURS))
    return sorted(found, key=lambda e: float(e["ts"]))


def _device_events(calls: Sequence[Event], events: Sequence[Event]) -> list[Event]:
    """Finds the device events that the calls caused, by correlation id."""
    wanted = {e["args"]["correlation"] for e in calls if "correlation" in e.get("args", {})}
    device = ("kernel", "gpu_memcpy", "gpu_memset")
    return [e for e in events if e.get("cat") in device and e.get("args", {}).get("correlation") in wanted]


def lost_kernels(activity: Activity) -> bool:
    """True where the trace has fewer kernels than launches: the profiler was not attached, or it dropped kernels.

    CUPTI of CUDA 12.6 to 13.0 can give kernels that begin after an idle time no valid timestamps, and drops them.
    Kernels that are launched while a graph is captured run when the graph is launched.
    """
    captures = any(_CAPTURE.match(e["name"]) for e in activity.calls)
    launched = sum(bool(LAUNCH.match(e["name"])) for e in activity.calls)
    replayed = any(GRAPH_LAUNCH.match(e["name"]) for e in activity.calls)
    ran_anything = activity.kernels or activity.copies or activity.memsets
    lost_some = launched > len(activity.kernels) if not captures else bool(launched and not activity.kernels)
    return not activity.attached or lost_some or (replayed and not ran_anything)


def signature(activity: Activity) -> dict[str, float]:
    """Counts per step, by name, the kernels, copies and waits on a GPU, or the operators on a CPU.

    Equal signatures mean equal work. The number of streams is a part of a signature: kernels side by side are other
    work than kernels one after another.
    """
    device = (*activity.kernels, *activity.copies, *activity.memsets)
    launches = (e for e in activity.calls if LAUNCH.match(e["name"]) or GRAPH_LAUNCH.match(e["name"]))
    ran = Counter(e["name"] for e in (*(device or activity.operators), *launches, *activity.waits))
    return {**{name: count / activity.steps for name, count in ran.items()}, STREAMS: _streams(device)}


def _streams(device: Sequence[Event]) -> int:
    return len({e["args"].get("stream") for e in device})


def counters(activity: Activity) -> dict[str, float]:
    """Computes counts, bytes and milliseconds per step, and fractions of the window, by `counter_names`."""
    steps = activity.steps
    names = [e["name"] for e in activity.calls]
    device = (*activity.kernels, *activity.copies, *activity.memsets)
    active, kernels, copies = map(union, (device, activity.kernels, activity.copies))
    window = active[-1][1] - active[0][0] if active else 1.0  # from the first to the last activity of the device
    # The 15 longest kernels of an average step are the 15 x steps longest ones of the window.
    longest = sorted((e["dur"] for e in activity.kernels), reverse=True)[: LONGEST * steps]
    per_step = {
        "kernel_launches": sum(bool(LAUNCH.match(name)) for name in names),
        "graph_launches": sum(bool(GRAPH_LAUNCH.match(name)) for name in names),
        "kernels": len(activity.kernels),
        "framework_kernels": sum(bool(FRAMEWORK.search(e["name"])) for e in activity.kernels),
        "tensor_core_kernels": sum(bool(TENSOR_CORES.search(e["name"])) for e in activity.kernels),
        "memsets": len(activity.memsets),
        "synchronizing_calls": len(activity.waits),
        "api_ms": sum(e["dur"] for e in activity.calls) / 1e3,
        "kernel_ms": sum(e["dur"] for e in activity.kernels) / 1e3,
        "pageable_copies": sum("Pageable" in e["name"] for e in activity.copies),
        **_copies_by_direction(activity.copies),
    }
    found = {
        **{name: value / steps for name, value in per_step.items()},
        "streams": _streams(device),
        "longest_kernels_mean_ms": sum(longest) / len(longest) / 1e3 if longest else 0.0,
        "active_fraction": length(active) / window,
        "kernel_fraction": length(kernels) / window,
        "copy_fraction": length(copies) / window,
        "overlap_fraction": _overlap(copies, kernels) / length(copies) if copies else 0.0,
    }
    communicating = [e for e in activity.kernels if COMMUNICATION.search(e["name"])]
    if not communicating:
        return found
    spans, others = union(communicating), union([e for e in activity.kernels if not COMMUNICATION.search(e["name"])])
    return {**found, "exposed_communication": (length(spans) - _overlap(spans, others)) / window}


def _copies_by_direction(copies: Sequence[Event]) -> dict[str, float]:
    counts = {f"{name}_{what}": 0.0 for name in _DIRECTIONS.values() for what in ("copies", "bytes", "ms")}
    for copy in copies:
        for spelling, name in _DIRECTIONS.items():
            if spelling in copy["name"]:
                counts[f"{name}_copies"] += 1
                counts[f"{name}_bytes"] += copy["args"].get("bytes", 0)
                counts[f"{name}_ms"] += copy["dur"] / 1e3
    return counts


def union(events: Sequence[Event]) -> list[Span]:
    """Merges events into disjoint spans, in order."""
    return _merge([(e["ts"], e["ts"] + e["dur"]) for e in events])


def _merge(spans: Sequence[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def length(spans: Sequence[Span]) -> float:
    return sum(end - start for start, end in spans)


def _overlap(left: Sequence[Span], right: Sequence[Span]) -> float:
    """Computes the length of the intersection of two lists of disjoint spans: their lengths, less that of the union."""
    return max(0.0, length(left) + length(right) - length(_merge([*left, *right])))


MOST_PARTS = 60  # by name; the rest of a long list is one part
LONGEST_NAME = 160  # C++ templates go on for thousands of characters
DIGITS = 6


def step_profile(activity: Activity) -> StepProfile:
    """Computes the profile of an average step among the counted steps."""
    steps, copies = activity.steps, (*activity.copies, *activity.memsets)
    found = _parts(activity.stages, steps)
    # In the order in which they begin.
    stages = {name: found[name] for stage in activity.stages if (name := stage["name"][:LONGEST_NAME]) in found}
    if not (activity.kernels or copies):
        operators = _own_times(activity.operators)
        own_ms = sum(e["dur"] for e in operators) / 1e3
        return StepProfile(kernels=_parts(operators, steps), stages=stages, kernel_ms=own_ms / steps)
    kernel_ms = length(union(activity.kernels)) / 1e3
    return StepProfile(
        kernels=_parts(activity.kernels, steps),
        copies=_parts(copies, steps),
        waits=_parts(activity.waits, steps),
        after=_parts(activity.after, 1),
        stages=stages,
        kernel_ms=kernel_ms / steps,
        copy_ms=(length(union((*activity.kernels, *copies))) / 1e3 - kernel_ms) / steps,
    )


def _own_times(operators: Sequence[Event]) -> list[Event]:
    """Lists the operators without the time of those that they call, which lie within them on the same thread."""
    own = {id(e): e["dur"] for e in operators}
    by_thread: dict[object, list[Event]] = defaultdict(list)
    for operator in sorted(operators, key=lambda e: (e["ts"], -e["dur"])):
        callers = by_thread[operator.get("tid")]
        while callers and callers[-1]["ts"] + callers[-1]["dur"] <= operator["ts"]:
            callers.pop()
        if callers:
            own[id(callers[-1])] -= operator["dur"]
        callers.append(operator)
    return [{"name": e["name"], "dur": own[id(e)]} for e in operators]


def _parts(events: Sequence[Event], steps: int) -> Parts:
    """Sums the events by name, the longest first."""
    times_ms: dict[str, list[float]] = defaultdict(list)
    for event in events:
        times_ms[event["name"][:LONGEST_NAME]].append(event["dur"] / 1e3)
    names = sorted(times_ms, key=lambda name: (-sum(times_ms[name]), name))
    if len(names) > MOST_PARTS:
        times_ms[OTHERS] = [ms for name in names[MOST_PARTS:] for ms in times_ms[name]]
        names = [*names[:MOST_PARTS], OTHERS]
    return {name: (len(times_ms[name]) / steps, float(f"{sum(times_ms[name]) / steps:.{DIGITS}g}")) for name in names}
