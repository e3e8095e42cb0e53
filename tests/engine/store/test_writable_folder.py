"""Folders that gpugate makes, whose files git ignores."""

from pathlib import Path

from gpugate.errors import TrustError
from gpugate.store.folder_lock import LOCK_NAME, lock_folder
from gpugate.store.writable_folder import make_ignored, make_writable


def test_git_ignores_the_files_of_a_folder_that_is_made(tmp_path: Path) -> None:
    for name, make in (("new/cache", make_ignored), ("new/night", make_writable)):
        make(tmp_path / name)
        assert (tmp_path / name / ".gitignore").read_text(encoding="utf-8") == "*\n"
    assert [path.name for path in (tmp_path / "new").iterdir() if path.is_file()] == []


def test_a_folder_of_the_user_stays_as_it_is(tmp_path: Path) -> None:
    make_ignored(tmp_path)
    make_writable(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_locked_folder_is_ignored_unless_it_is_committed(tmp_path: Path) -> None:
    for name, is_committed in (("traces", False), ("baselines", True)):
        with lock_folder(tmp_path / name, TrustError, is_committed=is_committed):
            names = {path.name for path in (tmp_path / name).iterdir()}
        assert names == ({LOCK_NAME} if is_committed else {LOCK_NAME, ".gitignore"})
