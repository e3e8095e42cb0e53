"""A slowdown has its stated size: one sleep a block on a made-up GPU, the rest of its own cost on a made-up CPU."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gpugate.faults import slow
from gpugate.faults.slow import DEGREES, MOST_PROFILED, Profiled, find_degree, lengthen, slow_down, use_more_cpu
from gpugate.machine import processes
from gpugate.workload import Context, Side

CONTEXT = Context(torch.device("cpu"), items=4, seed=3, cache_dir=Path())
OUTPUT = torch.ones(1)


def test_a_slow_side_keeps_what_else_the_side_is() -> None:
    said: list[str] = []
    model = torch.nn.Identity()
    side = Side(
        model, model, lambda: said.append("finish"), lambda: "fell back", lambda: said.append("close"), stock_steps=7
    )
    slow_side = slow_down(lambda context: side, 0.01)(CONTEXT)
    slow_side.finish()
    slow_side.close()
    assert (said, slow_side.model, slow_side.engaged()) == (["finish", "close"], model, "fell back")
    assert slow_side.stock_steps == 7


@pytest.mark.parametrize("share", [0.005, 0.5])
def test_on_a_cpu_a_block_takes_the_share_of_its_time_more(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    now_s = 0.0

    def read_clock() -> float:
        nonlocal now_s
        now_s += 1e-6
        return now_s

    def step(inputs: object) -> torch.Tensor:
        nonlocal now_s
        now_s += 1e-4
        return OUTPUT

    monkeypatch.setattr(slow, "perf_counter", read_clock)
    side, blocks_s = slow_down(lambda context: Side(step), share)(CONTEXT), []
    for steps in (1, 100, 100):
        before_s, block = now_s, side.step
        for _ in range(steps):
            block(None)
        side.finish()
        blocks_s.append(now_s - before_s)
    assert blocks_s[0] == pytest.approx(1e-4), "a first step compiles and is not slowed"
    assert blocks_s[1:] == pytest.approx([0.01 * (1 + share)] * 2, abs=5e-6)


class CpuTimes:
    """A made-up CPU on which the process and a worker run beside the stepping thread. Each look takes a microsecond."""

    def __init__(self) -> None:
        self.stepping_ns = self.others_ns = self.worker_ns = 0

    def thread_time_ns(self) -> int:
        self.stepping_ns += 1000
        return self.stepping_ns

    def process_time_ns(self) -> int:
        return self.stepping_ns + self.others_ns

    def step(self, inputs: object) -> torch.Tensor:
        self.stepping_ns += 1_000_000
        self.others_ns += 2_000_000
        self.worker_ns += 3_000_000
        return OUTPUT


def test_more_cpu_work_is_a_share_of_the_time_of_the_process_and_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    made, listed = CpuTimes(), []
    for name in ("thread_time_ns", "process_time_ns"):
        monkeypatch.setattr(slow, name, getattr(made, name))
    monkeypatch.setattr(processes, "cpu_time_ns", lambda worker: {7: made.worker_ns}[worker])
    monkeypatch.setattr(slow, "list_descendants", lambda: (listed.append(made.worker_ns), {7})[1])
    side = use_more_cpu(lambda context: Side(made.step), 0.05)(CONTEXT)
    for steps in (1, 10, 20):
        before_ns, step = made.stepping_ns, side.step
        for _ in range(steps):
            step(None)
        side.finish()
        more = 0.05 * 6 * steps if steps > 1 else 0.0  # the first step starts the workers, and has no more work
        assert made.stepping_ns - before_ns == pytest.approx(1e6 * (steps + more), abs=3000)
    assert listed == [3_000_000], "the workers are listed once, when the first step has started them"


def test_a_worker_that_has_ended_has_no_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(worker: int) -> int:
        raise ProcessLookupError

    monkeypatch.setattr(processes, "cpu_time_ns", ended)
    monkeypatch.setattr(slow, "list_descendants", lambda: {7})
    side = use_more_cpu(lambda context: Side(lambda inputs: OUTPUT), 0.05)(CONTEXT)
    for _ in range(2):
        assert side.step(None) is OUTPUT
        side.finish()


class Gpu:
    """A made-up device: steps and sleeps move its clock, events read it. A launch takes 5 us."""

    LAUNCH_MS = 0.005

    def __init__(self) -> None:
        self.now_ms, self.cycles_per_ms, self.asked = 0.0, 1.98e6, []
        self.ready = True
        self.loading_ms = 0.0  # of the kernel that sleeps, when it is first launched

    def event(self, enable_timing: bool) -> SimpleNamespace:
        assert enable_timing
        event = SimpleNamespace(at_ms=0.0, query=lambda: self.ready)
        event.record = lambda: setattr(event, "at_ms", self.now_ms)

        def elapsed_time(later: SimpleNamespace) -> float:
            assert self.ready, "CUDA raises for an event that is not over"
            return later.at_ms - event.at_ms

        event.elapsed_time = elapsed_time
        return event

    def sleep(self, cycles: int) -> None:
        self.asked.append(cycles)
        self.now_ms += self.loading_ms + self.LAUNCH_MS + cycles / self.cycles_per_ms
        self.loading_ms = 0.0

    def block_ms(self, side: Side, steps: int = 400) -> float:
        """Device time of one block of steps, as the engine runs it."""
        before_ms = self.now_ms
        step = side.step
        for _ in range(steps):
            step(None)
        side.finish()
        return self.now_ms - before_ms


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setattr(torch.cuda, "Event", made.event)
    monkeypatch.setattr(torch.cuda, "_sleep", made.sleep)
    return made


def slow_on(gpu: Gpu, share: float, step_ms: float = 0.05) -> Side:
    """A slowed side on the device, warmed up by as many blocks as the engine does."""

    def step(inputs: object) -> torch.Tensor:
        gpu.now_ms += step_ms
        return OUTPUT

    side = slow_down(lambda context: Side(step), share)(replace(CONTEXT, device=torch.device("cuda")))
    for steps in (1, 1, 1, 1, *[round(20.0 / step_ms)] * 4):
        gpu.block_ms(side, steps)
    return side


@pytest.mark.parametrize("share", [0.005, 0.5])
def test_on_a_gpu_one_sleep_a_block_takes_the_share_with_its_launch(gpu: Gpu, share: float) -> None:
    side = slow_on(gpu, share)
    gpu.asked.clear()
    blocks_ms = [gpu.block_ms(side) for _ in range(10)]
    assert len(gpu.asked) == 10
    assert blocks_ms == pytest.approx([20.0 * (1 + share)] * 10, rel=0.01 * share)


@pytest.mark.parametrize("loading_ms", [3.0, 100.0])
def test_on_a_gpu_the_loading_of_the_kernel_that_sleeps_makes_no_later_sleep_short(gpu: Gpu, loading_ms: float) -> None:
    """Without the bounds of the rate, a first sleep of 100 ms left later ones at a ten-thousandth of their cycles."""
    gpu.loading_ms = loading_ms
    side = slow_on(gpu, 0.05, 0.283)
    blocks_ms = [gpu.block_ms(side, 71) for _ in range(8)][4:]
    assert blocks_ms == pytest.approx([1.05 * 71 * 0.283] * 4, rel=1e-3)


def test_on_a_gpu_a_changed_clock_and_a_longer_step_are_followed(gpu: Gpu) -> None:
    side = slow_on(gpu, 0.05)
    gpu.cycles_per_ms /= 2
    assert [gpu.block_ms(side) for _ in range(6)][4:] == pytest.approx([21.0] * 2, rel=1e-4)
    assert [gpu.block_ms(side, steps=800) for _ in range(6)][4:] == pytest.approx([42.0] * 2, rel=1e-4)


def test_on_a_gpu_one_disturbed_block_changes_no_later_one(gpu: Gpu) -> None:
    side = slow_on(gpu, 0.05)
    step = side.step
    step(None)
    gpu.now_ms += 300.0
    side.finish()
    assert [gpu.block_ms(side) for _ in range(3)] == pytest.approx([21.0] * 3, rel=1e-4)


def test_on_a_gpu_events_that_are_not_over_are_not_waited_for(gpu: Gpu) -> None:
    side = slow_on(gpu, 0.05)
    gpu.ready = False
    assert gpu.block_ms(side) == pytest.approx(21.0, rel=1e-4)


def test_what_is_taken_before_a_block_is_not_in_its_share(gpu: Gpu) -> None:
    """The engine takes a loader's stock before it times a block, and joins nothing in between."""
    side = slow_on(gpu, 0.05)

    def with_stock_ms() -> float:
        step = side.step
        for _ in range(200):
            step(None)
        return gpu.block_ms(side)

    assert [with_stock_ms() for _ in range(5)] == pytest.approx([21.0] * 5, rel=1e-4)


# --- a longer kernel --------------------------------------------------------------------------------------------------


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


class ProfiledMachine:
    """Writes down the degrees of all launches, and profiles as its script says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *script: Profiled | None) -> None:
        self.degrees: list[int] = []
        self.script = list(script)
        monkeypatch.setattr(torch.special, "legendre_polynomial_p", lambda x, n, out: self.degrees.append(n))
        monkeypatch.setattr(slow, "_profile", self.profile)

    def profile(self, step: Callable[[], object], launch: object, device: object) -> tuple[object, Profiled | None]:
        return step(), self.script.pop(0)


def test_the_kernel_begins_when_the_steps_kernels_are_known_and_a_next_build_has_it_at_once(monkeypatch) -> None:
    machine = ProfiledMachine(monkeypatch, profiled(10.0), None, profiled(10.0), profiled(10.0))
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
    ProfiledMachine(monkeypatch, *[None] * MOST_PROFILED)
    side = lengthen(lambda context: Side(lambda inputs: inputs), 0.05)(CONTEXT)
    for number in range(MOST_PROFILED):
        side.step(number)
    with pytest.raises(ValueError, match="the profiler saw no kernels, and longer-kernel is a share of them"):
        side.step(1)
