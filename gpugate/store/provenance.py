"""Reading the provenance of a run from git, from imported modules, the branch of a CI service and the host."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from gpugate.machine.cores import read_or_empty
from gpugate.results.run import Provenance
from gpugate.store.source_hash import is_installed
from gpugate.store.version import find_top, git, hash_changes, list_files

MACHINE_ID = Path("/etc/machine-id")
CONTAINER_VARIABLE = "GPUGATE_IMAGE_DIGEST"  # a container cannot read the digest of its own image
# The branch in GitHub, for a pull request and otherwise, and in GitLab: CI services check a commit out, not a branch.
_BRANCH_VARIABLES = ("GITHUB_HEAD_REF", "GITHUB_REF_NAME", "CI_COMMIT_REF_NAME")
HASH_DIGITS = 12
DOCUMENTS = (".md", ".rst")
MOST_SEARCHED = 1000  # commits, at 3 ms each


def read_provenance(
    project: Path, ignored: Sequence[Path] = (), gpu_uuid: str | None = None, variables: Mapping[str, str] = os.environ
) -> Provenance:
    """Reads the provenance of the code in the folder `project`.

    Uncommitted changes of the files and below the folders `ignored` do not count: runs write their results there.
    """
    commit = git(project, "rev-parse", "--verify", "--quiet", "HEAD")
    return Provenance(
        commit=commit,
        changes=hash_changes(project, ignored=ignored) if commit else None,
        branch=_first(variables, _BRANCH_VARIABLES)
        or (git(project, "branch", "--show-current") if commit else None)
        or None,
        host=_hash_host(),
        gpu_uuid=gpu_uuid,
        container=_first(variables, [CONTAINER_VARIABLE]),
    )


def is_unchanged(project: Path, commit: str, ignored: Sequence[Path] = ()) -> bool:
    """True in the commit itself, and where all code that this process imported is in the repository, and as there."""
    top = find_top(project)
    both = git(top, "rev-parse", "HEAD", f"{commit}^{{commit}}") or ""
    if len(set(both.split())) == 1 and hash_changes(top, ignored) is None:
        return True
    known = _list_modules(top).issubset(list_files(top, ignored, "--cached"))
    return known and list_code(project, ignored) == list_code(project, ignored, commit)


def list_code(project: Path, ignored: Sequence[Path] = (), commit: str | None = None) -> set[str]:
    """The code that this process imported, as in `Provenance.files`, now or in a commit.

    It has the modules, other files beside and below them, what modules name, since a worker process may import it, with
    the files beside and below a source that they name, and of a commit also modules that are gone.
    """
    top = find_top(project)
    files = set(list_files(top, ignored, "--cached"))
    modules = set(map(PurePosixPath, _list_modules(top) & files))
    texts = [(top / path).read_text(encoding="utf-8", errors="replace") for path in modules if path.suffix == ".py"]
    words = {word for text in texts for pattern in (r"\w+", r"[\w.-]+") for word in re.findall(pattern, text)}
    # A conftest.py alone does not make code of all that is in the project's folder.
    folders = {path.parent for path in modules if path.name != "conftest.py"}
    named = (
        path for path in map(PurePosixPath, files) if path.suffix not in (".py", *DOCUMENTS) and path.name in words
    )
    below = {*folders, *(path.parent for path in named)} - {PurePosixPath(".")}  # sources may include what is below

    def is_code(name: str) -> bool:
        path, is_gone = PurePosixPath(name), not (top / name).exists()
        word = path.name if path.suffix != ".py" else path.parent.name if path.stem == "__init__" else path.stem
        is_near = path.parent in folders or (path.suffix != ".py" and not below.isdisjoint(path.parents))
        beside = is_near and (is_gone or path.suffix != ".py")
        is_part = path in modules or (path.suffix not in DOCUMENTS and (word in words or beside))
        return is_part and (is_gone or name in files) and not is_installed(Path(name))

    if commit is not None:
        return {entry for entry in _list_tree(top, commit, "-r") if is_code(entry.partition(" ")[2])}
    names = [name for name in files if is_code(name) and (top / name).is_file()]
    hashes = (git(top, "hash-object", "--", *names) or "").split() if names else []
    return {f"{found[:HASH_DIGITS]} {name}" for found, name in zip(hashes, names, strict=False)}


def find_commit_with(files: Iterable[str], project: Path) -> str | None:
    """The newest commit of this history that has the files, as in `Provenance.files`; None where none has them."""
    top, names = find_top(project), sorted(entry.partition(" ")[2] for entry in files)
    words = ("--literal-pathspecs", "log", "--format=%H", f"--max-count={MOST_SEARCHED}", "HEAD", "--", *names)
    commits = (git(top, *words) or "").split() if names else []
    return next((commit for commit in commits if _list_tree(top, commit, "--", *names) == set(files)), None)


def _list_tree(top: Path, commit: str, *words: str) -> set[str]:
    """The files of a commit, as in `Provenance.files`."""
    found = (git(top, "ls-tree", "-z", commit, *words) or "").split("\0")  # `100644 blob d670460b4b4aece5<tab>rows.py`
    parts = [entry.partition("\t") for entry in found if entry]
    return {f"{about.split()[2][:HASH_DIGITS]} {name}" for about, _, name in parts}


def _list_modules(top: Path) -> set[str]:
    """The files of imported modules, relative to the repository where they are in it: not those of Python, gpugate and
    installed packages, nor code that a compiler generated, which has no spec."""
    found = set()
    for name, module in list(sys.modules.items()):
        path = Path(str(getattr(module, "__dict__", {}).get("__file__")))
        is_own = getattr(module, "__spec__", None) is not None and name.partition(".")[0] != "gpugate"
        if is_own and not is_installed(path) and path.is_file():
            path = path.resolve()
            found.add(path.relative_to(top).as_posix() if path.is_relative_to(top) else str(path))
    return found


def _first(variables: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((variables[name] for name in names if variables.get(name)), None)


def _hash_host() -> str:
    """Hashes the machine id, or the host's name where there is none: a stored run does not name its host."""
    identity = read_or_empty(MACHINE_ID).strip() or platform.node()
    return hashlib.sha256(identity.encode()).hexdigest()[:HASH_DIGITS]
