"""Real processes of trials: an interruption and a killed worker leave a report, and the same command goes on."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.patience import HANGS_S, wait_until
from tests.support.tiny_project import Ended, TinyProject, check_no_traceback, environment, running
from tools.trust.plan import wanted_trials
from tools.trust.trials import SLOWDOWNS, read_all

# Stops, when it is told to by a file, in the middle of the third trial: at its first build.
STOPS = """
import os

built = []

def quick(context):
    built.append(1)
    stop = Path(__file__).with_name("stop")
    if stop.exists() and len(built) > 5:
        Path(__file__).with_name("stopped").write_text(str(os.getpid()))
        while stop.exists():
            time.sleep(0.02)
    return sleeping(1)
"""
WORDS = ("--trials", "2", "--processes", "1", "--budget", "0.01", "--device", "cpu")
INTERRUPTED = 130


class Run:
    """`python -m tools.trust` in a project whose trials stop in the middle."""

    def __init__(self, path: Path) -> None:
        self.tiny = TinyProject(path)
        self.tiny.workload(STOPS)
        self.folder = path / "gpugate-trust"
        self._started: list[subprocess.Popen[str]] = []
        self._worker_pid = 0

    def start(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "tools.trust", *WORDS],
            cwd=self.tiny.path,
            env={**os.environ, **environment(self.tiny.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def start_and_stop_in_the_third_trial(self) -> "tuple[subprocess.Popen[str], int]":
        """The command and the id of its worker, which has written two trials."""
        self.tiny.write("stop", "")
        process, stopped = self.start(), self.tiny.path / "stopped"
        wait_until(lambda: process.poll() is not None or (stopped.exists() and stopped.read_text()))
        assert process.poll() is None, process.communicate()
        self._worker_pid = int(stopped.read_text())
        return process, self._worker_pid

    def go_on(self) -> None:
        (self.tiny.path / "stop").unlink()

    def kept(self) -> int:
        return len(read_all(self.folder).trials)

    def end(self) -> None:
        """Ends the processes that a failed test has left running."""
        for process in self._started:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            process.communicate()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    made.end()


def ended(process: "subprocess.Popen[str]") -> tuple[Ended, str]:
    """Its status with what it printed, and apart what it complained of."""
    out, err = process.communicate(timeout=HANGS_S)
    check_no_traceback(out + err)
    return Ended(process.returncode, out), err


def test_ctrl_c_reports_and_the_same_command_takes_the_rest(run: Run) -> None:
    process, worker_pid = run.start_and_stop_in_the_third_trial()
    process.send_signal(signal.SIGINT)  # its worker is in a session of its own, which no Ctrl-C of a terminal reaches
    first, complaint = ended(process)
    assert first.status == INTERRUPTED
    assert not running(worker_pid)
    assert run.kept() == 2
    assert ": 2 trials of 1 case in 1 fresh process\n" in first.text
    assert complaint.endswith("the same command goes on from there\npython -m tools.trust: interrupted\n")
    before = (run.folder / "trials-001.json").read_bytes()
    run.go_on()
    second, _ = ended(run.start())
    assert second.status == 0
    assert ": 8 trials of 1 case in 2 fresh processes\n" in second.text
    assert Counter(trial.slowdown for trial in read_all(run.folder).trials) == wanted_trials(2, SLOWDOWNS[1:])
    assert (run.folder / "trials-001.json").read_bytes() == before
    trials, report = ["trials-001.json", "trials-002.json"], ["trust.md"]
    assert sorted(path.name for path in run.folder.iterdir()) == [".gitignore", ".lock", *trials, *report]
    assert ": 8 trials of 1 case in 2 fresh processes\n" in (run.folder / "trust.md").read_text(encoding="utf-8")


def test_a_worker_that_is_killed_ends_the_run_with_a_report(run: Run) -> None:
    process, worker_pid = run.start_and_stop_in_the_third_trial()
    os.kill(worker_pid, signal.SIGKILL)
    first, complaint = ended(process)
    assert first.status == 2
    assert ": 2 trials of 1 case in 1 fresh process\n" in first.text
    said = "process 1 of trials ended early, its trials are kept: it was killed by SIGKILL"
    assert f"python -m tools.trust: {said}" in complaint
    assert run.kept() == 2
    assert (run.folder / "trust.md").exists()
