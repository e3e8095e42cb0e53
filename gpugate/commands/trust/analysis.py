"""The analysis of trials: false alarms, detection and noise of rules, per case and pooled per group of cases. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpugate.commands.trust.detection import minimum_detectable_effect, smallest_caught
from gpugate.commands.trust.rates import Rate, rate_of, sum_of_rates
from gpugate.commands.trust.rival_rules import Rule
from gpugate.commands.trust.trial import Trial

OURS = "gpugate"  # the name of the rule that the others are compared with
MAX_GROUPS = 6  # as many as a reader can compare: what exceeds them is pooled into the last
REST = "the rest"


@dataclass(frozen=True)
class Detection:
    """The alarm rate of a rule at one slowdown, a share of the time per step; at 0 every alarm is false."""

    slowdown: float
    rate: Rate


@dataclass(frozen=True)
class RuleTrust:
    """One rule's alarms by slowdown, ascending. See `gpugate.commands.trust.detection` for the two smallest effects."""

    rule: str
    detections: tuple[Detection, ...]
    smallest_caught: float | None
    minimum_detectable_effect: float | None

    @property
    def rates(self) -> Mapping[float, Rate]:
        return {detection.slowdown: detection.rate for detection in self.detections}

    @property
    def false_alarms(self) -> Rate | None:
        """None where no A/A trial was taken."""
        return self.rates.get(0.0)


@dataclass(frozen=True)
class CaseTrust:
    """One case: what every rule did, ours first.

    `between_run_cv` is the standard deviation over processes of the median log-ratio of their A/A trials, which is the
    coefficient of variation of the ratio; None for fewer than two such processes.
    """

    case_id: str
    group: str
    trials: int
    processes: int
    rules: tuple[RuleTrust, ...]
    between_run_cv: float | None
    median_trial_s: float


@dataclass(frozen=True)
class GroupTrust:
    """All trials of several cases taken together, rule by rule, ours first."""

    name: str
    cases: int
    rules: tuple[RuleTrust, ...]


@dataclass(frozen=True)
class Nightly:
    """False alarms that one rule raises when every case is judged once: expected, with a 95 % interval.

    `cases` counts those with A/A trials: only these are in the sum.
    """

    rule: str
    cases: int
    expected: float
    low: float
    high: float


@dataclass(frozen=True)
class TrustReport:
    """Everything that the trials of one machine say. Ours is the first of all `rules`."""

    machine: str
    trials: int
    processes: int
    sources: Mapping[str, str]  # by rule
    cases: tuple[CaseTrust, ...]
    groups: tuple[GroupTrust, ...]
    nightly: tuple[Nightly, ...]


class _Judged(NamedTuple):
    trial: Trial
    alarms: Mapping[str, bool]  # by rule


def workload_and_device(case_id: str) -> str:
    """`resnet50-inference/cuda` of `resnet50-inference/fp16/cuda`."""
    workload, *rest = case_id.rsplit("/", 2)
    return f"{workload}/{rest[-1]}" if rest else case_id


def analyse(
    trials: Sequence[Trial],
    rules: Sequence[Rule],
    machine: str = "",
    group_of: Callable[[str], str] = workload_and_device,
) -> TrustReport:
    """Asks every rule about every trial. `group_of` names the group of a case id; trials of a group are pooled.

    Raises ValueError for no trials, a trial without pairs, and rules that are not named apart or lack `OURS`.
    """
    ordered = _ordered(rules)
    if not trials:
        raise ValueError("no trials: there is nothing to analyse")
    judged = [_Judged(trial, {rule.name: rule.alarms(trial) for rule in ordered}) for trial in trials]
    group_names = _groups(list(dict.fromkeys(trial.case_id for trial in trials)), group_of)
    cases = tuple(_case(case_id, group, judged, ordered) for case_id, group in group_names.items())
    return TrustReport(
        machine=machine,
        trials=len(trials),
        processes=len({trial.process for trial in trials}),
        sources={rule.name: rule.source for rule in ordered},
        cases=cases,
        groups=tuple(_group(name, group_names, judged, ordered) for name in dict.fromkeys(group_names.values())),
        nightly=tuple(_nightly(rule.name, cases) for rule in ordered),
    )


def between_run_cv(trials: Sequence[Trial]) -> float | None:
    """Standard deviation over processes of the median log-ratio of their A/A trials; None for fewer than two."""
    by_process: dict[int, list[float]] = {}
    for trial in trials:
        if trial.slowdown == 0:
            ratios = [value for build in trial.instances for value in build.log_ratios]
            by_process.setdefault(trial.process, []).extend(ratios)
    medians = [np.median(ratios) for ratios in by_process.values()]
    return float(np.std(medians, ddof=1)) if len(medians) > 1 else None


def _ordered(rules: Sequence[Rule]) -> list[Rule]:
    names = Counter(rule.name for rule in rules)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise ValueError(f"two rules are named {twice[0]!r}: name them apart")
    if OURS not in names:
        raise ValueError(f"no rule is named {OURS!r}, only {', '.join(names) or 'none'}: give it with the others")
    return sorted(rules, key=lambda rule: rule.name != OURS)


def _groups(case_ids: Sequence[str], group_of: Callable[[str], str]) -> dict[str, str]:
    """The group of each case, cases of one group next to each other, and no more groups than a reader can compare."""
    names = {case_id: group_of(case_id) for case_id in case_ids}
    known = list(dict.fromkeys(names.values()))
    kept = known if len(known) <= MAX_GROUPS else known[: MAX_GROUPS - 1]
    return {case_id: name if name in kept else REST for name in known for case_id in case_ids if names[case_id] == name}


def _case(case_id: str, group: str, judged: Sequence[_Judged], rules: Sequence[Rule]) -> CaseTrust:
    own = [one for one in judged if one.trial.case_id == case_id]
    trials = [one.trial for one in own]
    return CaseTrust(
        case_id=case_id,
        group=group,
        trials=len(trials),
        processes=len({trial.process for trial in trials}),
        rules=tuple(_rule(rule.name, own) for rule in rules),
        between_run_cv=between_run_cv(trials),
        median_trial_s=float(np.median([trial.wall_s for trial in trials])),
    )


def _group(name: str, group_names: Mapping[str, str], judged: Sequence[_Judged], rules: Sequence[Rule]) -> GroupTrust:
    own = [one for one in judged if group_names[one.trial.case_id] == name]
    return GroupTrust(name, list(group_names.values()).count(name), tuple(_rule(rule.name, own) for rule in rules))


def _rule(name: str, judged: Sequence[_Judged]) -> RuleTrust:
    slowdowns = sorted({one.trial.slowdown for one in judged})
    rates = {slowdown: rate_of(_by_process(name, slowdown, judged)) for slowdown in slowdowns}
    detections = tuple(Detection(slowdown, rate) for slowdown, rate in rates.items())
    return RuleTrust(name, detections, smallest_caught(rates), minimum_detectable_effect(rates))


def _by_process(rule: str, slowdown: float, judged: Sequence[_Judged]) -> list[list[bool]]:
    alarms: dict[int, list[bool]] = {}
    for one in judged:
        if one.trial.slowdown == slowdown:
            alarms.setdefault(one.trial.process, []).append(one.alarms[rule])
    return list(alarms.values())


def _nightly(rule: str, cases: Sequence[CaseTrust]) -> Nightly:
    found = [trust.false_alarms for case in cases for trust in case.rules if trust.rule == rule]
    rates = [rate for rate in found if rate is not None]
    return Nightly(rule, len(rates), *sum_of_rates(rates))
