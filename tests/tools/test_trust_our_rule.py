"""Our rule is the gate's, and on trials of known noise it raises no false alarm and misses no slowdown."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpugate.judging.decide import allowed_processes, decide, wants_fresh_process
from gpugate.measurement.record import Measurement, SideCost, TimedBuild
from gpugate.results.case import CaseResult, Confirmation, Promise, Remembered
from gpugate.results.run import Mode
from gpugate.results.summary import History, history
from gpugate.results.verdict import Outcome
from gpugate.statistics.policy import DECIDING_PROCESSES, MIN_NIGHTS, MIN_PROCESSES
from gpugate.workload import Size, Tolerance
from tests.support.simulated_trials import Noise, trials
from tools.trust.our_rule import _select_recorded, our_alarms
from tools.trust.trials import SLOWDOWNS, Trial

STEADY = Noise(process=0.001, instance=0.003, pair=0.0005)
RESTLESS = Noise(process=0.006, instance=0.01, pair=0.01)
PROCESSES = 20  # enough for nights


def rows(taken: Sequence[Trial]) -> list[list[bool]]:
    """The alarms of each rule: with a baseline of one night, then of several where they can be."""
    return list(our_alarms(taken).values())


def shares(taken: Sequence[Trial], slowdown: float) -> list[float]:
    """The share of trials of one slowdown in which each rule alarms."""
    tried = [trial.slowdown == slowdown for trial in taken]
    return [sum(itertools.compress(alarms, tried)) / sum(tried) for alarms in rows(taken)]


def measurement(instances: tuple[TimedBuild, ...]) -> Measurement:
    cost = SideCost(0.0, 0.0)
    return Measurement("toy/fast/cpu", instances, "budget", (), cost, cost, counters_missing="none on a CPU")


def judge_by_gate(trial: Trial, fresh: Sequence[Trial], then: History, checks: int) -> tuple[bool, int]:
    """True where `decide` makes a gate red by this trial's speedup, and the number of processes that it takes."""
    result = CaseResult("toy/fast/cpu", "toy", "fast", "baseline", Size(1, 1, 1), measurement(trial.instances))
    result.promise = Promise(None, Tolerance(1, 1), None)
    result.remembered = Remembered(then, then, "exact", checks=checks)
    waiting = iter(fresh)
    while True:
        verdicts = decide(result, mode=Mode.GATE, asked_tolerance=None)
        # The rule is about the ratio: what absolute times say is left out.
        result.verdicts = [replace(one, outcome=Outcome.PASS) if one.check != "speedup" else one for one in verdicts]
        more = len(result.attempts) + 1 < allowed_processes(result, DECIDING_PROCESSES) and wants_fresh_process(result)
        another = next(waiting, None) if more else None
        if another is None:
            red = not next(one for one in result.verdicts if one.check == "speedup").good
            return red, len(result.attempts) + 1
        result.attempts.append(Confirmation(measurement(another.instances)))


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
    a_night = (PROCESSES - DECIDING_PROCESSES) // MIN_NIGHTS
    alarms, red_by_processes = dict(zip(map(id, taken), zip(*rows(taken), strict=True), strict=True)), set()
    for (process, slowdown), trial in by_place.items():
        after = [(process + step) % PROCESSES for step in range(1, PROCESSES)]
        before = [by_place[one, 0.0].instances for one in after[::-1]]
        fresh = [by_place[one, slowdown] for one in after]
        nights = [f"2030-01-{1 + number // a_night:02}T00:00:00+00:00" for number in range(MIN_NIGHTS * a_night)]
        baselines = (history(before[:MIN_PROCESSES]), history(before[: len(nights)], nights))
        for alarm, then in zip(alarms[id(trial)], baselines, strict=True):
            red, processes = judge_by_gate(trial, fresh, then, checks=2 * cases)
            assert alarm == red
            red_by_processes.add((red, processes))
    # A gate never alarms on the word of one process, and on that of three only where two contradicted each other.
    assert red_by_processes == {(False, 1), (False, 2), (True, 2), (False, 3), (True, 3)}


@pytest.mark.parametrize("processes", [8, 20])
def test_a_steady_machine_raises_no_false_alarm_and_catches_2_percent(processes: int) -> None:
    taken = trials(STEADY, [0.0, 0.005, 0.02], processes=processes, repeats=480 // processes, seed=processes)
    assert max(shares(taken, 0.0)) <= 0.01
    assert min(shares(taken, 0.02)) >= 0.99
    in_one_go, *over_nights = shares(taken, 0.005)
    assert in_one_go <= 0.003  # 1 % is above what half a percent and this noise are together
    assert over_nights
    assert all(one > 0.1 for one in over_nights)  # half a percent is no longer below every tolerance


@pytest.mark.parametrize("processes", [10, 20])
def test_a_restless_machine_raises_no_false_alarm_either(processes: int) -> None:
    taken = [one for seed in range(10) for one in trials(RESTLESS, [0.0], processes=processes, repeats=4, seed=seed)]
    assert max(shares(taken, 0.0)) <= 0.01


def test_one_process_that_is_slow_for_its_whole_life_raises_no_alarm() -> None:
    taken = trials(STEADY, [0.0, 0.1], processes=9, repeats=5)
    slow = [slower(trial, 1.03) if trial.process == 4 else trial for trial in taken]
    assert shares(slow, 0.0) == [0.0, 0.0]
    slowest = [trial.process == 4 and trial.slowdown == 0.1 for trial in slow]
    assert all(itertools.compress(rows(slow)[0], slowest))
    alone = [trial for trial in slow if trial.process == 4 or trial.slowdown == 0]
    slowest = [trial.process == 4 and trial.slowdown == 0.1 for trial in alone]
    assert all(itertools.compress(rows(alone)[0], slowest))  # without a confirmation the alarm stays


def test_a_process_that_was_disturbed_hides_nothing() -> None:
    """Its A/A trials say 1.4x at a reference that is half as slow again: the cv of it would hide any slowdown."""
    taken = trials(STEADY, [0.0, 0.05], processes=9, repeats=4)
    disturbed = [beside_another(trial, 1.5) if trial.process == 6 else trial for trial in taken]
    others = [trial.process != 6 and trial.slowdown > 0 for trial in disturbed]
    assert [all(itertools.compress(alarms, others)) for alarms in rows(disturbed)] == [True, True]


def test_a_confirming_process_is_not_in_the_record() -> None:
    """Of eight processes five are in the record and two confirm, also where only some took a trial of this slowdown."""
    confirming = [4, 6]
    unchanged: Any = {process: process for process in range(1, 8)}  # beginning with the next process
    found = _select_recorded(unchanged, confirming, nights=1)
    assert found == [7, 5, 3, 2, 1]


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
    slowed = [trial.slowdown == 0.1 for trial in fast]
    assert [list(itertools.compress(alarms, slowed)) for alarms in rows(fast)] == [[True, False]]


def test_from_one_process_more_on_2_percent_is_seen() -> None:
    assert shares(trials(STEADY, [0.0, 0.02], processes=MIN_PROCESSES + 1), 0.02) == [1.0]


def test_a_single_trial_and_a_case_without_a_a_trials_are_decided() -> None:
    for slowdown, alarmed in ((0.0, False), (0.02, False), (0.1, True)):
        (one,) = trials(STEADY, [slowdown], processes=1, repeats=1)
        assert rows([one]) == [[alarmed]]
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
    expected = [*(False for _ in other), *(trial.slowdown > 0 for trial in taken)]
    assert rows([*other, *taken]) == [expected] * 2
