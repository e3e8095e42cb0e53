"""A version of the project as a folder: a git ref in a temporary worktree, a folder, or the working tree."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpugate.errors import CompareError
from gpugate.store.writable_folder import is_running

WORKING_TREE = "."
MODULES_FILE = ".gitmodules"
GIT_S = 600.0
SHORT = 12  # hexadecimal digits of a commit


@dataclass(frozen=True)
class Version:
    """`root` is the folder of the project; `commit` is None without git, `changes` the hash of what is uncommitted."""

    name: str
    root: Path
    commit: str | None = None
    changes: str | None = None

    @property
    def label(self) -> str:
        """For example `main (1a2b3c4d5e6f)`, `1a2b3c4d5e6f` or `. (1a2b3c4d5e6f with uncommitted changes)`."""
        if self.commit is None:
            return self.name
        if self.name == self.commit:
            return self.commit[:SHORT]
        edited = " with uncommitted changes" if self.changes else ""
        return f"{self.name} ({self.commit[:SHORT]}{edited})"


@contextmanager
def check_out(name: str, project: Path, cache: Path) -> Iterator[Version]:
    """The version `name` of the project in the folder `project`, until the block ends.

    A folder is taken as it is; any other name is a git ref, which gets a worktree below `cache`. Raises CompareError
    where the version does not exist or cannot be checked out.
    """
    folder = (project / name).resolve()
    if folder.is_dir():
        yield _describe_folder(name, folder)
        return
    top = git(project, "rev-parse", "--show-toplevel")
    if top is None:
        raise CompareError(f"{name!r} is no folder, and {project} is in no git repository: give a folder")
    commit = git(project, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if commit is None:
        shallow = git(project, "rev-parse", "--is-shallow-repository") == "true"
        step = "run `git fetch --unshallow`, since this clone is shallow" if shallow else "give a branch, tag or commit"
        raise CompareError(f"{name!r} is neither a folder nor a commit of {top}: {step}")
    within = Path(os.path.relpath(project.resolve(), top))
    if git(project, "cat-file", "-e", f"{commit}:{MODULES_FILE}") is not None:
        raise CompareError(f"{name!r} has submodules, which a worktree lacks: give a folder that has them")
    _remove_left_over(project, cache)
    cache.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix=f"{commit[:SHORT]}-{os.getpid()}-", dir=cache))
    try:
        ended = run_git(project, "worktree", "add", "--quiet", "--detach", "--force", str(path), commit)
        if ended.returncode != 0:
            raise CompareError(f"git cannot check {name!r} out ({_last_line(ended.stderr)}): give a folder")
        if not (path / within).is_dir():
            raise CompareError(f"{name!r} has no folder {within}: give a commit that has it")
        yield Version(name, path / within, commit)
    finally:
        git(project, "worktree", "remove", "--force", str(path))


def _remove_left_over(project: Path, cache: Path) -> None:
    """Removes the worktrees of processes that were killed."""
    for path in cache.glob(f"{'[0-9a-f]' * SHORT}-*"):
        process = path.name.split("-")[1]
        if process.isdecimal() and not is_running(int(process)):
            git(project, "worktree", "remove", "--force", str(path))
    git(project, "worktree", "prune")


def _describe_folder(name: str, folder: Path) -> Version:
    commit = git(folder, "rev-parse", "--verify", "--quiet", "HEAD")
    return Version(name, folder, commit, hash_changes(folder) if commit else None)


def hash_changes(folder: Path) -> str | None:
    """The hash of all uncommitted changes below the folder, new files included; None without any."""
    digest, changed = hashlib.sha256(), git(folder, "diff", "HEAD", "--binary", "--", ".") or ""
    digest.update(changed.encode())
    new = (git(folder, "ls-files", "--others", "--exclude-standard", "-z") or "").split("\0")
    for name in sorted(filter(None, new)):
        digest.update(f"{name}\0".encode())
        digest.update((folder / name).read_bytes() if (folder / name).is_file() else b"")
    return digest.hexdigest()[:16] if changed or any(new) else None


def git(folder: Path, *words: str) -> str | None:
    """The output of a git command in the folder without its last line break; None where git fails or is missing."""
    try:
        ended = run_git(folder, *words)
    except OSError:
        return None
    return ended.stdout.rstrip("\n") if ended.returncode == 0 else None


def run_git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs git to its end; `GIT_*` variables of a hook that started this process would name another repository."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, timeout=GIT_S)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]
