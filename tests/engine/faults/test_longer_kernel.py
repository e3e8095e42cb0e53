"""A kernel of a given share of a step's own kernels, with profiles that are made up: no GPU is needed."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gpugate.faults import slow
from gpugate.faults.slow import DEGREES, MOST_PROFILED, Profiled, find_degree, lengthen
from gpugate.workload import Context, Side

CONTEXT = Context(torch.device("cpu"), items=4, seed=3, cache_dir=Path())
LAUNCH_MS, PER_DEGREE_MS = 0.002, 0.0001


def profiled(own_ms: float) -> Profiled:
    return Profiled(own_ms, tuple(LAUNCH_MS + PER_DEGREE_MS * degree for degree in DEGREES))


@pytest.mark.parametrize("share", [0.05, 0.5, 2.0])
def test_the_degree_gives_the_share_of_the_median_step(share: float) -> None:
    degree = find_degree([profiled(own_ms) for own_ms in (10.0, 9.0, 50.0)], share)
    assert LAUNCH_MS + PER_DEGREE_MS * degree == pytest.approx(share * 10.0, abs=PER_DEGREE_MS)


def test_a_share_that_is_shorter_than_any_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match=r"take 0\.03 ms a step, and no kernel takes 5 % of that: give 8 or more"):
        find_degree([profiled(0.03)] * 3, 0.05)


class Machine:
    """Writes down the degrees of all launches, and profiles as its script says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *script: Profiled | None) -> None:
        self.degrees: list[int] = []
        self.script = list(script)
        monkeypatch.setattr(torch.special, "legendre_polynomial_p", lambda x, n, out: self.degrees.append(n))
        monkeypatch.setattr(slow, "_profile", self.profile)

    def profile(self, step: Callable[[], object], launch: object, device: object) -> tuple[object, Profiled | None]:
        return step(), self.script.pop(0)


def test_the_kernel_begins_when_the_steps_kernels_are_known_and_a_next_build_has_it_at_once(monkeypatch) -> None:
    machine = Machine(monkeypatch, profiled(10.0), None, profiled(10.0), profiled(10.0))
    build = lengthen(lambda context: Side(lambda inputs: 2 * inputs), 0.05)
    side = build(CONTEXT)
    assert [side.step(number) for number in range(7)] == [0, 2, 4, 6, 8, 10, 12]
    compiled, *later = machine.degrees
    assert later == [4980] * 2, "0.5 ms, of which a launch takes 0.002"
    machine.degrees.clear()
    again = build(CONTEXT)
    assert [again.step(number) for number in range(3)] == [0, 2, 4]
    assert machine.degrees == [compiled, 4980, 4980]


def test_a_profiler_that_sees_no_kernel_ends_the_fault(monkeypatch) -> None:
    Machine(monkeypatch, *[None] * MOST_PROFILED)
    side = lengthen(lambda context: Side(lambda inputs: inputs), 0.05)(CONTEXT)
    for number in range(MOST_PROFILED):
        side.step(number)
    with pytest.raises(ValueError, match="the profiler saw no kernels, and longer-kernel is a share of them"):
        side.step(1)
