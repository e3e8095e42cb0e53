"""Machine states in which a time is no evidence, on made-up probes."""

from dataclasses import replace

import pytest

from gpugate.judging.machine_state import environment_problem, launch_slowdown
from gpugate.measurement.record import Measurement, Pair, TimedBuild, Yardstick
from tests.support.judged_cases import measured


@pytest.mark.parametrize(("ratio", "sick"), [(None, False), (1.0, False), (0.9, False), (0.89, True)])
def test_events_that_miss_a_part_of_the_hosts_window_are_an_environment_problem(ratio, sick) -> None:
    problem = environment_problem(replace(measured_with(8, 0), event_host_ratio=ratio), (), {})
    words = "CUDA events saw only 89 % of the host's window: some stream is not joined by Side.finish"
    assert problem == (words if sick else None)


def measured_with(kept: int, discarded: int) -> Measurement:
    pairs = (Pair(3.0, 1.0, True),) * kept
    return replace(measured(), instances=(TimedBuild(True, pairs, discarded, ("power brake",)),))


@pytest.mark.parametrize(("discarded", "sick"), [(0, False), (8, False), (9, True)])
def test_more_throttled_pairs_than_kept_ones_are_a_sick_machine(discarded, sick) -> None:
    problem = environment_problem(measured_with(8, discarded), (), {})
    assert problem == ("9 pairs were throttled (power brake), more than the 8 kept" if sick else None)


def test_a_quota_that_throttles_is_an_environment_problem_and_not_the_heat() -> None:
    throttled = replace(measured_with(8, 0), optimized_counters={"throttled_periods": 0.77})
    problem = environment_problem(throttled, (), {})
    assert problem == "throttled in 77 % of the periods of a quota of CPU time"


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


def test_a_ceiling_far_above_the_recorded_one_leaves_the_step_to_its_bill() -> None:
    risen = Yardstick({"pinned_copy_gb_per_s": 72.0})
    assert environment_problem(measured_with(8, 0), [risen, risen], EXPECTED) is None


@pytest.mark.parametrize(
    ("latencies_us", "recorded", "times"),
    [((2.5, 3.0, 2.8), {"launch_latency_us": 2.0}, 1.4), ((), {"launch_latency_us": 2.0}, None), ((2.0,), {}, None)],
)
def test_the_launches_of_a_host_are_compared_with_the_recorded_ones(latencies_us, recorded, times) -> None:
    probes = [Yardstick({"launch_latency_us": us}) for us in latencies_us]
    found = launch_slowdown([Yardstick({"matmul_bf16_tflops": 1.0}), *probes], recorded)
    assert found == (times and pytest.approx(times))
