"""Cases without a record: a developer's run passes a kept promise, and a gate needs the record."""

import pytest

from gpugate.judging.decide import left_open_by_other_work, wants_more_pairs
from gpugate.judging.knee import judge_knee
from gpugate.judging.times import judge_speedup, judge_throughput
from gpugate.judging.unrecorded import WIDEST_HALF_WIDTH
from gpugate.results.case import CaseResult, CoresChanged, describe_other_reference
from gpugate.results.reason import ReasonCode
from gpugate.results.run import Mode
from gpugate.results.series import Sweep, SweepPoint
from gpugate.results.verdict import NextStep, Outcome, Verdict
from gpugate.statistics.intervals import Estimate
from tests.engine.judging.test_deciding import case, measured, outcomes
from tests.engine.judging.test_judging import MEASURED, about, codes, summary

PASS, NO_BASELINE, REGRESSED, UNDECIDED = Outcome.PASS, Outcome.NO_BASELINE, Outcome.REGRESSED, Outcome.UNDECIDED
DEVELOPER = Mode.DEVELOPER


def wide(median: float, share: float) -> Estimate:
    return Estimate(median, median * (1 - share), median * (1 + share))


def test_a_kept_promise_without_a_record_passes_for_a_developer_and_not_for_a_gate() -> None:
    speedups = {mode: judge_speedup(MEASURED, summary(about(3.0)), 2.0, None, mode=mode) for mode in Mode}
    assert {mode: one.outcome for mode, one in speedups.items()} == {
        Mode.DEVELOPER: PASS,
        Mode.GATE: NO_BASELINE,
        Mode.RECORDING: PASS,
    }
    assert codes(speedups[DEVELOPER])[:2] == [ReasonCode.BOUND_HELD, ReasonCode.NOT_RECORDED_YET]
    assert codes(speedups[Mode.RECORDING])[:2] == [ReasonCode.BOUND_HELD, ReasonCode.BEING_RECORDED]
    assert speedups[DEVELOPER].next_step is None


def test_without_a_promise_too() -> None:
    assert judge_speedup(MEASURED, summary(about(3.0)), None, None, mode=DEVELOPER).code is ReasonCode.NOT_RECORDED_YET
    times = judge_throughput(MEASURED, summary(about(3.0)), None, DEVELOPER)
    assert (times.outcome, times.code) == (PASS, ReasonCode.NOT_RECORDED_YET)
    knee = judge_knee(
        Sweep("net", "batch", "cpu", (SweepPoint(8, 1.0, 1.0), SweepPoint(16, 2.0, 2.0)), 16, None), DEVELOPER
    )
    assert (knee.outcome, knee.next_step) == (PASS, None)


def test_a_broken_promise_fails_a_developers_run_all_the_same() -> None:
    assert judge_speedup(MEASURED, summary(about(3.0)), 3.5, None, mode=DEVELOPER).outcome is REGRESSED
    assert judge_speedup(MEASURED, summary(wide(3.0, 0.2)), 4.0, None, mode=DEVELOPER).outcome is REGRESSED


@pytest.mark.parametrize(("minimum", "kept"), [(2.0, PASS), (2.9, Outcome.INCONCLUSIVE), (None, PASS)])
def test_an_interval_wider_than_15_percent_is_undecided_where_nothing_else_is_known(minimum, kept) -> None:
    def judge(share: float, mode: Mode = DEVELOPER) -> Verdict:
        return judge_speedup(MEASURED, summary(wide(3.0, share)), minimum, None, mode=mode)

    assert judge(WIDEST_HALF_WIDTH - 0.001).outcome is kept
    too_wide = judge(WIDEST_HALF_WIDTH + 0.001)
    assert (too_wide.outcome, too_wide.code) == (UNDECIDED, ReasonCode.INTERVAL_TOO_WIDE)
    assert (too_wide.next_step, too_wide.good, too_wide.bad) == (NextStep.MEASURE_LONGER, False, False)
    assert judge(WIDEST_HALF_WIDTH + 0.001, Mode.GATE).outcome is not UNDECIDED


def test_an_undecided_case_takes_more_pairs_but_none_beside_other_work() -> None:
    def undecided(case_id: str, cores: float) -> CaseResult:
        found = case(measured(3.0, other_cores=cores), remembered=None, case_id=case_id)
        found.verdicts = [Verdict("speedup", case_id, UNDECIDED), Verdict("throughput", case_id, PASS)]
        return found

    assert wants_more_pairs(undecided("net/fast/cpu", 0.0))
    busy = undecided("net/fast/cpu", 1.0)
    assert left_open_by_other_work(busy)
    assert not wants_more_pairs(busy)


def test_a_developers_run_on_other_cores_than_the_records_is_no_pass() -> None:
    changed = CoresChanged(recorded=2, now=1)
    assert outcomes(case(measured(3.0), remembered=None, cores_changed=changed, mode=DEVELOPER)) == {
        "equivalence": PASS,
        "speedup": Outcome.ENV_INVALID,
        "throughput": Outcome.ENV_INVALID,
        "counters": PASS,
    }


@pytest.mark.parametrize(
    ("recorded", "now", "problem"),
    [
        ({}, {}, None),
        ({"tensor_core_kernels": 0.0}, {"tensor_core_kernels": 0.0}, None),
        ({"tensor_core_kernels": 53.0}, {"tensor_core_kernels": 51.0}, None),
        ({}, {"tensor_core_kernels": 53.0}, None),  # on a CPU, and in a record of an older format
        (
            {"tensor_core_kernels": 0.0},
            {"tensor_core_kernels": 53.0},
            "it ran 0 tensor-core kernels in a step then, and runs 53 now",
        ),
        ({"host_to_device_bytes": 77e6}, {"host_to_device_bytes": 80e6}, None),
        ({"host_to_device_bytes": 0.0}, {"host_to_device_bytes": 4096.0}, None),
        (
            {"host_to_device_bytes": 308e6},
            {"host_to_device_bytes": 77e6},
            "it copied 308 MB to the device in a step then, and copies 77 MB now",
        ),
    ],
)
def test_a_reference_that_works_otherwise_is_another_one(recorded, now, problem) -> None:
    assert describe_other_reference(recorded, now) == problem
