"""False alarms, detection and noise of rules over trials, by case and pooled by group of cases. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tools.trust.rates import Rate, rate_of
from tools.trust.trials import Trial

CAUGHT = 0.95


@dataclass(frozen=True)
class RuleTrust:
    """The alarms of one rule by slowdown, ascending, a share of the time per step; at 0 every alarm is false."""

    rule: str
    rates: Mapping[float, Rate]

    @property
    def false_alarms(self) -> Rate | None:
        """None where no A/A trial was taken."""
        return self.rates.get(0.0)

    @property
    def smallest_caught(self) -> float | None:
        """The smallest slowdown tried from which on every one was caught in at least 95 % of its trials.

        None where there is no such slowdown, and where the rule alarms as often when nothing changed.
        """
        if self.false_alarms is not None and self.false_alarms.share >= CAUGHT:
            return None
        found = None
        for slowdown in sorted((slowdown for slowdown in self.rates if slowdown > 0), reverse=True):
            if self.rates[slowdown].share < CAUGHT:
                break
            found = slowdown
        return found


@dataclass(frozen=True)
class CaseTrust:
    """The alarms of the first rule in the trials of one case.

    `between_run_cv` is the standard deviation over processes of the median log-ratio of their A/A trials, which is the
    coefficient of variation of the ratio; None for fewer than two such processes.
    """

    case_id: str
    group: str
    trials: int
    processes: int
    alarms: RuleTrust
    between_run_cv: float | None
    median_trial_s: float


@dataclass(frozen=True)
class GroupTrust:
    """The alarms of every rule in all trials of several cases."""

    name: str
    cases: int
    rules: tuple[RuleTrust, ...]


@dataclass(frozen=True)
class TrustReport:
    """The trials of one machine by case and by group; the cases of a group stand next to each other."""

    machine: str
    trials: int
    processes: int
    cases: tuple[CaseTrust, ...]
    groups: tuple[GroupTrust, ...]


def analyse(trials: Sequence[Trial], alarms: Mapping[str, Sequence[bool]], machine: str) -> TrustReport:
    """Counts the alarms, which are one a trial, by rule. The first rule is ours. Raises ValueError for no trials."""
    if not trials:
        raise ValueError("no trials: there is nothing to analyse")
    groups: dict[str, list[str]] = {}
    for case_id in dict.fromkeys(trial.case_id for trial in trials):
        groups.setdefault(workload_and_device(case_id), []).append(case_id)
    return TrustReport(
        machine=machine,
        trials=len(trials),
        processes=len({trial.process for trial in trials}),
        cases=tuple(_case(case_id, name, trials, alarms) for name, case_ids in groups.items() for case_id in case_ids),
        groups=tuple(
            GroupTrust(name, len(case_ids), tuple(_rule(rule, trials, alarms[rule], case_ids) for rule in alarms))
            for name, case_ids in groups.items()
        ),
    )


def workload_and_device(case_id: str) -> str:
    """`resnet50-inference/cuda` of `resnet50-inference/fp16/cuda`."""
    workload, *rest = case_id.rsplit("/", 2)
    return f"{workload}/{rest[-1]}" if rest else case_id


def between_run_cv(trials: Sequence[Trial]) -> float | None:
    """Standard deviation over processes of the median log-ratio of their A/A trials; None for fewer than two."""
    by_process: dict[int, list[float]] = {}
    for trial in trials:
        if trial.slowdown == 0:
            ratios = [value for build in trial.instances for value in build.log_ratios]
            by_process.setdefault(trial.process, []).extend(ratios)
    medians = [np.median(ratios) for ratios in by_process.values()]
    return float(np.std(medians, ddof=1)) if len(medians) > 1 else None


def _case(case_id: str, group: str, trials: Sequence[Trial], alarms: Mapping[str, Sequence[bool]]) -> CaseTrust:
    own = [trial for trial in trials if trial.case_id == case_id]
    first = next(iter(alarms))
    return CaseTrust(
        case_id=case_id,
        group=group,
        trials=len(own),
        processes=len({trial.process for trial in own}),
        alarms=_rule(first, trials, alarms[first], [case_id]),
        between_run_cv=between_run_cv(own),
        median_trial_s=float(np.median([trial.wall_s for trial in own])),
    )


def _rule(name: str, trials: Sequence[Trial], alarms: Sequence[bool], case_ids: Sequence[str]) -> RuleTrust:
    by_slowdown: dict[float, dict[int, list[bool]]] = {}
    for trial, alarm in zip(trials, alarms, strict=True):
        if trial.case_id in case_ids:
            by_slowdown.setdefault(trial.slowdown, {}).setdefault(trial.process, []).append(alarm)
    rates = {slowdown: rate_of(list(by_process.values())) for slowdown, by_process in sorted(by_slowdown.items())}
    return RuleTrust(name, rates)
