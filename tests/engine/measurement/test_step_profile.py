"""The profile of a step from small traces written by hand, in the shape that torch.profiler exports."""

import pytest
import torch

from gpugate.measurement import counters
from gpugate.measurement.counters import LEAST_ACTIVE, CountedSide
from gpugate.measurement.record import OTHERS, StepProfile
from gpugate.measurement.trace import JOIN, LONGEST_NAME, MOST_PARTS, WINDOW, Event, read_activity, step_profile
from gpugate.workload import Side
from tests.engine.measurement.test_counters import built
from tests.engine.measurement.test_trace import WINDOW_EVENT, activity, call, copy, event, kernel
from workloads.parts.stages import stage


def operator(name: str, ts: float, dur: float, tid: int = 1) -> Event:
    return {**event("cpu_op", name, ts, dur, 0), "tid": tid}


def test_kernels_of_one_name_are_one_part_per_step_and_the_longest_comes_first() -> None:
    kernels = [kernel(1, 1200, 10, "a"), kernel(2, 1300, 10, "a"), kernel(3, 1400, 40, "b")]
    found = step_profile(activity(*(call("cudaLaunchKernel", number) for number in (1, 2, 3)), *kernels, steps=2))
    assert list(found.kernels.items()) == [("b", (0.5, 0.02)), ("a", (1.0, 0.01))]
    assert found.kernel_ms == pytest.approx(0.03)


def test_overlapping_kernels_take_the_time_in_which_any_runs_and_copies_what_they_add() -> None:
    events = [kernel(1, 1200, 100), kernel(2, 1250, 100, stream=8), copy("HtoD (Pinned -> Device)", 3, 1300, 100)]
    found = step_profile(activity(*(call("cudaLaunchKernel", number) for number in (1, 2, 3)), *events))
    assert (found.kernel_ms, found.copy_ms) == (pytest.approx(0.15), pytest.approx(0.05))
    assert found.copies == {"Memcpy HtoD (Pinned -> Device)": (1.0, 0.1)}


def test_what_the_join_adds_belongs_to_no_step() -> None:
    join = {**WINDOW_EVENT, "name": f"{JOIN} {WINDOW}", "ts": 3000.0}
    late = [call("cudaLaunchKernel", 9, ts=3100.0), kernel(9, ts=3200.0, dur=50.0, name="spin")]
    found = step_profile(read_activity([WINDOW_EVENT, join, call("cudaLaunchKernel", 1), kernel(1), *late], steps=5))
    assert found.after == {"spin": (1.0, 0.05)}
    assert list(found.kernels) == ["k"]


def test_on_a_cpu_an_operator_has_the_time_that_its_callees_do_not() -> None:
    events = [
        operator("linear", 1100, 100),
        operator("addmm", 1110, 80),
        operator("copy", 1120, 10),
        operator("relu", 1300, 20),
        operator("relu", 1100, 40, tid=2),
    ]
    found = step_profile(activity(*events))
    assert found.kernels == {"addmm": (1, 0.07), "relu": (2, 0.06), "linear": (1, 0.02), "copy": (1, 0.01)}
    assert found.kernel_ms == pytest.approx(0.16)


def test_a_long_list_ends_with_its_rest_and_a_long_name_is_cut() -> None:
    names = [f"k{number:03d}" for number in range(MOST_PARTS + 3)]
    events = [kernel(number, dur=100.0 - number, name=name) for number, name in enumerate(names, 1)]
    found = step_profile(activity(*(call("cudaLaunchKernel", number) for number in range(1, 100)), *events))
    assert list(found.kernels) == [*names[:MOST_PARTS], OTHERS]
    assert found.kernels[OTHERS] == (3, pytest.approx(0.039 + 0.038 + 0.037))
    (cut,) = step_profile(activity(call("cudaLaunchKernel", 1), kernel(1, name="x" * 999))).kernels
    assert cut == "x" * LONGEST_NAME


def test_every_time_can_be_told_in_another_pace() -> None:
    part = {"a": (2.0, 0.5)}
    slower = StepProfile(part, part, part, part, part, 1.0, 2.0).longer(3.0)
    assert slower == StepProfile(*[{"a": (2.0, 1.5)}] * 5, 3.0, 6.0)


def annotation(kind: str, name: str, ts: float, dur: float) -> Event:
    return {"ph": "X", "cat": kind, "name": name, "ts": ts, "dur": dur, "args": {}}


def test_stages_come_in_their_order_and_as_long_as_the_device_works_on_them() -> None:
    ran = [kernel(1, ts=1200, dur=100), kernel(2, ts=1300, dur=600)]
    on_device = [
        annotation("gpu_user_annotation", "forward", 1700, 50),
        annotation("gpu_user_annotation", "copy", 1200, 100),
        annotation("gpu_user_annotation", "copy", 1500, 100),
        annotation("gpu_user_annotation", WINDOW, 1200, 700),  # ours
        annotation("gpu_user_annotation", "copy", 9000, 100),  # of another side
    ]
    host = annotation("user_annotation", "forward", 1100, 5)
    launches = [call("cudaLaunchKernel", number) for number in (1, 2)]
    found = step_profile(activity(host, *launches, *ran, *on_device, steps=2))
    assert list(found.stages.items()) == [("copy", (1.0, 0.1)), ("forward", (0.5, 0.025))]
    assert step_profile(activity(host, annotation("user_annotation", "late", 2100, 5))).stages == {
        "forward": (1, 0.005)
    }


def test_the_stages_of_a_workload_are_seen_by_the_counting_pass() -> None:
    def step(inputs: torch.Tensor) -> torch.Tensor:
        with stage("forward", 4):
            return inputs.relu()

    (found,) = counters.count([built("baseline", Side(step))], [torch.ones(4)], [3])
    assert [(name, count) for name, (count, _) in step_profile(found).stages.items()] == [("forward", 1.0)]


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
