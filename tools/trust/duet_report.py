"""The alarms of `gpugate compare` over trials of duets: one table for each slowdown. It judges as the command does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from scipy import stats

from gpugate.judging.duet import judge_duets
from gpugate.report.table import Table, columns
from gpugate.results.duet import DuetOutcome
from gpugate.units import number_of
from tools.markdown_table import plain, write_markdown
from tools.trust.duets import DuetTrial

COLUMNS = columns("case", "alarms", "interval %", "undecided", "processes", "s")
NOTES = (
    "alarms: SLOWER, of all trials; where nothing changed, FASTER is a false alarm, too",
    "interval: of their rate, at 95 % (Clopper-Pearson); none for all cases, since those of one trial share processes",
    "undecided: trials without a verdict after their last process; none of them is an alarm",
    "processes: the mean of a trial; s: median seconds of a case in all processes of a trial, its builds included",
)


@dataclass(frozen=True)
class JudgedCase:
    """The result of one case in one trial. `trial` is the number of the trial, whose cases share processes."""

    trial: int
    case_id: str
    slow_percent: float
    outcome: DuetOutcome
    processes: int
    wall_s: float

    @property
    def alarm(self) -> bool:
        return self.outcome is DuetOutcome.SLOWER or (self.outcome is DuetOutcome.FASTER and not self.slow_percent)


def judge_trials(trials: Sequence[DuetTrial]) -> list[JudgedCase]:
    """Judges every case of every trial that was measured without a problem."""
    found = []
    for number, trial in enumerate(trials):
        for duet in judge_duets(trial.processes)[0]:
            if duet.case_id in trial.case_ids:
                walls = [one.measured[duet.case_id].wall_s for one in trial.processes if duet.case_id in one.measured]
                taken = len(duet.processes)
                found.append(
                    JudgedCase(number, duet.case_id, trial.slow_percent, duet.outcome, taken, float(sum(walls)))
                )
    return found


def title(trials: Sequence[DuetTrial], machine: str) -> str:
    """The machine, the number of comparisons, and what else the machine did."""
    first, processes = trials[0], sum(len(trial.processes) for trial in trials)
    counted = number_of(len(trials), "comparison"), number_of(processes, "fresh process", "fresh processes")
    busy = f", while other programs kept {number_of(first.busy_cores, 'core')} busy" if first.busy_cores else ""
    budget = f"at {first.conditions.budget_s:g} s a case and process"
    return f"{machine}: {counted[0]} of the project with itself in {counted[1]}, {budget}{busy}"


def markdown(trials: Sequence[DuetTrial], machine: str) -> str:
    """The report in Markdown: a table for each slowdown, ascending, with a row for each case and one for all."""
    judged, blocks = judge_trials(trials), [plain(title(trials, machine))]
    for slow_percent in sorted({one.slow_percent for one in judged}):
        own = [one for one in judged if one.slow_percent == slow_percent]
        cases = sorted({one.case_id for one in own})
        rows = [_row(case_id, [one for one in own if one.case_id == case_id]) for case_id in cases]
        rows += [_row(f"all {len(cases)} cases", own)] if len(cases) > 1 else []
        name = f"{slow_percent:g} % slower" if slow_percent else "nothing changed"
        blocks.append(write_markdown(Table(name, COLUMNS, tuple(rows))))
    return "\n\n".join([*blocks, "\n".join(f"- {plain(note)}" for note in NOTES)]) + "\n"


def _row(name: str, judged: Sequence[JudgedCase]) -> tuple[str, ...]:
    alarms, trials = sum(one.alarm for one in judged), len(judged)
    low, high = rate_interval(alarms, trials)
    return (
        name,
        f"{alarms}/{trials}",
        "" if name.startswith("all ") else f"{100 * low:.1f}..{100 * high:.1f}",
        str(sum(one.outcome is DuetOutcome.UNDECIDED for one in judged)),
        f"{fmean(one.processes for one in judged):.1f}",
        f"{median(one.wall_s for one in judged):.3g}",
    )


def rate_interval(found: int, trials: int) -> tuple[float, float]:
    """The ends of the 95 % interval of a rate, as shares (Clopper and Pearson, Biometrika, 1934)."""
    bounds = stats.binomtest(found, trials).proportion_ci(0.95, "exact")
    return bounds.low, bounds.high
