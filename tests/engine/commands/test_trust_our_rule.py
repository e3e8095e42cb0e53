"""Our rule is the gate's, and on trials whose noise is known it neither cries wolf nor sleeps."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpugate.commands.trust.our_rule import _Pool, our_rules
from gpugate.commands.trust.trial import SLOWDOWNS, Trial
from gpugate.judging.decide import decide, wants_fresh_process
from gpugate.measurement.record import Measurement, SideCost, TimedBuild
from gpugate.results.case import Attempt, CaseResult, Promise, Remembered
from gpugate.results.summary import History, history
from gpugate.results.verdict import Outcome
from gpugate.statistics.policy import ATTEMPTS, MIN_PROCESSES, MIN_SITTINGS
from gpugate.workload import Size, Tolerance
from tests.support.simulated_trials import Noise, trials

STEADY = Noise(process=0.001, instance=0.003, pair=0.0005)
RESTLESS = Noise(process=0.006, instance=0.01, pair=0.01)
PROCESSES = 20  # enough for nights


def shares(taken: Sequence[Trial], slowdown: float) -> list[float]:
    """How often our rules alarm at one slowdown: with a baseline of one night, then of several where they can be."""
    tried = [trial for trial in taken if trial.slowdown == slowdown]
    return [sum(map(rule.alarms, tried)) / len(tried) for rule in our_rules(taken)]


def measurement(instances: tuple[TimedBuild, ...]) -> Measurement:
    cost = SideCost(0.0, 0.0)
    return Measurement("toy/fast/cpu", instances, "budget", (), cost, cost, counters_missing="none on a CPU")


def gate_says(trial: Trial, fresh: Sequence[Trial], then: History, checks: int) -> tuple[bool, int]:
    """Whether `decide` makes a gate red over this trial's speedup, and how many processes it asked."""
    result = CaseResult("toy/fast/cpu", "toy", "fast", "baseline", Size(1, 1, 1), measurement(trial.instances))
    result.promise = Promise(None, Tolerance(1, 1), None)
    result.remembered = Remembered(then, then, "exact", checks=checks)
    waiting = iter(fresh)
    while True:
        verdicts = decide(result, recording=False)
        # The rule is about the ratio: what absolute times say is left out.
        result.verdicts = [replace(one, outcome=Outcome.PASS) if one.check != "speedup" else one for one in verdicts]
        more = len(result.attempts) + 1 < ATTEMPTS and wants_fresh_process(result)
        another = next(waiting, None) if more else None
        if another is None:
            red = not next(one for one in result.verdicts if one.check == "speedup").good
            return red, len(result.attempts) + 1
        result.attempts.append(Attempt(measurement(another.instances)))


@pytest.mark.parametrize("cases", [1, 6])
@pytest.mark.parametrize("noise", [STEADY, RESTLESS], ids=["steady", "restless"])
def test_the_rules_are_what_the_gate_decides(noise: Noise, cases: int) -> None:
    """Every process took one trial of each kind, so that which of them is asked can be told from outside."""
    taken = [
        trial
        for number in range(cases)
        for trial in trials(noise, repeats=1, processes=PROCESSES, case_id=f"toy{number}/fast/cpu", seed=number)
    ]
    by_place = {(trial.process, trial.slowdown): trial for trial in taken if trial.case_id == "toy0/fast/cpu"}
    a_night = (PROCESSES - ATTEMPTS) // MIN_SITTINGS
    rules, red_by_processes = our_rules(taken), set()
    for (process, slowdown), trial in by_place.items():
        after = [(process + step) % PROCESSES for step in range(1, PROCESSES)]
        before = [by_place[one, 0.0].instances for one in after[::-1]]
        fresh = [by_place[one, slowdown] for one in after]
        nights = [f"2030-01-{1 + number // a_night:02}T00:00:00+00:00" for number in range(MIN_SITTINGS * a_night)]
        baselines = (history(before[:MIN_PROCESSES]), history(before[: len(nights)], nights))
        for rule, then in zip(rules, baselines, strict=True):
            red, processes = gate_says(trial, fresh, then, checks=2 * cases)
            assert rule.alarms(trial) == red
            red_by_processes.add((red, processes))
    # A gate never alarms on the word of one process, and on that of three only where two contradicted each other.
    assert red_by_processes == {(False, 1), (False, 2), (True, 2), (False, 3), (True, 3)}


@pytest.mark.parametrize("processes", [8, 12, 20])
def test_a_steady_machine_cries_no_wolf_and_sees_2_percent(processes: int) -> None:
    taken = trials(STEADY, [0.0, 0.005, 0.02], processes=processes, repeats=480 // processes, seed=processes)
    assert max(shares(taken, 0.0)) <= 0.01
    assert min(shares(taken, 0.02)) >= 0.99
    in_one_go, *over_nights = shares(taken, 0.005)
    assert in_one_go <= 0.003  # 1 % is above what half a percent and this noise are together
    assert over_nights
    assert all(one > 0.1 for one in over_nights)  # half a percent is no longer below every tolerance


@pytest.mark.parametrize("processes", [10, 20])
def test_a_restless_machine_cries_no_wolf_either(processes: int) -> None:
    taken = [one for seed in range(10) for one in trials(RESTLESS, [0.0], processes=processes, repeats=4, seed=seed)]
    assert max(shares(taken, 0.0)) <= 0.01


def test_one_process_that_is_slow_for_its_whole_life_raises_no_alarm() -> None:
    taken = trials(STEADY, [0.0, 0.1], processes=9, repeats=5)
    slow = [slower(trial, 1.03) if trial.process == 4 else trial for trial in taken]
    assert shares(slow, 0.0) == [0.0, 0.0]
    ours, _ = our_rules(slow)
    alone, _ = our_rules([trial for trial in slow if trial.process == 4 or trial.slowdown == 0])
    slowest = [trial for trial in slow if trial.process == 4 and trial.slowdown == 0.1]
    assert all(map(ours.alarms, slowest))
    assert all(map(alone.alarms, slowest))  # nobody to ask: the alarm stays


def test_a_process_that_was_disturbed_hides_nothing() -> None:
    """Its A/A trials say 1.4x at a reference that is half as slow again: the cv of it would hide any slowdown."""
    taken = trials(STEADY, [0.0, 0.05], processes=9, repeats=4)
    disturbed = [beside_another(trial, 1.5) if trial.process == 6 else trial for trial in taken]
    others = [trial for trial in disturbed if trial.process != 6 and trial.slowdown > 0]
    assert [sum(map(rule.alarms, others)) / len(others) for rule in our_rules(disturbed)] == [1.0, 1.0]


def test_who_is_asked_has_not_recorded() -> None:
    """Of eight processes five recorded and two are asked, also where only some took a trial of this slowdown."""
    taken = list(trials(STEADY, [0.0, 0.05], processes=8, repeats=1))
    some = [one for one in taken if one.slowdown == 0 or one.process in (0, 4, 6)]
    pool, (trial, *_) = _Pool(some), [one for one in some if one.slowdown > 0]
    asked = {one.reference_ms for one in pool._of(trial, 0.0, [4, 6])}
    seen: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "gpugate.commands.trust.our_rule.counted", lambda found: seen.extend(x.reference_ms for x in found) or []
        )
        pool.recorded(trial, 1)
    assert len(seen) == MIN_PROCESSES
    assert not asked & set(seen)


def beside_another(trial: Trial, factor: float) -> Trial:
    instances = (
        replace(one, pairs=tuple(replace(pair, reference_ms=pair.reference_ms * factor) for pair in one.pairs))
        for one in trial.instances
    )
    return replace(trial, instances=tuple(instances))


def slower(trial: Trial, factor: float) -> Trial:
    instances = (
        replace(one, pairs=tuple(replace(pair, optimized_ms=pair.optimized_ms * factor) for pair in one.pairs))
        for one in trial.instances
    )
    return replace(trial, instances=tuple(instances))


@pytest.mark.parametrize("processes", range(1, MIN_PROCESSES + 1))
def test_few_processes_are_trusted_to_5_percent_only(processes: int) -> None:
    """With MIN_PROCESSES in all, each has one other less."""
    taken = trials(STEADY, SLOWDOWNS, processes=processes, repeats=3)
    assert [shares(taken, slowdown) for slowdown in SLOWDOWNS] == [[0.0]] * 5 + [shares(taken, 0.05), [1.0]]


def test_two_processes_that_contradict_each_other_are_red_where_nobody_else_can_be_asked() -> None:
    taken = trials(STEADY, [0.0, 0.1], processes=2, repeats=1)
    fast = [slower(trial, 1 / 1.1) if (trial.process, trial.slowdown) == (1, 0.1) else trial for trial in taken]
    slowed = [trial for trial in fast if trial.slowdown == 0.1]
    assert [[rule.alarms(trial) for trial in slowed] for rule in our_rules(fast)] == [[True, False]]


def test_from_one_process_more_on_2_percent_is_seen() -> None:
    assert shares(trials(STEADY, [0.0, 0.02], processes=MIN_PROCESSES + 1), 0.02) == [1.0]


def test_a_single_trial_and_a_case_without_a_a_trials_are_decided() -> None:
    for slowdown, alarmed in ((0.0, False), (0.02, False), (0.1, True)):
        (one,) = trials(STEADY, [slowdown], processes=1, repeats=1)
        assert [rule.alarms(one) for rule in our_rules([one])] == [alarmed]
    assert shares(trials(STEADY, [0.1], processes=9, repeats=1), 0.1) == [1.0, 1.0]


def test_a_suite_of_more_cases_allows_each_of_them_more() -> None:
    taken = trials(RESTLESS, [0.0, 0.03], processes=9, repeats=10)
    others = [replace(trial, case_id=f"toy{number}/fast/cpu") for number in range(50) for trial in taken[:1]]
    (alone, _), (among_many,) = shares(taken, 0.03), shares([*taken, *others], 0.03)
    assert among_many < alone


def test_what_is_recorded_is_of_the_same_case() -> None:
    """Another case whose sides differ by 20 % changes nothing."""
    taken = trials(STEADY, [0.0, 0.02], processes=9)
    other = [
        replace(slower(trial, 1.2), case_id="toy/other/cpu") for trial in trials(STEADY, [0.0], processes=9, seed=1)
    ]
    both = our_rules([*other, *taken])
    assert [rule.alarms(trial) for rule in both for trial in taken] == [trial.slowdown > 0 for trial in taken] * len(
        both
    )
    assert not any(rule.alarms(trial) for rule in both for trial in other)


def test_a_trial_that_is_not_in_the_run_is_refused() -> None:
    taken = trials(STEADY, processes=2)
    with pytest.raises(KeyError):
        our_rules(taken)[0].alarms(replace(taken[0]))
