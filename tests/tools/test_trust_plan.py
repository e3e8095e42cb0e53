"""The distribution of trials: exactly as many as wanted, over the processes of a plan, wherever a run was cut."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpugate.machine.environment import Environment
from gpugate.store.codec import from_json, to_json
from tools.trust.plan import Plan, count_missing, count_trials, share_of, wanted_trials
from tools.trust.trials import SLOWDOWNS, Conditions, Trial

CASE = "toy/fast/cpu"
AA, SLOWED = SLOWDOWNS[0], SLOWDOWNS[1]


def trial(slowdown: float, process: int = 1, case_id: str = CASE) -> Trial:
    return Trial(case_id, process, slowdown, (), 1.0)


def plan(process: int, aa_trials: int = 40, processes: int = 8, taken: Sequence[Trial] = ()) -> Plan:
    return Plan("trials.json", process, processes, 6.0, aa_trials, taken=count_trials(taken))


def run(
    aa_trials: int, processes: int, taken: Sequence[Trial] = (), cut_off: dict[int, int] | None = None
) -> list[Trial]:
    """All trials after process upon process has taken its share; `cut_off` says after how many some are ended."""
    all_trials = list(taken)
    first = max((one.process for one in all_trials), default=0) + 1
    for process in range(first, first + 100):
        now = plan(process, aa_trials, processes, all_trials)
        if not count_missing(now, CASE):
            return all_trials
        share = share_of(now, CASE)
        assert share, "a process that takes nothing would be followed by another one for ever"
        all_trials += [trial(slowdown, process) for slowdown in share][: (cut_off or {}).get(process)]
    raise AssertionError("it does not end")


def by_process(trials: Sequence[Trial], slowdown: float) -> list[int]:
    return list(Counter(one.process for one in trials if one.slowdown == slowdown).values())


def test_a_fifth_as_many_of_each_slowdown_as_of_a_a() -> None:
    assert wanted_trials(40, SLOWDOWNS[1:]) == {0.0: 40, 0.005: 8, 0.01: 8, 0.02: 8, 0.03: 8, 0.05: 8, 0.1: 8}
    assert wanted_trials(1, SLOWDOWNS[1:]) == dict.fromkeys(SLOWDOWNS, 1)
    assert wanted_trials(11, SLOWDOWNS[1:])[0.1] == 3


def test_only_the_slowdowns_that_were_asked_for_are_seeded() -> None:
    asked = replace(plan(1, 10, 1), slowdowns=(0.02, 0.03))
    assert Counter(share_of(asked, CASE)) == {0.0: 10, 0.02: 2, 0.03: 2}
    assert count_missing(replace(asked, taken={CASE: {"0.0": 10, "0.02": 2, "0.05": 2}}), CASE) == 2


def test_a_process_mixes_its_kinds() -> None:
    share = share_of(plan(1), CASE)
    assert Counter(share) == {0.0: 5, 0.005: 1, 0.01: 1, 0.02: 1, 0.03: 1, 0.05: 1, 0.1: 1}
    places = [place for place, slowdown in enumerate(share) if slowdown == AA]
    assert places[0] == 0
    assert places[-1] == len(share) - 1
    assert 2 <= places[2] <= len(share) - 3


@pytest.mark.parametrize(("aa_trials", "processes"), [(40, 8), (10, 8), (60, 8), (200, 7), (8, 8), (9, 2), (5, 1)])
def test_the_processes_take_together_what_is_wanted_and_share_it_evenly(aa_trials: int, processes: int) -> None:
    taken = run(aa_trials, processes)
    assert Counter(one.slowdown for one in taken) == wanted_trials(aa_trials, SLOWDOWNS[1:])
    assert len(by_process(taken, AA)) == processes
    for slowdown in SLOWDOWNS:
        counts = by_process(taken, slowdown)
        assert max(counts) - min(counts) <= 1


def test_no_more_processes_are_started_than_there_are_trials() -> None:
    assert [len(share_of(plan(1, 3), CASE)), by_process(run(3, 8), AA), by_process(run(3, 8), SLOWED)] == [
        len(SLOWDOWNS),
        [1, 1, 1],
        [1],
    ]


@pytest.mark.parametrize("cut_off", [{3: 2}, {1: 1, 2: 1}, {8: 10}, {1: 0, 2: 4, 5: 0}])
def test_what_a_process_that_was_cut_off_left_is_made_up_for(cut_off: dict[int, int]) -> None:
    taken = run(40, 8, cut_off=cut_off)
    assert Counter(one.slowdown for one in taken) == wanted_trials(40, SLOWDOWNS[1:])
    assert max(by_process(taken, AA)) == 5
    assert max(by_process(taken, SLOWED)) == 1


def test_more_trials_later_come_from_more_processes() -> None:
    taken = run(200, 8, taken=run(40, 8))
    assert Counter(one.slowdown for one in taken) == wanted_trials(200, SLOWDOWNS[1:])
    assert by_process(taken, AA) == [5] * 8 + [25] * 6 + [10]


def test_trials_that_one_process_took_are_followed_by_others() -> None:
    taken = run(80, 8, taken=run(40, 1))
    assert Counter(one.slowdown for one in taken) == wanted_trials(80, SLOWDOWNS[1:])
    assert by_process(taken, AA)[0] == 40
    assert max(by_process(taken, AA)[1:]) <= 10


def test_what_is_there_already_is_not_taken_again() -> None:
    there = run(40, 8)
    assert count_missing(plan(9, 40, 8, there), CASE) == 0
    assert count_missing(plan(9, 10, 8, there), CASE) == 0
    assert share_of(plan(9, 40, 8, there), CASE) == []
    assert count_missing(plan(9, 40, 8, there[1:]), CASE) == 1
    assert share_of(plan(9, 40, 8, there[1:]), CASE) == [there[0].slowdown]


def test_each_case_is_counted_for_itself() -> None:
    now = plan(2, taken=[trial(AA), trial(AA), trial(0.005), trial(AA, case_id="toy/other/cpu")])
    assert now.taken == {CASE: {"0.0": 2, "0.005": 1}, "toy/other/cpu": {"0.0": 1}}
    assert count_missing(now, CASE) == sum(wanted_trials(40, SLOWDOWNS[1:]).values()) - 3
    assert count_missing(now, "toy/other/cpu") == sum(wanted_trials(40, SLOWDOWNS[1:]).values()) - 1
    assert count_missing(now, "toy/third/cpu") == sum(wanted_trials(40, SLOWDOWNS[1:]).values())


def test_a_plan_is_told_to_a_process_as_json() -> None:
    conditions = Conditions(Environment("cpu", "a CPU", "a CPU", 2, "3.12.3"), 6.0, {"toy": "0123"})
    told = Plan("out/trials-002.json", 2, 8, 6.0, 40, (0.01,), conditions, {CASE: {"0.0": 5}})
    assert from_json(Plan, json.loads(json.dumps(to_json(told)))) == told
