"""`gpugate compare` on a project of steps that pretend to sleep: its table, its exit status, and what it leaves."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpugate import __version__
from gpugate.commands.compare.command import NOT_SLOWER, SLOWER, UNDECIDED, UNUSABLE, exit_status
from gpugate.judging.duet import judge_duet
from gpugate.results.duet import DuetOutcome
from tests.engine.judging.test_duet import CASE, measured, process
from tests.support.patience import HANGS_S, wait_until
from tests.support.tiny_project import Ended, TinyProject, check_no_traceback, children, environment, running

QUICK = "\ndef quick(context):\n    return sleeping({milliseconds})\n"
RIGHT = "\ndef right(context):\n    return sleeping(2)\n"
BOTH = 'Optimization("quick", quick, {"cpu": 0.01}), Optimization("right", right, {"cpu": 0.01})'
SHORT = ("--device", "cpu", "--budget", "0.2")


class Versions:
    """A repository whose commits differ in a step of `quick`."""

    def __init__(self, path: Path) -> None:
        self.tiny = TinyProject(path)
        self._git("init", "-q", "-b", "main")
        self.tiny.write(".gitignore", ".gpugate-cache/\n__pycache__/\n")

    def commit(self, milliseconds: float, optimizations: str = BOTH, build: str = QUICK) -> None:
        self.write(milliseconds, optimizations, build)
        self._git("add", "-A")
        self._git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", f"{milliseconds} ms")

    def write(self, milliseconds: float, optimizations: str = BOTH, build: str = QUICK) -> None:
        self.tiny.workload(build.format(milliseconds=milliseconds) + RIGHT, optimizations)

    def _git(self, *words: str) -> None:
        subprocess.run(["git", "-C", str(self.tiny.path), *words], check=True, capture_output=True)

    def start(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "gpugate", "compare", *SHORT, *words],
            cwd=self.tiny.path,
            env={**os.environ, **environment(self.tiny.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def compare(self, *words: str) -> tuple[Ended, str]:
        """Its status with what it printed, and its messages."""
        started = self.start(*words)
        out, err = started.communicate(timeout=HANGS_S)
        check_no_traceback(out + err)
        return Ended(started.returncode, out), err

    def worktrees(self) -> list[str]:
        cache = self.tiny.path / ".gpugate-cache" / "versions"
        return [path.name for path in cache.iterdir()] if cache.exists() else []


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    return Versions(tmp_path)


def test_a_slower_side_is_named_and_the_others_are_the_same(versions: Versions) -> None:
    versions.commit(1)
    versions.commit(1.05)
    ended, said = versions.compare("HEAD~1", "HEAD", "--json", "made.json", "--markdown", "made.md")
    assert ended.status == SLOWER, ended.text + said
    document = versions.tiny.json("made.json")
    assert len({document[name]["commit"] for name in ("base", "head")}) == 2
    outcomes = {duet["case_id"]: duet["outcome"] for duet in document["duets"]}
    assert outcomes == {"tiny/quick/cpu": "SLOWER", "tiny/right/cpu": "SAME"}
    ratio = document["duets"][0]["ratio"]
    assert ratio["low"] < 1.05 < ratio["high"] * 1.005
    assert "2 cases: 1 SLOWER, 1 SAME" in ended.text
    assert "2 cases: 1 SLOWER, 1 SAME" in (versions.tiny.path / "made.md").read_text(encoding="utf-8")
    assert "process 2 of at most 3: 1 case\n" in said, "only the open case is measured again"
    assert versions.worktrees() == []


def test_the_working_tree_is_the_head_unless_another_is_given(versions: Versions) -> None:
    versions.commit(2)
    versions.write(1)
    ended, _ = versions.compare("main", "-k", "quick")
    assert ended.status == NOT_SLOWER, ended.text
    assert "with uncommitted changes)" in ended.text
    assert "1 case: 1 FASTER" in ended.text


def test_new_and_removed_cases_are_listed(versions: Versions) -> None:
    versions.commit(1, 'Optimization("quick", quick, {"cpu": 0.01}), Optimization("gone", right, {"cpu": 0.01})')
    versions.commit(1)
    ended, _ = versions.compare("HEAD~1", "HEAD")
    assert ended.status == NOT_SLOWER, ended.text
    assert "tiny/right/cpu: only in the head\n" in ended.text
    assert "tiny/gone/cpu: only in the base\n" in ended.text


def test_a_side_that_fails_is_named_with_its_version(versions: Versions) -> None:
    versions.commit(1, build="\ndef quick(context):\n    raise ValueError('no engine {milliseconds}')\n")
    versions.commit(1)
    ended, _ = versions.compare("HEAD~1", "HEAD")
    assert ended.status == UNUSABLE
    named = "tiny/quick/cpu: not measured: quick of the base failed while being built: ValueError: no engine 1"
    assert named in " ".join(ended.text.split())
    assert "1 case: 1 SAME" in ended.text


def test_a_process_that_dies_keeps_what_it_measured(versions: Versions) -> None:
    dies = "\ndef quick(context):\n    return sleeping(1)\n\ndef dies(context):\n    import os\n    os._exit(7)\n"
    versions.commit(1, f'{BOTH}, Optimization("dies", dies, {{"cpu": 0.01}})', dies)
    ended, _ = versions.compare("main")
    assert ended.status == UNUSABLE
    assert "tiny/dies/cpu: not measured: its process ended with status 7" in ended.text
    assert "2 cases: 2 SAME" in ended.text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("no-such-ref",), "'no-such-ref' is neither a folder nor a commit of "),
        (("main", "--processes", "0"), "--processes is '0'"),
        (("main", "--device", "tpu"), "there is no device 'tpu'"),
        (("main", "-k", "nothing_of_this_name"), "no case is selected: give a folder with perf tests, or another -k"),
        (("main", "--base-python", "no/such"), "--base-python is 'no/such', which is no program: give the path"),
        (("main", "--base-python", "/bin/ls"), "the process of the base ended with status 2: "),
        (("main", "--own-engine"), "compare without --own-engine, or give a later version"),
        (("main", "--path", "no_such_folder"), "file or directory not found: no_such_folder"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(versions: Versions, words: tuple[str, ...], sentence: str) -> None:
    versions.commit(1)
    ended, said = versions.compare(*words)
    assert ended == Ended(UNUSABLE, "")
    last = said.splitlines()[-1]
    assert last.startswith("gpugate compare: ")
    assert sentence in last
    assert versions.worktrees() == []


def test_a_base_that_this_engine_cannot_drive_is_refused_with_the_reason(versions: Versions) -> None:
    versions.commit(1, "Optimization('quick', quick, {'cpu': 0.01}, unknown_field=1)")
    versions.commit(1)
    ended, said = versions.compare("HEAD~1", "HEAD")
    assert ended.status == UNUSABLE
    assert "this gpugate cannot drive the workloads of " in said
    assert "unexpected keyword argument 'unknown_field'" in said


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGINT, ()),
        (signal.SIGTERM, ()),
        (signal.SIGINT, ("--base-python", sys.executable)),
        (signal.SIGKILL, ("--base-python", sys.executable)),
    ],
)
def test_a_signal_leaves_no_process_and_no_worktree(versions: Versions, number: int, words: tuple[str, ...]) -> None:
    waits = """
import os

def quick(context):
    Path(__file__).with_name("waits").write_text(str(os.getpid()))
    while True:
        time.sleep(0.02)
"""
    marker = versions.tiny.path / "waits"
    versions.commit(1)
    versions.tiny.workload(waits + RIGHT, BOTH)
    started = versions.start("main", "-k", "quick", *words)
    wait_until(lambda: started.poll() is not None or (marker.exists() and marker.read_text()))
    worker = int(marker.read_text())
    started.send_signal(number)
    _, said = started.communicate(timeout=HANGS_S)
    wait_until(lambda: not running(worker))
    wait_until(lambda: processes_in(versions.tiny.path) == [])
    if number == signal.SIGKILL:
        assert started.returncode == -signal.SIGKILL
        return  # the next comparison removes the worktree
    assert started.returncode == 130
    assert said.endswith("gpugate compare: interrupted\n")
    assert children(started.pid) == []
    assert versions.worktrees() == []


def processes_in(path: Path) -> list[str]:
    """The commands of all processes whose working folder is in the path, which may be removed by now."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            folder, command = (entry / "cwd").readlink(), (entry / "cmdline").read_text(encoding="utf-8")
        except OSError:  # it has ended, or is another user's
            continue
        if str(folder).startswith(str(path)) and command:
            found.append(command)
    return found


def test_another_python_runs_the_base_in_a_process_of_its_own(versions: Versions) -> None:
    prints = "\ndef quick(context):\n    print('[1,', flush=True)\n    return sleeping({milliseconds})\n"
    versions.commit(1, build=prints)
    versions.write(1.25, build=prints)
    python = versions.tiny.write(
        "bin/python", f'#!/bin/sh\npwd >> {versions.tiny.path}/used\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    words = ("main", "-k", "quick", "--processes", "1", "--base-python", "bin/python", "--json", "made.json")
    ended, said = versions.compare(*words)
    assert ended.status == UNDECIDED, ended.text + said
    (duet,) = versions.tiny.json("made.json")["duets"]
    ratio = duet["ratio"]
    assert ratio["low"] < 1.25 * 0.96 < 1.24 < ratio["median"] < 1.26 < 1.25 * 1.04 < ratio["high"], (
        "one pair shows no spread"
    )
    assert duet["relative_l2"] == 0
    (used,) = (versions.tiny.path / "used").read_text(encoding="utf-8").splitlines()
    assert ".gpugate-cache/versions/" in used, "the base alone"
    assert f"base: gpugate {__version__}, Python " in ended.text
    assert versions.worktrees() == []
    assert processes_in(versions.tiny.path) == []


def test_a_process_of_a_version_that_dies_costs_its_case_alone(versions: Versions) -> None:
    dies = "\ndef quick(context):\n    import os\n    os.kill(os.getpid(), 11)\n"
    versions.commit(1)
    versions.write(1, build=dies)
    ended, _ = versions.compare("main", "--processes", "1", "--base-python", sys.executable)
    assert ended.status == UNUSABLE
    assert "tiny/quick/cpu: not measured: the process of the head was killed by SIGSEGV" in ended.text
    assert "1 case: 1 UNDECIDED" in ended.text
    assert processes_in(versions.tiny.path) == []


def test_where_one_process_cannot_hold_both_sides_each_is_built_after_the_others_end(versions: Versions) -> None:
    held = """
def quick(context):
    holder = Path(__file__).with_name("holder") if ".gpugate" not in __file__ else Path(__file__).parents[3] / "holder"
    if holder.exists():
        raise torch.OutOfMemoryError("too large")
    holder.touch()
    side = sleeping({milliseconds})
    side.close = holder.unlink
    return side
"""
    versions.commit(1, build=held)
    versions.write(1.25, build=held)
    ended, said = versions.compare("main", "-k", "quick", "--processes", "1", "--json", "made.json")
    assert ended.status == UNDECIDED, ended.text + said
    assert "tiny/quick/cpu: one after another: both versions do not fit together" in ended.text
    (duet,) = versions.tiny.json("made.json")["duets"]
    assert duet["ratio"]["median"] == pytest.approx(1.25, rel=0.02)


def test_the_status_is_that_of_the_most_severe_case() -> None:
    same, slower = (judge_duet(CASE, [process(measured(10, ms))] * 2) for ms in (10, 10.5))
    unsure = judge_duet(CASE, [process(measured(10, 10.5))])
    assert [one.outcome for one in (same, slower, unsure)] == [
        DuetOutcome.SAME,
        DuetOutcome.SLOWER,
        DuetOutcome.UNDECIDED,
    ]
    assert exit_status([same, same], {}) == NOT_SLOWER
    assert exit_status([same, slower], {}) == SLOWER
    assert exit_status([slower, unsure], {}) == UNDECIDED
    assert exit_status([slower, unsure], {"net": "no"}) == UNUSABLE
    assert exit_status([], {}) == UNUSABLE
