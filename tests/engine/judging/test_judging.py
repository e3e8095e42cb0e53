"""From numbers to words: every border of every verdict, with made-up numbers."""

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest

from gpugate.judging.counters import EXACT_COUNTERS, EXACT_UNLESS_AUTOTUNED, broken_limit, judge_counters
from gpugate.judging.equivalence import judge_equivalence
from gpugate.judging.machine_state import environment_problem, with_environment
from gpugate.judging.times import (
    NOTHING_RECORDED,
    against_minimum,
    against_reference,
    judge_speedup,
    judge_throughput,
)
from gpugate.measurement.record import Difference, Measurement, Pair, SideCost, TimedBuild, Yardstick
from gpugate.results.case import Remembered
from gpugate.results.summary import History, Summary
from gpugate.results.verdict import SEVERITY, NextStep, Outcome, Verdict, worst
from gpugate.statistics.intervals import Estimate
from gpugate.workload import Contract, Limit, Tolerance

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
    varied = "a recorded and an anchored speedup whose processes vary by 30 %, too much to bound anything"
    assert f" has {varied}: record more, or on a quieter machine; " in verdict.reason
    assert judge_speedup(MEASURED, summary(about(0.01)), None, then, asked_tolerance=0.5).outcome is REGRESSED


def test_beside_a_baseline_that_bounds_nothing_the_promise_judges() -> None:
    then = remembered(past(8.0, cv=0.3))
    kept = judge_speedup(MEASURED, summary(about(2.01)), 2.0, then)
    varied = "; it has a recorded and an anchored speedup whose processes vary by 30 %, too much to bound anything ("
    assert kept.outcome is PASS
    assert f"holds the promised 2.00x{varied}" in kept.reason
    assert judge_speedup(MEASURED, summary(about(1.9)), 2.0, then).outcome is REGRESSED


def test_beside_a_record_that_bounds_nothing_the_anchor_judges_and_too_few_processes_are_no_baseline() -> None:
    then = replace(remembered(past(8.0, cv=0.3)), anchor=past(8.0))
    slow = judge_speedup(MEASURED, summary(about(2.01)), 2.0, then)
    assert slow.outcome is REGRESSED
    assert "is below the anchored 8.00x -1 %" in slow.reason
    assert "; it has a recorded speedup whose processes vary by 30 %, too much to bound anything (" in slow.reason
    young = judge_speedup(MEASURED, summary(about(2.01)), 2.0, remembered(past(8.0, cv=0.9, processes=3)))
    assert young.outcome is NO_BASELINE
    assert "has a baseline of 3 processes, where a gate needs 5" in young.reason


def test_a_time_that_varies_too_much_is_told() -> None:
    then = remembered(past(cv=0.3))
    assert "tolerance 120 %, which bounds nothing" in judge_throughput(MEASURED, summary(about(3.0)), then).reason
    assert "bounds nothing" not in judge_throughput(MEASURED, summary(about(3.0)), remembered(past())).reason


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
    assert (verdict.reason == NOTHING_RECORDED) is (expected is NO_BASELINE)
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
    words = f"has a baseline of {processes} processes, where a gate needs 5"
    assert verdict.outcome is expected
    assert (words in verdict.reason) is (expected is NO_BASELINE)
    assert (verdict.next_step is NextStep.RECORD) is (expected is NO_BASELINE)


@pytest.mark.parametrize(("speedup", "expected"), [(3.0, PASS), (2.9, REGRESSED), (3.1, IMPROVED)])
def test_where_nothing_is_promised_the_recorded_speedup_is_judged_alone(speedup, expected) -> None:
    verdict = judge_speedup(MEASURED, summary(about(speedup)), None, remembered(past()))
    assert verdict.outcome is expected
    assert "promised" not in verdict.reason


@pytest.mark.parametrize(("speedup", "expected"), [(3.0, PASS), (2.9, REGRESSED), (3.1, IMPROVED)])
def test_a_speedup_is_judged_alike_by_a_record_of_other_software(speedup, expected) -> None:
    """The ratio outlives a driver; what differs is a note of the session and widens the judgement of times alone."""
    then = remembered(past(), match="same device", differences=("driver 580.1 -> 590.2",))
    verdict = judge_speedup(MEASURED, summary(about(speedup)), 2.0, then)
    assert verdict.outcome is expected
    assert "driver" not in verdict.reason


@pytest.mark.parametrize(
    ("stopped_because", "discarded", "instances", "evidence"),
    [
        ("narrow", 0, 3, "(12 pairs over 3 fresh builds, until the interval was narrow)"),
        ("noise", 0, 1, "(12 pairs over 1 fresh build, until the noise stopped changing)"),
        ("budget", 2, 2, "(12 pairs over 2 fresh builds, 2 discarded as throttled, until the budget was spent)"),
    ],
)
@pytest.mark.parametrize("speedup", [3.0, 2.5, 2.971, 3.5])
@pytest.mark.parametrize(("attempts", "asked"), [(1, ""), (2, ", asked once for more pairs"), (4, ", asked 3 times")])
def test_every_speedup_says_what_it_rests_on(
    stopped_because, discarded, instances, evidence, attempts, asked, speedup
) -> None:
    found = summary(about(speedup), discarded=discarded, instances=instances)
    measured = replace(MEASURED, stopped_because=stopped_because, attempts=attempts)
    reason = judge_speedup(measured, found, 2.0, remembered(past())).reason
    builds, _, rest = evidence.partition(", ")
    assert f" {builds}{asked}" in reason
    assert reason.endswith(rest)
    assert ("more pairs" in reason) is (attempts > 1)


@pytest.mark.parametrize(
    ("speedup", "expected", "words"),
    [
        (3.0, PASS, "3.00x (3.00..3.00) holds the promised 2.00x and the recorded 3.00x -1 % and the anchored 3.00x"),
        (2.95, REGRESSED, "is below the recorded 3.00x -1 % and the anchored 3.00x -1 %; optimized"),
        (2.971, INCONCLUSIVE, "is not clearly on either side of the recorded"),
        (3.05, IMPROVED, "beats the recorded 3.00x -1 %; optimized"),
        (1.9, REGRESSED, "is below the promised 2.00x and the recorded"),
    ],
)
def test_a_speedup_is_judged_by_the_promise_and_by_what_was_recorded(speedup, expected, words) -> None:
    verdict = judge_speedup(MEASURED, summary(about(speedup)), 2.0, remembered(past()))
    assert verdict.outcome is expected
    assert words in verdict.reason


@pytest.mark.parametrize(
    ("speedups", "expected", "said"),
    [
        (
            (2.96, 2.98),
            INCONCLUSIVE,
            ", in a fresh process 2.98x (2.98..2.98): they disagree about the recorded 3.00x -1 % and",
        ),
        ((2.96, 2.96), REGRESSED, ", in a fresh process 2.96x: both are below the recorded 3.00x -1 % and"),
        ((2.8, 2.98, 3.0), PASS, ", in fresh processes 2.98x and 3.00x: the middle one of 3 holds the promised 2.00x"),
        # The first one's interval was on both sides of 2.97.
        ((2.971, 2.96, 2.969), REGRESSED, ", in fresh processes 2.96x and 2.97x: the middle one of 3 is below the rec"),
        ((2.971, 2.971), PASS, ", in a fresh process 2.97x: both hold the promised 2.00x and the recorded 3.00x -1 %"),
        ((3.0, 3.1, 3.2), IMPROVED, ", in fresh processes 3.10x and 3.20x: the middle one of 3 beats the recorded"),
        ((2.9, 2.9, 2.9, 3.0), REGRESSED, "2.90x and 2.90x and 3.00x: the middle two of 4 are below the recorded"),
    ],
)
def test_several_processes_are_judged_by_their_medians_and_it_is_said_who_decides(speedups, expected, said) -> None:
    summaries = [found for one in speedups for found in summary(about(one), about(30.0 / one))]
    verdict = judge_speedup(MEASURED, summaries, 2.0, remembered(past()))
    assert verdict.outcome is expected
    low, high = (f"{factor * speedups[0]:.2f}" for factor in (0.999, 1.001))
    assert verdict.reason.startswith(f"{speedups[0]:.2f}x ({low}..{high})")
    assert said in verdict.reason
    # The times are not of this process, whose ratio comes first.
    assert ("; in the process that decided optimized 10.00 ms -> " in verdict.reason) is (expected is not PASS)
    assert verdict.reason.endswith("(12 pairs over 3 fresh builds of this process, until the interval was narrow)")


@pytest.mark.parametrize(
    ("speedups", "said"),
    [
        (
            (0.67, 1.5),
            "0.67x (0.63..0.71), in a fresh process 1.50x (1.41..1.59): they disagree about the promised 1.30x",
        ),
        (
            (1.29, 1.31),
            "in a fresh process 1.31x (1.23..1.39): both are not clearly on either side of the promised 1.30x",
        ),
        (
            (1.29, 0.67, 1.5),
            "0.67x (0.63..0.71) and 1.50x (1.41..1.59): the middle one of 3 is not clearly on either side",
        ),
    ],
)
def test_a_promise_that_stays_open_says_whether_processes_contradict_each_other(speedups, said) -> None:
    verdict = judge_speedup(MEASURED, [found for one in speedups for found in summary(about(one, 0.06))], 1.3, None)
    assert (verdict.outcome, said in verdict.reason) == (INCONCLUSIVE, True), verdict.reason


def test_what_is_clear_and_what_is_disputed_are_told_apart() -> None:
    """Of 2.94 and 3.06 the intervals reach over 3.00, and the medians lie on both sides of the recorded 3.05 - 1 %."""
    summaries = [found for one in (2.94, 3.06) for found in summary(about(one, 0.05))]
    reason = judge_speedup(MEASURED, summaries, 3.0, remembered(past(3.05))).reason
    assert "both are not clearly on either side of the promised 3.00x and they disagree about the recorded" in reason


def test_several_processes_do_not_have_a_baseline_each() -> None:
    reason = judge_speedup(MEASURED, summary(about(3.0)) * 3, 2.0, remembered(past(processes=4))).reason
    assert "3.00x and 3.00x: there is a baseline of 4 processes, where a gate needs 5" in reason


def test_where_it_moved_is_told_of_the_process_that_counts() -> None:
    summaries = [found for one in (3.3, 2.5, 2.6) for found in summary(about(one), about(30.0 / one))]
    reason = judge_speedup(MEASURED, summaries, 2.0, remembered(past())).reason
    assert "optimized 10.00 ms -> 11.54 ms" in reason


@pytest.mark.parametrize(
    ("others", "expected", "said"),
    [
        ((), REGRESSED, "10.90 ms per step against 10.00 ms recorded"),
        ((10.1,), INCONCLUSIVE, "10.90 ms per step, in a fresh process 10.10 ms (they disagree) against 10.00 ms"),
        ((10.9,), REGRESSED, "10.90 ms per step, in a fresh process 10.90 ms (both count) against 10.00 ms"),
        ((10.1, 10.2), PASS, "in fresh processes 10.10 ms and 10.20 ms (the middle one of 3 counts) against 10.00 ms"),
    ],
)
def test_absolute_time_of_several_processes(others, expected, said) -> None:
    summaries = [found for ms in (10.9, *others) for found in summary(about(3.0), about(ms))]
    verdict = judge_throughput(MEASURED, summaries, remembered(past()))
    assert (verdict.outcome, said in verdict.reason) == (expected, True), verdict.reason


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
    assert all("anchored" in verdict.reason and "recorded" not in verdict.reason for verdict in verdicts[1:])
    assert all(verdict.next_step is NextStep.RECORD_NEW_ANCHOR for verdict in verdicts[1:])


def test_a_recorded_improvement_has_passed_the_anchor_for_good() -> None:
    then = remembered(past(3.0), anchor=past(2.0))
    verdicts = [judge_speedup(MEASURED, summary(about(now)), 1.5, then) for now in (3.0, 3.1)]
    assert [verdict.outcome for verdict in verdicts] == [PASS, IMPROVED]
    assert "anchored" not in verdicts[1].reason


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
    assert "optimized 10.00 ms -> 12.00 ms, reference 30.00 ms -> 30.00 ms" in exact.reason
    other = judge_speedup(MEASURED, found, 2.0, remembered(past(), match="same device"))
    assert "->" not in other.reason


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
    assert ("it did nothing" in verdict.reason) is (expected is NOT_ENGAGED)
    assert verdict.next_step is (NextStep.TRACE if expected is NOT_ENGAGED else NextStep.RECORD)


def test_the_same_speed_by_other_means_is_no_proof_of_doing_nothing() -> None:
    assert judge_speedup(MEASURED, summary(about(1.0)), 0.5, remembered(past(1.0))).outcome is PASS


@pytest.mark.parametrize(
    ("differences", "expected", "reason"),
    [
        ((), INCONCLUSIVE, "no pair of blocks was measured"),
        (
            (Difference(math.inf, math.inf, None, "fresh inputs", "it returned NaN"),),
            WRONG,
            "not timed: it returned NaN",
        ),
    ],
)
def test_what_was_not_timed_is_not_passed(differences, expected, reason) -> None:
    measured = replace(MEASURED, differences=differences)
    for verdict in (judge_speedup(measured, [], 1.0, None), judge_throughput(measured, [], remembered(past()))):
        assert (verdict.outcome, verdict.reason, verdict.case_id) == (expected, reason, CASE_ID)


@pytest.mark.parametrize(
    ("optimized_ms", "match", "expected"),
    [
        (10.4, "exact", PASS),
        (10.6, "exact", REGRESSED),
        (9.4, "exact", IMPROVED),
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
    assert ("widened, since driver 580.1 -> 590.2" in verdict.reason) is (match == "same device")
    assert (verdict.numbers["optimized_ms"], verdict.numbers["recorded_ms"]) == (optimized_ms, 10.0)


def test_a_changed_source_is_told_and_widens_nothing() -> None:
    then = remembered(past(), differences=("the workload's source changed",))
    verdict = judge_throughput(MEASURED, summary(about(3.0), about(10.6)), then)
    assert verdict.outcome is REGRESSED
    assert verdict.reason.endswith("reference 30.00 ms -> 30.00 ms (since the workload's source changed)")
    assert "tolerance 5 %;" in verdict.reason
    assert "optimized 10.00 ms" in judge_speedup(MEASURED, summary(about(2.5)), 2.0, then).reason


@pytest.mark.parametrize(
    ("reference_ms", "expected"),
    [(30.0, REGRESSED), (31.0, REGRESSED), (32.0, Outcome.ENV_INVALID), (34.0, Outcome.ENV_INVALID)],
)
def test_where_the_reference_slowed_alike_the_machine_is_to_blame(reference_ms, expected) -> None:
    slowed = summary(about(3.0), about(11.0), reference_ms=about(reference_ms))
    verdict = judge_throughput(MEASURED, slowed, remembered(past()))
    assert verdict.outcome is expected
    assert f"reference 30.00 ms -> {reference_ms:.2f} ms" in verdict.reason


@pytest.mark.parametrize(
    ("cv", "processes", "sittings", "asked", "detectable"),
    [
        (0.0, 5, 1, None, 0.01),  # the floor of a baseline of one night
        (0.01, 5, 1, None, 0.062),  # 4 cv, and 1.645 * sqrt(1.287) cv more; a slowdown d leaves 1 / (1 + d)
        (0.01, 5, 1, 0.1, 0.13),
        (0.4, 5, 1, None, None),
        (0.1, 25, 4, 0.1, 0.37),  # 1.645 * sqrt(1.062) cv beyond what was asked for
        (0.1, 25, 5, 0.1, 0.72),  # of five nights, which vary less than their processes: 1.645 * sqrt(3.774) cv
    ],
)
def test_a_verdict_has_the_tolerance_that_was_applied_and_the_slowdown_that_it_detects(
    cv, processes, sittings, asked, detectable
) -> None:
    known = remembered(replace(past(3.0, cv=cv, processes=processes), sittings=sittings))
    numbers = judge_speedup(MEASURED, summary(about(3.0)), 2.0, known, asked).numbers
    assert numbers["speedup_tolerance"] == (asked or known.current.tolerance(checks=1))
    assert numbers["detectable_slowdown"] == (detectable and pytest.approx(detectable, rel=0.05))


def test_a_record_of_too_few_processes_detects_no_known_slowdown() -> None:
    numbers = judge_speedup(MEASURED, summary(about(3.0)), 2.0, remembered(past(cv=0.01, processes=4))).numbers
    assert (numbers["speedup_tolerance"], "detectable_slowdown" in numbers) == (0.05, False)


@pytest.mark.parametrize(("match", "floor"), [("exact", 0.05), ("same device", 0.25)])
def test_a_verdict_about_a_time_has_its_tolerance(match, floor) -> None:
    verdict = judge_throughput(MEASURED, summary(about(3.0)), remembered(past(), match=match))
    assert verdict.numbers["time_tolerance"] == floor


def test_an_interval_of_times_is_turned_around_for_judging_speed() -> None:
    # 10 ms recorded, 5 %: slower than 10.53 ms regresses. Only the whole interval beyond it does.
    assert (
        judge_throughput(MEASURED, summary(about(3), Estimate(11, 10.4, 12)), remembered(past())).outcome
        is INCONCLUSIVE
    )
    assert (
        judge_throughput(MEASURED, summary(about(3), Estimate(11, 10.6, 12)), remembered(past())).outcome is REGRESSED
    )
    assert judge_throughput(MEASURED, summary(about(3), Estimate(9.8, 9, 10.5)), remembered(past())).outcome is PASS


def test_absolute_time_without_a_baseline_asks_for_one() -> None:
    verdict = judge_throughput(MEASURED, summary(about(3.0)), None)
    assert (verdict.outcome, verdict.next_step) == (NO_BASELINE, NextStep.RECORD)


ALLOWED = Tolerance(relative_l2=1e-3, max_error=1e-2, top1_agreement=0.99)
GOOD = Difference(1e-3, 1e-2, 0.99, "fresh inputs")  # on every border


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"relative_l2": 1.1e-3}, "on fresh inputs relative L2 error 1.10e-03 exceeds 1.0e-03"),
        ({"max_error": 1.1e-2}, "largest error 1.10e-02 exceeds 1.0e-02"),
        ({"top1_agreement": 0.98}, "top-1 agreement 0.980 is below 0.99"),
        ({"relative_l2": math.nan}, "relative L2 error nan exceeds"),
        ({"max_error": math.nan}, "largest error nan exceeds"),
        ({"when": "timed steps", "relative_l2": 1.0}, "on timed steps relative L2"),
        ({"relative_l2": math.inf, "problem": "it returned NaN or infinity"}, "on fresh inputs it returned NaN"),
    ],
)
@pytest.mark.parametrize("place", [0, 2])
def test_one_wrong_output_among_good_ones_is_wrong(changed, words, place) -> None:
    differences = [GOOD, GOOD]
    differences.insert(place, replace(GOOD, **changed))
    verdict = judge_equivalence(replace(MEASURED, differences=tuple(differences)), ALLOWED)
    assert verdict.outcome is WRONG
    assert words in verdict.reason
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
    ("limit", "words"),
    [
        (Limit("kernels", at_most=62), None),
        (Limit("kernels", at_most=61), "kernels 62 is above 61"),
        (Limit("graph_launches", at_least=1), None),
        (Limit("graph_launches", at_least=2), "graph_launches 1 is below 2"),
        (Limit("kernels", at_most_of_reference=0.31), None),
        (Limit("kernels", at_most_of_reference=0.3), "kernels 62 is above 60, 0.3 of the reference's"),
        (Limit("memsets", at_most=0), "memsets was not measured"),
    ],
)
def test_limits(limit, words) -> None:
    assert broken_limit(limit, COUNTED, {"kernels": 200.0}) == words


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
    assert (verdict.outcome, verdict.reason) == (NOT_ENGAGED, "2 graph breaks")
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
    assert verdict.outcome is expected
    assert "counted on CUDA only" in verdict.reason


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
    assert ("not measured: counted on CUDA only" in verdict.reason) is (expected is PASS)


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
    assert (f"{name} 7 -> 8" in verdict.reason) is (expected is REGRESSED)


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
    assert (f"every step leaves {ours:,.0f} bytes more" in verdict.reason) is (expected is REGRESSED)
    assert verdict.next_step is (NextStep.MEASURE_LONGER if expected is REGRESSED else None)


@pytest.mark.parametrize("name", ["api_ms", "peak_bytes", "memsets"])
def test_what_does_not_repeat_exactly_may_grow(name) -> None:
    before = {**COUNTED, name: 3.0}
    counted = {**COUNTED, name: 6.0}
    then = remembered(past(), optimized_counters=before)
    assert judge_counters(replace(MEASURED, optimized_counters=counted), None, then).outcome is PASS


@pytest.mark.parametrize("outcome", Outcome)
def test_on_a_sick_machine_a_time_says_nothing_good_or_bad(outcome) -> None:
    verdict = Verdict("speedup", CASE_ID, outcome, "because", NextStep.REPEAT, {"speedup": 2.0})
    found = with_environment(verdict, "the GPU is hot")
    if outcome in (WRONG, NOT_ENGAGED):
        assert found == verdict
    else:
        assert found.outcome is Outcome.ENV_INVALID
        assert (found.numbers, found.check) == (verdict.numbers, verdict.check)
        said = "" if outcome is NO_BASELINE else "; on this machine state: because"
        assert found.reason == f"the GPU is hot{said}"
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


@pytest.mark.parametrize("contract", [None, Contract((BY_GRAPH,), (CHEAP,))])
def test_what_returned_nan_was_not_counted_and_is_wrong(contract) -> None:
    nan = Difference(math.inf, math.inf, None, "fresh inputs", "it returned NaN or infinity")
    verdict = judge_counters(replace(MEASURED, differences=(nan,)), contract, None)
    assert (verdict.outcome, verdict.reason) == (WRONG, "not counted: it returned NaN or infinity")
