"""The share of the bus from bytes, pairs and the machine's own yardstick, and the contract that holds a side to it."""

from dataclasses import replace

import pytest

from gpugate.judging.bill import broken_limit
from gpugate.measurement.derived import YARDSTICK, with_bus_share
from gpugate.measurement.record import Measurement
from gpugate.workload import Limit
from tests.support.stored_runs import measured

IN = {"host_to_device_bytes": 4e8, "device_to_host_bytes": 3e8}
OUT = {"host_to_device_bytes": 0.0, "device_to_host_bytes": 1e8}
RATE = {YARDSTICK: 50.0, "launch_latency_us": 2.0}


@pytest.fixture
def streamed() -> Measurement:
    """About 30 ms a step of the reference and 10 ms of the optimized side."""
    return measured("tiny/streamed/cuda", 3.0, optimized_counters=IN, reference_counters=OUT)


def test_it_is_the_longer_directions_bytes_over_time_over_the_yardstick(streamed: Measurement) -> None:
    found = with_bus_share(streamed, RATE)
    assert found.optimized_counters["bus_share"] == pytest.approx(4e8 / 0.010 / 50e9, rel=1e-3)
    assert found.reference_counters["bus_share"] == pytest.approx(1e8 / 0.030 / 50e9, rel=1e-3)
    assert {**found.optimized_counters, **IN} == found.optimized_counters, "nothing else changes"


def test_what_was_not_measured_gives_no_share(streamed: Measurement) -> None:
    assert with_bus_share(streamed, {"memcpy_gb_per_s": 5.0}) == streamed
    assert with_bus_share(replace(streamed, instances=()), RATE) == replace(streamed, instances=())
    assert with_bus_share(replace(streamed, optimized_counters={}), RATE).optimized_counters == {}


@pytest.mark.parametrize(("gb_per_s", "broken"), [(46.0, False), (48.0, True)])
def test_a_limit_holds_a_side_to_a_share_of_this_machines_bus(streamed, gb_per_s: float, broken: bool) -> None:
    found = with_bus_share(streamed, {YARDSTICK: gb_per_s}).optimized_counters
    assert (broken_limit(Limit("bus_share", at_least=0.85), found, {}) is not None) is broken


def test_of_two_measurements_the_smaller_share_stays(streamed: Measurement) -> None:
    fast, slow = (with_bus_share(streamed, {YARDSTICK: rate}) for rate in (45.0, 50.0))
    assert fast.with_more(slow).optimized_counters["bus_share"] == slow.optimized_counters["bus_share"]
