"""Gates that are killed at random moments: the file of the run keeps every finished case.

`python -m tools.killed_nights` kills 88 times, in ten minutes, prints each kill as a line of JSON, and fails where a
promise is broken. Its cases take a fraction of a second on a CPU. Each gate is killed by SIGKILL, and its folder has an
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
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from gpugate.commands.cli import main as gpugate
from gpugate.store import run_file
from tests.support.tiny_project import ROOT, SHORT, TinyProject, environment

KILLS = 88
SINGLE, POINTS = 2, 4  # cases, and points of a sweep: so few that many kills meet the start and the end of a gate
AT_COLLECTION, COLLECTING_S = 0.5, 0.2  # the share of kills that come so soon after the start of the session
HANGS_S = 600.0
BEFORE = "before its first case"
OPTIONS = ("--perf-device=cpu", "--gate", "-k", "outputs", "--perf-report=night")
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
    """One SIGKILL: what the gate was doing, its finished cases, and the exit status of `gpugate verdict`."""

    during: str
    finished: int
    verdict: int


class BrokenPromiseError(Exception):
    """A finished case was lost, or an older night was taken for the one that was killed."""


def require(true: object, problem: object) -> None:
    if not true:
        raise BrokenPromiseError(problem)


class Night:
    """A project, whose runs are killed, and its journal. Raises BrokenPromiseError."""

    def __init__(self, folder: Path) -> None:
        self.project = TinyProject(folder)
        names = [*(f'"one-{number}"' for number in range(SINGLE)), *(f'"batch-{2**power}"' for power in range(POINTS))]
        points = [*([""] * SINGLE), *(f', point=Point("batch", {2**power})' for power in range(POINTS))]
        optimizations = (
            f'Optimization({name}, quick, {{"cpu": 0.01}}{point})' for name, point in zip(names, points, strict=True)
        )
        self.project.workload(WORKLOAD, ", ".join(optimizations))
        tests = (ROOT / "perf_tests/test_sweeps.py").read_text(encoding="utf-8")
        self.project.write("perf_tests/test_sweeps.py", tests)
        conftest = (folder / "conftest.py").read_text(encoding="utf-8")
        self.project.write("conftest.py", conftest + JOURNAL)

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

    def journal(self) -> list[list[str]]:
        path = self.project.path / "journal"
        return [line.split() for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []

    def doing(self, pid: int) -> str:
        """What a process was doing, by its last line of the journal."""
        own = [word for word, _, of in self.journal() if of == str(pid)]
        return BEFORE if not own else "in a case" if own[-1] == "begin" else "between cases or later"

    def check(self, path: Path) -> int:
        """The number of finished cases, all of which the file of the run must have."""
        ended = {case_id for word, case_id, _ in self.journal() if word == "end"}
        stored = run_file.read(path).cases.keys() if ended else set()
        require(ended <= stored, f"the file has no {sorted(ended - stored)}, which was finished")
        return len(ended)


def kill_gates(folder: Path, draw: random.Random, most: int) -> Iterator[Kill]:
    """Kills of gates over an older green night, at any moment of the session.

    A process that is killed before its session, or that ends before its kill, is started again.
    """
    night, path, older = Night(folder), folder / "night", folder / "older"
    conftest = (folder / "conftest.py").read_text(encoding="utf-8")
    night.project.write("conftest.py", conftest + BEGAN)
    began_s = time.monotonic()
    require(wait(night.start(*OPTIONS), HANGS_S) == 0 and read_verdict(path) == 0, "there is no green night")
    longest_s = time.monotonic() - began_s
    path.rename(older)
    while most:
        is_early = draw.random() < AT_COLLECTION
        for left in (path, folder / "journal", folder / "session"):
            shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
        shutil.copytree(older, path)
        pid = night.start(*OPTIONS)
        status = None
        while is_early and status is None and not (folder / "session").exists():
            status = wait(pid, 0.001)
        seconds = draw.uniform(0, COLLECTING_S if is_early else longest_s)
        status = wait(pid, seconds) if status is None else status
        if status is not None:
            continue
        doing = night.doing(pid)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if not (folder / "session").exists():
            continue
        status = read_verdict(path)
        seeds = [run_file.read(one / "run.json").seed for one in (path, older)] if status == 0 else [0, 1]
        require(seeds[0] != seeds[1], f"a kill {doing} left the verdict of the older night")
        most -= 1
        yield Kill(doing, night.check(path / "run.json"), status)


def read_verdict(night: Path) -> int:
    """The exit status of `gpugate verdict`."""
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        return gpugate(["verdict", str(night)])


def wait(pid: int, seconds: float) -> int | None:
    """The exit status of a child, or None where it runs longer."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    return None


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.killed_nights", description="Kills gates at random moments.")
    parser.add_argument("--kills", type=int, default=KILLS, help=f"kills of a gate (default: {KILLS})")
    parser.add_argument("--seed", type=int, default=1, help="draws the moments (default: 1)")
    arguments = parser.parse_args(words)
    draw = random.Random(arguments.seed)  # noqa: S311  # moments, no secrets
    with tempfile.TemporaryDirectory(prefix="gpugate-killed-") as folder:
        for kill in kill_gates(Path(folder), draw, arguments.kills):
            print(json.dumps(asdict(kill)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
