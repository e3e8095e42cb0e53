"""A profile in numbers: what the steps of one report made the host and the device do.

Counts and times are of all steps together, unless their name says otherwise; `counters` are per step and named as in
gpugate.counter_names, with the same definitions as a counting pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpugate.profiling import device_activity, host_calls, idle_gaps
from gpugate.profiling.artifact_names import REPORT
from gpugate.profiling.counted_calls import Steps, find_calls, find_steps
from gpugate.profiling.device_activity import Copies, Graphs, Kernel, Stream, find_activity
from gpugate.profiling.expert_rules import Finding, findings
from gpugate.profiling.export_counters import KNOWN_OF_WHOLE_GRAPHS, fractions, totals_of_activity, totals_of_calls
from gpugate.profiling.export_schema import EXPORT_AGAIN, Export, ProfileError, opened
from gpugate.profiling.host_calls import Call, Memory, Wait
from gpugate.profiling.idle_gaps import Active, Gap, IdleWhile, find_gaps
from gpugate.profiling.nsight_tools import Nsys
from gpugate.profiling.projection import ProjectedRange, find_ranges, projected


@dataclass(frozen=True)
class ProfileSummary:
    """Everything that is kept of a report. `items` is the sum of the steps' payloads, 0 where they have none."""

    report: str  # the file's name
    product: str  # the version of Nsight Systems that exported it
    schema: str
    gpu: str
    steps: int
    items: float
    span_ms: float  # from the start of the first step to the end of the last, on the host
    counters: Mapping[str, float]
    active: Active
    kernels: tuple[Kernel, ...]
    calls: tuple[Call, ...]
    copies: tuple[Copies, ...]
    waits: tuple[Wait, ...]
    gaps: tuple[Gap, ...]
    idle_while: tuple[IdleWhile, ...]
    ranges: tuple[ProjectedRange, ...]
    streams: tuple[Stream, ...]
    graphs: Graphs
    memory: tuple[Memory, ...]
    notes: tuple[str, ...]
    findings: tuple[Finding, ...] = ()


def summarize(sqlite: Path, steps: int | None = None, window: str | None = None) -> ProfileSummary:
    """What one export of nsys says of its steps, worked out in SQL: no event becomes an object.

    `steps`: how many there must be; for a report that marks none, how many the whole report is. `window`: what the
    range around them must be called, if one is there. Raises ProfileError for a file that cannot be used, is older than
    its report, holds other steps, or nothing of CUDA in them.
    """
    with opened(sqlite) as export:
        refuse_stale(sqlite)
        try:
            found = find_steps(export, steps)
            if window is not None and found.window not in (None, window):
                raise ProfileError(f"it holds the steps of {found.window} and not of {window}: profile again")
            return _summary(export, sqlite.name, found)
        except ProfileError as error:
            raise ProfileError(f"{sqlite} cannot be summarized: {error}") from None


def with_findings(summary: ProfileSummary, sqlite: Path, nsys: Nsys | None = None) -> ProfileSummary:
    """The summary with what nsys's expert rules found in the export, or with a note why they were not run.

    Without an `nsys` it is the one that is found.
    """
    try:
        return replace(summary, findings=findings(sqlite, nsys))
    except ProfileError as error:
        return replace(summary, notes=(*summary.notes, f"nsys's expert rules were not run: {error}"))


def refuse_stale(sqlite: Path) -> None:
    """Raises ProfileError where the report beside the export is newer than the export."""
    report = sqlite.with_suffix(REPORT)
    try:
        stale = sqlite.stat().st_mtime < report.stat().st_mtime
    except OSError:
        return
    if stale:
        raise ProfileError(f"{sqlite} is older than its report: give {report} instead, or {EXPORT_AGAIN}")


def _summary(export: Export, name: str, steps: Steps) -> ProfileSummary:
    find_ranges(export, steps)
    find_calls(export, steps)
    calls = host_calls.calls(export)
    if not calls:
        raise ProfileError("no CUDA call begins in its steps: profile with --trace=cuda,nvtx what runs on a GPU")
    find_activity(export)
    find_gaps(export)
    waits, active = host_calls.waits(export), idle_gaps.active(export)
    kernels, copies = device_activity.kernels(export), device_activity.copies(export)
    streams, graphs = device_activity.streams(export), device_activity.graphs(export)
    totals = {**totals_of_calls(calls, waits), **totals_of_activity(kernels, copies, streams)}
    counters = {
        **{counter: value / steps.count for counter, value in totals.items()},
        "streams": float(len({stream.stream for stream in streams})),
        "longest_kernels_mean_ms": device_activity.longest_kernels_mean_ms(export, steps.count),
        **fractions(active),
    }
    return ProfileSummary(
        report=name,
        product=export.product,
        schema=export.schema,
        gpu=", ".join(dict.fromkeys(gpu for (gpu,) in export.rows("SELECT name FROM gpu") if gpu)),
        steps=steps.count,
        items=steps.items,
        span_ms=(steps.last - steps.first) / 1e6,
        counters={counter: counters[counter] for counter in KNOWN_OF_WHOLE_GRAPHS} if graphs.whole else counters,
        active=active,
        kernels=kernels,
        calls=calls,
        copies=copies,
        waits=waits,
        gaps=idle_gaps.largest(export, steps.first),
        idle_while=idle_gaps.idle_while(export),
        ranges=projected(export, steps),
        streams=streams,
        graphs=graphs,
        memory=host_calls.memory_use(export, steps),
        notes=(*export.notes, *_missing(kernels, graphs)),
    )


def _missing(kernels: Sequence[Kernel], graphs: Graphs) -> list[str]:
    if graphs.whole:
        return [
            f"{graphs.whole} graph launches were recorded only whole, so kernels and copies inside them are not "
            "counted: profile with --cuda-graph-trace=node"
        ]
    if not kernels:
        return ["no kernel ran because of the steps: profile with --trace=cuda if some should have"]
    return []
