"""From numbers to outcomes and reason codes: every border of every verdict, with made-up numbers."""

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest

from gpugate.judging.counters import EXACT_COUNTERS, EXACT_UNLESS_AUTOTUNED, broken_limit, judge_counters
from gpugate.judging.equivalence import judge_equivalence
from gpugate.judging.machine_state import environment_problem, slower_launches, with_environment, with_other_work
from gpugate.judging.times import (
    against_minimum,
    against_reference,
    judge_speedup,
    judge_throughput,
)
from gpugate.measurement.record import Difference, Measurement, Pair, SideCost, TimedBuild, Yardstick
from gpugate.results.case import Remembered
from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.summary import History, Summary
from gpugate.results.verdict import SEVERITY, NextStep, Outcome, Verdict, worst
from gpugate.statistics.intervals import Estimate
from gpugate.statistics.tolerance import RATIO_FLOOR
from gpugate.workload import Contract, Limit, Tolerance

TWO_PERCENT = 0.02 / 1.02  # a step that is 2 % longer, as a fall of the speed
CASE_ID = "net/fast/cuda"
COSTS = SideCost(0.1, 0.2), SideCost(0.3, 0.4)
MEASURED = Measurement(CASE_ID, (), "narrow", (), *COSTS)
COUNTED: Mapping[str, float] = {
    "kernel_launches": 0.0,
    "graph_launches": 1.0,
    "kernels": 62.0,
    "api_ms": 0.02,
    "peak_bytes": 1e9,
}
PASS, IMPROVED, REGRESSED = Outcome.PASS, Outcome.IMPROVED, Outcome.REGRESSED
WRONG, NOT_ENGAGED, INCONCLUSIVE = Outcome.WRONG, Outcome.NOT_ENGAGED, Outcome.INCONCLUSIVE
NO_BASELINE = Outcome.NO_BASELINE


def codes(verdict: Verdict) -> list[ReasonCode]:
    return [reason.code for reason in verdict.reasons]


def facts(verdict: Verdict, code: ReasonCode) -> Mapping[str, float | str]:
    """The facts of the first reason of this code."""
    return next(reason.facts for reason in verdict.reasons if reason.code is code)


def bounds(verdict: Verdict) -> list[float | str]:
    """The names of the bounds among the reasons."""
    return [reason.facts["bound"] for reason in verdict.reasons if "bound" in reason.facts]


def about(median: float, relative: float = 0.001) -> Estimate:
    return Estimate(median, median * (1 - relative), median * (1 + relative))


def summary(speedup: Estimate, optimized_ms: Estimate | None = None, **changed: object) -> list[Summary]:
    """Of one process."""
    found = Summary(CASE_ID, speedup, about(30.0), optimized_ms or about(10.0), 12, 0, 3, 0.001, 0.001)
    return [replace(found, **changed)]


def past(speedup: float = 3.0, optimized_ms: float = 10.0, cv: float | None = 0.001, processes: int = 5) -> History:
    return History(speedup, cv, 30.0, optimized_ms, cv, processes)


def remembered(current: History, **changed: object) -> Remembered:
    return replace(Remembered(current, current, "exact"), **changed)


def test_a_baseline_whose_tolerance_no_speedup_is_below_is_none() -> None:
    then = remembered(past(8.0, cv=0.3))
    verdict = judge_speedup(MEASURED, summary(about(0.01)), None, then)
    assert verdict.outcome is NO_BASELINE
    assert verdict.code is ReasonCode.RECORD_VARIES
    assert facts(verdict, ReasonCode.RECORD_VARIES) == {"recorded": 0.3, "anchored": 0.3}
    assert judge_speedup(MEASURED, summary(about(0.01)), None, then, asked_tolerance=0.5).outcome is REGRESSED


def test_beside_a_baseline_that_bounds_nothing_the_promise_judges() -> None:
    then = remembered(past(8.0, cv=0.3))
    kept = judge_speedup(MEASURED, summary(about(2.01)), 2.0, then)
    assert kept.outcome is PASS
    assert bounds(kept) == ["promised"]
    assert codes(kept) == [ReasonCode.BOUND_HELD, ReasonCode.RECORD_VARIES, ReasonCode.PAIRS]
    assert judge_speedup(MEASURED, summary(about(1.9)), 2.0, then).outcome is REGRESSED


def test_beside_a_record_that_bounds_nothing_the_anchor_judges_and_too_few_processes_are_no_baseline() -> None:
    then = replace(remembered(past(8.0, cv=0.3)), anchor=past(8.0))
    slow = judge_speedup(MEASURED, summary(about(2.01)), 2.0, then)
    assert (slow.outcome, slow.code) == (REGRESSED, ReasonCode.SPEEDUP_BELOW_ANCHOR)
    assert slow.reasons[0].facts == {
        "bound": "anchored",
        "value": 8.0,
        "allowed": pytest.approx(math.hypot(RATIO_FLOOR, 0.004)),
    }
    assert facts(slow, ReasonCode.RECORD_VARIES) == {"recorded": 0.3}
    young = judge_speedup(MEASURED, summary(about(2.01)), 2.0, remembered(past(8.0, cv=0.9, processes=3)))
    assert (young.outcome, young.code) == (NO_BASELINE, ReasonCode.TOO_FEW_PROCESSES)
    assert young.reasons[0].facts == {"processes": 3, "needed": 5}


def test_a_record_of_times_that_varies_too_much_is_named() -> None:
    verdicts = [judge_throughput(MEASURED, summary(about(3.0)), remembered(past(cv=cv))) for cv in (0.3, 0.001)]
    assert [ReasonCode.BOUNDS_NOTHING in codes(verdict) for verdict in verdicts] == [True, False]


def test_without_any_evidence_nothing_is_concluded() -> None:
    assert Verdict("speedup", CASE_ID).outcome is INCONCLUSIVE
    assert worst([]) is INCONCLUSIVE


def test_the_worst_of_several_is_the_more_severe_in_either_order() -> None:
    assert set(SEVERITY) == set(Outcome)
    for index, severe in enumerate(SEVERITY):
        for milder in SEVERITY[index:]:
            assert worst([severe, milder]) is worst([milder, severe]) is severe


def test_what_is_good_passes_what_is_bad_fails_and_the_rest_fails_a_gate() -> None:
    verdicts = [Verdict("speedup", CASE_ID, outcome) for outcome in Outcome]
    assert {verdict.outcome for verdict in verdicts if verdict.good} == {PASS, IMPROVED}
    assert {verdict.outcome for verdict in verdicts if verdict.bad} == {REGRESSED, WRONG, NOT_ENGAGED}


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (2.0, 2.5, PASS),
        (1.99, 2.5, INCONCLUSIVE),
        (1.5, 2.0, INCONCLUSIVE),
        (1.5, 1.99, REGRESSED),
    ],
)
def test_against_a_minimum_of_two(low, high, expected) -> None:
    assert against_minimum(Estimate((low + high) / 2, low, high), 2.0) is expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (6.0, 6.1, PASS),  # the lower edge of the band, 6 to 10, is inside
        (7.0, 12.0, PASS),
        (10.0, 12.0, PASS),
        (10.1, 12.0, IMPROVED),
        (5.9, 6.1, INCONCLUSIVE),
        (5.9, 6.0, INCONCLUSIVE),
        (5.0, 12.0, INCONCLUSIVE),
        (5.0, 5.9, REGRESSED),
    ],
)
def test_against_a_reference_of_eight_with_a_quarter_tolerated(low, high, expected) -> None:
    assert against_reference(Estimate((low + high) / 2, low, high), 8.0, 0.25) is expected


@pytest.mark.parametrize(
    ("speedup", "minimum", "expected"),
    [(3.0, 2.9, NO_BASELINE), (3.0, None, NO_BASELINE), (3.0, 3.1, REGRESSED), (3.0, 3.0, INCONCLUSIVE)],
)
def test_a_kept_promise_without_a_baseline_asks_for_one(speedup, minimum, expected) -> None:
    verdict = judge_speedup(MEASURED, summary(about(speedup)), minimum, None)
    assert (verdict.outcome, verdict.numbers["recorded_speedup"]) == (expected, None)
    assert (codes(verdict) == [ReasonCode.NO_RECORD]) is (expected is NO_BASELINE)
    assert (verdict.next_step is NextStep.RECORD) is (expected is NO_BASELINE)


@pytest.mark.parametrize(
    ("speedup", "processes", "expected"),
    [
        (3.0, 5, PASS),
        (3.0, 4, NO_BASELINE),
        (3.0, 1, NO_BASELINE),
        (3.3, 4, NO_BASELINE),  # an improvement over what is not known
        (2.7, 4, REGRESSED),
        (2.85, 4, INCONCLUSIVE),
    ],
)
def test_a_baseline_of_fewer_than_five_processes_is_none_for_a_gate(speedup, processes, expected) -> None:
    verdict = judge_speedup(MEASURED, summary(about(speedup)), 2.0, remembered(past(processes=processes)))
    assert verdict.outcome is expected
    assert (verdict.code is ReasonCode.TOO_FEW_PROCESSES) is (expected is NO_BASELINE)
    assert (verdict.next_step is NextStep.RECORD) is (expected is NO_BASELINE)


@pytest.mark.parametrize(("speedup", "expected"), [(3.0, PASS), (2.9, REGRESSED), (3.1, IMPROVED)])
def test_where_nothing_is_promised_the_recorded_speedup_is_judged_alone(speedup, expected) -> None:
    verdict = judge_speedup(MEASURED, summary(about(speedup)), None, remembered(past()))
    assert verdict.outcome is expected
    assert "promised" not in bounds(verdict)


@pytest.mark.parametrize(("speedup", "expected"), [(3.0, PASS), (2.9, REGRESSED), (3.1, IMPROVED)])
def test_a_speedup_is_judged_alike_by_a_record_of_other_software(speedup, expected) -> None:
    """The ratio outlives a driver; what differs is a note of the session and widens the judgement of times alone."""
    then = remembered(past(), match="same device", differences=("driver 580.1 -> 590.2",))
    verdict = judge_speedup(MEASURED, summary(about(speedup)), 2.0, then)
    assert verdict.outcome is expected
    assert ReasonCode.TOLERANCE_WIDENED not in codes(verdict)


@pytest.mark.parametrize("speedup", [3.0, 2.5, 2.969, 3.5])
def test_every_speedup_has_the_pairs_that_it_rests_on(speedup) -> None:
    found = summary(about(speedup), discarded=2, instances=3)
    measured = replace(MEASURED, stopped_because="budget", attempts=4)
    verdict = judge_speedup(measured, found, 2.0, remembered(past()))
    expected = {"pairs": 12, "builds": 3, "attempts": 4, "discarded": 2, "stopped": "budget"}
    assert facts(verdict, ReasonCode.PAIRS) == expected


BELOW_PROMISE, BELOW_RECORD = ReasonCode.SPEEDUP_BELOW_PROMISE, ReasonCode.SPEEDUP_BELOW_RECORD
BELOW_ANCHOR, DISAGREE = ReasonCode.SPEEDUP_BELOW_ANCHOR, ReasonCode.PROCESSES_DISAGREE
HELD, FASTER, UNDECIDED = ReasonCode.BOUND_HELD, ReasonCode.FASTER_THAN_RECORD, ReasonCode.UNDECIDED


@pytest.mark.parametrize(
    ("speedup", "expected", "found"),
    [
        (3.0, PASS, [HELD, HELD, HELD]),
        (2.95, REGRESSED, [BELOW_RECORD, BELOW_ANCHOR]),
        (2.969, INCONCLUSIVE, [UNDECIDED, UNDECIDED]),
        (3.05, IMPROVED, [FASTER]),
        (1.9, REGRESSED, [BELOW_PROMISE, BELOW_RECORD, BELOW_ANCHOR]),
    ],
)
def test_a_speedup_is_judged_by_the_promise_and_by_what_was_recorded(speedup, expected, found) -> None:
    verdict = judge_speedup(MEASURED, summary(about(speedup)), 2.0, remembered(past()))
    assert verdict.outcome is expected
    assert [reason.code for reason in verdict.reasons if "bound" in reason.facts] == found


@pytest.mark.parametrize(
    ("speedups", "expected", "code"),
    [
        ((2.96, 2.98), INCONCLUSIVE, DISAGREE),
        ((2.96, 2.96), REGRESSED, BELOW_RECORD),
        ((2.8, 2.98, 3.0), PASS, HELD),
        ((2.969, 2.96, 2.967), REGRESSED, BELOW_RECORD),  # the first one's interval was on both sides of 2.968
        ((2.971, 2.971), PASS, HELD),
        ((3.0, 3.1, 3.2), IMPROVED, FASTER),
        ((2.9, 2.9, 2.9, 3.0), REGRESSED, BELOW_RECORD),
    ],
)
def test_several_processes_are_judged_by_their_medians(speedups, expected, code) -> None:
    summaries = [found for one in speedups for found in summary(about(one), about(30.0 / one))]
    verdict = judge_speedup(MEASURED, summaries, 2.0, remembered(past()))
    assert (verdict.outcome, verdict.code) == (expected, code)
    others = [reason.facts["speedup"] for reason in verdict.reasons if reason.code is ReasonCode.FRESH_PROCESS]
    assert (verdict.numbers["speedup"], *others) == speedups
    assert (ReasonCode.SIDES_MOVED in codes(verdict)) is (expected is not PASS)


@pytest.mark.parametrize(
    ("speedups", "outcome", "code"),
    [
        ((1.29,), INCONCLUSIVE, UNDECIDED),
        ((1.29, 1.31), INCONCLUSIVE, DISAGREE),
        ((1.29, 1.31, 1.5), PASS, HELD),
        ((1.29, 1.31, 0.67), REGRESSED, ReasonCode.SPEEDUP_BELOW_PROMISE),
    ],
)
def test_a_promise_is_judged_by_one_interval_or_by_several_medians(speedups, outcome, code) -> None:
    summaries = [found for one in speedups for found in summary(about(one, 0.06))]
    then = remembered(past(8.0, cv=0.3))  # which bounds nothing
    verdict = judge_speedup(MEASURED, summaries, 1.3, then)
    assert (verdict.outcome, verdict.code) == (outcome, code)


@pytest.mark.parametrize(
    ("recorded", "cv", "speedup", "outcome"),
    [
        (1.4, 0.05, 1.27, PASS),  # 1.4 -20 % is 1.12: what processes differ by reaches below the promise
        (1.4, 0.05, 1.11, REGRESSED),
        (1.4, 0.001, 1.29, REGRESSED),
        (1.29, 0.05, 1.27, REGRESSED),  # a record below its promise excuses nothing
    ],
)
def test_a_fall_below_the_promise_that_the_record_allows_is_chance(recorded, cv, speedup, outcome) -> None:
    summaries = [found for _ in range(3) for found in summary(about(speedup))]
    verdict = judge_speedup(MEASURED, summaries, 1.3, remembered(past(recorded, cv=cv)))
    assert verdict.outcome is outcome


def test_a_verdict_about_a_time_has_the_slowdown_that_it_detects_and_its_false_alarms() -> None:
    numbers = judge_throughput(MEASURED, summary(about(3.0)), remembered(past())).numbers
    assert numbers["detectable_by_time"] == pytest.approx(0.022, abs=0.001)
    assert numbers["false_alarms"] == pytest.approx(0.05)
    unbounded = remembered(past(8.0, cv=0.3))
    assert judge_speedup(MEASURED, summary(about(8.0)), 1.0, unbounded).numbers["false_alarms"] < 0.05
    assert judge_speedup(MEASURED, summary(about(8.0)), 8.0, unbounded).numbers["false_alarms"] == pytest.approx(0.5)


def test_the_sides_that_moved_are_those_of_the_process_that_decided() -> None:
    summaries = [found for one in (3.3, 2.5, 2.6) for found in summary(about(one), about(30.0 / one))]
    verdict = judge_speedup(MEASURED, summaries, 2.0, remembered(past()))
    assert facts(verdict, ReasonCode.SIDES_MOVED)["optimized_now_ms"] == pytest.approx(30.0 / 2.6)


@pytest.mark.parametrize(
    ("others", "expected", "code"),
    [
        ((), REGRESSED, ReasonCode.SLOWER_THAN_RECORD),
        ((10.1,), INCONCLUSIVE, DISAGREE),
        ((10.9,), REGRESSED, ReasonCode.SLOWER_THAN_RECORD),
        ((10.1, 10.2), PASS, HELD),
    ],
)
def test_absolute_time_of_several_processes(others, expected, code) -> None:
    summaries = [found for ms in (10.9, *others) for found in summary(about(3.0), about(ms))]
    verdict = judge_throughput(MEASURED, summaries, remembered(past()))
    assert (verdict.outcome, verdict.code) == (expected, code)
    found = [reason.facts["optimized_ms"] for reason in verdict.reasons if reason.code is ReasonCode.FRESH_PROCESS]
    assert tuple(found) == others


def test_the_machine_is_blamed_by_the_process_that_counts() -> None:
    """The first one was as fast as recorded: of it alone, no slowdown at all would be like that of the reference."""
    summaries = [found for ms in (9.9, 10.9, 11.0) for found in summary(about(3.0), about(ms))]
    assert judge_throughput(MEASURED, summaries, remembered(past())).outcome is REGRESSED


def test_a_tolerance_that_is_asked_for_replaces_the_machines_own() -> None:
    for asked, expected in ((0.01, REGRESSED), (0.05, PASS)):
        verdict = judge_speedup(MEASURED, summary(about(2.95)), 2.0, remembered(past()), asked)
        assert verdict.outcome is expected


def test_a_suite_of_many_checks_tolerates_more_in_each() -> None:
    found = summary(about(3.0 * (1 - 0.045)))
    assert judge_speedup(MEASURED, found, 2.0, remembered(past(cv=0.01))).outcome is REGRESSED
    assert judge_speedup(MEASURED, found, 2.0, remembered(past(cv=0.01), checks=40)).outcome is PASS


def test_an_unstable_history_tolerates_more() -> None:
    slower = summary(about(2.9))
    assert judge_speedup(MEASURED, slower, 2.0, remembered(past(cv=0.001))).outcome is REGRESSED
    assert judge_speedup(MEASURED, slower, 2.0, remembered(past(cv=0.01))).outcome is PASS
    assert judge_speedup(MEASURED, slower, 2.0, remembered(past(cv=0.001, processes=4))).outcome is NO_BASELINE


def varying(speedup: float) -> History:
    """Of processes that vary so much that 1 % less is tolerated."""
    return past(speedup, cv=0.0025)


def test_slow_creep_alarms_against_the_anchor_though_every_update_is_within_tolerance() -> None:
    speedups = [3.0 * 0.991**update for update in range(11)]
    verdicts = [
        judge_speedup(
            MEASURED, summary(about(now, 1e-4)), 2.0, remembered(varying(before), anchor=varying(speedups[0]))
        )
        for before, now in pairwise(speedups)
    ]
    assert [verdict.outcome for verdict in verdicts] == [PASS] + [REGRESSED] * 9
    assert all(bounds(verdict) == ["anchored"] for verdict in verdicts[1:])
    assert all(verdict.next_step is NextStep.RECORD_NEW_ANCHOR for verdict in verdicts[1:])


def test_a_recorded_improvement_has_passed_the_anchor_for_good() -> None:
    then = remembered(past(3.0), anchor=past(2.0))
    verdicts = [judge_speedup(MEASURED, summary(about(now)), 1.5, then) for now in (3.0, 3.1)]
    assert [verdict.outcome for verdict in verdicts] == [PASS, IMPROVED]
    assert bounds(verdicts[1]) == ["recorded"]


@pytest.mark.parametrize(
    ("recorded", "minimum"), [(3.0, 2.0), (2.0, 2.9)], ids=["by the record too", "by the promise too"]
)
def test_the_anchor_is_to_be_moved_only_where_nothing_else_objects(recorded, minimum) -> None:
    then = remembered(past(recorded), anchor=past(4.0))
    verdict = judge_speedup(MEASURED, summary(about(2.5)), minimum, then)
    assert (verdict.outcome, verdict.next_step) == (REGRESSED, NextStep.MEASURE_LONGER)


def test_a_regression_says_which_side_moved_on_the_same_machine_alone() -> None:
    found = summary(about(2.5), about(12.0))
    exact = judge_speedup(MEASURED, found, 2.0, remembered(past()))
    moved = facts(exact, ReasonCode.SIDES_MOVED)
    assert (moved["optimized_then_ms"], moved["optimized_now_ms"]) == (10.0, 12.0)
    assert (moved["reference_then_ms"], moved["reference_now_ms"]) == (30.0, 30.0)
    other = judge_speedup(MEASURED, found, 2.0, remembered(past(), match="same device"))
    assert ReasonCode.SIDES_MOVED not in codes(other)


@pytest.mark.parametrize(
    ("speedup", "step"),
    [(2.5, NextStep.MEASURE_LONGER), (3.0, None), (3.5, NextStep.RECORD)],
)
def test_the_next_step_follows_from_the_outcome(speedup, step) -> None:
    assert judge_speedup(MEASURED, summary(about(speedup)), 2.0, remembered(past())).next_step is step


@pytest.mark.parametrize(
    ("speedup", "expected"),
    [
        (Estimate(1.0, 0.99, 1.01), NOT_ENGAGED),
        (Estimate(1.035, 1.029, 1.04), NOT_ENGAGED),  # two identical sides may differ a little for their whole life
        (Estimate(1.035, 1.031, 1.04), NO_BASELINE),
        (Estimate(0.965, 0.96, 0.971), NOT_ENGAGED),
        (Estimate(0.965, 0.96, 0.969), NO_BASELINE),
    ],
)
def test_what_does_the_same_at_the_same_speed_did_nothing(speedup, expected) -> None:
    verdict = judge_speedup(replace(MEASURED, inert=True), summary(speedup), 0.5, None)
    assert verdict.outcome is expected
    assert (verdict.code is ReasonCode.DID_NOTHING) is (expected is NOT_ENGAGED)
    assert verdict.next_step is (NextStep.TRACE if expected is NOT_ENGAGED else NextStep.RECORD)


def test_the_same_speed_by_other_means_is_no_proof_of_doing_nothing() -> None:
    assert judge_speedup(MEASURED, summary(about(1.0)), 0.5, remembered(past(1.0))).outcome is PASS


@pytest.mark.parametrize(
    ("differences", "expected", "reason"),
    [
        ((), INCONCLUSIVE, Reason(ReasonCode.NO_PAIRS)),
        (
            (Difference(math.inf, math.inf, None, "fresh inputs", "it returned NaN"),),
            WRONG,
            Reason(ReasonCode.NOT_TIMED, {"problem": "it returned NaN"}),
        ),
    ],
)
def test_what_was_not_timed_is_not_passed(differences, expected, reason) -> None:
    measured = replace(MEASURED, differences=differences)
    for verdict in (judge_speedup(measured, [], 1.0, None), judge_throughput(measured, [], remembered(past()))):
        assert (verdict.outcome, verdict.reasons, verdict.case_id) == (expected, (reason,), CASE_ID)


@pytest.mark.parametrize(
    ("optimized_ms", "match", "expected"),
    [
        (10.1, "exact", PASS),
        (10.4, "exact", REGRESSED),
        (9.6, "exact", IMPROVED),
        (10.6, "same device", PASS),
        (13.5, "same device", REGRESSED),
        (7.9, "same device", IMPROVED),
    ],
)
def test_absolute_time_is_judged_loosely_and_more_so_under_other_software(optimized_ms, match, expected) -> None:
    differences = ("driver 580.1 -> 590.2",) if match == "same device" else ()
    then = remembered(past(), match=match, differences=differences)
    verdict = judge_throughput(MEASURED, summary(about(3.0), about(optimized_ms)), then)
    assert verdict.outcome is expected
    assert (ReasonCode.TOLERANCE_WIDENED in codes(verdict)) is (match == "same device")
    assert (verdict.numbers["optimized_ms"], verdict.numbers["recorded_ms"]) == (optimized_ms, 10.0)


def test_a_changed_source_is_told_and_widens_nothing() -> None:
    then = remembered(past(), differences=("the workload's source changed",))
    verdict = judge_throughput(MEASURED, summary(about(3.0), about(10.6)), then)
    assert (verdict.outcome, verdict.numbers["time_tolerance"]) == (REGRESSED, pytest.approx(TWO_PERCENT))
    assert facts(verdict, ReasonCode.RECORD_DIFFERS) == {"differences": "the workload's source changed"}
    assert ReasonCode.SIDES_MOVED in codes(judge_speedup(MEASURED, summary(about(2.5)), 2.0, then))


@pytest.mark.parametrize(
    ("reference_ms", "expected"),
    [(30.0, REGRESSED), (31.0, REGRESSED), (32.0, Outcome.ENV_INVALID), (34.0, Outcome.ENV_INVALID)],
)
def test_where_the_reference_slowed_alike_the_machine_is_to_blame(reference_ms, expected) -> None:
    slowed = summary(about(3.0), about(11.0), reference_ms=about(reference_ms))
    verdict = judge_throughput(MEASURED, slowed, remembered(past()))
    assert verdict.outcome is expected
    assert (verdict.code is ReasonCode.MACHINE_CHANGED) is (expected is Outcome.ENV_INVALID)
    assert facts(verdict, ReasonCode.REFERENCE_TIME) == {"then": 30.0, "now": reference_ms}


@pytest.mark.parametrize(
    ("cv", "processes", "sittings", "asked", "detectable"),
    [
        (0.0, 5, 1, None, 0.01),  # the floor of a baseline of one night
        (
            0.01,
            5,
            1,
            None,
            0.0586,
        ),  # 4 cv and the floor, and 1.645 * sqrt(0.7355) cv more; d leaves 1 / (1 + d)
        (0.01, 5, 1, 0.1, 0.13),
        (0.4, 5, 1, None, None),
        (0.1, 25, 4, 0.1, 0.278),  # 1.645 * sqrt(0.511) cv beyond what was asked for
        (0.1, 25, 5, 0.1, 0.479),  # of five nights of five processes, of which three decide: 1.645 * sqrt(1.851) cv
    ],
)
def test_a_verdict_has_the_tolerance_that_was_applied_and_the_slowdown_that_it_detects(
    cv, processes, sittings, asked, detectable
) -> None:
    known = remembered(replace(past(3.0, cv=cv, processes=processes), sittings=sittings))
    numbers = judge_speedup(MEASURED, summary(about(3.0)), 2.0, known, asked).numbers
    assert numbers["speedup_tolerance"] == (asked or known.current.tolerance(checks_per_night=1))
    assert numbers["detectable_slowdown"] == (detectable and pytest.approx(detectable, rel=0.02))


def test_a_record_of_too_few_processes_detects_no_known_slowdown() -> None:
    numbers = judge_speedup(MEASURED, summary(about(3.0)), 2.0, remembered(past(cv=0.01, processes=4))).numbers
    assert (numbers["speedup_tolerance"], "detectable_slowdown" in numbers) == (0.05, False)


@pytest.mark.parametrize(("match", "floor"), [("exact", TWO_PERCENT), ("same device", 0.25)])
def test_a_verdict_about_a_time_has_its_tolerance(match, floor) -> None:
    verdict = judge_throughput(MEASURED, summary(about(3.0)), remembered(past(), match=match))
    assert verdict.numbers["time_tolerance"] == pytest.approx(floor)


def test_an_interval_of_times_is_turned_around_for_judging_speed() -> None:
    # 10 ms recorded, 2 %: slower than 10.2 ms regresses. Only the whole interval beyond it does.
    for estimate, outcome in (
        (Estimate(11, 10.19, 12), INCONCLUSIVE),
        (Estimate(11, 10.21, 12), REGRESSED),
        (Estimate(9.9, 9, 10.19), PASS),
    ):
        assert judge_throughput(MEASURED, summary(about(3), estimate), remembered(past())).outcome is outcome


def test_absolute_time_without_a_baseline_asks_for_one() -> None:
    verdict = judge_throughput(MEASURED, summary(about(3.0)), None)
    assert (verdict.outcome, verdict.next_step) == (NO_BASELINE, NextStep.RECORD)


ALLOWED = Tolerance(relative_l2=1e-3, max_error=1e-2, top1_agreement=0.99)
GOOD = Difference(1e-3, 1e-2, 0.99, "fresh inputs")  # on every border


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"relative_l2": 1.1e-3}, ReasonCode.RELATIVE_ERROR_TOO_LARGE),
        ({"max_error": 1.1e-2}, ReasonCode.LARGEST_ERROR_TOO_LARGE),
        ({"top1_agreement": 0.98}, ReasonCode.TOP1_AGREEMENT_TOO_LOW),
        ({"relative_l2": math.nan}, ReasonCode.RELATIVE_ERROR_TOO_LARGE),
        ({"max_error": math.nan}, ReasonCode.LARGEST_ERROR_TOO_LARGE),
        ({"when": "timed steps", "relative_l2": 1.0}, ReasonCode.RELATIVE_ERROR_TOO_LARGE),
        ({"relative_l2": math.inf, "problem": "it returned NaN or infinity"}, ReasonCode.OUTPUT_NOT_COMPARABLE),
    ],
)
@pytest.mark.parametrize("place", [0, 2])
def test_one_wrong_output_among_good_ones_is_wrong(changed, code, place) -> None:
    differences = [GOOD, GOOD]
    differences.insert(place, replace(GOOD, **changed))
    verdict = judge_equivalence(replace(MEASURED, differences=tuple(differences)), ALLOWED)
    assert (verdict.outcome, verdict.code) == (WRONG, code)
    assert verdict.reasons[0].facts["when"] == changed.get("when", "fresh inputs")
    # A longer measurement would not help; a larger tolerance may.
    assert verdict.next_step is (NextStep.REPEAT if "problem" in changed else NextStep.TRACE_BOTH_SIDES)


def test_outputs_on_the_border_are_equivalent() -> None:
    verdict = judge_equivalence(replace(MEASURED, differences=(GOOD, replace(GOOD, top1_agreement=None))), ALLOWED)
    assert verdict.outcome is PASS
    assert verdict.numbers == {"relative_l2": 1e-3, "max_error": 1e-2, "compared_outputs": 2.0}


def test_no_compared_output_is_no_proof() -> None:
    assert judge_equivalence(MEASURED, ALLOWED).outcome is INCONCLUSIVE


def test_infinite_errors_become_null_in_the_numbers() -> None:
    worst_of_all = Difference(math.inf, math.inf, None, "fresh inputs", "it returned NaN or infinity")
    verdict = judge_equivalence(replace(MEASURED, differences=(worst_of_all,)), ALLOWED)
    assert (verdict.numbers["relative_l2"], verdict.numbers["max_error"]) == (None, None)


@pytest.mark.parametrize(
    ("limit", "code"),
    [
        (Limit("kernels", at_most=62), None),
        (Limit("kernels", at_most=61), ReasonCode.COUNTER_ABOVE_LIMIT),
        (Limit("graph_launches", at_least=1), None),
        (Limit("graph_launches", at_least=2), ReasonCode.COUNTER_BELOW_LIMIT),
        (Limit("kernels", at_least_of_reference=0.31), None),
        (Limit("kernels", at_least_of_reference=0.32), ReasonCode.COUNTER_BELOW_SHARE_OF_REFERENCE),
        (Limit("kernels", at_most_of_reference=0.31), None),
        (Limit("kernels", at_most_of_reference=0.3), ReasonCode.COUNTER_ABOVE_SHARE_OF_REFERENCE),
        (Limit("memsets", at_most=0), ReasonCode.COUNTER_NOT_MEASURED),
    ],
)
def test_limits(limit, code) -> None:
    found = broken_limit(limit, COUNTED, {"kernels": 200.0})
    assert (found and found.code) == code
    assert found is None or found.facts["counter"] == limit.counter


BY_GRAPH, CHEAP = Limit("graph_launches", at_least=1), Limit("kernels", at_most=62)
NO_GRAPH, DEAR = Limit("graph_launches", at_least=2), Limit("kernels", at_most=50)


@pytest.mark.parametrize(
    ("contract", "expected", "reason", "step"),
    [
        (Contract((BY_GRAPH,), (CHEAP,)), PASS, "0 launches, 1 graph launches, 62 kernels", None),
        (None, PASS, "0 launches, 1 graph launches, 62 kernels", None),
        (Contract((BY_GRAPH,), (CHEAP, DEAR)), REGRESSED, "kernels 62 is above 50", NextStep.REPEAT),
        # An optimization that did not engage explains what it costs.
        (Contract((BY_GRAPH, NO_GRAPH), (DEAR,)), NOT_ENGAGED, "graph_launches 1 is below 2", NextStep.TRACE),
    ],
)
def test_a_contract_is_kept_or_broken(contract, expected, reason, step) -> None:
    verdict = judge_counters(replace(MEASURED, optimized_counters=COUNTED), contract, None)
    assert (verdict.outcome, verdict.reason, verdict.next_step) == (expected, reason, step)


@pytest.mark.parametrize("missing", [None, "kernels are counted on CUDA only"])
def test_what_a_side_says_of_itself_needs_no_counter(missing) -> None:
    measured = replace(MEASURED, optimized_counters=COUNTED, not_engaged="2 graph breaks", counters_missing=missing)
    verdict = judge_counters(measured, None, None)
    assert verdict.outcome is NOT_ENGAGED
    assert verdict.reasons == (Reason(ReasonCode.NOT_ENGAGED, {"problem": "2 graph breaks"}),)
    assert verdict.next_step is NextStep.TRACE


@pytest.mark.parametrize(
    ("contract", "expected"),
    [
        (None, PASS),
        (Contract(), PASS),
        (Contract(engaged=(BY_GRAPH,)), INCONCLUSIVE),
        (Contract(limits=(CHEAP,)), INCONCLUSIVE),
    ],
)
def test_a_contract_that_could_not_be_checked_is_not_passed(contract, expected) -> None:
    verdict = judge_counters(replace(MEASURED, counters_missing="counted on CUDA only"), contract, None)
    code = ReasonCode.COUNTED_IN_PART if expected is PASS else ReasonCode.CONTRACT_NOT_CHECKED
    assert verdict.outcome is expected
    assert verdict.reasons == (Reason(code, {"problem": "counted on CUDA only"}),)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((), PASS),
        ((Limit("minor_faults", at_most=10),), PASS),
        ((Limit("minor_faults", at_most=1),), REGRESSED),
        ((Limit("minor_faults", at_most=1), CHEAP), INCONCLUSIVE),
    ],
)
def test_cpu_counters_are_judged_where_kernels_cannot_be_counted(limits, expected) -> None:
    measured = replace(MEASURED, optimized_counters={"minor_faults": 5.0}, counters_missing="counted on CUDA only")
    verdict = judge_counters(measured, Contract(limits=limits), None)
    assert verdict.outcome is expected
    assert (verdict.code is ReasonCode.COUNTED_IN_PART) is (expected is PASS)


@pytest.mark.parametrize("name", [*EXACT_COUNTERS, *EXACT_UNLESS_AUTOTUNED])
@pytest.mark.parametrize(
    ("more", "match", "expected"),
    [(1, "exact", REGRESSED), (0, "exact", PASS), (-1, "exact", PASS), (1, "same device", REGRESSED)],
)
def test_more_calls_or_kernels_than_recorded_regress_under_any_software(name, more, match, expected) -> None:
    counted = {**COUNTED, name: 7.0 + more}
    then = remembered(past(), match=match, optimized_counters={**COUNTED, name: 7.0})
    verdict = judge_counters(replace(MEASURED, optimized_counters=counted), None, then)
    assert verdict.outcome is expected
    above = Reason(ReasonCode.COUNTER_ABOVE_RECORD, {"counter": name, "value": 8.0, "recorded": 7.0})
    assert (verdict.reasons == (above,)) is (expected is REGRESSED)


@pytest.mark.parametrize(("found", "expected"), [(153.8, PASS), (160.25, PASS), (180.0, REGRESSED)])
def test_a_count_that_is_no_whole_number_in_a_step_may_be_a_tenth_higher(found: float, expected: Outcome) -> None:
    """It is of a pipeline's own threads, whose work is bound to no step."""
    then = remembered(past(), optimized_counters={**COUNTED, "kernels": 153.75})
    counted = replace(MEASURED, optimized_counters={**COUNTED, "kernels": found})
    assert judge_counters(counted, None, then).outcome is expected


@pytest.mark.parametrize("name", [*EXACT_COUNTERS, *EXACT_UNLESS_AUTOTUNED])
def test_where_algorithms_are_raced_only_what_the_program_chose_must_repeat(name) -> None:
    counted = {**COUNTED, name: 8.0, "autotuned": 1.0}
    then = remembered(past(), optimized_counters={**COUNTED, name: 7.0, "autotuned": 1.0})
    verdict = judge_counters(replace(MEASURED, optimized_counters=counted), None, then)
    assert verdict.outcome is (PASS if name in EXACT_UNLESS_AUTOTUNED else REGRESSED)
    then = remembered(past(), optimized_counters={**COUNTED, name: 7.0, "autotuned": 0.0})
    verdict = judge_counters(replace(MEASURED, optimized_counters=counted), None, then)
    assert verdict.outcome is REGRESSED  # switching the race on explains nothing


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [(2.0**20, 0.0, REGRESSED), (512.0, 0.0, REGRESSED), (0.0, 0.0, PASS), (512.0, 512.0, PASS), (0.0, 512.0, PASS)],
)
def test_memory_that_grows_every_step_is_a_leak_unless_the_reference_has_it_too(ours, theirs, expected) -> None:
    counted = replace(MEASURED, optimized_counters={**COUNTED, "grown_bytes": ours})
    verdict = judge_counters(replace(counted, reference_counters={"grown_bytes": theirs}), None, None)
    assert verdict.outcome is expected
    assert (verdict.reasons == (Reason(ReasonCode.MEMORY_GROWS, {"bytes": ours}),)) is (expected is REGRESSED)
    assert verdict.next_step is (NextStep.MEASURE_LONGER if expected is REGRESSED else None)


@pytest.mark.parametrize("name", ["api_ms", "peak_bytes", "memsets"])
def test_what_does_not_repeat_exactly_may_grow(name) -> None:
    before = {**COUNTED, name: 3.0}
    counted = {**COUNTED, name: 6.0}
    then = remembered(past(), optimized_counters=before)
    assert judge_counters(replace(MEASURED, optimized_counters=counted), None, then).outcome is PASS


@pytest.mark.parametrize("outcome", Outcome)
def test_on_a_sick_machine_a_time_says_nothing_good_or_bad(outcome) -> None:
    because = Reason(ReasonCode.NO_PAIRS)
    verdict = Verdict("speedup", CASE_ID, outcome, (because,), NextStep.REPEAT, {"speedup": 2.0})
    found = with_environment(verdict, "the GPU is hot")
    if outcome in (WRONG, NOT_ENGAGED):
        assert found == verdict
    else:
        assert found.outcome is Outcome.ENV_INVALID
        assert (found.numbers, found.check) == (verdict.numbers, verdict.check)
        unfit = Reason(ReasonCode.MACHINE_UNFIT, {"problem": "the GPU is hot"})
        assert found.reasons == ((unfit,) if outcome is NO_BASELINE else (unfit, because))
    assert with_environment(verdict, None) == verdict


@pytest.mark.parametrize(("ratio", "sick"), [(None, False), (1.0, False), (0.9, False), (0.89, True)])
def test_events_that_miss_a_part_of_the_hosts_window_are_an_environment_problem(ratio, sick) -> None:
    problem = environment_problem(replace(measured_with(8, 0), event_host_ratio=ratio), (), {})
    words = "CUDA events saw only 89 % of the host's window: some stream is not joined by Side.finish"
    assert problem == (words if sick else None)


def measured_with(kept: int, discarded: int) -> Measurement:
    pairs = (Pair(3.0, 1.0, True),) * kept
    return replace(MEASURED, instances=(TimedBuild(True, pairs, discarded, ("power brake",)),))


@pytest.mark.parametrize(("discarded", "sick"), [(0, False), (8, False), (9, True)])
def test_more_throttled_pairs_than_kept_ones_are_a_sick_machine(discarded, sick) -> None:
    problem = environment_problem(measured_with(8, discarded), (), {})
    assert problem == ("9 pairs were throttled (power brake), more than the 8 kept" if sick else None)


def test_a_quota_that_throttles_is_an_environment_problem_and_not_the_heat() -> None:
    throttled = replace(measured_with(8, 0), optimized_counters={"throttled_periods": 0.77})
    problem = environment_problem(throttled, (), {})
    assert problem == "throttled in 77 % of the periods of a quota of CPU time"
    found = with_environment(Verdict("speedup", CASE_ID, PASS), problem)
    assert (found.outcome, found.next_step) == (Outcome.ENV_INVALID, NextStep.RAISE_QUOTA)
    # A part of the measurement was beside other work, before a part that was throttled.
    assert with_other_work(found, replace(throttled, optimized_counters={"other_cores": 1.6}), on_cpu=True) == found


EXPECTED = {"matmul_bf16_tflops": 800.0, "pinned_copy_gb_per_s": 50.0, "launch_latency_us": 2.0}


@pytest.mark.parametrize(
    ("values", "sick"),
    [
        ({"matmul_bf16_tflops": 681.0, "pinned_copy_gb_per_s": 36.0, "launch_latency_us": 2.0}, None),
        ({"matmul_bf16_tflops": 679.0}, "the machine gave matmul bf16 679 TFLOP/s instead of 800 TFLOP/s"),
        ({"pinned_copy_gb_per_s": 34.0}, "the machine gave pinned copy 34 GB/s instead of 50 GB/s"),
        ({"launch_latency_us": 9.0}, None),  # too jumpy to say so
        ({"device_copy_gb_per_s": 1.0}, None),  # nothing to compare it with
    ],
)
@pytest.mark.parametrize("place", ["before", "after"])
def test_a_lost_ceiling_on_either_side_of_a_measurement_is_a_sick_machine(values, sick, place) -> None:
    around = [Yardstick(values), Yardstick(EXPECTED)]
    if place == "after":
        around.reverse()
    assert environment_problem(measured_with(8, 0), around, EXPECTED) == sick


def test_a_ceiling_far_above_the_recorded_one_is_a_record_of_a_busy_machine() -> None:
    risen, once = Yardstick({"pinned_copy_gb_per_s": 72.0}), Yardstick({"pinned_copy_gb_per_s": 71.0})
    said = "the machine gave pinned copy 72 GB/s, and only 50 GB/s when this was recorded: it was busy then, record it"
    assert environment_problem(measured_with(8, 0), [risen, risen], EXPECTED) == f"{said} again"
    assert environment_problem(measured_with(8, 0), [risen, once], EXPECTED) is None


@pytest.mark.parametrize(
    ("latencies_us", "change"),
    [((2.5, 2.8), "launch latency 2 us -> 2.5 us"), ((9.0, 2.4), None), ((2.0,), None), ((), None)],
)
def test_launches_that_take_longer_around_a_case_are_named_as_a_change_of_the_machine(latencies_us, change) -> None:
    around = [Yardstick({"launch_latency_us": us}) for us in latencies_us]
    assert slower_launches([Yardstick({"matmul_bf16_tflops": 1.0}), *around], EXPECTED) == change
    assert slower_launches(around, {}) is None


@pytest.mark.parametrize("contract", [None, Contract((BY_GRAPH,), (CHEAP,))])
def test_what_returned_nan_was_not_counted_and_is_wrong(contract) -> None:
    nan = Difference(math.inf, math.inf, None, "fresh inputs", "it returned NaN or infinity")
    verdict = judge_counters(replace(MEASURED, differences=(nan,)), contract, None)
    assert verdict.outcome is WRONG
    assert verdict.reasons == (Reason(ReasonCode.NOT_COUNTED, {"problem": "it returned NaN or infinity"}),)
