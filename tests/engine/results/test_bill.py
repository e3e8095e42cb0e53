"""The bill of a step: from a measurement, and as a record stores those of several processes."""

from dataclasses import replace

import pytest

from gpugate.measurement.record import OTHERS, Measurement, StepProfile
from gpugate.results.bill import MOST_KERNELS, Bill, Bills, bills_of
from gpugate.results.summary import History
from gpugate.store.codec import from_json, to_json
from tests.support.stored_runs import measurement

NOTHING = measurement()
KERNELS = StepProfile(kernels={"gemm": (2.0, 0.25), "relu": (1.0, 0.125)})
HISTORY = History(2.0, None, 2.0, 1.0, None, 3)


def measured(counters: dict[str, float], profile: StepProfile | None = None) -> Measurement:
    return replace(NOTHING, optimized_counters=counters, optimized_profile=profile)


@pytest.mark.parametrize(
    ("measurement", "bill"),
    [
        (measured({"kernel_ms": 0.1234567}, KERNELS), Bill({"kernel_ms": 0.123457}, {"gemm": 0.25, "relu": 0.125})),
        (measured({"cpu_ms": 1.5}, KERNELS), Bill({"cpu_ms": 1.5}, {})),  # operators of a CPU
        (measured({"kernel_ms": 1.0}), Bill({"kernel_ms": 1.0}, {})),
    ],
    ids=["a GPU", "a CPU", "without a profile"],
)
def test_a_bill_has_the_counters_and_on_a_gpu_the_kernels_of_a_side(measurement: Measurement, bill: Bill) -> None:
    assert bills_of(measurement) == Bills(Bill({}, {}), bill)
    assert bills_of(NOTHING) is None


def test_a_short_kernel_is_a_part_of_the_rest_and_a_time_of_the_host_is_no_item() -> None:
    kernels = {"gemm": (1.0, 9.0), "relu": (1.0, 0.91), "fill": (1.0, 0.05), "cast": (1.0, 0.04)}
    found = bills_of(measured({"kernel_ms": 10.0, "enqueue_ms": 3.0, "other_cores": 1.0}, StepProfile(kernels=kernels)))
    assert found is not None
    assert found.optimized == Bill({"kernel_ms": 10.0}, {"gemm": 9.0, "relu": 0.91, OTHERS: pytest.approx(0.09)})


@pytest.mark.parametrize("rest_ms", [0.0, 0.02])
def test_a_long_list_of_kernels_ends_with_the_sum_of_the_rest(rest_ms: float) -> None:
    """The profile's own rest may be longer than any kernel, and stays a part of the rest."""
    kernels = {f"k{number:02d}": (1.0, 1 / (100 + number)) for number in range(MOST_KERNELS + 2)}
    profile = StepProfile(kernels={**kernels, **({OTHERS: (1.0, rest_ms)} if rest_ms else {})})
    found = bills_of(measured({"kernel_ms": 9.0}, profile))
    assert found is not None
    assert list(found.optimized.kernels_ms) == [*list(kernels)[:MOST_KERNELS], OTHERS]
    assert found.optimized.kernels_ms[OTHERS] == pytest.approx(1 / 140 + 1 / 141 + rest_ms, rel=1e-5)


def test_the_bills_of_processes_are_stored_by_item_and_read_back() -> None:
    one = Bills(Bill({"kernels": 3.0}, {}), Bill({"kernels": 2.0, "cpu_ms": 0.5}, {"a": 0.25}))
    other = Bills(Bill({"kernels": 3.0}, {}), Bill({"kernels": 4.0}, {"b": 0.125}))
    history = replace(HISTORY, bills=(one, None, other))
    stored = to_json(history)
    assert stored["bills"] == {
        "measured": [True, False, True],
        "reference": {"counters": {"kernels": 3.0}, "kernels_ms": {}},  # as in every process that has a bill
        "optimized": {
            "counters": {"cpu_ms": [0.5, None, None], "kernels": [2.0, None, 4.0]},
            "kernels_ms": {"a": [0.25, None, None], "b": [None, None, 0.125]},
        },
    }
    assert from_json(History, stored) == history
    assert "bills" not in to_json(replace(HISTORY, bills=(None, None)))
