"""The bottleneck of a side, by its counters."""

import pytest

from gpugate.report.bottleneck import bottleneck

IDLE = {"kernel_fraction": 0.3, "copy_fraction": 0.1, "active_fraction": 0.35, "enqueue_ms": 0.1}


@pytest.mark.parametrize(
    ("counters", "words"),
    [
        ({"data_path_efficiency": 0.31, "kernel_fraction": 0.95}, "data-bound: on cached data a step takes 31 % of"),
        ({"data_path_efficiency": 0.97, "kernel_fraction": 0.95}, "kernel-bound: kernels run 95 % of the time"),
        ({"kernel_fraction": 0.84, "copy_fraction": 0.9}, "copy-bound: copies run 90 % of the time, kernels 84 %"),
        (
            {"data_path_efficiency": 0.07, "kernel_fraction": 0.07, "copy_fraction": 0.98},
            "copy-bound: copies run 98 % of the time, kernels 7 %",
        ),
        (
            {"data_path_efficiency": 0.3, "kernel_fraction": 0.2, "copy_fraction": 0.6},
            "data-bound: on cached data a step takes 30 % of its time",
        ),
        (
            {**IDLE, "synchronizing_calls": 3},
            "sync-bound: 3 waiting calls per step, the GPU is active 35 % of the time",
        ),
        ({**IDLE, "synchronizing_calls": 1}, "sync-bound: 1 waiting call per step, the GPU"),
        (
            {**IDLE, "enqueue_ms": 0.5},
            "launch-bound: enqueueing to an idle GPU takes 0.500 ms, a step 1.00 ms, the GPU is active 35 %",
        ),
        ({**IDLE, "synchronizing_calls": 0.4}, "host-bound: the GPU is active 35 % of the time"),
    ],
)
def test_what_bounds_a_step_of_a_millisecond(counters: dict[str, float], words: str) -> None:
    found = bottleneck(counters, step_ms=1.0)
    assert found is not None
    assert found.startswith(words)


def test_without_counters_nothing_is_claimed() -> None:
    assert bottleneck({}, 1.0) is None
    assert bottleneck({"data_path_efficiency": 0.1}, 1.0) is None
