"""The gate decides the trials: on trials of known noise it raises no false alarm and misses no slowdown."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpugate.results.case import CaseResult, Promise, Remembered
from gpugate.results.summary import history
from gpugate.statistics.policy import MIN_PROCESSES
from gpugate.workload import Size, Tolerance
from tests.support.simulated_trials import Noise, trials
from tools.trust.our_rule import ENOUGH_PROCESSES, measure, our_alarms, run_gate, select_recorded
from tools.trust.trials import Trial

STEADY = Noise(process=0.001, instance=0.003, pair=0.0005)
RESTLESS = Noise(process=0.006, instance=0.01, pair=0.01)


def rows(taken: Sequence[Trial]) -> list[list[bool]]:
    """The alarms of each rule: with a baseline of one night, then of several where they can be."""
    return list(our_alarms(taken).values())


def shares(taken: Sequence[Trial], slowdown: float) -> list[float]:
    """The share of trials of one slowdown in which each rule alarms."""
    tried = [trial.slowdown == slowdown for trial in taken]
    return [sum(itertools.compress(alarms, tried)) / sum(tried) for alarms in rows(taken)]


@pytest.mark.parametrize("processes", [8, 20])
def test_a_steady_machine_raises_no_false_alarm_and_catches_5_percent(processes: int) -> None:
    taken = trials(STEADY, [0.0, 0.05], processes=processes, repeats=80 // processes, seed=processes)
    assert max(shares(taken, 0.0)) <= 0.02
    assert min(shares(taken, 0.05)) >= 0.95


def test_a_restless_machine_raises_no_false_alarm_either() -> None:
    taken = [one for seed in range(4) for one in trials(RESTLESS, [0.0], processes=10, repeats=4, seed=seed)]
    assert max(shares(taken, 0.0)) <= 0.02


def test_one_process_that_is_slow_for_its_whole_life_raises_no_alarm() -> None:
    taken = trials(STEADY, [0.0], processes=9, repeats=5)
    slow = [slower(trial, 1.05) if trial.process == 4 else trial for trial in taken]
    assert shares(slow, 0.0) == [0.0, 0.0]


def test_further_processes_are_those_of_the_gate() -> None:
    """The first process is slow, and the two after it decide."""
    taken = trials(STEADY, [0.0], processes=8, repeats=1)
    then = history([one.instances for one in taken[3:]])
    for confirming, green in ((1.0, True), (1.1, False)):
        result = CaseResult(
            "toy/fast/cpu", "toy", "fast", "baseline", Size(1, 0, 0), measure(slower(taken[0], 1.1).instances)
        )
        result.promise, result.remembered = Promise(None, Tolerance(1, 1), None), Remembered(then, then, "exact")
        waiting = [measure(slower(one, confirming).instances) for one in taken[1:3]]
        assert all(one.good for one in run_gate(result, waiting)) is green
        assert len(result.attempts) == (2 if green else 1)


def test_a_confirming_process_is_not_in_the_record() -> None:
    """Of eight processes five are in the record and two confirm, also where only some took a trial of this slowdown."""
    unchanged = {trial.process: trial.instances for trial in trials(STEADY, [0.0], processes=8, repeats=1)[1:]}
    found = select_recorded(unchanged, [4, 6], nights=1)
    assert found == [unchanged[number] for number in (7, 5, 3, 2, 1)]


def test_too_few_processes_are_no_record() -> None:
    taken = trials(STEADY, [0.0, 0.1], processes=MIN_PROCESSES, repeats=2)
    assert shares(taken, 0.1) == [0.0]
    more = trials(STEADY, [0.0, 0.1], processes=MIN_PROCESSES + 1, repeats=2)
    assert shares(more, 0.1) == [1.0]
    assert len(rows(trials(STEADY, [0.0], processes=ENOUGH_PROCESSES, repeats=1))) == 2


def slower(trial: Trial, factor: float) -> Trial:
    instances = (
        replace(one, pairs=tuple(replace(pair, optimized_ms=pair.optimized_ms * factor) for pair in one.pairs))
        for one in trial.instances
    )
    return replace(trial, instances=tuple(instances))


def test_what_is_recorded_is_of_the_same_case() -> None:
    """Another case whose sides differ by 20 % changes nothing."""
    taken = trials(STEADY, [0.0, 0.05], processes=9, repeats=2)
    other = [
        replace(slower(trial, 1.2), case_id="toy/other/cpu") for trial in trials(STEADY, [0.0], processes=9, repeats=2)
    ]
    expected = [*(False for _ in other), *(trial.slowdown > 0 for trial in taken)]
    assert rows([*other, *taken]) == [expected] * 2
