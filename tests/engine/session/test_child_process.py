"""Child processes: they end with their parent, and import what it imports."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import gpugate
from gpugate.session import child_process
from gpugate.session.child_process import module_command, program_command
from tests.support.patience import HANGS_S, wait_until
from tests.support.tiny_project import children, running

SLEEPER = "import os, time\nopen('started', 'w').write(str(os.getpid()))\ntime.sleep(3600)\n"
PARENT = """
import subprocess, sys
from gpugate.session.child_process import module_command, program_command
sys.path.append(".")
subprocess.run({command})
"""


@pytest.mark.parametrize(
    "command", ["module_command('sleeper', [])", "program_command([sys.executable, 'sleeper.py'])"]
)
def test_a_child_of_a_killed_process_ends(tmp_path: Path, command: str) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER, encoding="utf-8")
    script, started = PARENT.format(command=command), tmp_path / "started"
    with subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path) as parent:
        wait_until(lambda: parent.poll() is not None or (started.exists() and started.read_text()))
        child = int(started.read_text())
        assert children(parent.pid) == [child]  # no process between them that would be left over
        parent.kill()
    wait_until(lambda: not running(child))


@pytest.mark.parametrize(
    "command_of", [lambda: module_command("sleeper", []), lambda: program_command([sys.executable, "sleeper.py"])]
)
def test_a_child_whose_parent_has_ended_already_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_of: Callable[[], Sequence[str]]
) -> None:
    (tmp_path / "sleeper.py").write_text("open('started', 'w')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(child_process.os, "getpid", lambda: 1)  # the parent of an orphan is another process
    assert subprocess.run(command_of(), cwd=tmp_path, check=False, timeout=HANGS_S).returncode == 1
    assert not (tmp_path / "started").exists()


def test_a_module_runs_as_the_program_with_the_path_and_the_package_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        "import json, sys, gpugate, units",
        "print(json.dumps([gpugate.__file__, units.__file__, sys.argv, __name__]))",
    ]
    (tmp_path / "shows.py").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "units.py").write_text("", encoding="utf-8")  # named as a module of gpugate
    (tmp_path / "gpugate").mkdir()
    (tmp_path / "gpugate/__init__.py").write_text("raise ImportError", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    ended = subprocess.run(module_command("shows", ["a b", "-x"]), cwd=tmp_path, capture_output=True, check=False)
    assert ended.stderr == b""
    expected = [gpugate.__file__, str(tmp_path / "units.py"), [str(tmp_path / "shows.py"), "a b", "-x"], "__main__"]
    assert json.loads(ended.stdout) == expected


def test_a_program_that_cannot_be_started_is_an_error_here(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        program_command(["/no/such/program"])
    (tmp_path / "text").touch()
    with pytest.raises(PermissionError):
        program_command([str(tmp_path / "text")])


def test_a_program_keeps_its_environment_and_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/anywhere")
    script = "import os, signal; print(os.environ['PYTHONPATH']); os.kill(os.getpid(), signal.SIGTERM)"
    ended = subprocess.run(program_command([sys.executable, "-c", script]), capture_output=True, check=False)
    assert ended.returncode == -signal.SIGTERM
    ended = subprocess.run(program_command(["sh", "-c", "echo $PYTHONPATH"]), capture_output=True, check=False)
    assert ended.stdout == b"/anywhere\n"
