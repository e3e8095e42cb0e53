"""The time that the cases of a session share: for sampling on a CPU, for doubt in every run.

Where the user of a CPU gives no sampling time, all cases share PLANNED_S, so that a first look at the whole suite takes
two minutes; cases that would begin after LAST_START_S are left out, unless the run has a fault or a profiler. In a
recording they share it over all processes, and a gate samples a case for as long as one of these. Further processes and
duets share DOUBT_SHARE of the session.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

from gpugate.measurement.settings import Settings
from gpugate.statistics.policy import DECIDING_PROCESSES
from gpugate.units import duration, list_names, number_of

PLANNED_S = 104.0  # for all cases of all processes; imports and the report come on top
LAST_START_S = 120.0  # after which no case begins: on loaded cores, each takes several times its planned time
LEAST_S, MOST_S = 1.8, Settings.budget_s  # for the sampling of one case
# Of a case that is recorded or gated: on two cores, 2.8 s gave cases of steps below 50 ms four builds of 4 to 14 pairs,
# as 4 s did while half of them went to warm-up.
LEAST_GATED_S = 3.0
OVERHEAD_S = 3.0  # of a case beside its sampling: builds, compilation, proofs, checks
# For further processes and duets: of a session, and of a case whose source is that of its record.
DOUBT_SHARE, CASE_DOUBT_S = 0.25, 60.0
START_S = 5.0  # of a process, with its imports


@dataclass
class DoubtTime:
    """The time for further processes and duets: DOUBT_SHARE of the session, and CASE_DOUBT_S of a case.

    A case whose source changed since its record has no limit of its own: a duet that finds 5 % takes two minutes in the
    median, and this case is the one to look at. Cases that changed alike share the processes of their duets, as many as
    have time. A duet leaves half of what the session has: none may take the time of the case that alarms. A session has
    CASE_DOUBT_S, or twice that for several cases, since their gate is no night. `left_out` are the cases that had too
    little.

    No case begins after `end_s`.
    """

    cases: int
    begun: int = 0
    spent_s: float = 0.0
    of_case_s: float = 0.0
    limit_s: float = CASE_DOUBT_S  # of the present case
    left_out: list[str] = field(default_factory=list)
    end_s: float = math.inf

    def begin_case(self, has_changed: bool) -> None:
        self.begun, self.of_case_s = self.begun + 1, 0.0
        self.limit_s = math.inf if has_changed else CASE_DOUBT_S

    def find_left_s(self, elapsed_s: float, needed_s: float = math.inf) -> float:
        """The seconds that are left to the present case, `elapsed_s` after the beginning of the session. A duet leaves
        half of the session's to further processes and cases, unless it needs `needed_s`.

        The length of the session without doubt is estimated by that of the cases so far.
        """
        own_s = (elapsed_s - self.spent_s) * max(1.0, self.cases / max(1, self.begun))
        most_s = max(CASE_DOUBT_S * min(2, self.cases), own_s * DOUBT_SHARE / (1 - DOUBT_SHARE))
        left_s = most_s - self.spent_s
        return min(self.limit_s - self.of_case_s, left_s, max(left_s / min(2, self.cases), needed_s))

    def affords(self, measured_s: float, left_s: float) -> bool:
        """True where a process is likely to fit that measures for `measured_s`. The first one of a case may take longer
        than its time: without it no alarm is confirmed."""
        return left_s >= min(START_S + measured_s, CASE_DOUBT_S)

    def find_duet_s(self, elapsed_s: float, measured_s: float) -> float:
        """The seconds of the duet of a case that a process measures for `measured_s`."""
        return self.find_left_s(elapsed_s, DECIDING_PROCESSES * (START_S + measured_s))

    def count_duets(self, measured_s: float, left_s: float) -> int:
        """The number of cases whose duets share processes: as many as are likely to fit in the processes that a change
        needs. The present case always has its duet."""
        measuring_s = left_s / DECIDING_PROCESSES - START_S  # of one process
        return max(1, int(measuring_s / max(LEAST_S, measured_s)))

    def affords_pairs(self, more_s: float, elapsed_s: float) -> bool:
        """True where `more_s` more for the present case leave to each case after it an equal share of PLANNED_S."""
        return elapsed_s + more_s <= PLANNED_S * self.begun / max(1, self.cases)

    @contextmanager
    def spend(self) -> Iterator[None]:
        began_s = perf_counter()
        try:
            yield
        finally:
            took_s = perf_counter() - began_s
            self.spent_s, self.of_case_s = self.spent_s + took_s, self.of_case_s + took_s

    def leave_out(self, case_id: str) -> str:
        """Counts the case as left out; returns the reason."""
        if case_id not in self.left_out:
            self.left_out.append(case_id)
        return "the night had too little time left, and gpugate compare has no time limit"

    def refuse_case(self, elapsed_s: float) -> str | None:
        """The reason why the present case is not measured; None where it has time."""
        if elapsed_s < self.end_s:
            return None
        step = f"--perf-budget {LEAST_S:g} measures all, -k selects"
        return f"the {self.end_s:g} s of a run without --perf-budget were over: {step}"

    def describe_left(self, elapsed_s: float) -> str:
        """`case 3 of 19, about 90 s left`, half of the present case being measured; of the first case, its place."""
        if self.cases < 2 or not self.begun:
            return ""
        left_s = min(elapsed_s / (self.begun - 0.5) * (self.cases - self.begun + 0.5), max(0.0, self.end_s - elapsed_s))
        return f"case {self.begun} of {self.cases}" + (f", about {duration(left_s)} left" if self.begun > 1 else "")

    def describe(self) -> list[str]:
        """A line with the cases that were left out, where there are some."""
        cases = f"{number_of(len(self.left_out), 'case')} ({list_names(self.left_out)})"
        return [f"without more processes or duets: {cases}: no time was left for them"] if self.left_out else []


def share_time(cases: int) -> float:
    """The seconds of sampling of each of so many cases, which share PLANNED_S; a case counts once for each process."""
    return min(MOST_S, max(LEAST_S, PLANNED_S / max(1, cases) - OVERHEAD_S))
