"""The bound of each side, one line a side, with the figures of its data path; and the reasons that its author gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpugate import units
from gpugate.explaining.bottleneck import Kind, bottleneck
from gpugate.results.case import CaseResult
from gpugate.results.run import RunResult

MATTERS = 0.01  # share of the page-locked copy rate: a side with a smaller share has no line for its copies
ALIKE = 0.05  # where the active share differs less from the share of kernels or copies, one figure is enough
TERMS = {
    "active": "the GPU's busy time",
    "hidden": "copying time under which a kernel ran",
    "bus": "bytes over the bus, of what page-locked copies carry in that time",
    "pageable": "copies per step from or to memory that is not page-locked",
    "data path": "a step on cached data, of its real time",
    "waits": "calls per step with which the host waits for the GPU",
}


def bounds(run: RunResult) -> list[str]:
    """`two-layer-net/all: launch-bound: ...`, each side once, and what the terms mean; empty where nothing was counted.

    Several cases may share a side: the line is that of the first case whose counters are known.
    """
    lines: dict[str, str] = {}
    terms: set[str] = set()
    for case in run.cases.values():
        for side, words, figures in _describe_sides(case):
            if side not in lines:
                path = ", ".join(f"{term} {figure}" for term, figure in figures.items())
                lines[side] = f"{side}: {words}; {path}" if path else f"{side}: {words}"
                terms.update(figures)
    meanings = "; ".join(f"{term}: {meaning}" for term, meaning in TERMS.items() if term in terms)
    return [*lines.values(), *([f"({meanings})"] if meanings else [])]


def reasons(run: RunResult) -> list[str]:
    """The author's reason for the speedup of every measured case that is no rung; a ladder shows its own reasons.

    Cases of one workload with one reason, such as the points of a sweep, share a line.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for case in run.cases.values():
        if case.summary is not None and case.why and case.rung is None:
            found.setdefault((case.workload, case.why), []).append(case.optimization)
    return [f"{workload}/{', '.join(names)}: {why}" for (workload, why), names in found.items()]


def _describe_sides(case: CaseResult) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Each side with its bottleneck in words, and the further figures by the terms of TERMS."""
    if case.measurement is None or case.summary is None:
        return
    found, summary = case.measurement, case.summary
    sides = (
        (case.compared_with, found.reference_counters, summary.reference_ms),
        (case.optimization, found.optimized_counters, summary.optimized_ms),
    )
    for name, counters, time in sides:
        bound = bottleneck(counters, time.median)
        if bound is not None:
            figures = dict([*_device(counters, bound.kind), *_host(counters, bound.kind)])
            yield f"{case.workload}/{name}", f"{bound.kind}: {bound.figures}", figures


def _device(counters: Mapping[str, float], kind: Kind) -> Iterator[tuple[str, str]]:
    """The figures of the GPU and the bus that the bottleneck does not name."""
    active = counters.get("active_fraction", 0.0)
    longest = max(counters.get("kernel_fraction", 0.0), counters.get("copy_fraction", 0.0))
    if kind == "data-bound" or (kind in ("copy-bound", "kernel-bound") and active - longest >= ALIKE):
        yield "active", units.percent(active)
    if counters.get("bus_share", 0.0) >= MATTERS:
        yield "hidden", units.percent(counters.get("overlap_fraction", 0.0))
        yield "bus", units.percent(counters["bus_share"])
        if counters.get("pageable_copies", 0.0):
            yield "pageable", f"{counters['pageable_copies']:g}"


def _host(counters: Mapping[str, float], kind: Kind) -> Iterator[tuple[str, str]]:
    if "data_path_efficiency" in counters and kind != "data-bound":
        yield "data path", units.percent(counters["data_path_efficiency"])
    if counters.get("synchronizing_calls", 0.0) >= 1 and kind != "sync-bound":
        yield "waits", f"{counters['synchronizing_calls']:g}"
