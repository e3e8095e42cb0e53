"""The counting pass on a CPU, and counters without the profiler, by a made-up clock and a made-up device."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from random import Random
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpugate.errors import SideError
from gpugate.measurement import counters, sides
from gpugate.measurement.counters import (
    LEVELS,
    LOOKS,
    ROUND_MS,
    ROUNDS,
    STEPS,
    enqueue_ms,
    grown_bytes,
    measure_data_path,
)
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


def stepping(step: Callable[[Any], Any], **more: Any) -> BuiltSide:
    return built("fast", Side(step, **more))


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
    ],
)
def test_of_long_steps_fewer_are_counted_of_both_sides(
    steps_ms: list[float], works_ahead: bool, steps: list[int]
) -> None:
    """A side that works ahead is counted for half a second or so."""
    sides = [built("baseline", Side(abs)), built("fast", Side(abs, works_ahead=works_ahead))]
    assert counters.steps_worth_counting(sides, steps_ms) == steps


def test_a_side_is_counted_under_its_own_flags_on_every_input_alike() -> None:
    """What a step launches follows from its input, and either input may come first."""
    threads: list[int] = []

    def step(repeats: torch.Tensor) -> list[torch.Tensor]:
        threads.append(torch.get_num_threads())
        return [torch.ones(1).relu() for _ in range(int(repeats))]

    defaults = TorchFlags()
    single, usual = built("single", Side(step)), built("usual", Side(step))
    single.flags, usual.next_input = TorchFlags(num_threads=defaults.num_threads + 1), 1
    steps = counters.steps_worth_counting([single, usual], [130.0, 130.0])
    found = counters.count([single, usual], [torch.tensor(1), torch.tensor(3)], steps)
    defaults.apply()
    assert [signature(activity)["aten::relu"] for activity in found] == [2, 2]
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


AGAIN = ROUNDS + LEVELS * LOOKS - 1  # rounds, where the first ones looked like growth
LATER = AGAIN + LEVELS * LOOKS - 1  # rounds, where the memory goes on to rise


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A device that allocates kilobytes: those that are kept, and those that the garbage collector frees."""
    made = SimpleNamespace(kept=0, garbage=0, step=0)
    monkeypatch.setattr(sides.gc, "collect", lambda: setattr(made, "garbage", 0) or 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1000 * (made.kept + made.garbage))
    return made


def grown(
    device: SimpleNamespace, work: Callable[[SimpleNamespace], Any], steps: int = STEPS, step_ms: float = 0.0
) -> float:
    """The growth that is found, where `work` returns the kilobytes by which a step keeps more."""

    def step(inputs: object) -> None:
        device.step += 1
        device.kept += work(device) or 0

    side = stepping(step)
    side.steps_per_block = steps
    return grown_bytes(side, [None, None], step_ms)


def litter(device: SimpleNamespace) -> None:
    device.garbage += 1


# What a step does -> the growth in kilobytes, and the rounds that are watched.
GROWTH: dict[str, tuple[Callable[[SimpleNamespace], Any], float, int]] = {
    "a leak": (lambda device: 1, 1.0, LATER),
    "allocated once": (lambda device: device.step == 3, 0.0, AGAIN),
    "given back": (lambda device: -1, 0.0, ROUNDS),
    "garbage": (litter, 0.0, ROUNDS),
    "at its first level": (lambda device: device.step in (STEPS, ROUNDS * STEPS + 1), 0.0, AGAIN),
    "at its second level": (lambda device: device.step in (STEPS, (ROUNDS + LOOKS) * STEPS + 1), 0.0, AGAIN),
    **{
        f"a leak, and allocated at step {late}": (
            lambda device, late=late: 1000 if device.step == late else 1,
            1.0,
            LATER,
        )
        for late in (16, 40, 60, 100)
    },
}


@pytest.mark.parametrize("name", GROWTH)
def test_only_what_goes_on_to_rise_is_growth(device: SimpleNamespace, name: str) -> None:
    work, kilobytes, rounds = GROWTH[name]
    assert grown(device, work) == 1000 * kilobytes
    assert device.step == rounds * STEPS
    if name == "a leak":
        device.step = 0
        assert grown(device, work, step_ms=ROUND_MS / 2) == 1000.0
        assert device.step == LATER * 2, "of long steps fewer are watched"


@pytest.mark.parametrize(("leaked", "drift", "least", "most"), [(0, None, 0, 2), (0, 4, 0, 5), (4, None, 70, 100)])
def test_what_a_library_keeps_for_a_while_is_no_growth_and_hides_none(
    device: SimpleNamespace, leaked: int, drift: int | None, least: int, most: int
) -> None:
    """Of 100 sides, beside a library that keeps 0 to 80 kilobytes; with `drift`, by so many more from step to step."""
    found, random = list[float](), Random(1)  # noqa: S311
    for _ in range(100):
        its = [0]

        def work(device: SimpleNamespace, its: list[int] = its) -> int:
            kept = 20 * random.randrange(5) if drift is None else its[0] + random.randint(-drift, drift)
            before, its[0] = its[0], min(max(kept, 0), 80)
            return leaked + its[0] - before

        found.append(grown(device, work))
    assert least <= sum(growth > 0 for growth in found) <= most
    assert not leaked or 2000 < median(found) < 6000


ENQUEUED = {  # ms of each step and of its join; the median, and the number of steps
    "a slow moment": ([3.0] * 50 + [1.0] * 150, 0.1, 1.0, 182),
    "joining takes longer": ([2.0, 1.0, 1.0], 100.0, 1.0, 3),
    "slow steps": ([200.0] * 9, 0.0, 200.0, 3),
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

    monkeypatch.setattr(counters, "perf_counter_ns", lambda: now_ns[0])
    assert enqueue_ms(stepping(step, finish=lambda: pass_(join_ms)), [torch.ones(1)]) == pytest.approx(median_ms)
    assert len(steps) == enqueued


@pytest.mark.parametrize(("real_ms", "cached_ms", "expected"), [(10.0, 3.0, 0.3), (10.0, 10.0, 1.0)])
def test_the_data_path_is_what_a_step_on_cached_data_saves(real_ms: float, cached_ms: float, expected: float) -> None:
    clock = SimpleNamespace(now_ms=0.0)

    def pass_(milliseconds: float) -> None:
        clock.now_ms += milliseconds

    def time_ms(run: Callable[[], None]) -> float:
        before_ms = clock.now_ms
        run()
        return float(clock.now_ms - before_ms)

    side = stepping(lambda inputs: pass_(real_ms), cached_step=lambda: pass_(cached_ms))
    side.steps_per_block = 3
    found = measure_data_path(side, time_ms, real_ms)
    assert found == pytest.approx({"cached_step_ms": cached_ms, "data_path_efficiency": expected})
    assert clock.now_ms <= 12 * cached_ms, "real steps were run, whose time is known"
    assert measure_data_path(stepping(lambda inputs: None), time_ms, real_ms) == {}
