"""Several processes, one on each GPU, as a made-up nvidia-smi tells of them: each job once, in order, and all end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "deploy" / "several-gpus.sh"
JOBS = """
# name | expression | seconds | more
first  | net/fast or net/slow | 5 | --perf-budget 1 --perf-attempts 1
second | net/other | 5
third  | net/third | 5
long   | net/long | 5000
"""
# In place of the interpreter: tells how it was called.
PYTEST = f"""#!{sys.executable}
import json, os, pathlib, sys, time
words = sys.argv[1:]
path = pathlib.Path(words[words.index("--perf-json") + 1])
cores = sorted(os.sched_getaffinity(0))
path.write_text(json.dumps({{"words": words, "gpu": os.environ["CUDA_VISIBLE_DEVICES"], "cores": cores}}))
time.sleep(float(os.environ.get("SLEEP", "0")))
sys.exit(1 if words[words.index("-k") + 1] == os.environ.get("FAILS") else 0)
"""


@pytest.fixture
def call(tmp_path: Path) -> tuple[list[str], dict[str, str], Path]:
    """The command, its environment with two GPUs, and the folder that it fills."""
    (tmp_path / "bin").mkdir()
    for name, program in {
        "nvidia-smi": "#!/bin/sh\necho GPU 0; echo GPU 1\n",
        "nproc": "#!/bin/sh\necho 2\n",
        "taskset": '#!/bin/sh\nshift 2\nexec "$@"\n',  # the machine may have a single core
        "python": PYTEST,
    }.items():
        (tmp_path / "bin" / name).write_text(program)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "jobs").write_text(JOBS)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHON": str(tmp_path / "bin/python")}
    return [str(SCRIPT), str(tmp_path / "jobs"), str(tmp_path / "runs")], environment, tmp_path / "runs"


def told(folder: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


def test_every_job_is_a_process_on_a_gpu_of_its_own(call: tuple[list[str], dict[str, str], Path]) -> None:
    command, environment, folder = call
    ended = subprocess.run([*command, "60"], env={**environment, "SLEEP": "0.3"}, capture_output=True, text=True)
    runs = told(folder)
    assert set(runs) == {"first", "second", "third"}
    assert {runs["first"]["gpu"], runs["second"]["gpu"]} == {"0", "1"}
    words = ["-m", "pytest", "perf_tests", "-m", "gpu", "-p", "no:cacheprovider", "-k", "net/fast or net/slow"]
    assert runs["first"]["words"][: len(words)] == words
    assert runs["first"]["words"][-4:] == ["--perf-budget", "1", "--perf-attempts", "1"]
    assert "long skipped: it takes about 5000 s" in ended.stdout
    assert sum(" status 0 on GPU " in line for line in ended.stdout.splitlines()) == 3
    assert ended.returncode == 1, "one was skipped"


def test_the_status_says_whether_all_passed(call: tuple[list[str], dict[str, str], Path]) -> None:
    command, environment, folder = call
    passed = subprocess.run([*command, "6000"], env=environment, capture_output=True, text=True)
    assert (passed.returncode, passed.stderr) == (0, "")
    failed = subprocess.run([*command, "6000"], env={**environment, "FAILS": "net/third"}, check=False)
    assert failed.returncode == 1
    assert "third status 1 on GPU" in (folder / "log.txt").read_text()


def test_ctrl_c_ends_all_of_them(call: tuple[list[str], dict[str, str], Path]) -> None:
    command, environment, folder = call
    running = subprocess.Popen([*command, "6000"], env={**environment, "SLEEP": "60"})
    try:
        deadline = time.monotonic() + 10
        while len(told(folder)) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        running.send_signal(signal.SIGINT)
        assert running.wait(10) == 130
    finally:
        running.kill()
    assert set(told(folder)) == {"first", "second"}
    left = subprocess.run(["pgrep", "-f", str(folder)], capture_output=True, text=True, check=False)  # noqa: S607
    assert left.stdout == ""


def test_without_a_folder_it_says_how_it_is_used() -> None:
    ended = subprocess.run([SCRIPT, "jobs"], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "usage: deploy/several-gpus.sh JOBS DIR [SECONDS]\n"
