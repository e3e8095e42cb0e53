"""The trials of duets in all folders of results/, judged again, and the decision of a gate simulated from their noise.

`python -m tools.duet_figures [FILE]` writes `results/duets.md`, or FILE, in two minutes, and the report in each folder.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import numpy as np
from scipy import special

from gpugate.report.table import Table, columns
from gpugate.report.view import SHARP
from gpugate.results.duet import DuetOutcome, DuetSize
from gpugate.session.time_plan import CASE_DOUBT_S
from gpugate.statistics.sequential import MOST_PROCESSES
from gpugate.store.json_file import write_atomically
from gpugate.units import percent
from tools import simulated_nights as nights
from tools.archive import RESULTS
from tools.machines import MACHINES, Machine
from tools.markdown_table import Markdown, write_markdown
from tools.simulated_duets import (
    PROCESS_S,
    SEED,
    CaseNoise,
    Simulated,
    collect_processes,
    count_processes,
    fit_noise,
    simulate,
    size_of,
)
from tools.trust.__main__ import write_report
from tools.trust.duet_report import JudgedCase, judge_trials
from tools.trust.duets import DuetTrial, read_duets

PAGE = RESULTS / "duets.md"
ONE_SIDED = 0.05  # the chance with which a bound is wrong
WANTED = 0.95
NIGHTS, UNCHANGED_DUETS, SLOWER_DUETS, CPU_DUETS = 100, 500, 200, 200  # simulated, of each case
SLOWDOWNS = (0.05, 0.03)
LIMITS_S = (math.inf, 300.0, CASE_DOUBT_S)  # of the duet of a case
STORED_COLUMNS = columns(
    "trials", "busy cores", "budget s", "slower by", "trials of cases", "SLOWER", "lower bound", "wrong direction",
    "UNDECIDED", "s",
)  # fmt: skip
STORED = """# Trials of duets

`python -m tools.duet_figures` writes this page from the trials below this folder and the records in `baselines/`.

## Stored trials, as they are

All processes of each trial are judged by the rule of today. The trials ended when an older rule had decided: one that
is UNDECIDED here would have got further processes, up to {most}. The numbers of the rule were chosen on the trials of
CPUs (`cpu` and `xeon`), so that the rows of GPUs (`h100` and `h200`) test them.

{table}

- trials: the folder, with its report; budget: seconds of sampling for a case in a process
- slower by: 0 is A/A, where SLOWER is a false alarm; wrong direction: FASTER, of code that is slower or unchanged
- lower bound: of the share of SLOWER, one-sided 95 % (Clopper-Pearson); an upper bound where nothing changed
- s: median seconds of a trial of a case

A/A trials together: {unchanged}.
On GPUs: {unchanged_gpu}; {slower_gpu}.
The noise model of the simulation below expects {expected} SLOWER among the latter, with the processes that they have.

The likelihood of the 298 A/A trials on CPUs of 2026-11-27 is largest where a process varies as its pairs predict, and
the prediction is worth 2 to 3 processes. Of 0.5, 0.3, 0.2, 0.1 and 0.05 %, the design level of a false alarm
(`FALSE_ALARM` in `gpugate/statistics/sequential.py`) is the largest with which at most 0.5 % of simulated duets of
these cases end SLOWER where nothing changed.
In-sample, with the noise and the sizes of the trials on CPUs: {chosen}
"""
SIMULATED = """
## The whole decision, simulated

{cases}.
A step takes 0, 3 or 5 % longer: in its kernels where these take half of it, otherwise in CPU time. The record, with its
bill where it has one, judges it by the rules of `gpugate.judging`, in {nights} simulated nights, with the loan effects
that git shows (`tools.simulated_nights`). Where the record passes, a duet follows, since the source of a slower case
changed; the record plans its size. The noise of the duet is that of the case's trials on GPUs: {slower} duets of each
case that are slower, and {unchanged} of unchanged code. Record and duet are taken as independent, and a case without a
trial as never found by a duet. A case counts as red where at least 95 % of its nights are. **The rows without a limit
are of `gpugate compare`, not of a gate**, all of whose duets together have a quarter of the night. "{limit:g} s": the
limit that a gate has for further processes and duets of one case whose source is that of the record, all of it for the
duet; a duet that seems slower then gets the processes that decide it. Each process of a case takes as long as in its
trials, and at least {process:g} s beside its pairs.

The noise of each case is fitted to one or two trials of two to six processes, which ended when they were decided: the
simulation is not a measurement of the rates.

{table}

- red, mean: of all cases, with the number of simulated duets; in brackets the one-sided 95 % lower bound of the share
  of cases
- minutes: of one GPU, for the duets of all cases one after another

{alarms}

### Cases that are not red in 95 % of nights at 5 %, without a limit

{open}
"""
OPEN_COLUMNS = columns("machine", "case", "red", "by the record", "by the duet", "UNDECIDED", "pairs x builds", "s")


@dataclass(frozen=True)
class Decided:
    """The simulated decisions about one case at one slowdown."""

    case_id: str
    by_record: float
    duet: Simulated | None  # None where no trial of the case is stored

    @property
    def by_duet(self) -> float:
        return self.duet.share("slower") if self.duet is not None else 0.0

    @property
    def red(self) -> float:
        return 1 - (1 - self.by_record) * (1 - self.by_duet)


@dataclass(frozen=True)
class Bound:
    """`found` of `count`, with the one-sided bounds of the share."""

    found: int
    count: int

    @property
    def low(self) -> float:
        return float(special.betaincinv(self.found, self.count - self.found + 1, ONE_SIDED)) if self.found else 0.0

    @property
    def high(self) -> float:
        rest = self.count - self.found
        return 1 - float(special.betaincinv(rest, self.found + 1, ONE_SIDED)) if rest else 1.0


def find_folders() -> list[Path]:
    """The folders of trials below results/."""
    return sorted(path.parent for path in RESULTS.glob("*/duets/*/trust.md"))


def count_outcomes(judged: Sequence[JudgedCase]) -> Counter[DuetOutcome]:
    return Counter(one.outcome for one in judged)


def rows_of(name: str, first: DuetTrial, judged: Sequence[JudgedCase]) -> Iterator[tuple[str, ...]]:
    """A row for each slowdown in a folder of trials, of which `first` is one."""
    for slow_percent in sorted({one.slow_percent for one in judged}):
        own = [one for one in judged if one.slow_percent == slow_percent]
        counts = count_outcomes(own)
        slower = Bound(counts[DuetOutcome.SLOWER], len(own))
        yield (
            Markdown(f"[{name}]({name}/trust.md)"),
            str(first.busy_cores),
            f"{first.conditions.budget_s:g}",
            f"{slow_percent:g} %",
            str(len(own)),
            str(slower.found),
            percent(slower.low) if slow_percent else f"at most {percent(slower.high)}",
            str(counts[DuetOutcome.FASTER]),
            str(counts[DuetOutcome.UNDECIDED]),
            f"{median([one.wall_s for one in own]):.3g}",
        )


def write_rows(rows: Iterable[tuple[str, ...]]) -> str:
    return write_markdown(Table("", STORED_COLUMNS, tuple(rows)))


def describe_stored(folders: Sequence[tuple[str, Sequence[DuetTrial]]]) -> str:
    judged = [(name, trials[0], judge_trials(trials)) for name, trials in folders]
    table = write_rows(row for one in judged for row in rows_of(*one))
    of_all = [one for _, _, cases in judged for one in cases]
    on_gpu = [one for one in of_all if one.case_id.endswith("/cuda")]
    slower = [one for one in on_gpu if one.slow_percent]
    found = Bound(count_outcomes(slower)[DuetOutcome.SLOWER], len(slower))
    return STORED.format(
        most=MOST_PROCESSES,
        table=table,
        unchanged=_describe_alarms([one for one in of_all if not one.slow_percent]),
        unchanged_gpu=_describe_alarms([one for one in on_gpu if not one.slow_percent]),
        slower_gpu=f"{found.found} of {found.count} slower ones are SLOWER",
        expected=f"{expect_slower(folders):.0f}",
        chosen=describe_choice(folders),
    )


def _describe_alarms(unchanged: Sequence[JudgedCase]) -> str:
    counts = count_outcomes(unchanged)
    alarms = Bound(counts[DuetOutcome.SLOWER] + counts[DuetOutcome.FASTER], len(unchanged))
    cases = len({one.case_id for one in unchanged})
    return f"{alarms.found} false alarms in {alarms.count} (at most {percent(alarms.high)}), over {cases} cases"


def expect_slower(folders: Sequence[tuple[str, Sequence[DuetTrial]]]) -> float:
    """The SLOWER trials on GPUs that the noise model expects, with the processes that each trial has."""
    trials = list_gpu_trials(folders)
    noises, draw, expected = fit_noise(collect_processes(trials)), np.random.default_rng(SEED), 0.0
    for trial in trials:
        for case_id, ((first, *others),) in collect_processes([trial]).items() if trial.slow_percent else ():
            builds = len(first.builds)
            size = DuetSize(first.pairs // builds, builds, first.measuring_s)
            noise, slowdown = noises[case_id], trial.slow_percent / 100
            expected += simulate(noise, size, slowdown, SLOWER_DUETS, draw, 1 + len(others)).share("slower")
    return expected


def describe_choice(folders: Sequence[tuple[str, Sequence[DuetTrial]]]) -> str:
    """The false alarms of the simulation by which the numbers of the test were chosen."""
    tried = collect_processes(trial for _, trials in folders for trial in trials if not _is_of_gpu(trial))
    if not tried:
        return "there is no such trial."
    noises, draw, duets = fit_noise(tried), np.random.default_rng(SEED), list[Simulated]()
    for case_id, trials in tried.items():
        builds = [build for trial in trials for process in trial for build in process.builds]
        a_process = median(len(process.builds) for trial in trials for process in trial)
        size = DuetSize(int(median(map(len, builds))), int(a_process), 1.0)
        duets.append(simulate(noises[case_id], size, 0.0, CPU_DUETS, draw))
    return _describe_unchanged("unchanged code", dict(zip(tried, duets, strict=True)))


def _is_of_gpu(trial: DuetTrial) -> bool:
    return all(name.endswith("/cuda") for name in trial.case_ids)


def list_gpu_trials(folders: Sequence[tuple[str, Sequence[DuetTrial]]]) -> list[DuetTrial]:
    return [one for _, trials in folders for one in trials if _is_of_gpu(one)]


def simulate_records(machine: Machine, slowdown: float) -> dict[str, float]:
    """The share of simulated nights in which the record alone is red, by case."""
    suite = [(case, nights.copy_record(case)) for case in nights.load_cases(machine=machine)]
    draw = np.random.default_rng(nights.SEED)
    red = nights.simulate_nights(suite, nights.LOANS_IN_GIT, NIGHTS, draw, slowdown)
    return dict(zip([case.case_id for case, _ in suite], red.mean(axis=0).tolist(), strict=True))


def decide_cases(
    machine: Machine, noises: Mapping[str, CaseNoise], slowdown: float, by_record: Mapping[str, float], limit_s: float
) -> list[Decided]:
    """The simulated decisions about each recorded case of a machine."""
    draw, found = np.random.default_rng(SEED), []
    for case_id, entry in nights.load_entries(machine).items():
        duet = None
        if case_id in noises:
            noise, size = noises[case_id], size_of(entry.record.processes)
            count = SLOWER_DUETS if slowdown else UNCHANGED_DUETS
            most = count_processes(noise, size, limit_s)
            duet = simulate(noise, size, slowdown, count, draw, most, goes_on=True)
        found.append(Decided(case_id, by_record[case_id], duet))
    return found


def row_of(machine: Machine, slowdown: float, limit_s: float, found: Sequence[Decided]) -> tuple[str, ...]:
    red = Bound(sum(one.red >= WANTED for one in found), len(found))
    tried = [one.duet for one in found if one.duet is not None]
    duets = sum(sum(one.decisions.values()) for one in tried)
    return (
        f"{machine.gpu}, {percent(slowdown)} slower, {'no limit' if math.isinf(limit_s) else f'{limit_s:g} s'}",
        f"{red.found} of {red.count} ({percent(red.low)})" if slowdown else "",
        str(sum(one.by_record >= WANTED for one in found)) if slowdown else "",
        f"{percent(fmean([one.red for one in found]))} of {duets}",
        percent(fmean([one.share("slower") for one in tried])),
        percent(fmean([one.share("faster") for one in tried])),
        percent(fmean([one.share("undecided") for one in tried])),
        f"{fmean([one.processes for one in tried]):.1f}",
        f"{sum(one.seconds for one in tried) / 60:.0f}",
    )


DECIDED_COLUMNS = columns(
    "machine, code, limit of a case", "cases red in >= 95 %", "by the record alone", "red, mean", "duets SLOWER",
    "FASTER", "UNDECIDED", "processes", "minutes",
)  # fmt: skip


def describe_decisions(folders: Sequence[tuple[str, Sequence[DuetTrial]]]) -> str:
    noises, rows, still_open, alarms, cases = fit_noise(collect_processes(list_gpu_trials(folders))), [], [], [], []
    for machine in MACHINES:
        recorded = nights.load_entries(machine)
        tried = sum(name in noises for name in recorded)
        billed = nights.count_bills(nights.load_cases(machine=machine))
        of_machine = f"{len(recorded)} recorded cases of an {machine.gpu}, {billed} with a bill"
        cases.append(f"{of_machine}, {tried} with trials on a GPU")
        for slowdown in (0.0, *SLOWDOWNS):
            by_record = simulate_records(machine, slowdown)
            for limit_s in LIMITS_S:
                found = decide_cases(machine, noises, slowdown, by_record, limit_s)
                rows.append(row_of(machine, slowdown, limit_s, found))
                if slowdown == SHARP and math.isinf(limit_s):
                    still_open += [_describe_open(machine, one) for one in found if one.red < WANTED]
                if not slowdown and math.isinf(limit_s):
                    duets = {one.case_id: one.duet for one in found if one.duet is not None}
                    alarms.append(_describe_unchanged(f"unchanged code on an {machine.gpu}", duets))
    return SIMULATED.format(
        cases="; ".join(cases),
        nights=NIGHTS,
        slower=SLOWER_DUETS,
        unchanged=UNCHANGED_DUETS,
        limit=CASE_DOUBT_S,
        process=PROCESS_S,
        table=write_markdown(Table("", DECIDED_COLUMNS, tuple(rows))),
        alarms="\n".join(alarms),
        open=write_markdown(Table("", OPEN_COLUMNS, tuple(still_open))),
    )


def _describe_unchanged(what: str, duets: Mapping[str, Simulated]) -> str:
    """The false alarms of simulated duets, by case, and the case with the most."""
    slower = Bound(
        sum(one.decisions.get("slower", 0) for one in duets.values()),
        sum(sum(one.decisions.values()) for one in duets.values()),
    )
    worst = max(duets, key=lambda name: duets[name].share("slower"))
    return (
        f"{slower.found} of {slower.count} simulated duets of {what} end SLOWER, "
        f"{percent(slower.found / slower.count)} (at most {percent(slower.high)}); most often `{worst}`, "
        f"{percent(duets[worst].share('slower'))}."
    )


def _describe_open(machine: Machine, one: Decided) -> tuple[str, ...]:
    size, duet = size_of(nights.load_entries(machine)[one.case_id].record.processes), one.duet
    return (
        machine.gpu,
        one.case_id,
        percent(one.red),
        percent(one.by_record),
        "not tried" if duet is None else percent(duet.share("slower")),
        "" if duet is None else percent(duet.share("undecided")),
        f"{size.pairs} x {size.builds}",
        "" if duet is None else f"{duet.seconds:.0f}",
    )


def describe(folders: Sequence[tuple[str, Sequence[DuetTrial]]]) -> str:
    return describe_stored(folders) + describe_decisions(folders)


def main(words: Sequence[str]) -> None:
    read = [(folder.relative_to(RESULTS).as_posix(), read_duets(folder)) for folder in find_folders()]
    for name, trials in read:
        write_report(RESULTS / name, trials)
    write_atomically(Path(words[0]) if words else PAGE, describe(read))


if __name__ == "__main__":
    main(sys.argv[1:])
