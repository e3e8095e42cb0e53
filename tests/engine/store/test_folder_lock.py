"""One process at a time works in a folder, and the refusal of a second one names the first."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpugate.errors import OptionError
from gpugate.store.writable_folder import lock_folder

HOLDER = """
import sys, time
from pathlib import Path
from gpugate.errors import OptionError
from gpugate.store.writable_folder import lock_folder
with lock_folder(Path(sys.argv[1]), OptionError):
    print("inside", flush=True)
    time.sleep(3600)
"""


def test_a_second_process_is_refused_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "one"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"inside\n"
        for _ in range(2):
            with pytest.raises(OptionError) as refused, lock_folder(folder, OptionError):
                pytest.fail("two processes have the lock")
            assert str(refused.value) == f"{folder} is in use by another process (pid {holder.pid}): wait for its end"
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with lock_folder(folder, OptionError):
        assert (folder / ".lock").read_text() == str(os.getpid())
    assert (folder / ".lock").read_text() == ""


def test_an_error_inside_unlocks_the_folder_and_a_process_does_not_get_in_twice(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), lock_folder(tmp_path, OptionError):
        raise ZeroDivisionError
    with (
        lock_folder(tmp_path, OptionError),
        pytest.raises(OptionError, match=f"pid {os.getpid()}"),
        lock_folder(tmp_path, OptionError, "--output"),
    ):
        pytest.fail("the same process has the lock twice")


@pytest.mark.parametrize("inside", ["file", "file/in", "/proc/in"])
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, inside: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OptionError) as refused, lock_folder(tmp_path / inside, OptionError, "--output x"):
        pytest.fail("there is no folder")
    assert str(refused.value).startswith("--output x cannot be written (")
    assert (tmp_path / "file").read_text() == "mine"
