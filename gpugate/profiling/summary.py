"""A profile in numbers: the work of the host and the device in the steps of one report.

Counts and times are of all steps together, unless their name says otherwise; `counters` are per step and named as in
gpugate.counter_names, with the same definitions as a counting pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpugate.explaining.state import State
from gpugate.measurement.step_profile import Parts, StepProfile
from gpugate.profiling import device_activity, host_calls
from gpugate.profiling.capture_index import DOMAIN, STEP
from gpugate.profiling.export_schema import Export, ProfileError, open_export
from gpugate.profiling.nsight_tools import Nsys, RuleFinding, findings
from gpugate.store.json_file import JsonFile, NextSteps
from gpugate.units import Natural, Positive

COPIED = ("host_to_device", "device_to_host", "device_to_device")
# What is known of a graph that was recorded whole. A counter that would be too small is left out.
KNOWN_OF_WHOLE_GRAPHS = ("kernel_launches", "graph_launches", "synchronizing_calls", "api_ms", "active_fraction")


@dataclass(frozen=True)
class ProfileSummary:
    """Everything that is kept of a report. `items` is the sum of the steps' payloads, 0 where they have none."""

    report: str  # the file's name
    product: str  # the version of Nsight Systems that exported it
    schema: str
    gpu: str
    steps: Natural
    items: float
    span_ms: Positive  # from the start of the first step to the end of the last, on the host
    counters: Mapping[str, float]
    active: device_activity.Active
    kernels: tuple[device_activity.Kernel, ...]
    calls: tuple[host_calls.Call, ...]
    copies: tuple[device_activity.Copies, ...]
    waits: tuple[host_calls.Wait, ...]
    gaps: tuple[device_activity.Gap, ...]
    idle_while: tuple[device_activity.IdleWhile, ...]
    ranges: tuple[host_calls.ProjectedRange, ...]
    streams: tuple[device_activity.Stream, ...]
    graphs: device_activity.Graphs
    memory: tuple[device_activity.Memory, ...]
    notes: tuple[str, ...]
    findings: tuple[RuleFinding, ...] = ()


def summarize(sqlite: Path, steps: int | None = None, window: str | None = None) -> ProfileSummary:
    """Summarizes an export of nsys in SQL: no event becomes an object.

    `steps` is as in `find_steps`; `window` is the name of the range around the steps, if there is one. Raises
    ProfileError for a file that cannot be used, has other steps, or has nothing of CUDA in them.
    """
    with open_export(sqlite) as export:
        try:
            found = host_calls.find_steps(export, steps)
            if window is not None and found.window not in (None, window):
                raise ProfileError(f"it contains the steps of {found.window} and not of {window}: profile again")
            return _summary(export, sqlite.name, found)
        except ProfileError as error:
            raise ProfileError(f"{sqlite} cannot be summarized: {error}") from None


def with_findings(summary: ProfileSummary, sqlite: Path, nsys: Nsys | None = None) -> ProfileSummary:
    """The summary with the findings of nsys's expert rules, or with a note why they did not run."""
    try:
        return replace(summary, findings=findings(sqlite, nsys))
    except ProfileError as error:
        return replace(summary, notes=(*summary.notes, f"nsys's expert rules were not run: {error}"))


def _summary(export: Export, name: str, steps: host_calls.Steps) -> ProfileSummary:
    host_calls.find_ranges(export, steps)
    host_calls.find_calls(export, steps)
    calls = host_calls.calls(export)
    if not calls:
        raise ProfileError("no CUDA call begins in its steps: profile with --trace=cuda,nvtx what runs on a GPU")
    device_activity.find_activity(export)
    device_activity.find_gaps(export)
    summary = ProfileSummary(
        report=name,
        product=export.product,
        schema=export.schema,
        gpu=", ".join(dict.fromkeys(gpu for (gpu,) in export.rows("SELECT name FROM gpu") if gpu)),
        steps=steps.count,
        items=steps.items,
        span_ms=(steps.last - steps.first) / 1e6,
        counters={},
        active=device_activity.Active(*export.row(device_activity.ACTIVE)),
        kernels=device_activity.kernels(export),
        calls=calls,
        copies=device_activity.copies(export),
        waits=host_calls.waits(export),
        gaps=device_activity.largest(export, steps.first),
        idle_while=device_activity.idle_while(export),
        ranges=host_calls.project_ranges(export, steps),
        streams=export.each(device_activity.Stream, device_activity.STREAMS),
        graphs=device_activity.Graphs(*export.row(device_activity.GRAPHS)),
        memory=device_activity.memory_use(export, steps),
        notes=tuple(export.notes),
    )
    (longest_ms,) = export.row(device_activity.LONGEST_MEAN_MS, steps=steps.count)
    counters = _counters(summary, longest_ms)
    if summary.graphs.whole:
        counters = {counter: counters[counter] for counter in KNOWN_OF_WHOLE_GRAPHS}
        export.notes.append(
            f"{summary.graphs.whole} graph launches were recorded only whole, so kernels and copies inside them are "
            "not counted: profile with --cuda-graph-trace=node"
        )
    elif not summary.kernels:
        export.notes.append("no kernel ran because of the steps: profile with --trace=cuda if some should have")
    return replace(summary, counters=counters, notes=tuple(export.notes))


def _counters(summary: ProfileSummary, longest_ms: float) -> dict[str, float]:
    """The counters of an average step, with the names and definitions of a counting pass."""
    kernels, copies, active = summary.kernels, summary.copies, summary.active
    totals: dict[str, float] = {
        "kernel_launches": sum(call.count for call in summary.calls if call.launch),
        "graph_launches": sum(call.count for call in summary.calls if call.graph_launch),
        "synchronizing_calls": sum(wait.count for wait in summary.waits if wait.of_steps),
        "api_ms": sum(call.ms for call in summary.calls),
        "kernel_ms": sum(kernel.ms for kernel in kernels),
        "kernels": sum(kernel.count for kernel in kernels),
        "framework_kernels": sum(kernel.count for kernel in kernels if kernel.framework),
        "tensor_core_kernels": sum(kernel.count for kernel in kernels if kernel.tensor_cores),
        "memsets": sum(stream.memsets for stream in summary.streams),
        "pageable_copies": sum(copy.count for copy in copies if "pageable" in (copy.source, copy.target)),
    }
    copied = {way: [copy for copy in copies if copy.direction.replace(" ", "_") == way] for way in COPIED}
    totals |= {f"{way}_copies": sum(copy.count for copy in found) for way, found in copied.items()}
    totals |= {f"{way}_bytes": sum(copy.bytes for copy in found) for way, found in copied.items()}
    totals |= {f"{way}_ms": sum(copy.ms for copy in found) for way, found in copied.items()}
    busy = {"active": active.any_ms, "kernel": active.kernel_ms, "copy": active.copy_ms}
    return {
        **{counter: value / summary.steps for counter, value in totals.items()},
        "streams": float(len({stream.stream for stream in summary.streams})),
        "longest_kernels_mean_ms": longest_ms,
        **{f"{name}_fraction": ms / active.window_ms if active.window_ms else 0.0 for name, ms in busy.items()},
        "overlap_fraction": active.overlap_ms / active.copy_ms if active.copy_ms else 0.0,
    }


FILE = JsonFile(
    "gpugate-profile",
    1,  # History: 1: ProfileSummary as it is.
    ProfileSummary,
    ProfileError,
    NextSteps(
        unreadable="give the summary of a profile",
        damaged="make it again with `gpugate profile --json`",
        other_version="make the summary again",
        unwritable="give another path",
    ),
)
summary_text, write_summary, read_summary = FILE.encode, FILE.write, FILE.read


def step_state(summary: ProfileSummary) -> State:
    """The state of an average step. Its time is the profiled one, which is longer than without a profiler."""
    steps, active = summary.steps, summary.active
    in_order = sorted(summary.ranges, key=lambda one: one.opens_ms)
    stages = [one for one in in_order if one.domain == DOMAIN and one.name != STEP]
    copies = [(f"{one.direction} ({one.source} -> {one.target})", one.count, one.ms) for one in summary.copies]
    profile = StepProfile(
        kernels=_parts(((one.name, one.count, one.ms) for one in summary.kernels), steps),
        copies=_parts(copies, steps),
        waits=_parts(((one.call, one.count, one.ms) for one in summary.waits if one.of_steps), steps),
        stages=_parts(((one.name, one.count, one.gpu_span_ms or one.host_ms) for one in stages), steps),
        kernel_ms=active.kernel_ms / steps,
        copy_ms=(active.either_ms - active.kernel_ms) / steps,
    )
    return State(summary.span_ms / steps, {**summary.counters, **_enqueue_time(summary)}, profile)


def _enqueue_time(summary: ProfileSummary) -> dict[str, float]:
    """The host's time in a step without its waits for the device; empty where no range is a step.

    A wait between two steps is in no range of ours, but may be in one of another domain, where it is subtracted too.
    """
    host_ms = next((one.host_ms for one in summary.ranges if (one.domain, one.name) == (DOMAIN, STEP)), None)
    if host_ms is None:
        return {}
    waited_ms = sum(one.ms for one in summary.waits if one.of_steps and one.nvtx_range)
    return {"enqueue_ms": max(0.0, host_ms - waited_ms) / summary.steps}


def _parts(found: Iterable[tuple[str, float, float]], steps: int) -> Parts:
    """Parts of a step by name."""
    together: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for name, count, ms in found:
        together[name][0] += count / steps
        together[name][1] += ms / steps
    return {name: (count, ms) for name, (count, ms) in together.items()}
