"""The gate decides the trials: on trials of known noise it raises no false alarm and misses no slowdown."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpugate.statistics.policy import MIN_PROCESSES
from tests.support.simulated_trials import Noise, trials
from tools.trust.our_rule import ENOUGH_PROCESSES, our_alarms
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
