"""Reasons for which a time is no evidence, on made-up probes and measurements."""

from dataclasses import replace

import pytest

from gpugate.judging.machine_state import environment_problem, impossible_rate, slowed_reference, vanished_work
from gpugate.measurement.record import Measurement, StepProfile, Yardstick
from gpugate.results.reason import ReasonCode
from gpugate.results.summary import summarize
from gpugate.results.verdict import NextStep, Outcome
from gpugate.workload import Contract, Limit, Size
from tests.support.judged_cases import judge_counters, measured
from tests.support.stored_runs import timed_build


def measured_with(kept: int, discarded: int) -> Measurement:
    build = timed_build(3.0, 1.0, kept, discarded=discarded, throttled_by=("power brake",))
    return replace(measured(), instances=(build,))


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (measured_with(8, 8), None),
        (measured_with(8, 9), "9 pairs were throttled (power brake), more than the 8 kept"),
        (replace(measured(), event_host_ratio=0.9), None),
        (
            replace(measured(), event_host_ratio=0.89),
            "CUDA events saw only 89 % of the host's window: some stream is not joined by Side.finish",
        ),
        (measured(throttled_periods=0.77), "throttled in 77 % of the periods of a quota of CPU time"),
    ],
)
def test_a_throttled_machine_and_a_lost_stream_are_an_environment_problem(found, problem) -> None:
    assert environment_problem(found, (), {}) == problem


EXPECTED = {"matmul_bf16_tflops": 800.0, "pinned_copy_gb_per_s": 50.0, "launch_latency_us": 2.0}


@pytest.mark.parametrize(
    ("values", "sick"),
    [
        ({"matmul_bf16_tflops": 681.0, "pinned_copy_gb_per_s": 36.0, "launch_latency_us": 2.0}, None),
        ({"matmul_bf16_tflops": 679.0}, "the machine gave matmul bf16 679 TFLOP/s instead of 800 TFLOP/s"),
        ({"pinned_copy_gb_per_s": 34.0}, "the machine gave pinned copy 34 GB/s instead of 50 GB/s"),
        ({"launch_latency_us": 9.0}, None),  # too jumpy to say so
        ({"device_copy_gb_per_s": 1.0}, None),  # nothing to compare it with
        ({"pinned_copy_gb_per_s": 72.0}, None),  # a faster bus is left to the bill
    ],
)
def test_a_lost_ceiling_on_either_side_of_a_measurement_is_a_sick_machine(values, sick) -> None:
    around = [Yardstick(values), Yardstick(EXPECTED)]
    for probes in (around, around[::-1]):
        assert environment_problem(measured_with(8, 0), probes, EXPECTED) == sick


CEILINGS = {"matmul_bf16_tflops": 800.0, "device_copy_gb_per_s": 4000.0, "cache_bytes": 50e6}


def timed(optimized_ms: float, **more: object) -> Measurement:
    """A process of a reference of 30 ms, of which nothing was counted."""
    return replace(measured(optimized_ms), **{"ceilings": CEILINGS, "optimized_counters": {}, **more})


@pytest.mark.parametrize(
    ("found", "size", "times"),
    [
        (timed(1.0), Size(1, 0.9e12, 0.0), None),  # 900 TFLOP/s of 800: within the probe's error
        (timed(1.0), Size(1, 1.6e12, 0.0), 2.0),
        (timed(1.0), Size(1, 0.0, 4.7e9), None),
        (timed(1.0), Size(1, 0.0, 50e6 + 8e9), 2.0),
        (timed(0.001), Size(1, 0.0, 50e6), None),  # all of it may be in the cache
        (replace(timed(2.0), instances=measured(2.0, 1.0).instances), Size(1, 1.6e12, 0.0), 2.0),  # the reference
        (timed(1.0, optimized_counters={"bus_share": 1.3}), Size(1, 0.0, 0.0), 1.3),
    ],
)
def test_a_rate_above_120_percent_of_a_ceiling_is_impossible(
    found: Measurement, size: Size, times: float | None
) -> None:
    impossible = impossible_rate(found, summarize(found), size)
    assert (impossible and impossible.facts["times_ceiling"]) == (times and pytest.approx(times))


@pytest.mark.parametrize(("slowdown", "slowed"), [(None, False), (0.7, False), (2.0, False), (2.01, True)])
def test_a_reference_that_the_other_side_slows_gives_no_result(slowdown: float | None, slowed: bool) -> None:
    found = slowed_reference(timed(1.0, reference_slowdown=slowdown))
    assert (found is not None and found.code is ReasonCode.REFERENCE_SLOWED) == slowed


OPERATORS, FEW_SEEN = (StepProfile({"aten::mm": (1.0, ms)}, kernel_ms=ms) for ms in (25.0, 3.0))
NONE_SEEN = StepProfile()
ON_CPU = {"reference_profile": OPERATORS, "optimized_profile": NONE_SEEN, "counters_missing": "a CPU"}
KERNELS = {"kernels": 1.0, "kernel_launches": 1.0, "graph_launches": 0.0}
NO_KERNELS = {
    "reference_profile": OPERATORS,
    "optimized_profile": NONE_SEEN,
    "reference_counters": {"kernels": 5.0},
    "optimized_counters": {"kernels": 0.0, "kernel_launches": 0.0, "graph_launches": 0.0},
}


@pytest.mark.parametrize(
    ("seen", "contract", "is_seen"),
    [
        (ON_CPU, None, False),
        (NO_KERNELS, None, False),
        (ON_CPU | {"accounts_for_itself": True}, None, True),
        (ON_CPU | {"optimized_profile": OPERATORS}, None, True),
        (ON_CPU | {"reference_profile": FEW_SEEN}, None, True),
        (NO_KERNELS | {"optimized_counters": KERNELS}, None, True),
        (NO_KERNELS, Contract(engaged=(Limit("kernels", at_most=0),)), True),  # declared
    ],
)
def test_work_that_was_not_seen_is_a_question(
    seen: dict[str, object], contract: Contract | None, is_seen: bool
) -> None:
    found = timed(1.0, **seen)
    verdict = judge_counters(found, contract, None)
    assert (vanished_work(found, contract or Contract()) is None, verdict.outcome is Outcome.PASS) == (is_seen, is_seen)
    if not is_seen:
        asked = (Outcome.UNDECIDED, ReasonCode.WORK_NOT_SEEN, NextStep.DECLARE_ENGAGEMENT)
        assert (verdict.outcome, verdict.code, verdict.next_step) == asked
