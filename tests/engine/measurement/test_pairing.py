"""Pairs of blocks: who goes first, what is kept, and that workers of the side that is not timed stand still."""

import io
import itertools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gpugate.errors import SideError
from gpugate.measurement import pairing as pairing_module
from gpugate.measurement.cold_inputs import make_inputs
from gpugate.measurement.device_timer import POWER_CAP, HostTimer
from gpugate.measurement.host_counters import BEGAN, NO_BLOCK, CpuCounters
from gpugate.measurement.pairing import FREE_DISCARDS, BothSides, Pairing, build_both, run_until_refilled, stop_workers
from gpugate.measurement.record import ClockReading, Pair, SideCost, TimedBuild
from gpugate.measurement.sides import BuiltSide
from gpugate.measurement.torch_flags import TorchFlags
from gpugate.workload import BASELINE, Case, Context, Optimization, Side, Size, Workload
from tests.support.patience import wait_until

HEAT = "hardware thermal slowdown"
COOL, HOT, CAPPED = ClockReading(1980), ClockReading(1200, (HEAT,)), ClockReading(1860, capped=True)


def always() -> bool:
    return True


class ScriptedTimer(HostTimer):
    """Runs the block and says what the script says: 3 ms for the reference, 1 ms for the optimized side."""

    def __init__(self, order: list[str]) -> None:
        super().__init__()
        self.order = order

    def time_ms(self, run: Callable[[], None]) -> float:
        run()
        return 3.0 if self.order[-1] == "baseline" else 1.0


def pairing(readings: Iterable[ClockReading], reference_first: bool) -> tuple[Pairing, list[str]]:
    order: list[str] = []

    def side(name: str) -> BuiltSide:
        step = Side(lambda inputs: order.append(name))
        return BuiltSide(name, step, TorchFlags(), torch.device("cpu"), SideCost(0.0, 0.0))

    both = BothSides(side("baseline"), side("fast"), True, 0.0, "")
    read = iter(readings)
    return Pairing(both, [None], ScriptedTimer(order), lambda: next(read), reference_first), order


def test_the_waits_of_a_side_are_those_of_its_timed_steps() -> None:
    taken, order = pairing([COOL] * 6, True)
    side, waits = taken.both.optimized.side, [5.0]  # of a step before the first timed block
    side.step = lambda inputs: (order.append("fast"), waits.append(float(len(order))))
    side.waits_ms = lambda: [waits.pop() for _ in range(len(waits))]
    taken.take(2, always)
    assert [one.waits_ms for one in taken.cpu] == [[], [2.0, 3.0]]


def test_the_loaders_of_one_side_refill_before_the_other_side_runs() -> None:
    taken, order = pairing(itertools.repeat(COOL), True)
    taken.sleep = lambda seconds: order.append(f"{seconds:g} s")
    taken.both.reference.side.stock_steps = 4
    taken.take(2, always)
    stocked = ["baseline"] * 5 + ["0.012 s"]  # its stock, the block, and as long as the stock takes at 3 ms a step
    assert order == [*stocked, "fast", "fast", *stocked]
    order.clear()
    taken.settle()
    assert order == [*["baseline"] * 8, "0.003 s", "fast"], "a short pair: a stock is taken, and a stock is timed"
    order.clear()
    taken.both.reference.side.stock_steps, taken.both.optimized.steps_per_block = 1000, 20
    taken.take(1, always)
    assert order.count("fast") == 23, "three steps lead in"
    assert [one for one in order if one.endswith(" s")] == ["1 s"]
    order.clear()
    taken.both.reference.side.stock_steps = 4
    run_until_refilled(taken.both.reference, [None], taken.timer.time_ms, taken.sleep)
    assert order == stocked, "before the reference is compared with itself alone"


class CountedBlocks(CpuCounters):
    """Writes down when a block began and ended, and of how many steps it was."""

    def __init__(self, order: list[str]) -> None:
        super().__init__()
        self.order = order

    def begin(self, workers: Collection[int] = ()) -> None:
        self.order.append(f"begin {sorted(workers)}")

    def end(self, steps: int, step_ms: float) -> None:
        self.order.append(f"{steps} steps of {step_ms:g} ms")


def test_the_cpu_time_of_a_side_is_that_of_its_block_and_with_a_stock_until_that_is_full_again() -> None:
    taken, order = pairing(itertools.repeat(COOL), True)
    taken.sleep = lambda seconds: order.append("refill")
    taken.cpu = CountedBlocks(order), CountedBlocks(order)
    taken.read_clock = lambda: (order.append("clock"), COOL)[1]
    taken.both.reference.side.stock_steps = 2
    taken.workers, taken.both.reference.workers, taken.both.optimized.workers = {1, 2, 3}, {1}, {2}
    taken.both.optimized.restore = lambda sets: order.append("inputs restored")
    taken.take(1, always)
    reference = ["begin [1, 3]", *["baseline"] * 3, "clock", "refill", "3 steps of 3 ms"]
    fast = ["inputs restored", "begin [2, 3]", "fast", "1 steps of 1 ms"]
    assert order == ["clock", *reference, *fast, "clock"]


@pytest.mark.parametrize(("later", "problem"), [({1}, NO_BLOCK), ({1, 9}, BEGAN)])
def test_workers_that_begin_between_pairs_are_of_no_known_side(monkeypatch, later: set[int], problem: str) -> None:
    taken, _ = pairing(itertools.repeat(COOL), True)
    seen = iter([{1}, later])
    monkeypatch.setattr(pairing_module, "list_descendants", lambda: next(seen))
    taken.settle()
    taken.end_turns()
    assert [cpu.problem for cpu in taken.cpu] == [problem] * 2


@pytest.mark.parametrize("reference_first", [True, False])
def test_sides_alternate_and_times_stay_with_their_side(reference_first: bool) -> None:
    taken, order = pairing(itertools.repeat(COOL), reference_first)
    taken.take(3, always)
    answers = iter([True, False])
    taken.take(8, lambda: next(answers))
    abba = ["baseline", "fast", "fast", "baseline"] * 2
    assert order == (abba if reference_first else [*abba[2:], *abba[:2]])
    first = [reference_first, not reference_first] * 2
    assert taken.pairs == [Pair(3.0, 1.0, goes_first, 1980) for goes_first in first]
    taken.both.reference.steps_per_block, taken.both.optimized.steps_per_block = 2, 7
    assert taken.result() == TimedBuild(tuple(taken.pairs), 0, (), 2, 7)


def hot_at(place: int) -> list[ClockReading]:
    return [HOT if reading == place else COOL for reading in range(4)]


# Readings of the clock, the last one again and again; the pairs to keep; then what is discarded, why, and the rests
# before the blocks.
CLOCKS = {
    "hot before": (hot_at(0), 2, 1, (HEAT,), []),
    "hot between": (hot_at(1), 2, 1, (HEAT,), []),
    "hot after": (hot_at(2), 2, 1, (HEAT,), []),
    "always hot": ([HOT], 4, 4 + FREE_DISCARDS - 1, (HEAT,), []),
    "capped twice": ([COOL, CAPPED, COOL, COOL, COOL, CAPPED, COOL], 2, 2, (POWER_CAP,), [0.02] * 2 + [0.04] * 4),
    "always capped": (
        [CAPPED], 3, 4, (POWER_CAP,), [0.02] * 2 + [0.04] * 2 + [0.08] * 2 + [0.16] * 6,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("readings", "pairs", "discarded", "reasons", "rests_s"), CLOCKS.values(), ids=CLOCKS)
def test_pairs_of_a_slow_clock_are_dropped_and_a_capped_gpu_rests_longer_and_longer(
    readings: list[ClockReading], pairs: int, discarded: int, reasons: tuple[str, ...], rests_s: list[float]
) -> None:
    taken, _ = pairing(itertools.chain(readings, itertools.repeat(readings[-1])), True)
    slept: list[float] = []
    taken.sleep = slept.append
    taken.take(pairs, always)
    found = taken.result()
    assert (len(found.pairs), found.discarded, found.throttled_by, slept) == (pairs, discarded, reasons, rests_s)


def test_a_side_that_cannot_be_closed_leaves_the_other_one_closed() -> None:
    closed: list[str] = []

    def fail() -> None:
        raise ValueError("no luck")

    taken, _ = pairing(itertools.repeat(COOL), True)
    both = taken.both
    both.optimized.side.close, both.reference.side.close = fail, lambda: closed.append("baseline")
    with pytest.raises(SideError, match="no luck"):
        both.close()
    assert closed == ["baseline"]


PROGRAM = [sys.executable, "-I", "-S", "-c", "import time\nwhile True: time.sleep(0.01)"]


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


@pytest.fixture
def case(tmp_path: Path) -> Iterator[tuple[Case, Context, dict[str, int], Callable[[str], None]]]:
    """A case whose sides have one worker each, the ids of these workers by side, and what a step is to do."""
    workers: dict[str, subprocess.Popen[bytes]] = {}
    steps: list[Callable[[str], None]] = []

    def build(name: str) -> Callable[[Context], Side]:
        def start(context: Context) -> Side:
            worker = workers[name] = subprocess.Popen(PROGRAM)

            def step(x: torch.Tensor) -> torch.Tensor:
                for one in steps:
                    one(name)
                return x + 1

            def close() -> None:
                worker.terminate()
                worker.wait(timeout=60)  # a process that is stopped would not end

            return Side(step, close=close)

        return start

    fast = Optimization("fast", build("fast"), {"cpu": 0.1})
    inputs = lambda context, index: torch.zeros(4)  # noqa: E731
    net = Workload("net", build(BASELINE), inputs, {"cpu": Size(1, 1, 1)}, (fast,), cold=False)
    context = Context(torch.device("cpu"), 1, 0, tmp_path)
    yield Case(net, fast, "cpu"), context, workers, steps.append
    for worker in workers.values():
        worker.kill()
        worker.wait()


def test_only_the_workers_of_the_timed_side_run(case) -> None:
    one, context, workers, add_step = case
    inputs = make_inputs(one.workload, context, 0, random.Random(0))  # noqa: S311
    both = build_both(one, context, inputs, reference_first=True)
    assert {side.name: side.workers for side in (both.reference, both.optimized)} == {
        name: {worker.pid} for name, worker in workers.items()
    }
    seen: list[tuple[str, str]] = []

    def look(name: str) -> None:
        (other,) = [each for each in workers if each != name]
        wait_until(lambda: state(workers[other].pid) == "T")  # a signal takes effect later
        seen.append((name, state(workers[name].pid)))

    running: set[str] = set()
    add_step(lambda name: running.update(state(worker.pid) for worker in workers.values()))
    Pairing(both, inputs.timed, HostTimer(), ClockReading, reference_first=True).take(2, lambda: True)
    assert "T" not in running, "an ordinary measurement stops nobody"
    add_step(look)
    pairing = Pairing(both, inputs.timed, HostTimer(), ClockReading, reference_first=True, stop_idle=True)
    pairing.take(2, lambda: True)
    assert [name for name, _ in seen] == [BASELINE, "fast", "fast", BASELINE]
    assert "T" not in {letter for _, letter in seen}
    pairing.end_turns()
    for worker in workers.values():
        wait_until(lambda worker=worker: state(worker.pid) != "T")
    both.close()


def test_workers_of_a_killed_process_go_on() -> None:
    """They can then see that it is gone, as a loader's workers do."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        worker = subprocess.Popen(PROGRAM)
        stop_workers({worker.pid})
        wait_until(lambda: state(worker.pid) == "T")
        os.write(writing, str(worker.pid).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(process, 0)
    worker_id = int(os.read(reading, 20))
    try:
        wait_until(lambda: state(worker_id) != "T")
    finally:
        os.kill(worker_id, signal.SIGKILL)


def test_a_worker_that_is_stopped_in_every_pair_is_named_to_the_watcher_once(monkeypatch) -> None:
    named = io.BytesIO()
    monkeypatch.setattr(pairing_module, "_start_watcher", lambda pid: SimpleNamespace(stdin=named))
    monkeypatch.setattr(pairing_module, "_signal", lambda workers, number: None)
    for _ in range(3):
        stop_workers({4242})
    assert named.getvalue() == b"4242\n"
