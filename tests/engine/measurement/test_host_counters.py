"""Counters of the host on made-up clocks: CPU time, what torch.compile does, and the cores that others keep busy."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._dynamo
from torch import Tensor

from gpugate.measurement import host_counters
from gpugate.measurement.host_counters import BEGAN, LOST, NO_BLOCK, CompilerCounters, CpuCounters, OtherWork

CLOCKS = {"process_time_ns": "own", "thread_time_ns": "stepping"}


class Machine:
    """CPU times in nanoseconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.own = self.stepping = 10_000_000
        self.workers = {7: 900_000_000, 8: 900_000_000}
        for name, of in CLOCKS.items():
            monkeypatch.setattr(host_counters, name, lambda of=of: getattr(self, of))
        monkeypatch.setattr(host_counters, "is_running", self.workers.__contains__)
        monkeypatch.setattr(host_counters, "worker_cpu_ns", lambda workers: sum(map(self.workers.get, workers)))

    def run_block(self, found: CpuCounters, own_ms: float, stepping_ms: float, wall_ms: float, workers=()) -> None:
        """Ten steps."""
        found.begin(workers)
        self.own += round(1e6 * own_ms)
        self.stepping += round(1e6 * stepping_ms)
        for worker in workers:
            self.workers[worker] += 5_000_000
        found.end(10, wall_ms / 10)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize(
    ("workers", "times_ms"), [((), {"cpu_ms": 0.3}), ((7, 8), {"cpu_ms": 1.3, "workers_cpu_ms": 1.0})]
)
def test_the_cpu_time_of_a_step_is_that_of_the_process_and_its_workers(machine: Machine, workers, times_ms) -> None:
    found = CpuCounters()
    for own_ms in (2.0, 4.0):
        machine.run_block(found, own_ms, own_ms, 20.0, workers)
        machine.own += 10**9  # between blocks
    counted = found.per_step()
    assert {name: value for name, value in counted.items() if name.endswith("cpu_ms")} == pytest.approx(times_ms)
    assert found.problem is None


@pytest.mark.parametrize(
    ("on_gpu", "threads", "own_ms", "stepping_ms", "spins"),
    [
        (False, 1, 10.0, 10.0, False),  # one thread that computes
        (False, 2, 10.0, 10.0, False),
        (False, 2, 20.0, 10.0, True),
        (False, 2, 5.0, 2.5, True),  # on cores that other programs keep busy
        (False, 2, 10.0, 1.0, False),  # a pipeline with threads of its own
        (False, 16, 150.0, 10.0, True),
        (False, 16, 40.0, 10.0, False),
        (True, 16, 10.0, 9.9, True),  # the stepping thread waits for the GPU in a loop
        (True, 16, 30.0, 5.0, False),
    ],
)
def test_threads_spin_where_the_process_runs_as_often_as_it_has_threads(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, on_gpu, threads, own_ms, stepping_ms, spins
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    found = CpuCounters()
    machine.run_block(found, own_ms, stepping_ms, 10.0)
    assert found.per_step(on_gpu)["spinning"] == spins


def without_cpu_time(found: CpuCounters, problem: str) -> bool:
    counted = found.per_step()
    return found.problem == problem and "minor_faults" in counted and not {"cpu_ms", "spinning"} & counted.keys()


def test_the_waits_of_a_side_have_a_mean_and_a_99th_percentile(machine: Machine) -> None:
    found = CpuCounters()
    machine.run_block(found, 2.0, 2.0, 20.0)
    assert "wait_p99_ms" not in found.per_step()
    found.waits_ms += range(101)
    assert (found.per_step()["wait_ms"], found.per_step()["wait_p99_ms"]) == (50.0, 99.0)


def test_a_worker_that_ends_in_a_block_leaves_the_cpu_time_unmeasured() -> None:
    found, another = CpuCounters(), CpuCounters()
    with subprocess.Popen(["sleep", "60"]) as worker:
        found.begin((worker.pid,))
        found.end(10, 1.0)
        assert found.problem is None
        found.begin((worker.pid,))
        worker.kill()
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)  # nobody has reaped it yet
        found.end(10, 1.0)
    assert without_cpu_time(found, LOST)
    found.lose(BEGAN)
    assert without_cpu_time(found, LOST), "the first reason is kept"
    another.begin()
    subprocess.run([sys.executable, "-c", ""], check=True)
    another.end(1, 1.0)
    assert without_cpu_time(another, LOST), "a child lived in this block alone"
    assert (CpuCounters().problem, CpuCounters().per_step()) == (NO_BLOCK, {})


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def double(inputs: Tensor) -> Tensor:
    return inputs.sin() * 2


def broken(inputs: Tensor) -> Tensor:
    inputs = inputs.sin()
    torch._dynamo.graph_break()
    return inputs.cos()


def fail(graph: object, inputs: object) -> None:
    raise RuntimeError("this backend compiles nothing")


def run(function: object, *lengths: int, backend: object = "eager") -> None:
    compiled = torch.compile(function, backend=backend, dynamic=False)  # type: ignore[call-overload]
    for length in lengths:
        compiled(torch.ones(length))


def counters(graphs: int, breaks: int = 0, recompilations: int = 0, eager: int = 0) -> dict[str, float]:
    names = ("compiled_graphs", "graph_breaks", "recompilations", "eager_frames")
    return dict(zip(names, map(float, (graphs, breaks, recompilations, eager)), strict=True))


def test_graphs_breaks_recompilations_and_eager_frames_are_counted() -> None:
    found = CompilerCounters()
    with found.count():
        run(double, 2, 3, 4)
    assert (found.counters(), found.compile_s > 0) == (counters(3, recompilations=2), True)
    with found.count():
        run(broken, 2)
    assert found.counters() == counters(5, 1, 2)
    assert (found.limit_problem, found.is_autotuned) == (None, False)
    with found.count():
        torch._dynamo.utils.counters["inductor"]["select_algorithm_autotune"] += 1
    assert found.is_autotuned
    with found.count(), torch._dynamo.config.patch(suppress_errors=True):
        run(double, 2, backend=fail)
    assert found.counters()["eager_frames"] == 1, "torch compiled nothing, and raised nothing"


def test_sides_that_compile_the_same_function_have_counts_of_their_own() -> None:
    sides = CompilerCounters(), CompilerCounters()
    for side, backend in zip(sides, ("eager", "aot_eager"), strict=True):
        with side.count():
            run(double, 2, 3, backend=backend)
    assert [side.counters() for side in sides] == [counters(2, recompilations=1)] * 2


class Cores:
    """Three cores, of which this process may use the first two; their times are in ticks of 10 ms."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.now_s = self.own_s = self.workers_s = 0.0
        self.write({})

    def write(self, busy: dict[int, dict[str, int]]) -> None:
        fields = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice")
        lines = ["cpu  9 9 9 9 9 9 9 9 9 9"]
        for core in range(3):
            lines.append(f"cpu{core} " + " ".join(str(busy.get(core, {}).get(name, 0)) for name in fields))
        (self.proc / "stat").write_text("\n".join([*lines, "intr 1 2 3", "ctxt 4"]))


@pytest.fixture
def cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cores:
    made = Cores(tmp_path)
    monkeypatch.setattr(host_counters, "PROC", tmp_path)
    monkeypatch.setattr(host_counters, "monotonic", lambda: made.now_s)
    monkeypatch.setattr(host_counters.os, "sysconf", lambda name: 100)
    monkeypatch.setattr(host_counters, "process_time_ns", lambda: made.own_s * 1e9)
    monkeypatch.setattr(host_counters, "worker_cpu_ns", lambda workers: made.workers_s * 1e9)
    monkeypatch.setattr(host_counters.os, "sched_getaffinity", lambda process: {0, 1})
    return made


def test_the_cores_of_others_are_those_that_are_busy_without_this_process_and_its_children(cores: Cores) -> None:
    found, core = OtherWork(), {"user": 100, "nice": 5, "system": 15, "irq": 5, "softirq": 5, "steal": 20}
    for stretch in (1, 2):  # between them, the machine does other things
        with found.measure():
            cores.now_s += 2.0
            busy = {0: {**core, "idle": 40, "iowait": 10}, 1: {"user": 150, "idle": 50, "guest": 30}, 2: {"user": 200}}
            cores.write({core: {name: stretch * ticks for name, ticks in of.items()} for core, of in busy.items()})
            cores.own_s, cores.workers_s = 1.0 * stretch, 0.5 * stretch
        cores.now_s += 5.0
    assert found.cores == 0.75  # 1.5 + 1.5 s of both cores, 1.5 s of them our own, in 2 s


def test_too_short_a_stretch_says_nothing(cores: Cores) -> None:
    found = OtherWork()
    with found.measure():
        cores.now_s += 0.1
        cores.write({0: {"user": 10}})
    assert found.cores is None


@pytest.mark.parametrize(("throttled", "share"), [(0, None), (1, None), (2, 0.1), (20, 1.0)])
def test_the_share_of_throttled_periods_is_that_of_the_group_that_was_throttled_most(
    monkeypatch: pytest.MonkeyPatch, throttled: int, share: float | None
) -> None:
    job, host = Path("job"), Path()
    before = Counter({(job, "nr_periods"): 100, (job, "nr_throttled"): 90, (host, "nr_periods"): 5})
    after = before + Counter({(job, "nr_periods"): 15, (job, "nr_throttled"): throttled, (host, "nr_periods"): 3})
    between, last = after + Counter({(job, "nr_throttled"): 7}), after + Counter({(job, "nr_periods"): 5})
    counts = iter([before, after, between, last + Counter({(job, "nr_throttled"): 7})])
    monkeypatch.setattr(host_counters, "count_periods", lambda: next(counts))
    found = OtherWork()
    for _ in range(2):
        with found.measure():
            pass
    assert found.throttled == share
