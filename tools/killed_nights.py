"""Nights whose processes are killed at random moments: each case is measured once, and a kill loses at most one.

`python -m tools.killed_nights` kills 238 times, in half an hour, prints each kill as a line of JSON, and fails where a
promise is broken. Its cases take a fraction of a second on a CPU. Two kinds of processes are killed by SIGKILL. A
session of `--perf-shard` is started again with `--perf-resume`, until the night is whole. A gate has a folder with an
older green night: after no kill is that night the verdict of the folder.

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
from tests.support.tiny_project import ROOT, SHORT, TinyProject, environment

KILLS = {"shard": 150, "gate": 88}
SINGLE, POINTS = 16, 4  # cases, and points of a sweep
FEW_SINGLE = 2  # cases of a gate, so that many kills meet its start and its end
AT_COLLECTION, COLLECTING_S = 0.5, 0.2  # the share of kills of gates that come so soon after the start of the session
# The share of kills that come at any moment from the start of a process on; the others come after its first case.
EARLY = 0.2
START_S, CASES_S = 8.0, 1.5  # of a process, and of its cases
HANGS_S = 600.0
BEFORE = "before its first case"
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


@dataclass(frozen=True)
class Kill:
    """One SIGKILL: what was killed and what it was doing, and the finished and the lost cases of the night."""

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

    def __init__(self, folder: Path, single: int) -> None:
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
        self.project.write("conftest.py", conftest + JOURNAL)
        self.cases = {f"tiny/{name}/cpu" for name in (name.strip('"') for name in names)}
        self.losses = 0

    def start(self, *options: str) -> int:
        """Starts pytest in a fork of this process, which has imported torch, and returns its id."""
        words = ["-p", "gpugate.plugin", "perf_tests", "-p", "no:cacheprovider", "-q", *options]
        words += [*SHORT, "--perf-budget=0.02"]
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            os.setsid()
            os.chdir(self.project.path)
            os.environ.update(environment(self.project.path))
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
            pid = night.start("--perf-resume", "--perf-device=cpu", f"--perf-shard={number}/2", f"--perf-report={own}")
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


def kill_gates(folder: Path, draw: random.Random, most: int) -> Iterator[Kill]:
    """Kills of gates over an older green night, at any moment of the session, by turns without and with --perf-resume.

    A process that is killed before its session, or that ends before its kill, is started again.
    """
    night, path, older = Night(folder, FEW_SINGLE), folder / "night", folder / "older"
    conftest = (folder / "conftest.py").read_text(encoding="utf-8")
    night.project.write("conftest.py", conftest + BEGAN)
    options = ("--perf-device=cpu", "--gate", "-k", "outputs", "--perf-report=night")
    began_s = time.monotonic()
    require(wait(night.start(*options), HANGS_S) == 0 and read_verdict(path) == 0, "there is no green night")
    longest_s = time.monotonic() - began_s
    path.rename(older)
    while most:
        resume, is_early = () if most % 2 else ("--perf-resume",), draw.random() < AT_COLLECTION
        for left in (path, folder / "journal", folder / "session"):
            shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
        shutil.copytree(older, path)
        pid = night.start(*options, *resume)
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


KINDS = {"shard": kill_shards, "gate": kill_gates}


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


def kill_nights(kind: str, kills: int, draw: random.Random) -> Iterator[Kill]:
    """So many kills; the last night goes on without further ones until it is whole."""
    while kills:
        with tempfile.TemporaryDirectory(prefix="gpugate-killed-") as folder:
            for kill in KINDS[kind](Path(folder), draw, kills):
                yield kill
                kills -= 1


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
