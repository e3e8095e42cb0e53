"""Counters from a measurement and facts of the session: the share of the bus, and the time of a whole run."""

from dataclasses import replace

import pytest

from gpugate.measurement.derived import YARDSTICK, launch_slowdown, with_ceilings, with_derived
from gpugate.measurement.record import Measurement, SideCost, Yardstick
from gpugate.workload import Size
from tests.support.stored_runs import measured

IN = {"host_to_device_bytes": 4e8, "device_to_host_bytes": 3e8}
OUT = {"host_to_device_bytes": 0.0, "device_to_host_bytes": 1e8}
RATE = {YARDSTICK: 50.0, "launch_latency_us": 2.0}
ENDLESS = Size(1, 0, 0)


@pytest.fixture
def streamed() -> Measurement:
    """About 30 ms a step of the reference and 10 ms of the optimized side."""
    return measured("tiny/streamed/cuda", 3.0, optimized_counters=IN, reference_counters=OUT)


def test_it_is_the_longer_directions_bytes_over_time_over_the_yardstick(streamed: Measurement) -> None:
    found = with_derived(streamed, ENDLESS, RATE)
    assert found.optimized_counters["bus_share"] == pytest.approx(4e8 / 0.010 / 50e9, rel=1e-3)
    assert found.reference_counters["bus_share"] == pytest.approx(1e8 / 0.030 / 50e9, rel=1e-3)
    assert {**found.optimized_counters, **IN} == found.optimized_counters, "nothing else changes"
    slower = with_derived(streamed, ENDLESS, {YARDSTICK: 45.0})
    assert slower.with_more(found).optimized_counters["bus_share"] == found.optimized_counters["bus_share"]
    assert with_derived(streamed, ENDLESS, {"memcpy_gb_per_s": 5.0}) == streamed
    assert with_derived(replace(streamed, instances=()), ENDLESS, RATE) == replace(streamed, instances=())


CEILINGS = {"device_copy_gb_per_s": 3000.0, "matmul_bf16_tflops": 800.0, "cache_bytes": 0.0}


@pytest.mark.parametrize(
    ("ceilings", "shares"),
    [
        (CEILINGS, {"copy_share": 0.8, "matmul_share": 0.25}),
        ({"device_copy_gb_per_s": 3000.0}, {"copy_share": 0.8}),  # a precision without a yardstick
        ({"memcpy_gb_per_s": 5.0}, {}),  # a CPU
    ],
)
def test_a_step_is_a_share_of_the_machines_ceilings(
    streamed: Measurement, ceilings: dict[str, float], shares: dict[str, float]
) -> None:
    found = with_derived(replace(streamed, ceilings=ceilings), Size(1, flops=2e12, bytes=24e9), {})
    added = {name: value for name, value in found.optimized_counters.items() if name not in IN}
    assert added == pytest.approx(shares, rel=1e-3)


CLIP = Size(8, 1, 1, whole_run_items=600)  # 75 steps of 10 ms, or of 30; start-up has taken one of them


def test_only_a_counted_side_of_a_run_with_an_end_has_its_speedup() -> None:
    costs = {"optimized_cost": SideCost(0.5, 0.25), "reference_cost": SideCost(0.1, 0.15)}
    found = measured("tiny/quick/cuda", 3.0, spread=0.0, **costs)
    counted = replace(found, optimized_counters={"kernels": 3.0})
    counters = with_derived(counted, CLIP, {}).optimized_counters
    assert counters == {"kernels": 3.0, "whole_run_speedup": pytest.approx(2.47 / 1.49)}
    uncounted = replace(found, optimized_counters={})
    assert with_derived(uncounted, CLIP, {}) == uncounted
    assert with_derived(counted, replace(CLIP, whole_run_items=None), {}) == counted
    assert with_derived(replace(counted, instances=()), CLIP, {}) == replace(counted, instances=())


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
    found = with_ceilings(measured("tiny/quick/cuda", 3.0), dtype, kind, 100, probes)
    assert set(found.ceilings) == names
    assert found.ceilings == {**{name: values.get(name) for name in names}, "cache_bytes": 100.0}


@pytest.mark.parametrize(
    ("latencies_us", "recorded", "times"),
    [((2.5, 3.0, 2.8), {"launch_latency_us": 2.0}, 1.4), ((), {"launch_latency_us": 2.0}, None), ((2.0,), {}, None)],
)
def test_the_launches_of_a_host_are_compared_with_the_recorded_ones(latencies_us, recorded, times) -> None:
    probes = [Yardstick({"launch_latency_us": us}) for us in latencies_us]
    found = launch_slowdown([Yardstick({"matmul_bf16_tflops": 1.0}), *probes], recorded)
    assert found == (times and pytest.approx(times))
