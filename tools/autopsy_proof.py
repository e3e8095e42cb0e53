"""`python -m tools.autopsy_proof` counts the known faults whose autopsy names the right cause.

Every fault of `--perf-mutate` is put into the optimized side of every case that can show it. The same process measures
the sound side first, and the autopsy compares the faulty side with it. Cases that span GPUs, and their faults, are left
out: they need a job of ranks.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpugate.errors import GpugateError, SideError
from gpugate.explaining.autopsy import autopsy, optimized_side
from gpugate.faults.fault import EXAMPLE, OF_RANKS, SPELLING, TIMED, Fault
from gpugate.judging.rules import decide
from gpugate.report.table import Column, Table, columns
from gpugate.results.case import CaseResult, Promise
from gpugate.results.run import Mode
from gpugate.store.json_file import JsonFile
from gpugate.units import percent
from tools.machines import list_cases
from tools.markdown_table import write_markdown

if TYPE_CHECKING:
    from gpugate.workload import Case, Context

# The right causes of each fault. A side may itself notice a graph break, or memory that is not page-locked.
NAMES: Mapping[str, Collection[str]] = {
    "slow": ("more work after the steps",),
    "cpu-work": ("host", "launch gaps"),
    "sync": ("synchronization",),
    "pageable": ("pageable copies", "not engaged"),
    "launch": ("more kernels",),
    "no-graph": ("no graph",),
    "graph-break": ("not engaged",),
    "copy": ("copies",),
    "wrong": ("wrong output", "numerics"),  # the latter in autopsies before 2026-11-30
    "stale": ("stale output",),
    "leak": ("leak",),
    "skip-work": ("work left out",),
}
ON_A_CPU: Mapping[str, Collection[str]] = {**NAMES, "slow": ("host",)}  # where the work is the host's
SIZES = {
    **EXAMPLE,
    **{kind: f"{kind}:20" for kind in TIMED},
    "wrong": "wrong:0.1",
}  # well above what two measurements differ by
KINDS = tuple(kind for kind in SPELLING if kind not in OF_RANKS)
GOAL = 0.9


@dataclass(frozen=True)
class FaultTrial:
    """One fault in one case, and the cause that the autopsy named.

    `cannot` is the reason why the case cannot show the fault, `failed` any other error.
    """

    fault: str
    case_id: str
    kind: str = ""
    words: str = ""
    named: bool = False
    cannot: str | None = None
    failed: str | None = None


@dataclass(frozen=True)
class ProofFile:
    """The trials of a file that `--json` wrote."""

    trials: tuple[FaultTrial, ...]


FILE = JsonFile(
    "gpugate-autopsy-proof",
    1,  # History: 1: per fault and case the kind that was named, and whether the fault may be called so.
    ProofFile,
    GpugateError,
    step="write it again with --json",
    unwritable="give another path",
)


def take_trials(selected: Iterable[tuple[Case, Context]], budget_s: float) -> Iterator[FaultTrial]:
    """Puts every fault into every case, one after another."""
    for case, context in selected:
        try:
            sound = _measure(case, context, budget_s, None)
        except SideError as error:
            yield FaultTrial("none", case.id, failed=str(error))
            continue
        for kind in KINDS:
            fault = Fault.parse(SIZES.get(kind, kind))
            try:
                faulty = _measure(case, context, budget_s, fault)
            except SideError as error:
                # A side that cannot show a fault refuses it with a ValueError.
                refused = isinstance(error.cause, ValueError)
                trial = FaultTrial(str(fault), case.id, failed=str(error))
                yield replace(trial, cannot=trial.failed, failed=None) if refused else trial
                continue
            yield _name_cause(fault, sound, faulty)


def _name_cause(fault: Fault, sound: CaseResult, faulty: CaseResult) -> FaultTrial:
    then, now = optimized_side(sound), optimized_side(faulty)
    if then is None or now is None:
        return FaultTrial(str(fault), sound.case_id, failed="no times were taken")
    found = autopsy(then, now, "the sound side")
    names = ON_A_CPU if sound.device_kind == "cpu" else NAMES
    return FaultTrial(str(fault), sound.case_id, found.kind, found.cause, found.kind in names[fault.kind])


def _measure(case: Case, context: Context, budget_s: float, fault: Fault | None) -> CaseResult:
    from gpugate.measurement.progress import silent
    from gpugate.measurement.run import measure
    from gpugate.measurement.settings import Settings

    optimization = case.optimization
    settings = Settings(budget_s=budget_s, fault=fault, prove=False)
    result = CaseResult(
        case_id=case.id,
        workload=case.workload.name,
        optimization=optimization.name,
        compared_with=case.reference_name,
        size=case.size,
        measurement=measure(case, context, settings, silent),
        promise=Promise(None, optimization.tolerated, None),
    )
    # The autopsy reads from the verdict of the outputs that they are wrong.
    return replace(result, verdicts=decide(result, mode=Mode.GATE))


def table(found: Sequence[FaultTrial]) -> str:
    """Returns Markdown: a row for each fault, and the share of causes that were named."""
    rows, shown = [], [trial for trial in found if trial.cannot is None]
    for fault in dict.fromkeys(trial.fault for trial in found):
        of_fault = [trial for trial in shown if trial.fault == fault]
        others = "; ".join(f"{one.case_id}: {one.kind or one.failed}" for one in of_fault if not one.named)
        named = sum(trial.named for trial in of_fault)
        otherwise = others if of_fault else "no case here can show it"
        rows.append((f"`{fault}`", str(named), str(len(of_fault)), otherwise))
    named = sum(trial.named for trial in shown)
    share = f", {percent(named / len(shown))}" if shown else ""
    headings = (*columns("fault", "named", "cases"), Column("otherwise called", left=True))
    return f"{write_markdown(Table('', headings, tuple(rows)))}\n\n{named} of {len(shown)} causes named{share}\n"


def main(words: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 where at least 90 % of the named causes are right, else 1."""
    about = "counts the known faults whose autopsy names the right cause"
    parser = argparse.ArgumentParser(prog="python -m tools.autopsy_proof", description=about)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda:N (default: auto)")
    parser.add_argument(
        "--budget", type=float, default=3.0, metavar="SECONDS", help="sampling time of a measurement (default: 3)"
    )
    parser.add_argument("-k", default="", metavar="WORDS", help="only cases with this in their id (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every trial to FILE (default: none)")
    parser.add_argument(
        "--of", type=Path, nargs="+", metavar="FILE", help="measure nothing: print the table of files that --json wrote"
    )
    arguments = parser.parse_args(words)
    found: list[FaultTrial] = []
    if arguments.of:
        try:
            found.extend(trial for path in arguments.of for trial in FILE.read(path).trials)
        except GpugateError as error:
            parser.error(str(error))
        return _print_table(found)
    with tempfile.TemporaryDirectory(prefix="gpugate-proof-") as folder:
        selected = _select(arguments.device, arguments.k, Path(folder))
        found.extend(_report_each(take_trials(selected, arguments.budget), arguments.json))
    return _print_table(found)


def _print_table(found: Sequence[FaultTrial]) -> int:
    sys.stdout.write(table(found))
    shown = [trial for trial in found if trial.cannot is None]
    return 0 if shown and sum(trial.named for trial in shown) >= GOAL * len(shown) else 1


def _report_each(found: Iterable[FaultTrial], path: Path | None) -> Iterator[FaultTrial]:
    """Yields the trials, prints each on stderr, and keeps them in the file."""
    taken: list[FaultTrial] = []
    for trial in found:
        taken.append(trial)
        print(
            f"{trial.case_id} {trial.fault}: {trial.cannot or trial.failed or f'{trial.kind}: {trial.words}'}",
            file=sys.stderr,
        )
        if path is not None:
            FILE.write(path, ProofFile(tuple(taken)))
        yield trial


def _select(device: str, words: str, folder: Path) -> Iterator[tuple[Case, Context]]:
    """Yields the cases that this machine can measure, each with its context."""
    import torch

    from gpugate.machine.environment import describe, missing_needs
    from gpugate.workload import Context

    wanted = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    environment = describe(wanted)
    for case in list_cases("cuda" if wanted.type == "cuda" else "cpu"):
        sides = case.workload.optimizations
        needs = [one.needs for one in sides if one.name in (case.optimization.name, case.reference_name)]
        able = all(one.gpus < 2 and missing_needs(one, environment) is None for one in needs)
        if able and words in case.id:
            yield case, Context(wanted, case.size.items, case.workload.seed, folder)


if __name__ == "__main__":
    sys.exit(main())
