"""The table of what TensorRT saves: launches, CUDA API time, kernels, memory and streams of ResNet-50 at batch 128.

    python -m tools.inference_table results/h200/runs/tensorrt.json > results/h200/tensorrt.md

A run of `pytest perf_tests -m gpu -k "resnet50-inference/" --perf-json FILE` measures all sides. Several runs of one
machine make one table, such as the processes of a recording.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpugate import units
from gpugate.errors import GpugateError
from gpugate.measurement.record import Counters
from gpugate.report.table import Table, columns
from gpugate.results.run import RunResult
from gpugate.results.summary import summarize
from gpugate.store import run_file
from tools.markdown_table import Markdown, write_markdown

WORKLOAD = "resnet50-inference"
STRICT = "strict-fp32"
SIDES = ("tensorrt-fp32", "tensorrt-tf32", "tensorrt-fp16", "tensorrt-int8", "cudnn-fused", "inductor-fp16")
DEFAULT, HALF = "eager", "tensorrt-fp16"


@dataclass(frozen=True)
class Side:
    """A side of the table: its median time of a step and its counters."""

    step_ms: float
    counters: Counters


def load_sides(runs: Sequence[RunResult]) -> dict[str, Side]:
    """The sides of the table that the runs measured, by name; the reference of all is `DEFAULT`.

    Raises GpugateError for runs of two machines, and for runs without strict FP32, or without TensorRT in FP16.
    """
    if any(run.environment != runs[0].environment for run in runs):
        raise GpugateError("the runs were measured in different environments: give the runs of one machine")
    found: dict[str, Side] = {}
    cases = {name: case for run in runs for name, case in run.cases.items()}
    for name in (STRICT, *SIDES):
        case = cases.get(f"{WORKLOAD}/{name}/cuda")
        if case is None or case.measurement is None or not case.measurement.pairs:
            continue
        summary = summarize(case.measurement)
        found.setdefault(DEFAULT, Side(summary.reference_ms.median, case.measurement.reference_counters))
        found[name] = Side(summary.optimized_ms.median, case.measurement.optimized_counters)
    missing = {STRICT, HALF} - found.keys()
    if missing:
        raise GpugateError(f"no run measured {WORKLOAD}/{sorted(missing)[0]}/cuda: measure all of {WORKLOAD}")
    return found


def write_page(runs: Sequence[RunResult], sources: Sequence[str]) -> str:
    """The page of the runs in Markdown; `sources` are the names of their files."""
    sides, first = load_sides(runs), runs[0]
    return f"""# What TensorRT saves

`python -m tools.inference_table {" ".join(sources)}` writes this page: {", ".join(first.environment.facts)},
{first.started_at[:10]}. ResNet-50, a step of 128 photographs of 224 x 224. `{DEFAULT}` is PyTorch with its defaults: it
computes convolutions in TF32. `{STRICT}` is the same without TF32. Kernels of a CUDA graph are one launch.
INT8 is to be 1.2 times as fast as `{HALF}`, and 1.6 times is the goal.

{write_markdown(_table(sides))}
"""


COUNTED: Mapping[str, Callable[[Side], str]] = {
    "kernels": lambda one: _count(one, "kernels"),
    "launches, of kernels and of graphs": lambda one: f"{_launches(one):g}",
    "CUDA API time, under the profiler": lambda one: units.milliseconds(one.counters["api_ms"]),
    "mean of the 15 longest kernels": lambda one: units.milliseconds(one.counters["longest_kernels_mean_ms"]),
    "peak device memory": lambda one: f"{one.counters['peak_bytes'] / 1e9:.2f} GB",
    "streams": lambda one: _count(one, "streams"),
    "layers of the engine": lambda one: _count(one, "engine_layers"),
}


def _table(sides: Mapping[str, Side]) -> Table:
    rows = [("a step", *(units.milliseconds(side.step_ms) for side in sides.values()))]
    for name in (DEFAULT, STRICT, HALF):
        ratios = (units.ratio(sides[name].step_ms / side.step_ms) for side in sides.values())
        rows.append((Markdown(f"speedup over `{name}`"), *ratios))
    rows += [(name, *(cell(side) for side in sides.values())) for name, cell in COUNTED.items()]
    headings = [Markdown(f"`{name}`") for name in sides]
    return Table("", columns("", *headings), tuple(rows))


def _launches(side: Side) -> float:
    return side.counters["kernel_launches"] + side.counters["graph_launches"]


def _count(side: Side, name: str) -> str:
    return f"{side.counters[name]:g}" if name in side.counters else ""


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.inference_table", description=__doc__.partition("\n")[0])
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="a run that --perf-json wrote")
    paths: list[Path] = parser.parse_args(words).runs
    sys.stdout.write(write_page([*map(run_file.read, paths)], [path.as_posix() for path in paths]))


if __name__ == "__main__":
    main()
