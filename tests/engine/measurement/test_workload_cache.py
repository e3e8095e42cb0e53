"""The cache of counted sides, and the comparison of two sides' work."""

import pytest

from gpugate.measurement.step_profile import StepProfile
from gpugate.measurement.workload_cache import LEAST_ACTIVE, CountedSide

RAN = {"gemm": 1.0, "cudaLaunchKernel": 1.0}


def counted(ran: dict[str, float], active_fraction: float | None = None) -> CountedSide:
    counters = {} if active_fraction is None else {"active_fraction": active_fraction}
    return CountedSide(counters, StepProfile(), ran)


@pytest.mark.parametrize(
    ("active_fractions", "same"),
    [((0.9, 0.9), True), ((LEAST_ACTIVE, 0.001), True), ((0.001, 0.001), False), ((None, None), True)],
    ids=["a busy device", "one busy enough", "an idle device", "no device"],
)
def test_equal_kernels_say_that_the_work_is_the_same_where_they_take_the_time(
    active_fractions: tuple[float | None, float | None], same: bool
) -> None:
    one, other = (counted(RAN, fraction) for fraction in active_fractions)
    assert one.same_work(other) is same


def test_other_kernels_are_other_work() -> None:
    assert not counted(RAN, 0.9).same_work(counted({**RAN, "relu": 1.0}, 0.9))
