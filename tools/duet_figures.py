"""The trials of duets in all folders of results/, as one table.

`python -m tools.duet_figures` judges the trials below `results/` as `gpugate compare` does, and writes
`results/duets.md`. Each folder has a report of its own, `trust.md`, with the rates of every case.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from gpugate.judging.duet import judge_duet, needs_process
from gpugate.report.table import Markdown, Table, columns
from gpugate.results.duet import DuetOutcome, DuetProcess
from gpugate.store.json_file import write_atomically
from gpugate.store.source_hash import source_hash
from tools.trust.duet_report import JudgedCase, count_alarms, judge_trials
from tools.trust.duets import DuetTrial, read_duets
from workloads import WORKLOADS

RESULTS = Path(__file__).parents[1] / "results"
PAGE = RESULTS / "duets.md"
COLUMNS = columns("trials", "busy cores", "budget s", "slower by", "alarms", "undecided", "alarm in each trial", "s")
NOTES = """
- trials: the folder, with its report; budget: seconds of sampling for a case in a process
- slower by: 0 is A/A, where each alarm is a false one; alarms: of all trials of all cases
- a case had at most three processes in trials before 2026-11-26, and at most six in later ones
- alarm in each trial: cases whose trials all raised an alarm, of the cases; s: median seconds of a trial of a case
"""
SLOWER, FEWEST_TRIALS, WANTED = 5.0, 8, 0.95
CASE_COLUMNS = columns("case", "alarms", "share", "s")
BY_CASE = """
## Cases that are 5 % slower

The trials of all machines and budgets without busy cores, for cases with at least {fewest} of them: {often} of {cases}
cases alarm in at least 95 of 100 trials. Trials of a workload whose source has changed count only above.

{table}
"""
ON_GPU = """
## Cases on a GPU that are 5 % slower

Without trials of a workload whose source has changed:
{alarmed} of {cases} cases raise an alarm in each of their trials, most in a single one. Each
other case, with its trials that raise one:

{table}
"""
LIMITS = (3, 4, 6)  # processes of a case
DRAWN_COLUMNS = columns("trials", "slower by", "cases", *(f"at most {limit}" for limit in LIMITS))
DRAWS, FEWEST_PROCESSES = 100, 3  # drawn trials of a case; stored processes of each role that a case needs
DRAWN = """
## The limit of processes

The share of trials that alarm where a case gets at most so many processes. Each of these trials was drawn from the
stored processes of its case: {draws} trials a case, of the cases with several trials and at least {fewest} processes of
either role.

{table}
"""


def find_folders() -> list[Path]:
    """The folders of trials below results/."""
    return sorted({path.parent for path in RESULTS.glob("*/duets/*/duets-*.json")})


def rows_of(name: str, first: DuetTrial, judged: Sequence[JudgedCase]) -> Iterator[tuple[str, ...]]:
    """A row for each slowdown in a folder of trials, of which `first` is one."""
    for slow_percent in sorted({one.slow_percent for one in judged}):
        own = [one for one in judged if one.slow_percent == slow_percent]
        counted = count_alarms(name, own)
        yield (
            Markdown(f"[{name}]({name}/trust.md)"),
            str(first.busy_cores),
            f"{first.conditions.budget_s:g}",
            f"{slow_percent:g} %",
            f"{counted.alarms.alarms} of {counted.alarms.trials}",
            str(counted.undecided),
            _count_alarmed_cases(own) if slow_percent else "",
            f"{counted.median_s:.3g}",
        )


def _count_alarmed_cases(judged: Sequence[JudgedCase]) -> str:
    cases = {one.case_id for one in judged}
    missed = {one.case_id for one in judged if not one.alarm}
    return f"{len(cases - missed)} of {len(cases)}"


def describe_cases(judged: Sequence[JudgedCase]) -> str:
    """The share of alarms of each case with FEWEST_TRIALS or more, the largest share first."""
    counted = [
        count_alarms(name, [one for one in judged if one.case_id == name]) for name in {one.case_id for one in judged}
    ]
    rates = [(one.alarms.alarms / one.alarms.trials, one) for one in counted if one.alarms.trials >= FEWEST_TRIALS]
    rates.sort(key=lambda rate: (-rate[0], rate[1].name))
    rows = [
        (one.name, f"{one.alarms.alarms} of {one.alarms.trials}", f"{100 * share:.0f} %", f"{one.median_s:.3g}")
        for share, one in rates
    ]
    often = sum(share >= WANTED for share, _ in rates)
    table = Table("", CASE_COLUMNS, tuple(rows)).markdown()
    return BY_CASE.format(fewest=FEWEST_TRIALS, often=often, cases=len(rows), table=table) if rows else ""


def describe_gpu_cases(judged: Sequence[JudgedCase]) -> str:
    """Counts the cases on a GPU, and lists those of which a trial raised no alarm."""
    trials = Counter(one.case_id for one in judged if one.case_id.endswith("/cuda"))
    alarms = Counter(one.case_id for one in judged if one.alarm)
    others = [(name, f"{alarms[name]} of {trials[name]}") for name in sorted(trials) if alarms[name] < trials[name]]
    table = Table("", columns("case", "alarms"), tuple(others)).markdown()
    return ON_GPU.format(alarmed=len(trials) - len(others), cases=len(trials), table=table) if trials else ""


def is_of_today(trial: DuetTrial, case_id: str) -> bool:
    """False for a trial of a workload whose source has changed."""
    name = case_id.rsplit("/", 2)[0]
    return trial.conditions.source_hashes.get(name) == todays_hashes().get(name)


@cache
def todays_hashes() -> dict[str, str]:
    return {workload.name: source_hash(workload) for workload in WORKLOADS}


def draw_outcome(case_id: str, roles: Sequence[Sequence[DuetProcess]], limit: int, draws: random.Random) -> DuetOutcome:
    """The outcome of one trial from stored processes. As in a duet, the roles of the versions alternate, and a decided
    case gets no further process. No process is drawn twice before all of its role were drawn."""
    shuffled = [draws.sample(some, len(some)) for some in roles]
    taken: list[DuetProcess] = []
    for number in range(limit):
        some = shuffled[number % 2]
        taken.append(some[number // 2 % len(some)])
        duet = judge_duet(case_id, taken)
        if not needs_process(duet):
            break
    return duet.outcome


def list_drawn_rows(name: str, trials: Sequence[DuetTrial]) -> Iterator[tuple[str, ...]]:
    """A row for each slowdown in a folder of trials of which a case has FEWEST_PROCESSES of either role.

    A single trial has so many processes only where it stayed undecided: cases of one trial are left out.
    """
    for slow_percent in sorted({trial.slow_percent for trial in trials}):
        roles: dict[str, tuple[list[DuetProcess], list[DuetProcess]]] = {}
        for trial in trials:
            for case_id in trial.case_ids if trial.slow_percent == slow_percent else ():
                for process in trial.processes:
                    if case_id in process.measured:
                        roles.setdefault(case_id, ([], []))[process.swapped].append(process)
        counts = Counter(
            case_id for trial in trials for case_id in trial.case_ids if trial.slow_percent == slow_percent
        )
        enough = {
            case_id: both
            for case_id, both in sorted(roles.items())
            if min(map(len, both)) >= FEWEST_PROCESSES and counts[case_id] > 1
        }
        if not enough:
            continue
        cells = []
        for limit in LIMITS:
            draws = random.Random(0)  # noqa: S311 -- the same draws for each limit
            outcomes = Counter(draw_outcome(*one, limit, draws) for one in enough.items() for _ in range(DRAWS))
            alarms = outcomes[DuetOutcome.SLOWER] + (0 if slow_percent else outcomes[DuetOutcome.FASTER])
            cells.append(f"{100 * alarms / outcomes.total():.1f} %")
        yield name, f"{slow_percent:g} %", str(len(enough)), *cells


def describe(folders: Sequence[tuple[str, Sequence[DuetTrial]]]) -> str:
    """The page: one row for each folder and slowdown, and the false alarms of all A/A trials together."""
    judged = [(name, trials[0], judge_trials(trials)) for name, trials in folders]
    rows = [row for one in judged for row in rows_of(*one)]
    unchanged = [one for _, _, cases in judged for one in cases if not one.slow_percent]
    counted = f"{sum(one.alarm for one in unchanged)} of {len(unchanged)}"
    cases = len({one.case_id for one in unchanged})
    table = Table("", COLUMNS, tuple(rows)).markdown()
    about = "`python -m tools.duet_figures` writes this page from the trials below this folder."
    total = f"In all A/A trials together: {counted} alarms, over {cases} cases."
    slower = [
        one
        for (_, trials), (_, first, cases) in zip(folders, judged, strict=True)
        for one in cases
        if one.slow_percent == SLOWER and not first.busy_cores and is_of_today(trials[one.trial], one.case_id)
    ]
    drawn = Table("", DRAWN_COLUMNS, tuple(row for one in folders for row in list_drawn_rows(*one))).markdown()
    return (
        f"# Trials of duets\n\n{about}\n\n{table}\n{NOTES}\n{total}\n{describe_cases(slower)}"
        f"{describe_gpu_cases(slower)}{DRAWN.format(draws=DRAWS, fewest=FEWEST_PROCESSES, table=drawn)}"
    )


def main() -> None:
    read = [(folder.relative_to(RESULTS).as_posix(), read_duets(folder)) for folder in find_folders()]
    write_atomically(PAGE, describe(read))


if __name__ == "__main__":
    main()
