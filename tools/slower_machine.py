"""Gates of changed code that is not slower, on a machine that is slower than its record: the share that blames it.

    python -m tools.slower_machine results/cpu/slower-machine.json --trials 10

A worktree of HEAD gets a record of five processes, then a statement of no effect in each selected workload. Each trial
is one gate under a condition: another OMP_NUM_THREADS, or a CPU quota by a control group, which needs root on Linux,
with slower code or without. A trial blames the machine where the wall time passes as `the_machine` or `slow_host`, or
is ENV_INVALID, and no check of times is REGRESSED.
With another OMP_NUM_THREADS a CPU is another machine: where no check of times finds a record, the gate names both.
`--report FILE` prints the table of stored trials.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from gpugate.errors import GpugateError
from gpugate.machine.children import program_command, run_child
from gpugate.machine.environment import Environment
from gpugate.report.table import Table, columns
from gpugate.results.run import RunResult
from gpugate.session.duets import CACHE
from gpugate.store import run_file
from gpugate.store.json_file import JsonFile, NextSteps
from gpugate.store.version import check_out

TIMED = ("speedup", "throughput")
PERIOD_US = 2_000  # of the quota: several periods in a block, so that all blocks are slower alike
CPU_GROUPS = Path("/sys/fs/cgroup/cpu")  # control groups, version 1
NO_EFFECT = "\n_NO_EFFECT = 0\n"
CONDITIONS: Mapping[str, str] = {
    "none": "as recorded",
    "threads": "OMP_NUM_THREADS=1 in place of all cores",
    "quota": "a CPU quota of 60 %",
    "slower-code": "a CPU quota of 60 %, and code that is 10 % slower",
}
# A gate refuses a fault: this run compares with the recorded code and the record as a gate does.
SLOWER_CODE = ["--perf-mutate=slow:10", "--against=auto"]
QUOTA = 0.6


class TrialError(GpugateError):
    """A trial cannot be taken, read or kept."""


@dataclass(frozen=True)
class GateTrial:
    """One gate: the outcomes and the first reason codes of its checks of times, `CASE CHECK` to `OUTCOME code`."""

    condition: str
    verdicts: Mapping[str, str]

    @property
    def blames_machine(self) -> bool:
        found = self.verdicts.values()
        blamed = any(one.startswith("ENV_INVALID") or one.endswith(("the_machine", "slow_host")) for one in found)
        return blamed and not self.blames_code

    @property
    def finds_no_record(self) -> bool:
        return all(found.startswith("NO_BASELINE") for found in self.verdicts.values())

    @property
    def blames_code(self) -> bool:
        return any(found.startswith("REGRESSED") for found in self.verdicts.values())


@dataclass(frozen=True)
class TrialFile:
    environment: Environment | None = None
    trials: tuple[GateTrial, ...] = ()


_AGAIN = "take the trials again"
FILE = JsonFile("gpugate-slower-machine", 1, TrialFile, TrialError, NextSteps(_AGAIN, _AGAIN, _AGAIN, "make room"))


def describe(trials: Sequence[GateTrial]) -> str:
    """The table of trials by condition, in Markdown."""
    rows = []
    for name, words in CONDITIONS.items():
        of_condition = [trial for trial in trials if trial.condition == name]
        counts = (
            sum(trial.blames_machine for trial in of_condition),
            sum(trial.finds_no_record for trial in of_condition),
            sum(trial.blames_code for trial in of_condition),
        )
        if of_condition:
            rows.append((words, str(len(of_condition)), *map(str, counts)))
    return Table(
        "", columns("condition", "gates", "blame the machine", "find no record of it", "blame the code"), tuple(rows)
    ).markdown()


def read_trial(run: RunResult, condition: str) -> GateTrial:
    """The trial of a stored gate. Raises TrialError for one that timed no case."""
    found = {
        f"{verdict.case_id} {verdict.check}": f"{verdict.outcome.value} {verdict.code.value}"
        for case in run.cases.values()
        for verdict in case.verdicts
        if verdict.check in TIMED
    }
    if not found:
        raise TrialError(f"the gate under the condition {condition} timed no case: select another one by -k")
    return GateTrial(condition, found)


@contextmanager
def limit_cpu(share: float) -> Iterator[None]:
    """Gives this process and its children that share of the cores. Raises TrialError where that is not possible."""
    group = CPU_GROUPS / f"gpugate-{os.getpid()}"
    with ExitStack() as undoing:
        try:
            group.mkdir()
            undoing.callback(group.rmdir)
            group.joinpath("cpu.cfs_period_us").write_text(str(PERIOD_US))
            quota_us = int(share * PERIOD_US * len(os.sched_getaffinity(0)))
            group.joinpath("cpu.cfs_quota_us").write_text(str(quota_us))
            group.joinpath("cgroup.procs").write_text(str(os.getpid()))
            undoing.callback(CPU_GROUPS.joinpath("cgroup.procs").write_text, str(os.getpid()))
        except OSError as error:
            problem = f"{group} cannot limit the CPU ({error.strerror})"
            raise TrialError(f"{problem}: leave out the condition quota") from error
        yield


def take_trials(
    conditions: Sequence[str], count: int, keyword: str, budget_s: float, environment: Mapping[str, str]
) -> Iterator[tuple[Environment, GateTrial]]:
    """Records, then runs `count` gates under each condition, in turns. Raises TrialError for a run that fails."""
    project = Path.cwd()
    with (
        tempfile.TemporaryDirectory(prefix="gpugate-slower-machine-") as folder,
        check_out("HEAD", project, project / CACHE) as version,
    ):
        baselines, result = Path(folder, "baselines"), Path(folder, "run.json")
        words = ["perf_tests", "-k", keyword, "--perf-device=cpu", f"--perf-budget={budget_s:g}", "-q"]
        words += [f"--perf-baselines={baselines}", f"--perf-json={result}"]
        said = _run(version.root, [*words, "--update-baselines"], environment)
        if not any(baselines.glob("*/*.json")):
            raise TrialError(f"nothing was recorded, so that no gate can compare: {said[-2000:]}")
        for name in run_file.read(result).source_hashes:
            _edit(version.root, name)
        for _ in range(count):
            for condition in conditions:
                judged = SLOWER_CODE if condition == "slower-code" else ["--gate"]
                threads = {"OMP_NUM_THREADS": "1"} if condition == "threads" else {}
                with limit_cpu(QUOTA) if condition in ("quota", "slower-code") else nullcontext():
                    _run(version.root, [*words, *judged], {**environment, **threads})
                run = run_file.read(result)
                yield run.environment, read_trial(run, condition)


def _edit(root: Path, workload: str) -> None:
    """Appends a statement of no effect to the module of a workload, so that its source hash differs."""
    name = workload.replace("-", "_")
    paths = (root / "workloads" / f"{name}.py", root / "workloads" / name / "__init__.py")
    path = next((one for one in paths if one.is_file()), None)
    if path is None:
        raise TrialError(f"{workload} has no module of its name below workloads/: select another case")
    path.write_text(path.read_text(encoding="utf-8") + NO_EFFECT, encoding="utf-8")


def _run(root: Path, words: Sequence[str], environment: Mapping[str, str]) -> str:
    """Runs pytest; returns its output. Raises TrialError where it neither passed nor failed."""
    command = program_command([sys.executable, "-m", "pytest", *words])
    ended = run_child(command, environment=environment, folder=root)
    if ended.status not in (0, 1):
        raise TrialError(f"pytest {' '.join(words)} {ended.reason}: {ended.output[-2000:]}")
    return ended.output


def main() -> None:
    about, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(description=about, epilog=more, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path, help="file of the trials; trials that are there stay")
    parser.add_argument("-k", default="two-layer-net/bf16", metavar="EXPR", help="cases (default: %(default)s)")
    parser.add_argument("--conditions", default="threads,quota", help=f"some of {','.join(CONDITIONS)}")
    parser.add_argument("--trials", type=int, default=10, help="gates under each condition (default: %(default)s)")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds of sampling (default: %(default)s)")
    parser.add_argument("--report", action="store_true", help="print the table of the trials that are there")
    options = parser.parse_args()
    kept = FILE.read(options.file) if options.file.exists() else TrialFile()
    if not options.report:
        conditions = options.conditions.split(",")
        environment = {**os.environ, "PYTHONPATH": "."}
        for machine, trial in take_trials(conditions, options.trials, options.k, options.budget, environment):
            kept = replace(kept, environment=kept.environment or machine, trials=(*kept.trials, trial))
            FILE.write(options.file, kept)
            print(trial, file=sys.stderr)
    print(describe(kept.trials))


if __name__ == "__main__":
    main()
