"""The bound of each side, one line a side, with the figures of its data path; and the reasons that its author gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpugate import units
from gpugate.explaining.bottleneck import bottleneck
from gpugate.results.case import CaseResult
from gpugate.results.run import RunResult

MATTERS = 0.01  # of what the bus can carry: of copies that are fewer there is nothing to say
ALIKE = 0.05  # who has read how long kernels run knows how long the GPU is active
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

    Several cases may share a side: the first that was counted speaks for it.
    """
    told: dict[str, str] = {}
    for case in run.cases.values():
        for side, words in _of_case(case):
            told.setdefault(side, words)
    lines = [f"{side}: {words}" for side, words in told.items()]
    paths = [words.partition("; ")[2] for words in told.values()]
    terms = "; ".join(f"{term}: {meaning}" for term, meaning in TERMS.items() if any(term in path for path in paths))
    return [*lines, *([f"({terms})"] if terms else [])]


def reasons(run: RunResult) -> list[str]:
    """The physics of every measured case that is no rung, as its author says it; a ladder says its own.

    Cases of one workload for which the same is said, such as the points of a sweep, share a line.
    """
    told: dict[tuple[str, str], list[str]] = {}
    for case in run.cases.values():
        if case.summary is not None and case.why and case.rung is None:
            told.setdefault((case.workload, case.why), []).append(case.optimization)
    return [f"{workload}/{', '.join(names)}: {why}" for (workload, why), names in told.items()]


def _of_case(case: CaseResult) -> Iterator[tuple[str, str]]:
    if case.measurement is None or case.summary is None:
        return
    found, summary = case.measurement, case.summary
    sides = (
        (case.compared_with, found.reference_counters, summary.reference_ms),
        (case.optimization, found.optimized_counters, summary.optimized_ms),
    )
    for name, counters, time in sides:
        words = bottleneck(counters, time.median)
        if words is not None:
            path = ", ".join([*_device(counters, words), *_host(counters, words)])
            yield f"{case.workload}/{name}", f"{words}; {path}" if path else words


def _device(counters: Mapping[str, float], words: str) -> Iterator[str]:
    """The figures of the GPU and the bus that the words lack."""
    active = counters.get("active_fraction", 0.0)
    longest = max(counters.get("kernel_fraction", 0.0), counters.get("copy_fraction", 0.0))
    if "active" not in words and not (" run " in words and active - longest < ALIKE):
        yield f"active {units.percent(active)}"
    if counters.get("bus_share", 0.0) >= MATTERS:
        yield f"hidden {units.percent(counters.get('overlap_fraction', 0.0))}"
        yield f"bus {units.percent(counters['bus_share'])}"
        if counters.get("pageable_copies", 0.0):
            yield f"pageable {counters['pageable_copies']:g}"


def _host(counters: Mapping[str, float], words: str) -> Iterator[str]:
    if "data_path_efficiency" in counters and "cached" not in words:
        yield f"data path {units.percent(counters['data_path_efficiency'])}"
    if counters.get("synchronizing_calls", 0.0) >= 1 and "waiting" not in words:
        yield f"waits {counters['synchronizing_calls']:g}"
