"""What the project set out to reach with a case, beside what its record or its stored runs reach.

The table is part of the page of figures that `python -m tools.figures` writes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from gpugate.measurement.derived import with_derived
from gpugate.report.table import Column, Table
from gpugate.results.case import CaseResult, summarize_decider
from tools.machines import Machine
from tools.markdown_table import Markdown
from tools.promises import RecordedCase, RunCase, Spread, load_cases, load_run_cases, load_runs, speedups
from tools.simulated_nights import load_entries

SPEEDUP, RATE, STEP_MS, CACHED_GAIN = "speedup", "items per second", "ms per step, at most", "gain on cached data"
CACHED_STEP = "cached_step_ms"
SHORT_KERNELS = "80 short kernels begin and end in a step, which takes as long for half of the bytes"


@dataclass(frozen=True)
class Target:
    """A quantity of a case that is to be reached: SPEEDUP, RATE, STEP_MS, CACHED_GAIN or the name of a counter.

    `goal` is the larger value that was hoped for, and `bound` says what bounds a missed one.
    """

    case: str
    quantity: str
    wanted: float
    goal: float | None = None
    bound: str = ""

    def __str__(self) -> str:
        return f"{self.wanted:,g}" + (f" ({self.goal:,g})" if self.goal is not None else "")

    def is_missed(self, value: float) -> bool:
        return value > self.wanted if self.quantity == STEP_MS else value < self.wanted


# Over PyTorch's defaults. Speedups over strict FP32 stand on the page that tools.inference_table writes.
TARGETS = (
    Target("resnet50-inference/tensorrt-fp16", SPEEDUP, 4.5),
    Target("resnet50-inference-batch1/cuda-graph", SPEEDUP, 2.5),
    Target("resnet50-inference-batch1/cudnn-fused", SPEEDUP, 3, 6),
    Target(
        *("resnet50-inference-batch1/cudnn-fused", RATE, 3333),
        bound="56 kernels of 2.5 to 14 us leave most multiprocessors idle; `split-k` divides their sums and reaches it",
    ),
    Target("resnet50-inference-batch1/split-k", RATE, 3333),
    Target("two-layer-net/all", SPEEDUP, 3, 5),
    Target("resnet18-training/whole-ladder", SPEEDUP, 15, 20),
    Target("resnet18-training/whole-ladder", RATE, 20_000, 24_000),
    Target("resnet18-training/amp-fp16", CACHED_GAIN, 1.3),
    Target("resnet18-training/compile", CACHED_GAIN, 1.5),
    Target("driving/best", RATE, 400, 600),
    Target("driving/prefetcher", "data_path_efficiency", 0.95, 0.97),
    Target("streaming-compute/pipelined", SPEEDUP, 4, 4.8),
    Target(
        *("streaming-compute/pipelined", "active_fraction", 0.95, 0.97),
        bound="the threads read more slowly on some hosts, whose memory others share: `results/lessons.md`",
    ),
    Target(
        *("streaming-copy/pipelined", "bus_share", 0.85, 0.95),
        bound="what is copied is read from the host's memory, which others of the host share: `results/lessons.md`",
    ),
    Target("video/decode/nvdec-sessions", SPEEDUP, 3, 5),
    Target("video/decode-hevc/nvdec-sessions", SPEEDUP, 3, 5),
    Target("video/preprocess/torch-gpu", SPEEDUP, 10, 30),
    Target("video/preprocess/triton", STEP_MS, 0.04),
    Target("video/composite/torch-gpu", SPEEDUP, 10, 30),
    Target(
        *("video/composite/triton", STEP_MS, 0.05),
        bound="two kernels, one a plane, blur and blend for 0.12 ms, beside five small ones; the host launches them",
    ),
    Target(
        *("video/end-to-end/optimized-x264", SPEEDUP, 7),
        bound="libx264 alone takes nine tenths of the step on the 16 cores of an H200's host, and of the reference's; "
        "four segments, encoded side by side, are 1.2x as fast as one file, with 1.13x the bytes",
    ),
    Target(
        *("video/end-to-end/optimized-x264", "whole_run_speedup", 13.4),
        bound="the same; the 13.4x are of a GPU with an encoder for H.264, which an H200 lacks",
    ),
    Target(
        *("video/end-to-end/optimized-nvjpeg", "active_fraction", 0.8, 0.95),
        bound="two of four processes had 0.6 in the traced steps; their timed steps took as long as the others'",
    ),
    Target(
        *("video/end-to-end/optimized-nvjpeg", "whole_run_speedup", 13.4, 25),
        bound="the start-up takes nearly half of the 1.3 s of 600 frames",
    ),
    Target("migration/pinned", "active_fraction", 0.9),
    *(
        Target(f"gpu-operator-{operator}/triton", "copy_share", 0.7)
        for operator in ("rms-norm", "swiglu", "softmax", "cross-entropy", "layer-norm")
    ),
    Target("llm-decode/fused-gemv", "copy_share", 0.7),
    Target("llm-decode/int8", "copy_share", 0.55),
    Target("llm-decode/int8", SPEEDUP, 1.6, bound=f"{SHORT_KERNELS}; over the compiled graph it has 2.3x"),
    Target("llm-decode/fp8", SPEEDUP, 1.5, bound=SHORT_KERNELS),
)


def list_targets(machine: Machine) -> Iterator[tuple[Target, Spread]]:
    """Yields each target with what the processes of the case's record reach, or its stored runs without a record."""
    held: dict[str, RecordedCase | RunCase] = {**load_cases(machine), **load_run_cases(machine)}
    for target in TARGETS:
        found = held.get(f"{target.case}/cuda")
        reached = _find_spread(target, found, machine) if found is not None else None
        if reached is not None:
            yield target, reached


def _find_spread(target: Target, found: RecordedCase | RunCase, machine: Machine) -> Spread | None:
    """None where no process counted it. Counters are of the stored runs, since a record has only the largest values."""
    if isinstance(found, RunCase):
        values = [_read(target, one.result) for one in found.runs]
    elif target.quantity == SPEEDUP:
        return speedups(found.entry.record)
    else:
        rates = found.items_per_s
        if target.quantity == RATE:
            return rates
        if target.quantity == STEP_MS:
            return Spread.of([1e3 * found.case.size.items / rate for rate in (rates.low, rates.median, rates.high)])
        values = [_read(target, result) for result in _load_results(machine)[found.case.id]]
    counted = [value for value in values if value is not None]
    return Spread.of(counted) if counted else None


@cache
def _load_results(machine: Machine) -> Mapping[str, Sequence[CaseResult]]:
    """The results of each recorded case in the stored runs whose sources are those of the record, by the case's id."""
    found, entries = defaultdict[str, list[CaseResult]](list), load_entries(machine)
    for run in load_runs(machine):
        for case_id, result in run.cases.items():
            entry = entries.get(case_id)
            if entry is not None and run.source_hashes.get(result.workload) == entry.record.source_hash:
                found[case_id].append(result)
    return found


def _read(target: Target, result: CaseResult) -> float | None:
    """The value of one stored run; None where it was not counted."""
    decided = summarize_decider(result)
    if decided is None or result.measurement is None:
        return None
    if target.quantity == SPEEDUP:
        return decided.speedup.median
    if target.quantity == STEP_MS:
        return decided.optimized_ms.median
    if target.quantity == RATE:
        return result.size.items_per_second(decided.optimized_ms.median)
    counted = with_derived(result.measurement, result.size, {})
    reference, optimized = counted.reference_counters, counted.optimized_counters
    if target.quantity == CACHED_GAIN:
        return reference[CACHED_STEP] / optimized[CACHED_STEP] if CACHED_STEP in optimized else None
    return optimized.get(target.quantity)


def _write(target: Target, found: Spread) -> str:
    if target.quantity in (SPEEDUP, CACHED_GAIN):
        return found.as_speedup()
    if target.quantity == RATE:
        return found.as_rate()
    ends = dict.fromkeys(f"{value:.3g}" for value in (found.low, found.high))
    return f"{found.median:.3g}" + (f" ({'..'.join(ends)})" if len(ends) > 1 else "")


def make_table(machine: Machine) -> Table:
    """A row for each target; what is missed is bold, with what bounds it."""
    rows = []
    for target, found in list_targets(machine):
        missed, spread = target.is_missed(found.median), _write(target, found)
        measured = Markdown(f"**{spread}**") if missed else spread
        rows.append((f"`{target.case}`", target.quantity, f"{target}", measured, target.bound if missed else ""))
    columns = (Column("case", left=True), Column("quantity", left=True), Column("target"), Column("reached"))
    return Table("", (*columns, Column("what bounds a missed one", left=True)), tuple(rows))
