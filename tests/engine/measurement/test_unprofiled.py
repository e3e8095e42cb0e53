"""Counters without the profiler, by a made-up clock and a made-up device: a leak, and no memory that comes and goes."""

from collections.abc import Callable
from random import Random
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpugate.measurement import counters
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
from gpugate.workload import Side

AGAIN = ROUNDS + LEVELS * LOOKS - 1  # rounds, where the first ones looked like growth
LATER = AGAIN + LEVELS * LOOKS - 1  # rounds, where the memory goes on to rise


def built(step: Callable[[Any], Any], **more: Any) -> BuiltSide:
    return BuiltSide("fast", Side(step, **more), TorchFlags.current(), torch.device("cpu"), SideCost(0.0, 0.0))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A device that allocates kilobytes: those that are kept, and those that the garbage collector frees."""
    made = SimpleNamespace(kept=0, garbage=0, step=0)
    monkeypatch.setattr(counters.gc, "collect", lambda: setattr(made, "garbage", 0) or 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1000 * (made.kept + made.garbage))
    return made


def grown(
    device: SimpleNamespace, work: Callable[[SimpleNamespace], Any], steps: int = STEPS, step_ms: float = 0.0
) -> float:
    """The growth that is found, where `work` returns the kilobytes by which a step keeps more."""

    def step(inputs: object) -> None:
        device.step += 1
        device.kept += work(device) or 0

    side = built(step)
    side.steps_per_block = steps
    return grown_bytes(side, [None, None], step_ms)


def litter(device: SimpleNamespace) -> None:
    device.garbage += 1


# What a step does -> the growth in kilobytes, and the rounds that are watched.
GROWTH: dict[str, tuple[Callable[[SimpleNamespace], Any], float, int]] = {
    "a leak": (lambda device: 1, 1.0, LATER),
    "allocated once": (lambda device: device.step == 3, 0.0, AGAIN),
    "given back": (lambda device: -1, 0.0, ROUNDS),
    "garbage": (litter, 0.0, AGAIN),
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


@pytest.mark.parametrize(("more", "steps"), [({"step_ms": ROUND_MS / 2}, 2), ({"steps": 1}, 1)])
def test_long_steps_are_watched_for_fewer_of_them(device: SimpleNamespace, more: dict[str, Any], steps: int) -> None:
    assert grown(device, lambda device: 1, **more) == 1000.0
    assert device.step == LATER * steps


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

    monkeypatch.setattr(counters, "perf_counter_ns", lambda: now_ns[0])
    assert enqueue_ms(built(step, finish=lambda: pass_(join_ms)), [torch.ones(1)]) == pytest.approx(median_ms)
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

    side = built(lambda inputs: pass_(real_ms), cached_step=lambda: pass_(cached_ms))
    side.steps_per_block = 3
    wanted = {"cached_step_ms": cached_ms, "data_path_efficiency": expected}
    assert measure_data_path(side, [None], time_ms) == pytest.approx(wanted)
    before_ms = clock.now_ms
    wanted["data_path_efficiency"] /= 2
    assert measure_data_path(side, [None], time_ms, 2 * real_ms) == pytest.approx(wanted)
    assert clock.now_ms - before_ms <= 12 * cached_ms, "real steps were run, whose time is known"
    assert measure_data_path(built(lambda inputs: None), [None], time_ms) == {}
