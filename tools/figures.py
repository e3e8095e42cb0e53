"""The figures of a GPU: the newest stored process of each case whose sides have not changed since.

`python -m tools.figures` writes figures.md of each machine below results/, from the runs in its archives.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import get_args

from gpugate import units
from gpugate.measurement.progress import Doing
from gpugate.measurement.record import Counters
from gpugate.report.table import Column, Table, columns
from gpugate.report.view import RunView
from gpugate.results.case import CaseResult
from gpugate.results.run import RunResult
from gpugate.store import run_file
from tools.archive import list_files
from tools.machines import H200, MACHINES, ROOT, Machine, is_outdated, list_cases
from tools.markdown_table import plain, write_markdown
from tools.targets import make_table

FOLDERS = ("runs", "slow-host", "another-host", "night")
PROBES = ("launch_latency_us", "device_copy_gb_per_s", "pinned_copy_gb_per_s", "matmul_bf16_tflops")
# Of a step of each side, in the order of the columns.
BILL: Mapping[str, str] = {
    "kernel_ms": "GPU work, ms",
    "cpu_ms": "CPU time, ms",
    "kernels": "kernels",
    "kernel_launches": "launches",
    "graph_launches": "graph launches",
    "synchronizing_calls": "waiting calls",
    "peak_bytes": "peak memory, GB",
}


@dataclass(frozen=True)
class Newest:
    """The newest process of a case, and the run that has it."""

    run: RunResult
    case: CaseResult


def load_newest(machine: Machine) -> dict[str, Newest]:
    """Loads the newest process of each case, by its id, in the order of the catalogue."""
    cases, found = {case.id: case for case in list_cases("cuda")}, dict[str, Newest]()
    paths = [path for folder in FOLDERS for path in list_files(machine.results / folder, "*.json")]
    for run in sorted(map(run_file.read, paths), key=lambda run: run.started_at):
        for case_id, result in run.cases.items():
            case = cases.get(case_id)
            if case is None or result.measurement is None or is_outdated(case, run.started_at):
                continue
            if result.compared_with == case.reference_name:
                found[case_id] = Newest(run, result)
    return {case_id: found[case_id] for case_id in cases if case_id in found}


def write_page(machine: Machine, newest: Mapping[str, Newest]) -> str:
    """Writes the figures of a machine in Markdown."""
    runs = sorted({id(one.run): one.run for one in newest.values()}.values(), key=lambda run: run.started_at)
    view = RunView(replace(runs[-1], cases={case_id: one.case for case_id, one in newest.items()}))
    beside_s = _find_typical_s(newest)
    series = "\n\n".join(map(write_markdown, view.series))
    bounds = "\n".join(f"- {plain(line)}" for line in [*view.whole_runs, *view.bounds])
    return f"""# Figures of an {machine.gpu}

`python -m tools.figures` writes this page from the stored runs: the newest process of each case whose sides have not
changed since. A case without such a run stands in [promises.md](promises.md). A process is measured alone, with other
cases before it. An interval is one-sided 99 % at each end. The speedup of a case is over the reference that its row
names, else over the baseline: eager PyTorch with its own defaults, or a library of the host; of `memory-access` a
kernel in Triton, of `llm-batch` and `llm-decode-8k` a CUDA graph, of `float8-training` compiled code.

## The hosts

The newest one: {", ".join(runs[-1].environment.facts)}.

{write_markdown(_hosts(runs, newest))}

## Cases

{write_markdown(view.results.drop("MDE", "verdict"))}

{series}

## Targets

What the project set out to reach, and in brackets the larger value that was hoped for, beside the median and the range
of the recorded processes, or where no record has these sides, of the stored ones. Counters are of the stored runs with
the sources of the record. **Bold**: missed.

{write_markdown(make_table(machine))}

{_write_code_targets() if machine is H200 else ""}

## The bill of a step

Each cell has the reference's value and the optimized side's.

{write_markdown(_bills(newest))}

## The time of a night

Seconds of one process of each case, by what it does, without further processes and duets. The machines were bare: they
built what a machine that keeps the caches of Inductor and TensorRT finds there. The goal of a night is at most 25
minutes on one GPU, and 13 on two: a miss, since half of the cases take {beside_s:.0f} s or more beside their builds. A
case of the newer pages was to take 15 s: the column of the longest case shows which do not, most by their builds.

{write_markdown(_night(newest))}

## What bounds each side

{bounds}
"""


def _write_code_targets() -> str:
    """Writes the targets of the code of the workloads that no run shows, and what bounds them."""
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "workloads/video").glob("*.py"))
    return f"""Missed, though no run shows it:

- `workloads/video/` has {lines:,} lines, and about 3,000 were wanted. Ten rungs end to end, two codecs to
  decode, and proofs that each file is whole and each frame is the right one take the rest.
- A reader opens 5 to 11 files for `whole-ladder`, `prefetcher`, `pipelined`, `llm-decode/int8` and `cudnn-fused`, and 3
  were wanted; 13 to 17 for `optimized-nvjpeg`, and 8 were wanted. The further ones have what several cases share: the
  loader, the trainer, the model, the stages, the photographs.
- The rungs of the video and of both training ladders are rows of settings: each was wanted at the line where it acts.
- Some rungs of the video are slower than in their older records. `decode/nvdec-sessions` decodes two thirds of the
  frames per second, in steps of 16 frames instead of 32, and the cause is not known. `encode/nvjpeg` encodes half, and
  `x264-overlapped` less than half: a step writes files of 16 frames instead of 64. `preprocess/cvcuda` takes 0.59 ms
  instead of 0.37, for which its launches take 0.57. The ends that write Motion JPEG take 6 to 10 % longer, and three
  rungs of `segment` 4 to 6 %; these causes are not known either. Promises over OpenCV and over the eager network fell,
  since those references take 0.3 to 0.6 of their older time.
- nvJPEG is called through ctypes, where a library was wanted: the encoder of torchvision has one stream behind a lock
  ([lessons](../lessons.md#video)). Checkpoints are files of `torch.save`, read with `weights_only`.
- `parts/cudnn_fusion.py` has its own call of torch.compile: what it compiles is the same for all sides.
- Rungs that were wanted and do not exist: softmax, layer norm and SwiGLU by a library (PyTorch's own kernels are the
  reference of the first two, and it has none of the third); attention by SDPA, which knows no mask but the causal one
  without a tensor for it; `channels_last` in `diffusion-step`, which has no convolution. Every rung of `llm-serving`
  has pages of keys and values. A proof computes PSNR for `step-cache` alone.
- The program that `migration` begins with keeps the GPU active for 0.28 to 0.32 of the time, and 0.2 was wanted.
- No case of RMSNorm, SwiGLU, softmax, fp8, 2:4 sparsity and the transpose runs on a CPU: what they show is the
  memory and the tensor cores of a GPU. No limit shows the tensor cores of `int4`.
- No limit gates sectors a request, conflicts of banks and occupancy of `memory-access` and `memory-transpose`: only a
  second run under Nsight Compute counts them ([an example](profiles/memory-transpose.kernels.md)).
- The Triton stages of the video have no ceiling: the frames of a step fit in the L2 cache.
- The GPU waits for the host in a part of the newer pages: `compile-modes` but for `reduce-overhead`, `llm-serving`,
  `llm-speculative`, `llm-decode` without a graph, `llm-prefill/fused-attention`, three rungs of `diffusion-step`, two
  each of `mixture-of-experts` and `optimizer-step`, `int4`, and the Triton stages of the video. The end of this page
  has what bounds each.
- `compile-modes/ahead-of-time` has no record: torch's loader of its package crashed on three of five hosts
  ([lessons](../lessons.md#inference)).
- A ring of `streaming`, one of `two-layer-net` and the prefetcher of the loaders stay apart: the first two are what
  their pages teach."""


def _hosts(runs: Sequence[RunResult], newest: Mapping[str, Newest]) -> Table:
    """A row for each GPU: a GPU was at hand for minutes, and its virtual machines had other numbers of cores."""
    counted = Counter(id(one.run) for one in newest.values())
    names = "first run of a GPU, UTC", "runs", "cases", "driver", "torch", "cores"
    rows = []
    for group in _group_by_gpu(runs):
        machine, cases = group[0].environment, sum(counted[id(run)] for run in group)
        rows.append(
            (
                *(group[0].started_at[:16].replace("T", " "), str(len(group)), str(cases)),
                *(machine.driver or "", machine.packages.get("torch", "")),
                " or ".join(dict.fromkeys(str(run.environment.cpu_count) for run in group)),
                *(_describe_range(group, name) for name in PROBES),
            )
        )
    return Table("", columns(*names, *map(units.yardstick_label, PROBES)), tuple(rows))


def _group_by_gpu(runs: Sequence[RunResult]) -> list[list[RunResult]]:
    """The runs of each GPU, which is the first one where a machine has several. A run that names none is alone."""
    groups: dict[str, list[RunResult]] = {}
    for run in runs:
        gpu = run.provenance.gpu_uuid if run.provenance is not None else None
        groups.setdefault(gpu or run.started_at, []).append(run)
    return list(groups.values())


def _describe_range(runs: Sequence[RunResult], probe: str) -> str:
    """The lowest and the highest median of a probe over the runs."""
    found = [[one.values[probe] for one in run.yardsticks if probe in one.values] for run in runs]
    medians = [median(values) for values in found if values]
    ends = dict.fromkeys(units.yardstick_value(probe, end) for end in (min(medians), max(medians))) if medians else ()
    return " to ".join(ends)


def _bills(newest: Mapping[str, Newest]) -> Table:
    rows = []
    for case_id, one in newest.items():
        found = one.case.measurement
        if found is not None:
            sides = found.reference_counters, found.optimized_counters
            rows.append((case_id.removesuffix("/cuda"), *(_pair(sides, name) for name in BILL)))
    return Table("", (Column("case", left=True), *map(Column, BILL.values())), tuple(rows))


def _night(newest: Mapping[str, Newest]) -> Table:
    """A row for all cases, then one for each workload, the longest first."""
    cases: dict[str, list[Mapping[str, float]]] = {}
    for workload, spent_s in _list_spent(newest):
        for name in ("all", workload):
            cases.setdefault(name, []).append(spent_s)
    parts = [doing for doing in get_args(Doing) if any(doing in spent_s for spent_s in cases["all"])]
    rows = []
    for name, spent in sorted(cases.items(), key=lambda item: -sum(map(_total, item[1]))):
        of_parts = (sum(spent_s.get(part, 0.0) for spent_s in spent) for part in parts)
        seconds = sum(map(_total, spent)), max(map(_total, spent)), *of_parts
        rows.append((name, str(len(spent)), *(f"{value:.0f}" for value in seconds)))
    return Table("", columns("workload", "cases", "seconds", "longest case", *parts), tuple(rows))


def _list_spent(newest: Mapping[str, Newest]) -> list[tuple[str, Mapping[str, float]]]:
    """The workload of each case, with the seconds of its process by what it does."""
    results = (one.case for one in newest.values())
    return [(one.workload, one.measurement.spent_s) for one in results if one.measurement is not None]


def _total(spent_s: Mapping[str, float]) -> float:
    return sum(spent_s.values())


def _find_typical_s(newest: Mapping[str, Newest]) -> float:
    """The median seconds of a case beside its builds."""
    return median(_total(spent_s) - spent_s.get("building", 0.0) for _, spent_s in _list_spent(newest))


def _pair(sides: tuple[Counters, Counters], name: str) -> str:
    scale = 1e-9 if name == "peak_bytes" else 1.0
    reference, optimized = (side.get(name) for side in sides)
    if reference is None or optimized is None:
        return ""
    return f"{scale * reference:.3g} -> {scale * optimized:.3g}"


def main(words: Sequence[str] | None = None) -> None:
    """Writes the pages of figures, from the stored runs."""
    argparse.ArgumentParser(prog="python -m tools.figures", description=main.__doc__).parse_args(words)
    for machine in MACHINES:
        (machine.results / "figures.md").write_text(write_page(machine, load_newest(machine)), encoding="utf-8")


if __name__ == "__main__":
    main()
