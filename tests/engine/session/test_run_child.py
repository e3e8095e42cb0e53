"""A child runs to its end, its time limit or an interruption, and nothing that it started outlives it."""

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from gpugate.session import run_child as module
from gpugate.session.child_process import program_command
from gpugate.session.run_child import Ended, run_child
from tests.support.patience import started_once, wait_until
from tests.support.tiny_project import running

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


def python(script: str, *words: str) -> list[str]:
    return program_command([sys.executable, "-c", script, *words])


def test_a_child_gets_its_input_and_returns_both_streams(tmp_path: Path) -> None:
    script = "import os, sys; print(sys.stdin.read(), os.getcwd(), flush=True); sys.exit('no \\udcff')"
    ended = run_child(python(script), stdin=b"words", folder=tmp_path, environment={"LC_ALL": "C.UTF-8"})
    assert (ended.status, ended.last_lines(2)[0], ended.folder) == (1, f"words {tmp_path}", tmp_path)
    assert len(ended.last_lines(9)) == 2
    assert run_child(python("print('kept')"), log_path=tmp_path / "log").output == "kept\n"
    assert (tmp_path / "log").read_text() == "kept\n"


@pytest.mark.parametrize(
    ("status", "reason"),
    [(None, "did not end within 60 s"), (-11, "was killed by SIGSEGV"), (3, "ended with status 3")],
)
def test_the_end_has_a_reason(status: int | None, reason: str) -> None:
    assert Ended(status, "", timeout_s=60.0).reason == reason


def test_a_child_is_killed_at_its_time_limit_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started_once((tmp_path / "ids").exists, monkeypatch)
    assert run_child(python(FAMILY), 0.05, folder=tmp_path).status is None
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
    with pytest.raises(KeyboardInterrupt):
        run_child(python(FAMILY, *words), folder=tmp_path)
    wait_until(lambda: not any(running(int(pid)) for pid in ids.read_text().split()))
    assert (tmp_path / "interrupted").exists() == (not words)
