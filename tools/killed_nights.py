"""Nights whose processes are killed at random moments: each case is measured once, and a kill loses at most one.

`python -m tools.killed_nights` kills 288 times, in half an hour, prints each kill as a line of JSON, and fails where a
promise is broken. Its cases take a fraction of a second on a CPU. Three kinds of processes are killed by SIGKILL: a
session of `--perf-shard`, a worker of `-n auto` on two GPUs that the project pretends to have, and the controller of
such workers. What was killed is started again with `--perf-resume`, until the night is whole.

The fourth kind is a gate whose folder has an older green night: after no kill is that night the verdict of the folder.

The project keeps a journal of each measurement that begins, and of each finished case that is in the file of the run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from gpugate.commands.cli import main as gpugate
from gpugate.session.merging import check_shard, merge
from gpugate.session.opening import is_finished
from gpugate.store import run_file
from tests.support.tiny_project import ROOT, SHORT, TinyProject, children, environment, running

KILLS = {"shard": 150, "worker": 40, "controller": 10, "gate": 88}
GPUS = 2
SINGLE, POINTS = 16, 4  # cases, and points of a sweep
FEW_SINGLE = 2  # cases of a gate, so that many kills meet its start and its end
AT_COLLECTION, COLLECTING_S = 0.5, 0.2  # the share of kills of gates that come so soon after the start of the session
MORE_SINGLE = 60  # so that several workers are busy for a while, and several kills meet them
EARLY = (
    0.2  # the share of kills that come at any moment from the start of a process on; the others after its first case
)
START_S, CASES_S, BETWEEN_S = 8.0, 1.5, 4.0  # of a process, of its cases, and between two kills of workers
HANGS_S = 600.0
BEFORE = "before its first case"
ENDED = "session"  # which ended with a killed worker, and was not killed itself
WORKLOAD = """
from gpugate.workload import Point

def quick(context):
    return sleeping(1)
"""
JOURNAL = """
import os

from gpugate.session import measure_case
from gpugate.session.perf_session import PerfSession

def note(word, case_id):
    descriptor = os.open("journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.write(descriptor, f"{word} {case_id} {os.getpid()}\\n".encode())
    os.close(descriptor)

def measure(session, case, result, report, measure=measure_case._measure):
    note("begin", case.id)
    measure(session, case, result, report)

def save_case(self, result, save_case=PerfSession.save_case):
    save_case(self, result)
    note("end", result.case_id)

measure_case._measure, PerfSession.save_case = measure, save_case
"""
# From this hook on, gpugate knows the folder of a session; a process that is killed earlier began no session.
BEGAN = """
def pytest_sessionstart():
    open("session", "w").close()
"""
# The GPU of a worker is pretended: it measures on the CPU, and only the first four cases are fed by the host.
PRETENDED_GPUS = f"""
from dataclasses import replace

import torch

from gpugate.machine import nvml
from gpugate.session import opening, perf_session

plan_case = perf_session.plan_case
nvml.list_visible_gpus = lambda: [str(number) for number in range({GPUS})]
nvml.read_near_cores = lambda name: frozenset()
opening.choose_device = lambda asked, worker=None: torch.device("cpu")
perf_session.plan_case = lambda case, *facts: replace(
    plan_case(case, *facts), needs_host=case.optimization.name in ("one-0", "one-1", "one-2", "one-3")
)
"""


@dataclass(frozen=True)
class Kill:
    """One SIGKILL: what was killed and what it was doing, and the finished and the lost cases of the night.

    Of a session that ended with a killed worker, `lost` has the further cases that the end lost.
    """

    killed: str
    during: str
    finished: int
    lost: int


class BrokenPromiseError(Exception):
    """A case was lost, or measured again."""


def require(true: object, problem: object) -> None:
    if not true:
        raise BrokenPromiseError(problem)


class Night:
    """A project, whose runs are killed, and its journal. Raises BrokenPromiseError."""

    def __init__(self, folder: Path, single: int, pretend_gpus: bool = False) -> None:
        self.project = TinyProject(folder)
        names = [*(f'"one-{number}"' for number in range(single)), *(f'"batch-{2**power}"' for power in range(POINTS))]
        points = [*([""] * single), *(f', point=Point("batch", {2**power})' for power in range(POINTS))]
        optimizations = (
            f'Optimization({name}, quick, {{"cpu": 0.01}}{point})' for name, point in zip(names, points, strict=True)
        )
        self.project.workload(WORKLOAD, ", ".join(optimizations))
        tests = (ROOT / "perf_tests/test_sweeps.py").read_text(encoding="utf-8")
        self.project.write("perf_tests/test_sweeps.py", tests)
        conftest = (folder / "conftest.py").read_text(encoding="utf-8")
        self.project.write("conftest.py", conftest + JOURNAL + (PRETENDED_GPUS if pretend_gpus else ""))
        self.cases = {f"tiny/{name}/cpu" for name in (name.strip('"') for name in names)}
        self.losses = 0

    def start(self, *options: str) -> int:
        """Resumes a run by pytest in a fork of this process, which has imported torch, and returns its id."""
        return self.start_anew("--perf-resume", *options)

    def start_anew(self, *options: str) -> int:
        words = ["-p", "gpugate.plugin", "perf_tests", "-p", "no:cacheprovider", "-q", *options]
        words += [*SHORT, "--perf-budget=0.02"]
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            os.setsid()
            os.chdir(self.project.path)
            # One thread, so that workers with shares of the cores are one machine, whose name has its cores.
            os.environ.update(environment(self.project.path), OMP_NUM_THREADS="1")
            sys.path.insert(0, str(self.project.path))
            output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            for stream in (1, 2):
                os.dup2(output, stream)
            status = int(pytest.main(words))
            sys.stdout.flush()
        finally:
            os._exit(status)

    def wait(self, pid: int, draw: random.Random, kills: int) -> int | None:
        """Waits until the process is to be killed; returns its exit status where it ends before, or none is left."""
        if not kills:
            return wait(pid, HANGS_S)
        if draw.random() < EARLY:
            return wait(pid, draw.uniform(0.2, START_S))
        before, status = len(self.journal()), None
        while status is None and len(self.journal()) == before:
            status = wait(pid, 0.02)
        return wait(pid, draw.uniform(0, CASES_S)) if status is None else status

    @property
    def output(self) -> str:
        return (self.project.path / "output").read_text(encoding="utf-8")

    def journal(self) -> list[list[str]]:
        path = self.project.path / "journal"
        return [line.split() for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []

    def stored(self, folders: Sequence[str]) -> set[str]:
        """The finished cases in the files of these runs."""
        paths = [self.project.path / folder / "run.json" for folder in folders]
        found = [run_file.read(path).cases for path in paths if path.exists()]
        return {case_id for cases in found for case_id, case in cases.items() if is_finished(case)}

    def is_cut_off(self, folder: str) -> bool:
        """False where the session was killed after it had written its whole run, which a further one measures anew."""
        path = self.project.path / folder / "run.json"
        return not path.exists() or run_file.read(path).interrupted

    def doing(self, pid: int) -> str:
        """What a process was doing, by its last line of the journal."""
        own = [word for word, _, of in self.journal() if of == str(pid)]
        return BEFORE if not own else "in a case" if own[-1] == "begin" else "between cases or later"

    def check(self, folders: Sequence[str], most: int) -> tuple[int, int]:
        """The number of finished cases, and of those that the newest kill lost, which are `most` at most."""
        lines, stored = self.journal(), self.stored(folders)
        ended = {case_id for word, case_id, _ in lines if word == "end"}
        require(ended <= stored, f"the file has no {sorted(ended - stored)}, which was finished")
        begun = Counter(case_id for word, case_id, _ in lines if word == "begin")
        losses = sum(begun.values()) - len(stored)
        lost, self.losses = losses - self.losses, losses
        require(0 <= lost <= most, f"a kill lost {lost} cases: {begun}")
        return len(stored), lost

    def check_beside_others(self, killed: int, folders: Sequence[str]) -> tuple[int, int]:
        """As `check`, of one worker that was killed: the others go on, and may finish a case meanwhile."""
        lines = self.journal()
        stored = self.stored(folders)
        ended = {case_id for word, case_id, _ in lines if word == "end"}
        require(ended <= stored, f"the file has no {sorted(ended - stored)}, which was finished")
        own = [case_id for word, case_id, of in lines if word == "begin" and of == str(killed)]
        lost = sum(case_id not in stored for case_id in own)
        require(lost <= 1, f"a kill lost {own}")
        self.losses += lost
        return len(stored), lost

    def check_whole(self, folders: Sequence[str]) -> None:
        """Each case is there, and was measured once besides the measurements that were killed."""
        require(self.stored(folders) == self.cases, f"the night has no {self.cases - self.stored(folders)}")
        self.check(folders, 0)


def kill_shards(folder: Path, draw: random.Random, most: int) -> Iterator[Kill]:
    """Kills of the two sessions of one night, whose shards are merged at its end."""
    night, folders = Night(folder, SINGLE), ["night/1", "night/2"]
    (folder / "night").mkdir()
    for number, own in enumerate(folders, 1):
        status = None
        while status is None:
            pid = night.start("--perf-device=cpu", f"--perf-shard={number}/2", f"--perf-report={own}")
            status = night.wait(pid, draw, most)
            if status is None:
                doing = night.doing(pid)
                kill_session(pid)
                most -= 1
                status = None if night.is_cut_off(own) else 0
                yield Kill("shard", doing, *night.check(folders, most=1))
        require(status == 0, night.output)
        night.check(folders, most=0)
    night.check_whole(folders)
    paths = [folder / own / "run.json" for own in folders]
    merged = merge([check_shard(path, run_file.read_to_decide_again(path)) for path in paths])
    require(set(merged.cases) == night.cases and not merged.problems and merged.exit_status == 0, merged.problems)


def kill_workers(folder: Path, draw: random.Random, most: int) -> Iterator[Kill]:
    """Kills of the workers of one session, each of which another one replaces.

    xdist ends the session where a worker is killed in the moment of its start: that is one more entry, and the session
    is resumed.
    """
    night, own = Night(folder, min(MORE_SINGLE, SINGLE * most), pretend_gpus=True), ["night"]
    options = ("-n", "auto", "--max-worker-restart=9999", "--perf-report=night")
    pid, status, killed = night.start(*options), None, 0
    while status is None:
        status = wait(pid, draw.uniform(0.2, BETWEEN_S) if most else HANGS_S)
        require(most or status is not None, "the session does not end")
        if status == pytest.ExitCode.INTERNAL_ERROR:
            yield Kill(ENDED, "with a killed worker", *night.check(own, most=GPUS))
            pid, status = (night.start(*options), None) if night.is_cut_off("night") else (pid, 0)
        workers = children(pid) if status is None else []
        early = draw.random() < EARLY
        workers = [worker for worker in workers if early or night.doing(worker) != BEFORE]
        if workers and night.journal():
            worker = draw.choice(workers)
            doing = night.doing(worker)
            os.kill(worker, signal.SIGKILL)
            wait_for_end(worker)
            most, killed = most - 1, killed + 1
            yield Kill("worker", doing, *night.check_beside_others(worker, own))
    lost = night.cases - night.stored(own)
    require(status == 1 if lost else status in (0, 1), night.output)  # 1: a test whose worker was killed has failed
    # Each kill loses the case of that moment, which might kill a second worker, or the unfinished points of the sweep.
    groups = {case_id.partition("batch-")[0] for case_id in lost}
    require(len(groups) <= killed, f"{killed} kills lost {lost}")


def kill_controllers(folder: Path, draw: random.Random, most: int) -> Iterator[Kill]:
    """Kills of the controller, with which all workers end."""
    night, own = Night(folder, MORE_SINGLE, pretend_gpus=True), ["night"]
    status = None
    while status is None:
        pid = night.start("-n", "auto", "--perf-report=night")
        status = night.wait(pid, draw, most)
        if status is None:
            workers = children(pid)
            doing = Counter(night.doing(worker) for worker in workers)
            during = ", ".join(f"{number} {words}" for words, number in sorted(doing.items())) or "no worker yet"
            kill_session(pid)
            for worker in workers:
                wait_for_end(worker)
            most -= 1
            status = None if night.is_cut_off("night") else 0
            yield Kill("controller", during, *night.check(own, most=GPUS))
    require(status == 0, night.output)
    night.check_whole(own)


def kill_gates(folder: Path, draw: random.Random, most: int) -> Iterator[Kill]:
    """Kills of gates over an older green night, at any moment of the session, by turns without and with --perf-resume.

    A process that is killed before its session, or that ends before its kill, is started again.
    """
    night, path, older = Night(folder, FEW_SINGLE), folder / "night", folder / "older"
    conftest = (folder / "conftest.py").read_text(encoding="utf-8")
    night.project.write("conftest.py", conftest + BEGAN)
    options = ("--perf-device=cpu", "--gate", "-k", "outputs", "--perf-report=night")
    began_s = time.monotonic()
    require(wait(night.start_anew(*options), HANGS_S) == 0 and read_verdict(path) == 0, "there is no green night")
    longest_s = time.monotonic() - began_s
    path.rename(older)
    while most:
        resume, is_early = () if most % 2 else ("--perf-resume",), draw.random() < AT_COLLECTION
        for left in (path, folder / "journal", folder / "session"):
            shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
        shutil.copytree(older, path)
        pid = night.start_anew(*options, *resume)
        status = None
        while is_early and status is None and not (folder / "session").exists():
            status = wait(pid, 0.001)
        seconds = draw.uniform(0, COLLECTING_S if is_early else longest_s)
        status = wait(pid, seconds) if status is None else status
        if status is not None:
            continue
        doing = night.doing(pid)
        kill_session(pid)
        if not (folder / "session").exists():
            continue
        status = read_verdict(path)
        seeds = [run_file.read(one / "run.json").seed for one in (path, older)] if status == 0 else [0, 1]
        require(seeds[0] != seeds[1], f"a kill {doing} left the verdict of the older night")
        most -= 1
        words = f"{'with' if resume else 'without'} --perf-resume, {doing}, verdict {status}"
        yield Kill("gate", words, sum(word == "end" for word, _, _ in night.journal()), 0)


def read_verdict(night: Path) -> int:
    """The exit status of `gpugate verdict`."""
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        return gpugate(["verdict", str(night)])


KINDS = {"shard": kill_shards, "worker": kill_workers, "controller": kill_controllers, "gate": kill_gates}


def wait(pid: int, seconds: float) -> int | None:
    """The exit status of a child, or None where it runs longer."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    return None


def kill_session(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def wait_for_end(pid: int) -> None:
    until = time.monotonic() + HANGS_S
    while running(pid):
        require(time.monotonic() < until, f"process {pid} does not end")
        time.sleep(0.02)


def kill_nights(kind: str, kills: int, draw: random.Random) -> Iterator[Kill]:
    """So many kills; the last night goes on without further ones until it is whole."""
    while kills:
        with tempfile.TemporaryDirectory(prefix="gpugate-killed-") as folder:
            for kill in KINDS[kind](Path(folder), draw, kills):
                yield kill
                kills -= kill.killed != ENDED


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.killed_nights", description="Kills nights at random moments."
    )
    for kind, number in KILLS.items():
        parser.add_argument(f"--{kind}s", type=int, default=number, help=f"kills of a {kind} (default: {number})")
    parser.add_argument("--seed", type=int, default=1, help="draws the moments (default: 1)")
    arguments = parser.parse_args(words)
    for kind in KINDS:
        draw = random.Random(f"{arguments.seed} {kind}")  # noqa: S311  # moments, no secrets
        for kill in kill_nights(kind, getattr(arguments, f"{kind}s"), draw):
            print(json.dumps(asdict(kill)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
