"""Folders that gpugate makes, whose files git ignores, and in which one process at a time works."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpugate.errors import BaselineError, OptionError
from gpugate.store.writable_folder import LOCK_NAME, choose_folder, lock_folder, make_ignored
from tests.support.read_only import refuse_writes


def test_git_ignores_the_files_of_a_folder_that_is_made(tmp_path: Path) -> None:
    make_ignored(tmp_path / "new/cache")
    assert (tmp_path / "new/cache/.gitignore").read_text(encoding="utf-8") == "*\n"
    assert [path.name for path in (tmp_path / "new").iterdir() if path.is_file()] == []
    make_ignored(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["new"], "a folder of the user stays as it is"


def test_a_locked_folder_is_ignored_unless_it_is_committed(tmp_path: Path) -> None:
    for name, is_committed in (("traces", False), ("baselines", True)):
        with lock_folder(tmp_path / name, BaselineError, is_committed=is_committed):
            names = {path.name for path in (tmp_path / name).iterdir()}
        assert names == ({LOCK_NAME} if is_committed else {LOCK_NAME, ".gitignore"})


def test_only_what_cannot_be_written_in_a_project_is_in_the_cache_of_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, cache = tmp_path / "project", tmp_path / "cache/gpugate"
    (project / ".gpugate").mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert choose_folder(project / "new") == project / "new"
    assert not cache.exists()
    refuse_writes(monkeypatch, project, but=project / ".gpugate")
    assert choose_folder(project / ".gpugate") == project / ".gpugate"
    found = choose_folder(project / "new")
    assert (found.name, found.parent.parent) == ("new", cache)
    assert cache.stat().st_mode & 0o777 == 0o700
    (tmp_path / "cache/gpugate").rename(tmp_path / "else")
    (tmp_path / "cache/gpugate").touch()
    assert choose_folder(project / "new") == project / "new", "nor can the cache"


HOLDER = """
import sys
from pathlib import Path
from gpugate.errors import OptionError
from gpugate.store.writable_folder import lock_folder
with lock_folder(Path(sys.argv[1]), OptionError):
    print("inside", flush=True)
    sys.stdin.read()
"""


def test_another_process_is_refused_by_its_pid_and_leaves_no_lock_when_it_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"inside\n"
        with pytest.raises(OptionError) as refused, lock_folder(tmp_path, OptionError):
            pytest.fail("two processes have the lock")
        assert str(refused.value) == f"{tmp_path} is in use by another process (pid {holder.pid}): wait for its end"
        holder.kill()
    assert (tmp_path / LOCK_NAME).exists(), "the file that the killed process left"
    with lock_folder(tmp_path, OptionError):
        pass


def test_an_error_inside_unlocks_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), lock_folder(tmp_path, OptionError):
        raise ZeroDivisionError
    with lock_folder(tmp_path, OptionError), pytest.raises(OptionError) as refused, lock_folder(tmp_path, OptionError):
        pytest.fail("the same process has the lock twice")
    assert str(refused.value) == f"{tmp_path} is in use by another process (pid {os.getpid()}): wait for its end"
    assert not (tmp_path / LOCK_NAME).exists()


@pytest.mark.parametrize("inside", ["file", "file/in", "/proc/in"])
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, inside: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OptionError) as refused, lock_folder(tmp_path / inside, OptionError, "--output x"):
        pytest.fail("there is no folder")
    assert str(refused.value).startswith("--output x cannot be written (")
    assert (tmp_path / "file").read_text() == "mine"
