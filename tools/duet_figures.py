"""The trials of duets in all folders of results/, as one table.

`python -m tools.duet_figures` judges the trials below `results/` as `gpugate compare` does, and writes
`results/duets.md`. Each folder has a report of its own, `trust.md`, with the rates of every case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from gpugate.commands.trust.duet_report import JudgedCase, count_alarms, judge_trials
from gpugate.commands.trust.duets import DuetTrial, read_duets
from gpugate.report.table import Table, columns
from gpugate.store.json_file import write_atomically

RESULTS = Path(__file__).parents[1] / "results"
PAGE = RESULTS / "duets.md"
COLUMNS = columns("trials", "busy cores", "budget s", "slower by", "alarms", "undecided", "alarm in each trial", "s")
NOTES = """
- trials: the folder, with its report; budget: seconds of sampling for a case in a process
- slower by: 0 is A/A, where each alarm is a false one; alarms: of all trials of all cases
- alarm in each trial: cases whose trials all raised an alarm, of the cases; s: median seconds of a trial of a case
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
            f"[{name}]({name}/trust.md)",
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
    return f"# Trials of duets\n\n{about}\n\n{table}\n{NOTES}\n{total}\n"


def main() -> None:
    read = [(folder.relative_to(RESULTS).as_posix(), read_duets(folder)) for folder in find_folders()]
    write_atomically(PAGE, describe(read))


if __name__ == "__main__":
    main()
