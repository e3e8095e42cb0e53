"""The counting pass on a CPU: what runs inside a window of this torch's profiler, and who is blamed."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from gpugate.errors import SideError
from gpugate.measurement import counters, unprofiled
from gpugate.measurement.record import SideCost
from gpugate.measurement.sides import BuiltSide
from gpugate.measurement.torch_flags import TorchFlags
from gpugate.measurement.trace import Activity, signature
from gpugate.workload import Side

CPU = torch.device("cpu")
LAUNCHED = Activity(5, [{"name": "cudaLaunchKernel"}], [], [], [], [])
RAN = Activity(5, [{"name": "cudaLaunchKernel"}], [{"name": "k"}], [], [], [])
IDLE = Activity(5, [], [], [], [], [])


def built(name: str, side: Side) -> BuiltSide:
    return BuiltSide(name, side, TorchFlags(), CPU, SideCost(0.0, 0.0))


def test_each_side_is_counted_in_its_own_window_without_what_surrounds_it() -> None:
    one = torch.ones(1)
    sides = [
        built("baseline", Side(lambda inputs: inputs.relu(), finish=lambda: one.exp())),
        built("fast", Side(lambda inputs: inputs.sigmoid().sin())),
    ]
    found = [signature(activity) for activity in counters.count(sides, [one], [5, 5])]
    names = ("aten::relu", "aten::exp", "aten::sigmoid", "aten::sin")
    assert [[operators.get(name, 0) for name in names] for operators in found] == [[1, 0, 0, 0], [0, 0, 1, 1]]


def test_each_side_may_be_counted_over_its_own_number_of_steps() -> None:
    sides = [built("baseline", Side(lambda inputs: inputs.relu())), built("fast", Side(lambda inputs: inputs.sin()))]
    found = counters.count(sides, [torch.ones(1)], [2, 6])
    assert [activity.steps for activity in found] == [2, 6]
    assert [
        sum(event["name"] == name for event in activity.operators)
        for activity, name in zip(found, ("aten::relu", "aten::sin"), strict=True)
    ] == [2, 6]


def usual(works_ahead: bool = False) -> BuiltSide:
    return built("baseline", Side(lambda inputs: inputs, works_ahead=works_ahead))


@pytest.mark.parametrize(("step_ms", "steps"), [(1.0, 4), (125.0, 4), (160.0, 2), (200.0, 2), (2000.0, 2)])
def test_of_long_steps_fewer_are_counted_of_both_sides(step_ms: float, steps: int) -> None:
    assert counters.steps_worth_counting([usual(), usual()], [step_ms, step_ms / 3]) == [steps, steps]


@pytest.mark.parametrize(("step_ms", "steps"), [(1.0, 64), (7.9, 32), (20.0, 16), (400.0, 2)])
def test_a_side_that_works_ahead_is_counted_for_half_a_second_or_so(step_ms: float, steps: int) -> None:
    sides = [usual(), usual(works_ahead=True)]
    assert counters.steps_worth_counting(sides, [200.0, step_ms]) == [2, steps]


def test_without_a_single_time_all_steps_are_counted() -> None:
    assert counters.steps_worth_counting([usual(), usual(works_ahead=True)], [None, None]) == [4, 64]


def test_a_pipeline_is_joined_before_and_after_its_window() -> None:
    events: list[str] = []
    side = Side(lambda inputs: events.append("step"), finish=lambda: events.append("join"))
    counters.count([built("baseline", side)], [torch.ones(1)], [3])
    assert events == ["step"] * counters.FLUSH_STEPS + ["join"] + ["step"] * 3 + ["join"]


def test_counts_do_not_depend_on_the_input_that_comes_first() -> None:
    """The number of kernels of a speculative step follows from its inputs."""
    inputs = [torch.tensor(1), torch.tensor(3)]
    found = []
    for first in range(len(inputs)):
        side = built("baseline", Side(lambda repeats: [torch.ones(1).relu() for _ in range(int(repeats))]))
        side.next_input = first
        (activity,) = counters.count([side], inputs, counters.steps_worth_counting([side], [130.0]))
        found.append(signature(activity)["aten::relu"])
    assert found == [2, 2]


def test_inputs_go_on_rotating_while_steps_are_counted() -> None:
    seen: list[float] = []

    def step(inputs: torch.Tensor) -> torch.Tensor:
        seen.append(float(inputs))
        return inputs

    (activity,) = counters.count([built("baseline", Side(step))], [torch.tensor(1.0), torch.tensor(2.0)], [4])
    assert activity.steps == 4
    assert seen == [1.0, 2.0] * (counters.FLUSH_STEPS // 2 + 2)


def test_a_side_is_counted_under_its_own_flags() -> None:
    threads: list[int] = []

    def step(inputs: torch.Tensor) -> torch.Tensor:
        threads.append(torch.get_num_threads())
        return inputs

    defaults = TorchFlags()
    single = built("single", Side(step))
    single.flags = TorchFlags(num_threads=defaults.num_threads + 1)
    counters.count([single, built("usual", Side(step))], [torch.ones(1)], [1, 1])
    defaults.apply()
    assert [threads[0], threads[-1]] == [defaults.num_threads + 1, defaults.num_threads]


def test_what_fails_while_it_is_counted_is_blamed_on_its_side() -> None:
    good, bad = Side(lambda inputs: inputs), Side(lambda inputs: inputs / torch.ones(3))
    with pytest.raises(SideError, match="bad failed while being counted: RuntimeError: The size of tensor"):
        counters.count([built("good", good), built("bad", bad)], [torch.ones(2)], [1, 1])


def scripted(monkeypatch: pytest.MonkeyPatch, *passes: list[Activity]) -> Iterator[list[Activity]]:
    left = iter(passes)
    monkeypatch.setattr(counters, "_count_once", lambda *arguments: next(left))
    return left


def test_a_pass_that_lost_the_kernels_is_repeated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = [built("baseline", Side(lambda inputs: inputs)), built("fast", Side(lambda inputs: inputs))]
    left = scripted(monkeypatch, [RAN, LAUNCHED], [RAN, RAN], [LAUNCHED, LAUNCHED])
    assert counters.count(sides, [torch.ones(1)], [5, 5]) == [RAN, RAN]
    assert len(list(left)) == 1


def test_kernels_lost_twice_are_an_error_and_never_a_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = [built("baseline", Side(lambda inputs: inputs)), built("fast", Side(lambda inputs: inputs))]
    scripted(monkeypatch, [RAN, LAUNCHED], [RAN, LAUNCHED])
    with pytest.raises(SideError, match=r"fast failed while being counted: .*saw more launches than kernels"):
        counters.count(sides, [torch.ones(1)], [5, 5])


@pytest.mark.parametrize("seen", [LAUNCHED, replace(IDLE, attached=False)], ids=["launches alone", "no call at all"])
def test_a_profiler_that_sees_no_kernel_is_busy_or_not_permitted(monkeypatch, seen: Activity) -> None:
    scripted(monkeypatch, [seen], [seen])
    with pytest.raises(SideError, match=r"the profiler saw no kernel, .*end every other profiler of this GPU, and see"):
        counters.count([built("fast", Side(lambda inputs: inputs))], [torch.ones(1)], [5])


def test_a_cpu_says_why_it_counts_no_kernels() -> None:
    assert counters.why_missing(CPU) == "kernels and copies are counted on CUDA only"


ENQUEUED = {  # ms of each step and of its join; the median, and the number of steps
    "a slow moment": ([3.0] * 50 + [1.0] * 150, 0.1, 1.0, 182),
    "joining takes longer": ([2.0, 1.0, 1.0, 2.0, 1.0], 100.0, 1.0, 5),
    "slow steps": ([200.0] * 9, 0.0, 200.0, 5),
    "short steps": ([0.01] * 1100, 0.0, 0.01, 1000),
}


@pytest.mark.parametrize(("step_ms", "join_ms", "median_ms", "enqueued"), ENQUEUED.values(), ids=ENQUEUED)
def test_the_time_to_enqueue_is_a_median_of_many_steps_without_their_joins(
    monkeypatch: pytest.MonkeyPatch, step_ms: list[float], join_ms: float, median_ms: float, enqueued: int
) -> None:
    """By a made-up clock, which steps and joins advance."""
    now_ns, steps = [0.0], []

    def pass_(milliseconds: float) -> None:
        now_ns[0] += milliseconds * 1e6

    def step(inputs: torch.Tensor) -> torch.Tensor:
        pass_(step_ms[len(steps)])
        steps.append(inputs)
        return inputs

    side = Side(step, finish=lambda: pass_(join_ms))
    monkeypatch.setattr(unprofiled, "perf_counter_ns", lambda: now_ns[0])
    assert unprofiled.enqueue_ms(built("fast", side), [torch.ones(1)]) == pytest.approx(median_ms)
    assert len(steps) == enqueued
