"""The verdict of several processes, and the cases that need another one, on made-up measurements."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gpugate.judging.decide import (
    allowed_processes,
    decide,
    decider,
    is_always_slowed,
    left_open_by_other_work,
    wants_fresh_process,
    wants_more_pairs,
)
from gpugate.judging.next_step import RECORDING
from gpugate.judging.times import MOVED
from gpugate.measurement.record import Difference, Measurement, Pair, SideCost, TimedBuild
from gpugate.results.case import CaseResult, Confirmation, Promise, Remembered
from gpugate.results.duet import RecordedCode
from gpugate.results.reason import ReasonCode
from gpugate.results.run import Mode
from gpugate.results.summary import History, Usual
from gpugate.results.verdict import NextStep, Outcome
from gpugate.workload import Contract, Limit, Size, Tolerance

NOT_CONFIRMED, OTHER_WORK = ReasonCode.NOT_CONFIRMED, ReasonCode.OTHER_WORK
PASS, REGRESSED, INCONCLUSIVE = Outcome.PASS, Outcome.REGRESSED, Outcome.INCONCLUSIVE
CASE_ID = "net/fast/cuda"
COUNTED = {"kernel_launches": 1.0, "graph_launches": 0.0, "kernels": 57.0}
LOOSE = Tolerance(1e-3, 1e-2)
RECORDED = History(3.0, 0.001, 30.0, 10.0, 0.001, 5)


def measured(speedup: float, error: float = 0.0, **counted: float) -> Measurement:
    """Of three instances, at 30 ms per step of the reference."""
    instances = (TimedBuild(True, (Pair(30.0, 30.0 / speedup, True),) * 4),) * 3
    difference = Difference(error, error, None, "fresh inputs")
    cost = SideCost(0.1, 0.1)
    found = Measurement(CASE_ID, instances, "narrow", (difference,), cost, cost)
    return replace(found, optimized_counters={**COUNTED, **counted})


def timed(reference_ms: float, optimized_ms: float) -> Measurement:
    """As `measured`, by the times of both sides; 30 and 10 ms are recorded."""
    instances = (TimedBuild(True, (Pair(reference_ms, optimized_ms, True),) * 4),) * 3
    return replace(measured(3.0), instances=instances)


def case(first: Measurement, *others: Confirmation, mode: Mode = Mode.GATE, **changed: object) -> CaseResult:
    result = CaseResult(CASE_ID, "net", "fast", "baseline", Size(1, 0, 0), first, attempts=list(others))
    result.promise = Promise(1.5, LOOSE, Contract(limits=(Limit("kernels", at_most=58),)))
    result.remembered = Remembered(RECORDED, RECORDED, "exact", optimized_counters=COUNTED)
    for name, value in changed.items():
        setattr(result, name, value)
    result.verdicts = decide(result, mode, asked_tolerance=None)
    return result


def outcomes(result: CaseResult) -> dict[str, Outcome]:
    return {verdict.check: verdict.outcome for verdict in result.verdicts}


def reasons(result: CaseResult, check: str) -> dict[ReasonCode, Mapping[str, float | str]]:
    """The facts of each reason of one verdict, by its code."""
    found = next(verdict.reasons for verdict in result.verdicts if verdict.check == check)
    return {reason.code: reason.facts for reason in found}


def test_a_regression_is_asked_about_once_and_a_contradiction_once_more() -> None:
    slow, fine = measured(2.9), Confirmation(measured(3.0))
    alone = case(slow)
    assert (outcomes(alone)["speedup"], wants_fresh_process(alone)) == (REGRESSED, True)
    confirmed = case(slow, Confirmation(slow))
    assert (outcomes(confirmed)["speedup"], wants_fresh_process(confirmed)) == (REGRESSED, False)
    contradicted = case(slow, fine)
    assert (outcomes(contradicted)["speedup"], wants_fresh_process(contradicted)) == (INCONCLUSIVE, True)
    outvoted = case(slow, fine, fine)
    assert (outcomes(outvoted)["speedup"], wants_fresh_process(outvoted)) == (PASS, False)
    assert reasons(outvoted, "speedup")[ReasonCode.FRESH_PROCESS]["speedup"] == pytest.approx(3.0)


def test_what_holds_asks_nobody() -> None:
    assert not wants_fresh_process(case(measured(3.0)))
    assert not wants_more_pairs(case(measured(3.0)))
    assert wants_more_pairs(case(measured(2.9)))


def test_an_open_question_asks_for_more_pairs_first() -> None:
    spread = tuple(TimedBuild(True, (Pair(speedup, 1.0, True),) * 4) for speedup in (2.9, 3.0, 3.1))
    undecided = case(replace(measured(3.0), instances=spread))
    assert outcomes(undecided)["speedup"] is INCONCLUSIVE
    assert wants_more_pairs(undecided)
    assert wants_fresh_process(undecided)
    unrecorded = case(replace(measured(3.0), instances=spread), remembered=None, promise=Promise(2.95, LOOSE, None))
    assert outcomes(unrecorded)["speedup"] is INCONCLUSIVE
    assert wants_more_pairs(unrecorded)
    assert not wants_fresh_process(unrecorded)


def test_what_processes_differ_by_asks_for_another_process_and_for_no_more_pairs() -> None:
    """Recorded processes vary by 1 %: t(4) of it at 99 %, 3.7 %, are within one percent of the tolerance of 4 %."""
    varied = Remembered(*[replace(RECORDED, speedup_cv=0.01)] * 2, "exact", optimized_counters=COUNTED)
    undecided = case(measured(2.98), remembered=varied)
    assert outcomes(undecided)["speedup"] is INCONCLUSIVE
    assert (wants_more_pairs(undecided), wants_fresh_process(undecided)) == (False, True)
    spread = tuple(TimedBuild(True, (Pair(speedup, 1.0, True),) * 4) for speedup in (2.4, 3.0, 3.6))
    assert wants_more_pairs(case(replace(measured(3.0), instances=spread), remembered=varied))
    again = case(measured(2.98), Confirmation(measured(2.98)), remembered=varied)
    assert (outcomes(again)["speedup"], wants_fresh_process(again)) == (PASS, False)


USUAL = Usual(half_width=0.001, reference_ms=30.0, reference_spread=0.01)  # disturbed from +-1 % and 33.2 ms on
SCREENED = Remembered(*[replace(RECORDED, usual=USUAL)] * 2, "exact", optimized_counters=COUNTED)
FINE, SLOW = Confirmation(timed(30.0, 10.0)), Confirmation(timed(30.0, 11.0))
BESIDE = Confirmation(timed(36.0, 12.0))  # both sides take a fifth longer: the speedup is as recorded


def screened(*processes: Confirmation, **changed: object) -> CaseResult:
    first, *others = processes
    assert first.measurement is not None
    return case(first.measurement, *others, **{"remembered": SCREENED, **changed})


def test_a_disturbed_process_does_not_pass_and_does_not_count_beside_an_undisturbed_one() -> None:
    alone = screened(BESIDE)
    assert wants_fresh_process(alone)
    then = screened(BESIDE, FINE)
    assert (outcomes(then)["speedup"], outcomes(then)["throughput"], wants_fresh_process(then)) == (PASS, PASS, False)
    assert reasons(then, "speedup")[ReasonCode.DISTURBED] == {"disturbed": 1, "processes": 2}
    decided = decider(replace(then, summary=then.summarize(timed(36.0, 12.0))))
    assert decided is not None
    assert (decided.processes, decided.summary.optimized_ms.median) == (1, 10.0)


def test_an_alarm_of_the_only_undisturbed_process_is_confirmed() -> None:
    once = screened(BESIDE, SLOW)
    assert (outcomes(once)["speedup"], wants_fresh_process(once)) == (REGRESSED, True)
    twice = screened(BESIDE, SLOW, SLOW)
    assert (outcomes(twice)["speedup"], wants_fresh_process(twice)) == (REGRESSED, False)
    contradicted = screened(BESIDE, SLOW, FINE)
    assert outcomes(contradicted)["speedup"] is INCONCLUSIVE


def test_spare_processes_measure_in_place_of_disturbed_ones() -> None:
    taken = [(FINE,), (BESIDE,), (BESIDE, BESIDE), (BESIDE, FINE, BESIDE, BESIDE)]
    assert [allowed_processes(screened(*processes), attempts=3) for processes in taken] == [3, 4, 5, 5]
    assert allowed_processes(screened(BESIDE), attempts=1) == 1


def test_of_three_processes_the_only_undisturbed_one_decides_by_its_median() -> None:
    """Recorded processes vary by 1 %, so that the interval of one process decides nothing."""
    varied = Remembered(*[replace(RECORDED, speedup_cv=0.01, usual=USUAL)] * 2, "exact", optimized_counters=COUNTED)
    for speedup, outcome in ((2.95, PASS), (2.86, REGRESSED)):
        one = Confirmation(measured(speedup))
        two = screened(BESIDE, one, remembered=varied)
        assert (outcomes(two)["speedup"], wants_fresh_process(two)) == (INCONCLUSIVE, True)
        assert outcomes(screened(BESIDE, one, BESIDE, remembered=varied))["speedup"] is outcome


def test_a_regression_behind_a_slow_reference_never_passes() -> None:
    """Of the optimized side, which takes 12 instead of 10 ms, while another program slows the reference, too."""
    hidden = screened(BESIDE, BESIDE, BESIDE)
    assert (outcomes(hidden)["speedup"], hidden.verdicts[1].code) == (INCONCLUSIVE, ReasonCode.ALL_DISTURBED)
    times = {"optimized_then": 10.0, "optimized_now": 12.0, "reference_then": 30.0, "reference_now": 36.0}
    assert reasons(hidden, "speedup")[ReasonCode.ALL_DISTURBED] == times
    assert hidden.verdicts[1].next_step is NextStep.REPEAT
    unscreened = case(timed(36.0, 12.0), *[BESIDE] * 2)
    assert outcomes(unscreened)["speedup"] is PASS
    kept = screened(*[Confirmation(timed(36.0, 10.0))] * 3)  # its own time shows that the optimized side kept its speed
    assert outcomes(kept)["speedup"] is PASS
    few = [screened(*[Confirmation(timed(36.0, optimized_ms))] * 2) for optimized_ms in (10.0, 12.0)]
    assert [wants_fresh_process(one) for one in few] == [False, True]
    assert reasons(kept, "speedup")[ReasonCode.DISTURBED] == {"disturbed": 3, "processes": 3}


COMPARED = RecordedCode("", problem="the record contains no commit")


def test_disturbed_processes_alone_are_no_evidence_of_slower_code() -> None:
    slower = Confirmation(timed(36.0, 15.0))
    found = screened(slower, slower, slower, recorded_code=COMPARED)
    assert (outcomes(found)["speedup"], outcomes(found)["throughput"]) == (INCONCLUSIVE, INCONCLUSIVE)
    change = {"change": "every process was disturbed"}
    assert reasons(found, "throughput")[ReasonCode.OTHER_CONDITIONS] == change
    assert (found.verdicts[1].next_step, found.verdicts[1].needs_autopsy) == (NextStep.COOL_MACHINE, True)
    one_undisturbed = screened(slower, SLOW, SLOW, recorded_code=COMPARED)
    assert (outcomes(one_undisturbed)["speedup"], outcomes(one_undisturbed)["throughput"]) == (REGRESSED, REGRESSED)
    broken_promise = screened(*[Confirmation(timed(36.0, 36.0))] * 3, recorded_code=COMPARED)
    assert outcomes(broken_promise)["speedup"] is REGRESSED


def test_without_a_comparison_with_the_recorded_code_an_alarm_of_disturbed_processes_stays() -> None:
    """A developer's run compares nothing, and passes what is INCONCLUSIVE."""
    slower = Confirmation(timed(36.0, 15.0))
    assert outcomes(screened(slower, slower, slower))["speedup"] is REGRESSED


def test_under_other_software_a_slower_reference_is_no_disturbance_and_a_wide_interval_is() -> None:
    other = replace(SCREENED, match="same device")
    assert ReasonCode.DISTURBED not in reasons(screened(BESIDE, remembered=other), "speedup")
    wide = tuple(TimedBuild(True, (Pair(30.0 * factor, 10.0, True),) * 4) for factor in (0.97, 1.0, 1.03))
    disturbed = screened(Confirmation(replace(measured(3.0), instances=wide)), remembered=other)
    assert reasons(disturbed, "speedup")[ReasonCode.DISTURBED] == {"disturbed": 1, "processes": 1}


def test_beside_other_work_on_a_cpu_a_disturbed_process_is_not_measured_again() -> None:
    counted = {**COUNTED, "other_cores": 1.4}
    busy = screened(Confirmation(replace(timed(36.0, 12.0), optimized_counters=counted)), case_id="net/fast/cpu")
    assert (outcomes(busy)["speedup"], wants_fresh_process(busy)) == (INCONCLUSIVE, False)


def test_of_counts_too_the_middle_one_of_three_processes_decides() -> None:
    """Autotuning picked another algorithm once; a kernel that the code launches is there in every process."""
    more, same = measured(3.0, kernels=58.0), Confirmation(measured(3.0))
    alone = case(more)
    assert (outcomes(alone)["counters"], wants_fresh_process(alone)) == (REGRESSED, True)
    twice = case(more, Confirmation(more))
    assert (outcomes(twice)["counters"], wants_fresh_process(twice)) == (REGRESSED, False)
    above = {"counter": "kernels", "recorded": 57.0, "value": 58.0}
    found = {"found": 2, "processes": 2}
    assert reasons(twice, "counters") == {
        ReasonCode.COUNTER_ABOVE_RECORD: above,
        ReasonCode.IN_SOME_PROCESSES: found,
    }
    contradicted = case(more, same)
    assert (outcomes(contradicted)["counters"], wants_fresh_process(contradicted)) == (INCONCLUSIVE, True)
    assert outcomes(case(more, same, Confirmation(more)))["counters"] is REGRESSED
    once = case(more, same, same)
    assert (outcomes(once)["counters"], wants_fresh_process(once)) == (PASS, False)
    assert reasons(once, "counters") == {
        ReasonCode.COUNTED: COUNTED,
        ReasonCode.COUNTER_ABOVE_RECORD: above,
        ReasonCode.IN_SOME_PROCESSES: {"found": 1, "processes": 3},
    }


def test_what_did_not_engage_in_one_process_did_not_engage() -> None:
    idle = Confirmation(replace(measured(3.0), not_engaged="2 graph breaks"))
    found = case(measured(2.9), idle, Confirmation(measured(3.0)))
    assert (outcomes(found)["counters"], wants_fresh_process(found)) == (Outcome.NOT_ENGAGED, False)


def test_an_engagement_that_is_a_time_needs_two_processes() -> None:
    """Copies overlap no kernel while a slow host leaves the device idle."""
    overlap = Limit("overlap_fraction", at_least=0.5)
    promise = Promise(1.5, LOOSE, Contract(engaged=(overlap,)))
    idle, well = measured(3.0, overlap_fraction=0.1), Confirmation(measured(3.0, overlap_fraction=0.7))
    alone = case(idle, promise=promise)
    assert (outcomes(alone)["counters"], wants_fresh_process(alone)) == (Outcome.NOT_ENGAGED, True)
    twice = case(idle, Confirmation(idle), promise=promise)
    assert (outcomes(twice)["counters"], wants_fresh_process(twice)) == (Outcome.NOT_ENGAGED, False)
    assert twice.verdicts[-1].next_step is NextStep.TRACE
    contradicted = case(idle, well, promise=promise)
    assert (outcomes(contradicted)["counters"], wants_fresh_process(contradicted)) == (INCONCLUSIVE, True)
    assert outcomes(case(idle, well, well, promise=promise))["counters"] is PASS
    no_stream = Contract(engaged=(Limit("streams", at_least=2), overlap))
    certain = case(measured(3.0, overlap_fraction=0.1, streams=1.0), promise=replace(promise, contract=no_stream))
    assert (outcomes(certain)["counters"], wants_fresh_process(certain)) == (Outcome.NOT_ENGAGED, False)


def test_a_wrong_output_in_any_process_is_wrong_and_asks_nobody() -> None:
    here = case(measured(2.9, error=0.1))
    assert (outcomes(here)["equivalence"], wants_fresh_process(here)) == (Outcome.WRONG, False)
    fast = case(measured(4.0, error=0.1))
    assert outcomes(fast)["speedup"] is Outcome.IMPROVED
    assert not any(verdict.next_step in RECORDING for verdict in fast.verdicts)
    there = case(measured(2.9), Confirmation(measured(2.9, error=0.1)))
    assert (outcomes(there)["equivalence"], wants_fresh_process(there)) == (Outcome.WRONG, False)


def test_a_sick_machine_confirms_nothing() -> None:
    sick = case(measured(2.9), environment_problem="the machine gave 1 instead of 2")
    assert outcomes(sick)["speedup"] is Outcome.ENV_INVALID
    assert not wants_fresh_process(sick)
    elsewhere = case(measured(2.9), Confirmation(measured(3.0), "the machine gave 1 instead of 2"))
    assert outcomes(elsewhere)["speedup"] is INCONCLUSIVE  # what a sick process says does not count
    assert reasons(elsewhere, "speedup")[NOT_CONFIRMED] == {"problem": "the machine gave 1 instead of 2"}


@pytest.mark.parametrize(
    ("limit", "outcome"),
    [
        (Limit("active_fraction", at_least=0.95), Outcome.ENV_INVALID),
        (Limit("kernels", at_most=1), Outcome.REGRESSED),
        (Limit("active_fraction", at_least=0.5), Outcome.PASS),
    ],
)
def test_on_a_sick_machine_limits_of_times_say_nothing_and_limits_of_counts_still_do(limit, outcome: Outcome) -> None:
    found = replace(measured(3.0), optimized_counters={**COUNTED, "active_fraction": 0.9, "kernels": 2.0})
    promise = Promise(1.5, LOOSE, Contract(limits=(limit,)))
    well = case(found, promise=promise, remembered=None)
    sick = case(found, promise=promise, remembered=None, environment_problem="the machine gave 1 instead of 2")
    assert outcomes(sick)["counters"] is outcome
    assert outcomes(well)["counters"] is (REGRESSED if outcome is Outcome.ENV_INVALID else outcome)


def test_a_leak_is_one_on_a_sick_machine_too() -> None:
    found = replace(measured(3.0), optimized_counters={**COUNTED, "active_fraction": 0.9, "grown_bytes": 4096.0})
    promise = Promise(1.5, LOOSE, Contract(limits=(Limit("active_fraction", at_least=0.95),)))
    leaks = case(found, promise=promise, environment_problem="sick")
    assert reasons(leaks, "counters") == {ReasonCode.MEMORY_GROWS: {"bytes": 4096.0}}


BUSY = Confirmation(measured(3.0), "other processes kept 1.8 CPU cores busy")


def test_an_alarm_that_no_process_confirmed_is_open_in_every_check_and_is_measured_once_more() -> None:
    slow, more, leaks = measured(1.2), measured(3.0, kernels=58.0), measured(3.0, grown_bytes=4096.0)
    for first, check in ((slow, "speedup"), (timed(30.0, 20.0), "throughput"), (more, "counters"), (leaks, "counters")):
        assert outcomes(case(first))[check] is REGRESSED, "without any confirmation, as by --perf-attempts 1"
        found = case(first, BUSY)
        assert (outcomes(found)[check], found.verdicts[0].outcome) == (INCONCLUSIVE, PASS)
        verdict = next(one for one in found.verdicts if one.check == check)
        assert (verdict.code, verdict.next_step, verdict.needs_autopsy) == (NOT_CONFIRMED, NextStep.REPEAT, True)
        assert wants_fresh_process(found)
        assert outcomes(case(first, BUSY, Confirmation(first)))[check] is REGRESSED
    assert outcomes(case(slow, BUSY, remembered=None, mode=Mode.DEVELOPER))["speedup"] is INCONCLUSIVE
    assert outcomes(screened(BESIDE, SLOW, BUSY))["speedup"] is INCONCLUSIVE, "one undisturbed process alarms alone"
    assert outcomes(case(measured(3.0), BUSY))["speedup"] is PASS


def test_an_unconfirmed_engagement_by_times_alone_is_open() -> None:
    promise = Promise(1.5, LOOSE, Contract(engaged=(Limit("overlap_fraction", at_least=0.5),)))
    idle = measured(3.0, overlap_fraction=0.1)
    assert outcomes(case(idle, BUSY, promise=promise))["counters"] is INCONCLUSIVE
    certain = case(replace(measured(3.0), not_engaged="2 graph breaks"), BUSY)
    assert outcomes(certain)["counters"] is Outcome.NOT_ENGAGED


def test_a_process_that_died_is_told_where_it_mattered() -> None:
    died = case(measured(2.9), Confirmation(None, "a fresh process ended with status 3"))
    assert reasons(died, "speedup")[NOT_CONFIRMED] == {"problem": "a fresh process ended with status 3"}
    assert NOT_CONFIRMED not in reasons(died, "equivalence")


def test_a_recording_takes_a_missing_baseline_for_granted() -> None:
    new = case(measured(3.0), remembered=None)
    assert outcomes(new)["speedup"] is Outcome.NO_BASELINE
    assert {verdict.outcome for verdict in decide(new, mode=Mode.RECORDING, asked_tolerance=None)} == {PASS}


def test_what_was_not_measured_cannot_be_decided() -> None:
    empty = CaseResult(CASE_ID, "net", "fast", "baseline", Size(1, 0, 0))
    with pytest.raises(ValueError, match="net/fast/cuda was not measured"):
        decide(empty, mode=Mode.GATE, asked_tolerance=None)


@pytest.mark.parametrize(
    ("optimized_ms", "alone", "outcome", "in_the_end"),
    [
        (10.0, PASS, PASS, PASS),
        (9.95, PASS, PASS, PASS),
        (10.35, INCONCLUSIVE, REGRESSED, INCONCLUSIVE),  # 3.5 % slower, behind a speedup that rose by 40 %
    ],
)
def test_a_speedup_that_rose_with_the_reference_alone_is_no_improvement_and_is_confirmed(
    optimized_ms: float, alone: Outcome, outcome: Outcome, in_the_end: Outcome
) -> None:
    risen, well = timed(43.5, optimized_ms), Confirmation(timed(30.0, optimized_ms))
    found = case(risen)
    assert (outcomes(found)["speedup"], wants_fresh_process(found)) == (alone, True)
    code = ReasonCode.BOUND_HELD if alone is PASS else ReasonCode.GAIN_OF_A_SLOWER_REFERENCE
    assert (found.verdicts[1].reasons[-3].code, found.verdicts[1].numbers[MOVED]) == (code, "reference")
    moved = reasons(found, "speedup")[ReasonCode.SIDES_MOVED]
    assert (moved["reference_then_ms"], moved["reference_now_ms"]) == (30.0, 43.5)
    assert not wants_more_pairs(found)  # of the same build of the reference
    assert outcomes(case(risen, well, well))["speedup"] is outcome
    everywhere = case(risen, Confirmation(risen), Confirmation(risen))
    assert (outcomes(everywhere)["speedup"], wants_fresh_process(everywhere)) == (in_the_end, in_the_end is not PASS)


def test_a_gain_of_the_optimized_side_is_an_improvement_whatever_the_reference_did() -> None:
    for reference_ms, optimized_ms in ((30.0, 9.0), (28.0, 8.0), (30.3, 9.0)):
        found = case(timed(reference_ms, optimized_ms))
        assert (outcomes(found)["speedup"], wants_fresh_process(found)) == (Outcome.IMPROVED, False)


def test_a_speedup_that_fell_with_the_reference_alone_blames_the_reference() -> None:
    fallen = case(timed(27.0, 10.0))
    assert outcomes(fallen)["speedup"] is REGRESSED
    assert wants_fresh_process(fallen)
    assert fallen.verdicts[1].numbers[MOVED] == "reference"
    assert reasons(fallen, "speedup")[ReasonCode.SIDES_MOVED]["reference_now_ms"] == 27.0
    assert fallen.verdicts[1].next_step is NextStep.RECORD_NEW_REFERENCE
    slower = case(timed(30.0, 11.0))
    assert MOVED not in slower.verdicts[1].numbers
    assert slower.verdicts[1].next_step is NextStep.MEASURE_LONGER
    broken = case(timed(14.0, 10.0))  # of its promise, which no recording changes
    assert broken.verdicts[1].next_step is NextStep.MEASURE_LONGER


SPREAD = tuple(TimedBuild(True, (Pair(speedup, 1.0, True),) * 4) for speedup in (2.9, 3.0, 3.1))


def beside(other_cores: float, kind: str = "cpu", **changed: object) -> CaseResult:
    """An open question, measured while other processes kept so many cores busy."""
    counted = {**COUNTED, "other_cores": other_cores}
    found = replace(measured(3.0), instances=SPREAD, optimized_counters=counted)
    return case(found, case_id=f"net/fast/{kind}", **changed)


def test_an_open_question_beside_other_work_on_a_cpu_asks_for_no_more_of_the_same() -> None:
    busy, quiet, on_gpu = beside(1.4), beside(0.1), beside(1.4, "cuda")
    assert {outcomes(one)["speedup"] for one in (busy, quiet, on_gpu)} == {INCONCLUSIVE}
    assert [wants_more_pairs(one) for one in (busy, quiet, on_gpu)] == [False, True, True]
    assert [wants_fresh_process(one) for one in (busy, quiet, on_gpu)] == [False, True, True]
    assert [left_open_by_other_work(one) for one in (busy, quiet, on_gpu)] == [True, False, False]


def test_an_alarm_beside_other_work_is_confirmed_all_the_same() -> None:
    slow = replace(measured(2.5), optimized_counters={**COUNTED, "other_cores": 1.4})
    found = case(slow, case_id="net/fast/cpu")
    assert (outcomes(found)["speedup"], wants_more_pairs(found), wants_fresh_process(found)) == (REGRESSED, True, True)
    assert OTHER_WORK not in reasons(found, "speedup")


@pytest.mark.parametrize("problem", [None, "the machine gave 1 instead of 2"])
def test_other_work_is_told_with_advice_that_helps(problem: str | None) -> None:
    found = beside(1.4, environment_problem=problem)
    speedup = found.verdicts[1]
    assert speedup.outcome is (Outcome.ENV_INVALID if problem else INCONCLUSIVE)
    assert reasons(found, "speedup")[OTHER_WORK] == {"cores": 1.4}
    assert speedup.next_step is NextStep.FREE_CORES
    assert OTHER_WORK not in reasons(beside(0.1, environment_problem=problem), "speedup")
    assert beside(1.4, "cuda", environment_problem=problem).verdicts[1].next_step is not NextStep.FREE_CORES


def test_other_work_explains_no_counters() -> None:
    counted = {"optimized_counters": {"other_cores": 1.4}, "counters_missing": "counted on CUDA only"}
    counters = case(replace(measured(3.0), **counted), case_id="net/fast/cpu").verdicts[3]
    assert (counters.outcome, counters.next_step) == (INCONCLUSIVE, NextStep.USE_CUDA)


def test_cpu_counters_that_processes_dispute_ask_a_third_one_and_an_unchecked_contract_asks_nobody() -> None:
    def on_a_cpu(faults: float) -> Measurement:
        return replace(
            measured(3.0), optimized_counters={"minor_faults": faults}, counters_missing="counted on CUDA only"
        )

    for limit, asked in (("minor_faults", True), ("kernels", False)):
        promise = Promise(1.5, LOOSE, Contract(limits=(Limit(limit, at_most=10),)))
        found = case(on_a_cpu(20.0), Confirmation(on_a_cpu(1.0)), promise=promise, case_id="net/fast/cpu")
        assert (outcomes(found)["counters"], wants_fresh_process(found)) == (INCONCLUSIVE, asked)


def test_no_time_is_judged_where_ranks_share_a_cpu_and_all_else_is() -> None:
    for speedup in (0.5, 3.0, 9.0):
        result = case(measured(speedup, ranks=2.0), case_id="net/fast/cpu")
        assert outcomes(result) == {
            "equivalence": PASS,
            "speedup": INCONCLUSIVE,
            "throughput": INCONCLUSIVE,
            "counters": PASS,
        }
        assert {verdict.code for verdict in result.verdicts[1:3]} == {ReasonCode.RANKS_SHARE_CORES}
        assert {verdict.next_step for verdict in result.verdicts[1:3]} == {NextStep.USE_CUDA}
        assert not wants_more_pairs(result)
        assert not wants_fresh_process(result)
    assert outcomes(case(measured(0.5, ranks=2.0)))["speedup"] is REGRESSED
    assert outcomes(case(measured(3.0, ranks=2.0, kernels=59.0), case_id="net/fast/cpu"))["counters"] is REGRESSED
    assert outcomes(case(measured(3.0, error=1.0, ranks=2.0), case_id="net/fast/cpu"))["equivalence"] is Outcome.WRONG


@pytest.mark.parametrize(
    ("stopped_because", "kind", "helps"), [("noise", "cpu", True), ("budget", "cpu", False), ("noise", "cuda", False)]
)
def test_noise_that_stopped_changing_on_a_cpu_asks_for_a_quieter_machine_and_no_larger_budget(
    stopped_because: str, kind: str, helps: bool
) -> None:
    noisy = replace(measured(3.0), instances=SPREAD, stopped_because=stopped_because)
    step = case(noisy, case_id=f"net/fast/{kind}").verdicts[1].next_step
    assert step is (NextStep.FREE_CORES if helps else NextStep.MEASURE_LONGER)


def test_an_impossible_time_is_not_laid_to_other_work() -> None:
    counted = {**COUNTED, "other_cores": 1.4}
    found = replace(measured(3.0), instances=SPREAD, optimized_counters=counted, ceilings={"matmul_fp32_tflops": 1e-6})
    impossible = case(found, case_id="net/fast/cpu", size=Size(1, 1e9, 0))
    assert list(reasons(impossible, "speedup")) == [ReasonCode.IMPOSSIBLE_RATE]
    assert impossible.verdicts[1].next_step is NextStep.CHECK_SIZE
    assert not left_open_by_other_work(impossible)


@pytest.mark.parametrize(
    ("slowdowns", "outcome", "always"),
    [([3.0], INCONCLUSIVE, True), ([3.0, 1.0], PASS, False), ([3.0, 3.1, 2.9], INCONCLUSIVE, True)],
)
def test_a_slowed_reference_is_measured_again_in_fresh_processes(
    slowdowns: list[float], outcome: Outcome, always: bool
) -> None:
    """One process may have been slow for a moment, beside another program."""
    first, *others = (replace(measured(3.0), reference_slowdown=slowdown) for slowdown in slowdowns)
    result = case(first, *map(Confirmation, others))
    assert (outcomes(result)["speedup"], is_always_slowed(result)) == (outcome, always)
    assert wants_fresh_process(result) == (outcome is INCONCLUSIVE)
    busy = case(replace(first, optimized_counters={**COUNTED, "other_cores": 1.4}), case_id="net/fast/cpu")
    assert wants_fresh_process(busy), "the other work may have slowed it, and a fresh process shows that"
