"""The counting pass on a CPU: what runs inside a window of this torch's profiler, and who is blamed."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from gpugate.errors import SideError
from gpugate.measurement import counters
from gpugate.measurement.record import SideCost
from gpugate.measurement.sides import BuiltSide
from gpugate.measurement.torch_flags import TorchFlags
from gpugate.measurement.trace import Activity, signature
from gpugate.workload import Side

CPU = torch.device("cpu")
LAUNCHED = Activity(5, [{"name": "cudaLaunchKernel"}], [], [], [], [])
LOST_ONE = Activity(5, [{"name": "cudaLaunchKernel"}] * 2, [{"name": "k"}], [], [], [])
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
    found = counters.count(sides, [one], [2, 6])
    assert [activity.steps for activity in found] == [2, 6]
    names = ("aten::relu", "aten::exp", "aten::sigmoid", "aten::sin")
    signatures = [signature(activity) for activity in found]
    assert [[operators.get(name, 0) for name in names] for operators in signatures] == [[1, 0, 0, 0], [0, 0, 1, 1]]


@pytest.mark.parametrize(
    ("steps_ms", "works_ahead", "steps"),
    [
        ([1.0, 0.3], False, [4, 4]),
        ([125.0, 40.0], False, [4, 4]),
        ([160.0, 50.0], False, [2, 2]),
        ([2000.0, 700.0], False, [2, 2]),
        ([200.0, 1.0], True, [2, 64]),
        ([200.0, 7.9], True, [2, 32]),
        ([200.0, 20.0], True, [2, 16]),
        ([200.0, 400.0], True, [2, 2]),
        ([None, None], True, [4, 64]),
    ],
)
def test_of_long_steps_fewer_are_counted_of_both_sides(
    steps_ms: list[float | None], works_ahead: bool, steps: list[int]
) -> None:
    """A side that works ahead is counted for half a second or so."""
    sides = [built("baseline", Side(abs)), built("fast", Side(abs, works_ahead=works_ahead))]
    assert counters.steps_worth_counting(sides, steps_ms) == steps


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


LOST = r"fast failed while being counted: .*saw more launches than kernels"
BUSY = r"the profiler saw no kernel, .*end every other profiler of this GPU, or load the driver"


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        ([RAN, LAUNCHED], [RAN, RAN], None),
        ([RAN, LOST_ONE], [RAN, LOST_ONE], LOST),
        ([LAUNCHED], [LAUNCHED], BUSY),
        ([replace(IDLE, attached=False)], [replace(IDLE, attached=False)], BUSY),
    ],
    ids=["once", "twice", "launches alone", "no call at all"],
)
def test_a_pass_that_lost_kernels_is_repeated_once_and_then_an_error_and_never_a_zero(
    monkeypatch: pytest.MonkeyPatch, first: list[Activity], second: list[Activity], error: str | None
) -> None:
    passes = iter([first, second])
    monkeypatch.setattr(counters, "_count_once", lambda *arguments: next(passes))
    sides = [built(name, Side(abs)) for name in ("baseline", "fast")][-len(first) :]
    with nullcontext() if error is None else pytest.raises(SideError, match=error):
        assert counters.count(sides, [torch.ones(1)], [5, 5]) == second
