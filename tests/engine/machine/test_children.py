"""A child runs to its end, its time limit or an interruption; a module exchanges messages and ends with its parent."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import gpugate
from gpugate.machine import children as module
from gpugate.machine.children import Child, Ended, module_command, run_child, run_module
from tests.support.patience import HANGS_S, started_once, wait_until
from tests.support.tiny_project import children, running

SLEEPER = "import os, time\nopen('started', 'w').write(str(os.getpid()))\ntime.sleep(3600)\n"
PARENT = """
import sys
from gpugate.machine.children import run_module
sys.path.append(".")
run_module("sleeper")
"""
# Writes its id and that of a child of its own, and waits.
FAMILY = """
import os, signal, subprocess, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.SIG_IGN) if "stubborn" in sys.argv else None
child = subprocess.Popen(["sleep", "600"])
Path("ids.part").write_text(f"{os.getpid()} {child.pid}")
Path("ids.part").rename("ids")
try:
    child.wait()
except KeyboardInterrupt:
    Path("interrupted").touch()
"""
ANSWERS = """
import os, sys
from gpugate.machine import children
print("noise")
assert sys.stdin.read() == ""
children.parent.send({"task": children.task, "words": sys.argv[1:]})
for message in children.parent:
    children.parent.send(message)
"""
DIES = """
import os, time
from gpugate.machine import children
children.parent.send("x" * 10**6)
children.parent._socket.send(b'"half')
print("ValueError: no luck", flush=True)
if not os.fork():
    os.setsid()
    open("orphan", "w").write(str(os.getpid()))
    time.sleep(600)
while not os.path.exists("orphan") or not open("orphan").read():
    pass
os._exit(3)
"""


def python(script: str, *words: str) -> list[str]:
    return [sys.executable, "-c", script, *words]


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the search path with modules that a child runs."""
    for name, text in {"sleeper": SLEEPER, "answers": ANSWERS, "dies": DIES}.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


# --- the end ----------------------------------------------------------------------------------------------------------


def test_a_module_of_a_killed_process_ends(modules: Path) -> None:
    started = modules / "started"
    with subprocess.Popen([sys.executable, "-c", PARENT], cwd=modules) as parent:
        wait_until(lambda: parent.poll() is not None or (started.exists() and started.read_text()))
        child = int(started.read_text())
        assert children(parent.pid) == [child]  # no process between them that would be left over
        parent.kill()
    wait_until(lambda: not running(child))


def test_a_module_whose_parent_has_ended_already_does_nothing(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)  # the parent of an orphan is another process
    assert subprocess.run(module_command("sleeper", []), cwd=modules, check=False, timeout=HANGS_S).returncode == 1
    assert not (modules / "started").exists()


@pytest.mark.parametrize(
    ("status", "reason"),
    [(None, "did not end within 60 s"), (-11, "was killed by SIGSEGV"), (3, "ended with status 3")],
)
def test_the_end_has_a_reason_and_last_words(status: int | None, reason: str) -> None:
    assert Ended(status, "", 60.0).cause == reason
    assert Ended(status, "m.BadError: no\n\nstopped\n", 60.0).explain("it") == f"it {reason}: m.BadError: no"
    assert Ended(status, "ERROR: no such case\nstopped", 60.0).explain("it") == "no such case"


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("\nno tests ran in 0.00s\nERROR: file or directory not found: a.py\n", "file or directory not found: a.py"),
        ("a.py:1: in <module>\nE   ValueError: bad value\nERROR a.py\n1 error", "ValueError: bad value (a.py:1)"),
        ('E     File "/b.py", line 2\nE       def (:\nE   SyntaxError: invalid', "SyntaxError: invalid (/b.py:2)"),
        ('INTERNALERROR>   File "c.py", line 3, in f\nINTERNALERROR> m.BadError: no\n\n', "m.BadError: no (c.py:3)"),
        (
            "ERROR: usage: pytest [options]\npytest: error: unrecognized: -x\n  rootdir: /",
            "pytest: error: unrecognized: -x",
        ),
        ("Fatal Python error: Aborted\n\nThread 0x7:\n  File a.py", "Fatal Python error: Aborted"),
        ("compiling\nstill compiling", "still compiling"),
        ("", ""),
    ],
)
def test_its_own_error_is_the_cause(said: str, cause: str) -> None:
    assert Ended(4, said).cause == f"ended with status 4{cause and f': {cause}'}"


def test_a_child_is_killed_at_its_time_limit_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started_once((tmp_path / "ids").exists, monkeypatch)
    monkeypatch.chdir(tmp_path)
    assert run_child(python(FAMILY), 0.05).status is None
    wait_until(lambda: not any(running(int(pid)) for pid in (tmp_path / "ids").read_text().split()))
    assert not (tmp_path / "interrupted").exists()


@pytest.mark.parametrize("words", [(), ("stubborn",)])
def test_an_interruption_reaches_the_child_and_ends_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.2 if words else 600)
    ids = tmp_path / "ids"

    def interrupt() -> None:
        wait_until(ids.exists)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_child(python(FAMILY, *words))
    wait_until(lambda: not any(running(int(pid)) for pid in ids.read_text().split()))
    assert (tmp_path / "interrupted").exists() == (not words)


# --- the start --------------------------------------------------------------------------------------------------------


def test_a_program_has_its_environment_and_both_streams_are_its_output() -> None:
    script = "import os, sys; print(os.environ['PYTHONPATH'], flush=True); sys.exit('no \\udcff')"
    environment = {"LC_ALL": "C.UTF-8", "PYTHONPATH": "/anywhere"}
    ended = run_child(python(script), environment=environment)
    assert (ended.status, ended.last_lines()[0], len(ended.last_lines())) == (1, "/anywhere", 2)
    apart = run_child(python(script), environment=environment, apart=True)
    assert (len(apart.last_lines()), apart.errors[:3]) == (1, "no ")


def test_a_module_runs_as_the_program_with_the_path_and_the_package_of_its_parent(modules: Path) -> None:
    lines = ["import sys, gpugate, units", "from gpugate.machine.children import parent"]
    lines.append("parent.send([gpugate.__file__, units.__file__, sys.argv, __name__])")
    (modules / "shows.py").write_text("\n".join(lines), encoding="utf-8")
    (modules / "units.py").write_text("", encoding="utf-8")  # named as a module of gpugate
    (modules / "gpugate").mkdir()
    (modules / "gpugate/__init__.py").write_text("raise ImportError", encoding="utf-8")
    ended = run_module("shows", ["a b", "-x"], folder=modules)
    assert ended.output == ""
    expected = [gpugate.__file__, str(modules / "units.py"), [str(modules / "shows.py"), "a b", "-x"], "__main__"]
    assert ended.messages == (expected,)


# --- messages ---------------------------------------------------------------------------------------------------------


def test_a_module_gets_its_task_and_answers_while_its_output_goes_to_a_log(modules: Path) -> None:
    task: dict[str, Any] = {"cases": ["a"] * 10**5, "limit": None}
    with Child("answers", ["-k"], task, log_path=modules / "log") as child:
        answers = iter(child.messages)
        assert next(answers) == {"task": task, "words": ["-k"]}
        child.messages.send("again")
        assert next(answers) == "again"
        pid = child.process.pid
    assert (list(answers), running(pid)) == ([], False)
    assert (modules / "log").read_text() == "noise\n"


def test_a_module_that_dies_keeps_its_messages_and_its_last_words(modules: Path) -> None:
    """Also where a process that it forked left its process group, and keeps the socket open."""
    ended = run_module("dies", folder=modules)
    try:
        assert (ended.messages, ended.cause) == (("x" * 10**6,), "ended with status 3: ValueError: no luck")
    finally:
        os.kill(int((modules / "orphan").read_text()), signal.SIGKILL)


def test_no_other_module_of_the_engine_starts_a_process() -> None:
    root = Path(gpugate.__file__).parent
    texts = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in root.rglob("*.py")}
    starts = re.compile(
        r"(subprocess\.\w+|Popen|os\.(?:system|popen|fork|spawn\w+)|multiprocessing\.(?:Process|Pool))\("
    )
    found = {(name, call) for name, text in texts.items() for call in starts.findall(text)}
    assert found == {("machine/children.py", "subprocess.Popen")}
