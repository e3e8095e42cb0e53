"""The cores that other processes keep busy, from a made-up /proc."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from gpugate.measurement import host_counters
from gpugate.measurement.host_counters import OtherWork


class Machine:
    """Three cores, of which this process may use the first two; their times are in ticks of 10 ms."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.now_s = self.own_s = self.workers_s = 0.0
        self.write({})

    def write(self, cores: dict[int, dict[str, int]]) -> None:
        fields = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice")
        lines = ["cpu  9 9 9 9 9 9 9 9 9 9"]
        for core in range(3):
            lines.append(f"cpu{core} " + " ".join(str(cores.get(core, {}).get(name, 0)) for name in fields))
        (self.proc / "stat").write_text("\n".join([*lines, "intr 1 2 3", "ctxt 4"]))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setattr(host_counters, "PROC", tmp_path)
    monkeypatch.setattr(host_counters, "monotonic", lambda: made.now_s)
    monkeypatch.setattr(host_counters.os, "sysconf", lambda name: 100)
    monkeypatch.setattr(host_counters, "process_time_ns", lambda: made.own_s * 1e9)
    monkeypatch.setattr(host_counters, "worker_cpu_ns", lambda workers: made.workers_s * 1e9)
    monkeypatch.setattr(host_counters.os, "sched_getaffinity", lambda process: {0, 1})
    return made


def test_the_cores_of_others_are_those_that_are_busy_without_this_process_and_its_children(machine: Machine) -> None:
    found = OtherWork()
    with found.measure():
        machine.now_s = 2.0
        core = {"user": 100, "nice": 5, "system": 15, "idle": 40, "iowait": 10, "irq": 5, "softirq": 5, "steal": 20}
        machine.write({0: core, 1: {"user": 150, "idle": 50, "guest": 30}, 2: {"user": 200}})
        machine.own_s, machine.workers_s = 1.0, 0.5
    assert found.cores == 0.75  # 1.5 + 1.5 s of both cores, 1.5 s of them our own, in 2 s


def test_a_program_that_a_living_child_started_is_no_other_work(machine: Machine) -> None:
    """A compile worker lives on, and the compiler that it started has ended."""
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    program = f"import subprocess, sys\ninput()\nsubprocess.run([sys.executable, '-c', {burn!r}])\nprint(1)"
    command = [sys.executable, "-u", "-c", f"{program}\ninput()"]
    found = OtherWork()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        with found.measure():
            child.stdin.write(b"\n")
            child.stdin.flush()
            child.stdout.read(1)
            machine.now_s = 1.0
            machine.write({0: {"user": 100}})
        child.communicate(b"\n")
    assert found.cores is not None
    assert found.cores <= 0.72


def test_stretches_are_summed_and_what_the_machine_does_between_them_does_not_count(machine: Machine) -> None:
    found = OtherWork()
    for stretch in (1, 2):
        with found.measure():
            machine.now_s += 1.0
            machine.write({0: {"user": 100 * stretch}})
        machine.now_s += 5.0
    assert found.cores == 1.0


def test_too_short_a_stretch_and_a_system_without_proc_say_nothing(machine: Machine, monkeypatch) -> None:
    found = OtherWork()
    with found.measure():
        machine.now_s += 0.1
        machine.write({0: {"user": 10}})
    assert found.cores is None
    monkeypatch.setattr(host_counters, "PROC", Path("/nowhere"))
    with found.measure():
        machine.now_s += 1.0
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
