"""Rates that no machine reaches are no result, and work that was not seen is a question: with made-up measurements."""

from dataclasses import replace

import pytest

from gpugate.judging.actions import Action, Allowed, next_action
from gpugate.judging.evidence import gather
from gpugate.judging.plausibility import impossible_rate, slowed_reference, vanished_work
from gpugate.judging.rules import decide_by
from gpugate.measurement.derived import with_ceilings
from gpugate.measurement.record import Difference, Measurement, Pair, SideCost, StepProfile, TimedBuild, Yardstick
from gpugate.results.case import CaseResult, Promise
from gpugate.results.reason import ReasonCode
from gpugate.results.run import Mode
from gpugate.results.summary import summarize
from gpugate.results.verdict import NextStep, Outcome
from gpugate.workload import Contract, Limit, Size, Tolerance
from tests.support.judged_cases import judge_counters

CASE_ID = "net/fast/cuda"
CEILINGS = {"matmul_bf16_tflops": 800.0, "device_copy_gb_per_s": 4000.0, "cache_bytes": 50e6}


def measured(reference_ms: float, optimized_ms: float, **more: object) -> Measurement:
    instances = (TimedBuild(True, (Pair(reference_ms, optimized_ms, True),) * 8),) * 4
    cost = SideCost(0.1, 0.1)
    output = Difference(0.0, 0.0, None, "fresh inputs")
    found = Measurement(CASE_ID, instances, "narrow", (output,), cost, cost, ceilings=CEILINGS)
    return replace(found, **more)


@pytest.mark.parametrize(
    ("found", "size", "times"),
    [
        (measured(30.0, 1.0), Size(1, 0.9e12, 0.0), None),  # 900 TFLOP/s of 800: within the probe's error
        (measured(30.0, 1.0), Size(1, 1.6e12, 0.0), 2.0),
        (measured(30.0, 1.0), Size(1, 0.0, 4.7e9), None),
        (measured(30.0, 1.0), Size(1, 0.0, 50e6 + 8e9), 2.0),
        (measured(30.0, 0.001), Size(1, 0.0, 50e6), None),  # all of it may be in the cache
        (measured(1.0, 2.0), Size(1, 1.6e12, 0.0), 2.0),  # the reference
        (measured(30.0, 1.0, optimized_counters={"bus_share": 1.3}), Size(1, 0.0, 0.0), 1.3),
    ],
)
def test_a_rate_above_120_percent_of_a_ceiling_is_impossible(
    found: Measurement, size: Size, times: float | None
) -> None:
    impossible = impossible_rate(found, summarize(found), size)
    assert (impossible and impossible.facts["times_ceiling"]) == (times and pytest.approx(times))


@pytest.mark.parametrize(("slowdown", "slowed"), [(None, False), (0.7, False), (2.0, False), (2.01, True)])
def test_a_reference_that_the_other_side_slows_gives_no_result(slowdown: float | None, slowed: bool) -> None:
    found = slowed_reference(measured(30.0, 1.0, reference_slowdown=slowdown))
    assert (found is not None and found.code is ReasonCode.REFERENCE_SLOWED) == slowed


def test_a_time_that_is_impossible_is_no_result_and_nothing_is_measured_again_for_it() -> None:
    result = CaseResult(CASE_ID, "net", "fast", "baseline", Size(1, 1e13, 0.0), measured(30.0, 1.0))
    result.promise = Promise(1.5, Tolerance(1e-3, 1e-2), None)
    evidence = gather(result, Mode.GATE, None)
    result.verdicts = decide_by(evidence)
    timed = [verdict for verdict in result.verdicts if verdict.check in ("speedup", "throughput")]
    assert [verdict.outcome for verdict in timed] == [Outcome.INCONCLUSIVE] * 2
    assert [verdict.code for verdict in timed] == [ReasonCode.IMPOSSIBLE_RATE] * 2
    assert timed[0].numbers["times_ceiling"] == pytest.approx(12.5)
    assert next_action(evidence, Allowed(duet=True, any_code=True)) is Action.STOP


@pytest.mark.parametrize(
    ("dtype", "kind", "names"),
    [
        ("float16", "cuda", {"matmul_bf16_tflops", "device_copy_gb_per_s", "cache_bytes"}),
        ("float8", "cuda", {"device_copy_gb_per_s", "cache_bytes"}),
        ("bfloat16", "cpu", {"memcpy_gb_per_s", "cache_bytes"}),  # this machine has no yardstick of bfloat16
    ],
)
def test_the_best_of_all_probes_is_the_ceiling(dtype: str, kind: str, names: set[str]) -> None:
    values = {"matmul_bf16_tflops": 790.0, "device_copy_gb_per_s": 4000.0, "memcpy_gb_per_s": 10.0}
    probes = [Yardstick(values), Yardstick({name: value / 2 for name, value in values.items()})]
    found = with_ceilings(measured(3.0, 1.0), dtype, kind, 100, probes)
    assert set(found.ceilings) == names
    assert found.ceilings == {**{name: values.get(name) for name in names}, "cache_bytes": 100.0}


OPERATORS, NONE_SEEN = StepProfile({"aten::mm": (1.0, 25.0)}, kernel_ms=25.0), StepProfile()
ON_CPU = {"reference_profile": OPERATORS, "optimized_profile": NONE_SEEN, "counters_missing": "a CPU"}
KERNELS = {"kernels": 1.0, "kernel_launches": 1.0, "graph_launches": 0.0}
NO_KERNELS = {
    "reference_profile": OPERATORS,
    "optimized_profile": NONE_SEEN,
    "reference_counters": {"kernels": 5.0},
    "optimized_counters": {"kernels": 0.0, "kernel_launches": 0.0, "graph_launches": 0.0},
}


@pytest.mark.parametrize("seen", [ON_CPU, NO_KERNELS])
def test_work_that_was_not_seen_is_a_question(seen: dict[str, object]) -> None:
    verdict = judge_counters(measured(30.0, 1.0, **seen), None, None)
    assert (verdict.outcome, verdict.code) == (Outcome.INCONCLUSIVE, ReasonCode.WORK_NOT_SEEN)
    assert verdict.next_step is NextStep.DECLARE_ENGAGEMENT


@pytest.mark.parametrize(
    ("changed", "contract"),
    [
        ({"accounts_for_itself": True}, None),
        ({"optimized_profile": OPERATORS}, None),
        ({"reference_profile": StepProfile({"aten::mm": (1.0, 3.0)}, kernel_ms=3.0)}, None),  # 10 % of its step
        (NO_KERNELS | {"counters_missing": None, "optimized_counters": KERNELS}, None),
        (NO_KERNELS | {"counters_missing": None}, Contract(engaged=(Limit("kernels", at_most=0),))),
    ],
    ids=["it accounts for itself", "operators", "the reference has few too", "kernels", "declared"],
)
def test_declared_or_visible_work_is_no_question(changed: dict[str, object], contract: Contract | None) -> None:
    found = measured(30.0, 1.0, **{**ON_CPU, **changed})
    assert vanished_work(found, contract) is None
    assert judge_counters(found, contract, None).outcome is Outcome.PASS
