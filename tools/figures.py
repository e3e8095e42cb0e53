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
from tools.machines import MACHINES, Machine, is_outdated, list_cases
from tools.markdown_table import plain, write_markdown

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
    series = "\n\n".join(map(write_markdown, view.series))
    bounds = "\n".join(f"- {plain(line)}" for line in [*view.whole_runs, *view.bounds])
    return f"""# Figures of an {machine.gpu}

`python -m tools.figures` writes this page from the stored runs: the newest process of each case whose sides have not
changed since. A case without such a run stands in [promises.md](promises.md). A process is measured alone, with other
cases before it. An interval is one-sided 99 % at each end. The speedup of a case is over the reference that its row
names, else over the baseline: eager PyTorch with its own defaults, or a library of the host.

## The hosts

The newest one: {", ".join(runs[-1].environment.facts)}.

{write_markdown(_hosts(runs, newest))}

## Cases

{write_markdown(view.results.drop("MDE", "verdict"))}

{series}

## The bill of a step

Each cell has the reference's value and the optimized side's.

{write_markdown(_bills(newest))}

## The time of a night

Seconds of one process of each case, by what it does, without further processes and duets. The machines were bare: they
built what a machine that keeps the caches of Inductor and TensorRT finds there. The goal of a night is at most 25
minutes on one GPU, and 13 on two.

{write_markdown(_night(newest))}

## What bounds each side

{bounds}
"""


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
    spent: dict[str, Counter[str]] = {}
    for one in newest.values():
        if one.case.measurement is not None:
            seconds = one.case.measurement.spent_s
            of_case = {"cases": 1, "seconds": sum(seconds.values()), **seconds}
            for name in ("all", one.case.workload):
                spent.setdefault(name, Counter()).update(of_case)
    wanted = ("cases", "seconds", *(doing for doing in get_args(Doing) if spent["all"][doing]))
    names = sorted(spent, key=lambda name: -spent[name]["seconds"])
    rows = tuple((name, *(f"{spent[name][column]:.0f}" for column in wanted)) for name in names)
    return Table("", columns("workload", *wanted), rows)


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
