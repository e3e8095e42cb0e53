"""The workers of the side that is not timed stand still, and go on again, whatever happens."""

import os
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from gpugate.measurement.cold_inputs import make_inputs
from gpugate.measurement.device_timer import HostTimer
from gpugate.measurement.pairing import Pairing, _start_watcher, build_both, resume_workers, stop_workers
from gpugate.measurement.record import ClockReading
from gpugate.workload import BASELINE, Case, Context, Optimization, Side, Size, Workload
from tests.support.patience import wait_until

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


def test_workers_of_a_killed_process_go_on(tmp_path: Path) -> None:
    """They can then see that it is gone, as a loader's workers do."""
    program = f"""
        import os, signal, subprocess
        from gpugate.measurement.pairing import stop_workers
        none = subprocess.DEVNULL
        worker = subprocess.Popen({PROGRAM!r}, stdout=none, stderr=none)
        stop_workers({{worker.pid}})
        while open(f"/proc/{{worker.pid}}/stat").read().rpartition(")")[2].split()[0] != "T":
            pass
        print(worker.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    worker = int(done.stdout)
    try:
        wait_until(lambda: state(worker) != "T")
    finally:
        os.kill(worker, signal.SIGKILL)


def test_a_watcher_that_was_ended_is_started_again() -> None:
    worker = subprocess.Popen(PROGRAM)
    try:
        stop_workers({worker.pid})
        watcher = _start_watcher(os.getpid())
        watcher.kill()
        watcher.wait(timeout=60)
        resume_workers({worker.pid})
        stop_workers({worker.pid})
        wait_until(lambda: state(worker.pid) == "T")
        assert _start_watcher(os.getpid()) is not watcher
    finally:
        worker.kill()
        worker.wait(timeout=60)
