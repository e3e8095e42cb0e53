"""A version of the project as a folder: a git ref in a temporary worktree, a folder, or the working tree."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gpugate.errors import CompareError
from gpugate.machine.children import Ended, run_child
from gpugate.store.writable_folder import choose_folder, lock_folder, make_ignored
from gpugate.units import SHORT_COMMIT, number_of

WORKING_TREE = "."
MODULES_FILE = ".gitmodules"
MOST_READ_BYTES = 2**20  # of a new file, to hash it
CACHE_FOLDER, VERSIONS = ".gpugate-cache", "versions"
STORE_FOLDER = ".gpugate"
# The folders that gpugate and Python make by themselves: no file in them is a change of the code.
OWN_FOLDERS = (
    CACHE_FOLDER,
    STORE_FOLDER,
    "gpugate-trust",
    "gpugate-nsys",
    "gpugate-ncu",
    "gpugate-traces",
    "__pycache__",
)


@dataclass(frozen=True)
class Version:
    """`root` is the folder of the project; `commit` is None without git, `changes` the hash of what is uncommitted."""

    name: str
    root: Path
    commit: str | None = None
    changes: str | None = None
    note: str | None = None  # why it is not the version that was named

    @property
    def label(self) -> str:
        """For example `main (1a2b3c4d5e6f)`, `1a2b3c4d5e6f` or `. (1a2b3c4d5e6f with uncommitted changes)`."""
        if self.commit is None:
            return self.name
        if self.name == self.commit:
            return self.commit[:SHORT_COMMIT]
        edited = " with uncommitted changes" if self.changes else ""
        return f"{self.name} ({self.commit[:SHORT_COMMIT]}{edited})"


@contextmanager
def check_out(name: str, project: Path, head: str | None = None) -> Iterator[Version]:
    """The version `name` of the project in the folder `project`, until the block ends.

    A folder is taken as it is; any other name is a git ref, which gets a worktree in VERSIONS of the cache folder.
    With `head`, a commit, a ref stands for its common ancestor with the head, as in `git diff name...`, since what it
    gained later is no change of the head. Raises CompareError where the version does not exist, cannot be checked out
    or has the name of a folder and of a ref.
    """
    name, note = name.removesuffix("..."), None
    folder = (project / name).resolve()
    if folder.is_dir() and _commit_of(project, name) is None:
        yield _describe_folder(name, folder)
        return
    commit = find_commit(name, project, "give a branch, tag, commit or folder")
    ancestor = git(project, "merge-base", head, commit) if head is not None else None
    if ancestor is not None and ancestor != commit:
        count = number_of(int(git(project, "rev-list", "--count", f"{head}..{commit}") or 0), "commit")
        note = f"{name} has {count} that this version lacks: compared with the common ancestor "
        note += f"{ancestor[:SHORT_COMMIT]}; --exact compares with {name} itself"
        name = commit = ancestor
    within = Path(os.path.relpath(project.resolve(), find_top(project)))
    if git(project, "cat-file", "-e", f"{commit}:{MODULES_FILE}") is not None:
        raise CompareError(f"{name!r} has submodules, which a worktree lacks: give a folder that has them")
    cache = choose_folder(project / CACHE_FOLDER) / VERSIONS
    make_ignored(cache.parent)
    cache.mkdir(exist_ok=True)
    for left in cache.glob(f"{'[0-9a-f]' * SHORT_COMMIT}-*"):  # of a killed process, unless its lock is held
        with suppress(CompareError), lock_folder(cache, CompareError, lock_name=f".{left.name}"):
            _remove_worktree(project, left)
    path = cache / f"{commit[:SHORT_COMMIT]}-{secrets.token_hex(8)}"  # which is there only while the lock is held
    with lock_folder(cache, CompareError, lock_name=f".{path.name}"), ExitStack() as stack:
        stack.callback(_remove_worktree, project, path)
        ended = run_git(project, "worktree", "add", "--quiet", "--detach", "--force", str(path), commit)
        if ended.status != 0:
            last = ended.errors.strip().splitlines()[-1:] or ["no message"]
            raise CompareError(f"git cannot check {name!r} out ({last[0]}): mend this, or give a folder")
        if not (path / within).is_dir():
            raise CompareError(f"{name!r} has no folder {within}: give a commit that has it")
        yield Version(name, path / within, commit, note=note)


def find_commit(name: str, project: Path, step: str = "give a branch, tag or commit") -> str:
    """The full name of the commit of a git ref. Raises CompareError for one that is absent or also names a folder."""
    top = find_repository(project, f"{name!r} is no folder", "give a folder")
    commit = _commit_of(project, name)
    if commit is None:
        raise CompareError(f"{name!r} is no commit of {top}: {suggest_commit(project, step)}")
    if (project / name).is_dir():
        raise CompareError(f"{name!r} is a folder and a commit: give ./{name} for the one, or {name}~0 for the other")
    return commit


def _commit_of(project: Path, ref: str) -> str | None:
    """The full name of the commit of a ref; None where git knows none."""
    return git(project, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")


def suggest_commit(project: Path, step: str) -> str:
    """The next step where a commit is not found: `step`, or in a shallow clone the command that completes it."""
    shallow = git(project, "rev-parse", "--is-shallow-repository") == "true"
    return "run `git fetch --unshallow`, since this clone is shallow" if shallow else step


def find_repository(project: Path, found: str, step: str) -> str:
    """The top folder of the repository that has the project. Raises CompareError where git refuses or is missing, after
    what was `found`, with the next step."""
    try:
        ended = run_git(project, "rev-parse", "--show-toplevel")
    except OSError as error:
        raise CompareError(f"{found}, and git cannot be started ({error.strerror}): install git, or {step}") from error
    if ended.status != 0:
        words = " ".join(ended.errors.split())  # also those of git about a repository of another user
        raise CompareError(f"{found}, and {project} is in no git repository ({words}): {step}")
    return ended.output.rstrip("\n")


def _remove_worktree(project: Path, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    git(project, "worktree", "prune")


def _describe_folder(name: str, folder: Path) -> Version:
    """The version in a folder; it has no commit where git tracks no file of it, as in an ignored folder."""
    tracked = git(folder, "ls-files")
    commit = git(folder, "rev-parse", "--verify", "--quiet", "HEAD") if tracked else None
    return Version(name, folder, commit, hash_changes(folder) if commit else None)


def hash_changes(folder: Path, ignored: Sequence[Path] = ()) -> str | None:
    """The hash of all uncommitted changes in the folder's repository, new files included; None without any.

    Of a submodule it has only whether it is changed. Changes of the files and below the folders `ignored` do not count,
    nor do those in OWN_FOLDERS.
    """
    folder = find_top(folder)
    changed = git(folder, "diff", "HEAD", "--binary", "--no-ext-diff", "--", *_select(folder, ignored))
    digest, new = hashlib.sha256((changed or "").encode()), list_files(folder, ignored)
    for name in sorted(new):
        digest.update(f"{name}\0".encode())
        digest.update(_identify(folder / name))
    return digest.hexdigest()[:16] if changed != "" or new else None  # where git failed, it is None


def list_files(folder: Path, ignored: Sequence[Path] = (), kind: str = "--others") -> list[str]:
    """The new files below the folder, by `--cached` also those that git tracks; `ignored` is as in `hash_changes`."""
    found = git(folder, "ls-files", kind, "--others", "--exclude-standard", "-z", "--", *_select(folder, ignored))
    return list(filter(None, (found or "").split("\0")))


def _select(folder: Path, ignored: Sequence[Path]) -> list[str]:
    """The words by which git selects all files below the folder but the own ones and those that are `ignored`."""
    top, absolute = folder.resolve(), [path.resolve() for path in ignored]
    below = [path.relative_to(top) for path in absolute if path != top and path.is_relative_to(top)]
    outside = [f":(exclude,glob)**/{name}/**" for name in OWN_FOLDERS]
    return [".", *outside, *(f":(exclude){path}" for path in below)]


def _identify(path: Path) -> bytes:
    """The content of a file, or size and time of one that is too large to read at every start of a run."""
    if not path.is_file():
        return b""
    status = path.stat()
    return path.read_bytes() if status.st_size <= MOST_READ_BYTES else f"{status.st_size} {status.st_mtime_ns}".encode()


def find_top(project: Path) -> Path:
    """The top folder of the project's repository; the project itself without one."""
    return Path(git(project, "rev-parse", "--show-toplevel") or project)


def git(folder: Path, *words: str) -> str | None:
    """The output of a git command in the folder without its last line break; None where git fails or is missing."""
    try:
        ended = run_git(folder, *words)
    except OSError:
        return None
    return ended.output.rstrip("\n") if ended.status == 0 else None


def run_git(folder: Path, *words: str) -> Ended:
    """Runs git to its end; `GIT_*` variables of a hook that started this process would name another repository."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return run_child(["git", "-C", str(folder), *words], environment=environment, apart=True)
