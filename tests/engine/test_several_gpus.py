"""Several processes, one on each GPU, as a made-up nvidia-smi tells of them: each job once, in order, and all end."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import HANGS_S, wait_until
from tests.support.tiny_project import children

SCRIPT = Path(__file__).parents[2] / "deploy" / "several-gpus.sh"
JOBS = """
# name | expression | seconds | more
first  | net/fast or net/slow | 5 | --perf-budget 1 --perf-attempts 1
second | net/other | 5
third  | net/third | 5
"""
LONG = "long | net/long | 5000\n"
# In place of the interpreter: tells how it was called, waits for its neighbour, and ends by Ctrl-C as pytest does.
PYTEST = f"""#!{sys.executable}
import json, os, pathlib, sys, time
words = sys.argv[1:]
if words[0] == "-c":
    print("4 5 6 7 8")
    sys.exit()
if words[:3] == ["-m", "gpugate", "verdict"]:
    sys.exit(2 if os.path.basename(words[-1]) == os.environ.get("CUT_OFF") else 0)
path = pathlib.Path(words[words.index("--perf-json") + 1])
if path.exists():
    sys.exit(3)
told = {{"words": words, "gpu": os.environ["CUDA_VISIBLE_DEVICES"], "cores": os.environ["CORES"]}}
path.with_suffix(".part").write_text(json.dumps(told))
path.with_suffix(".part").rename(path)
try:
    deadline = time.monotonic() + {HANGS_S}
    while len(list(path.parent.glob("*.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(float(os.environ.get("SLEEP", "0")))
except KeyboardInterrupt:
    sys.exit(2)
sys.exit(1 if words[words.index("-k") + 1] == os.environ.get("FAILS") else 0)
"""
PROGRAMS = {
    "nvidia-smi": "echo 'GPU 0: made up'; echo '  MIG 1g: no GPU'; echo 'GPU 1: made up'",
    "taskset": 'CORES=$2; export CORES; shift 2; exec "$@"',  # the machine may have a single core
}


@dataclass
class Machine:
    """Two GPUs and five cores; `runs` is the folder that the script fills."""

    folder: Path

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def program(self, name: str, body: str, shell: str = "sh") -> None:
        path = self.folder / "bin" / name
        path.write_text(body if body.startswith("#!") else f"#!/bin/{shell}\n{body}\n")
        path.chmod(0o755)

    def start(self, seconds: int = 6000, jobs: str = JOBS, **environment: str) -> subprocess.Popen[str]:
        (self.folder / "jobs").write_text(jobs)
        command = [str(SCRIPT), str(self.folder / "jobs"), str(self.runs), str(seconds)]
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        known = {**os.environ, "PATH": path, "PYTHON": str(self.folder / "bin/python"), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            command,
            env={**known, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Of what runs under nohup, SIGHUP is ignored, and a shell cannot trap what was ignored when it began.
            preexec_fn=partial(signal.signal, signal.SIGHUP, signal.SIG_DFL),
        )

    def run(self, seconds: int = 6000, jobs: str = JOBS, **environment: str) -> tuple[int, str, str]:
        started = self.start(seconds, jobs, **environment)
        output, errors = started.communicate(timeout=HANGS_S)
        return started.returncode, output, errors

    @property
    def told(self) -> dict[str, Any]:
        return {path.stem: json.loads(path.read_text()) for path in self.runs.glob("*.json")}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    (tmp_path / "bin").mkdir()
    made.program("python", PYTEST)
    for name, body in PROGRAMS.items():
        made.program(name, body)
    yield made
    for pid in still_running(made):  # what a failed test has left
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def still_running(machine: Machine) -> dict[int, str]:
    """Command lines that name its folder, by their processes."""
    lines = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            lines[int(path.parent.name)] = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return {pid: line for pid, line in lines.items() if str(machine.runs) in line}


def test_every_job_is_a_process_on_a_gpu_and_cores_of_its_own(machine: Machine) -> None:
    status, output, errors = machine.run(4000, JOBS + LONG)
    runs = machine.told
    assert set(runs) == {"first", "second", "third"}
    assert {(runs[name]["gpu"], runs[name]["cores"]) for name in ("first", "second")} == {("0", "4,5"), ("1", "6,7")}
    words = ["-m", "pytest", "perf_tests", "-m", "gpu", "-p", "no:cacheprovider", "-k", "net/fast or net/slow"]
    assert runs["first"]["words"][: len(words)] == words
    assert runs["first"]["words"][-4:] == ["--perf-budget", "1", "--perf-attempts", "1"]
    assert "long skipped: it takes about 5000 s" in output
    assert output.count(" status 0 on GPU ") == 3
    assert (status, errors) == (1, ""), "one was skipped"


def test_the_status_says_whether_all_passed(machine: Machine) -> None:
    assert machine.run()[::2] == (0, "")
    assert machine.run(FAILS="net/third")[0] == 1
    assert "third status 1 on GPU" in (machine.runs / "log.txt").read_text()


def test_a_process_that_ended_with_0_and_left_no_whole_run_is_no_success(machine: Machine) -> None:
    status, output, _ = machine.run(CUT_OFF="third.json")
    assert status == 1
    assert "third status 2 on GPU" in output
    assert output.count(" status 0 on GPU ") == 2


def test_the_run_of_an_earlier_time_does_not_count(machine: Machine) -> None:
    machine.runs.mkdir()
    (machine.runs / "third.json").write_text("{}")
    assert machine.run()[0] == 0


def test_jobs_that_nobody_took_are_no_success(machine: Machine) -> None:
    running = machine.start(jobs=JOBS + LONG, SLEEP="3600")
    wait_until(lambda: len(machine.told) == 2)
    for worker in children(running.pid):
        os.killpg(worker, signal.SIGKILL)
    running.communicate(timeout=HANGS_S)
    assert running.returncode == 1


def test_what_does_not_end_in_time_is_interrupted(machine: Machine) -> None:
    # The time that is left is told and cut short: how long a beginning takes is the machine's affair.
    timeout = shutil.which("timeout")
    machine.program("timeout", f'echo "$6" >>"$LEFT"; exec {timeout} "$1" "$2" "$3" "$4" "$5" 1 "${{@:7}}"', "bash")
    left = machine.folder / "left"
    status, output, _ = machine.run(2000, "first | a | 1\nsecond | b | 1\n", SLEEP="3600", LEFT=str(left))
    assert status == 1
    assert output.count(" status 124 on GPU ") == 2
    assert [1000 < int(seconds) <= 2000 for seconds in left.read_text().split()] == [True, True]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_of_them(machine: Machine, number: signal.Signals) -> None:
    running = machine.start(SLEEP="3600")
    wait_until(lambda: len(machine.told) == 2)
    running.send_signal(number)
    running.communicate(timeout=HANGS_S)
    assert running.returncode == 130
    assert set(machine.told) == {"first", "second"}
    assert still_running(machine) == {}


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        ("# nothing\n", "jobs has no job: give it a line NAME | EXPRESSION | SECONDS for each"),
        ("first | net | 6m\n", '"first|net|6m" is no job: write NAME | EXPRESSION | SECONDS | more arguments'),
        ("first\n", '"first" is no job: write NAME | EXPRESSION | SECONDS | more arguments'),
        ("../first | net | 6\n", '"../first|net|6" is no job: write NAME | EXPRESSION | SECONDS | more arguments'),
    ],
)
def test_what_is_no_job_is_refused_before_any_begins(machine: Machine, jobs: str, words: str) -> None:
    status, _, errors = machine.run(jobs=jobs)
    assert (status, machine.told) == (2, {})
    assert errors.endswith(f"{words}\n")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("program", "body", "words"),
    [
        ("nvidia-smi", "echo 'No devices were found'; exit 6", "nvidia-smi lists no GPU: run it where there is one"),
        ("python", "echo 7", "1 cores are too few for 2 GPUs: each needs one at least"),
    ],
)
def test_a_machine_that_cannot_is_told_so(machine: Machine, program: str, body: str, words: str) -> None:
    machine.program(program, body)
    assert machine.run()[::2] == (2, f"{words}\n")


def test_without_a_folder_it_says_how_it_is_used() -> None:
    ended = subprocess.run([SCRIPT, "jobs"], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "usage: deploy/several-gpus.sh JOBS DIR [SECONDS]\n"
