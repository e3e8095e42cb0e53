"""A version of the code is a folder for as long as it is needed: a worktree of a commit, or a folder as it is."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gpugate.errors import CompareError
from gpugate.session.options import PROFILERS
from gpugate.store.version import CACHE_FOLDER, OWN_FOLDERS, VERSIONS, check_out, git, hash_changes
from tests.support.code_in_child import run_code


def commit(folder: Path, message: str) -> str:
    for words in (("add", "-A"), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", message)):
        subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)
    return git(folder, "rev-parse", "HEAD") or ""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with two commits: `value` holds 1, then 2."""
    folder = tmp_path / "project"
    folder.mkdir()
    subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True)
    for value in (1, 2):
        (folder / "value").write_text(str(value))
        commit(folder, f"value {value}")
    return folder


def worktrees(project: Path) -> int:
    return len((git(project, "worktree", "list") or "").splitlines())


def test_a_commit_has_a_folder_until_the_end(project: Path) -> None:
    with check_out("HEAD~1", project) as before, check_out("main", project) as now:
        assert [(one.root / "value").read_text() for one in (before, now)] == ["1", "2"]
        short = git(project, "rev-parse", "--short=12", "main")
        assert now.label == f"main ({short})"
        assert replace(now, name=str(now.commit)).label == short
        assert worktrees(project) == 3
    assert worktrees(project) == 1
    assert list((project / CACHE_FOLDER / VERSIONS).iterdir()) == []


def test_a_folder_of_git_that_cannot_be_written_is_one_sentence(project: Path) -> None:
    (project / ".git/worktrees").write_text("no folder can be made here")
    with pytest.raises(CompareError, match=r"git cannot check 'main' out \(.*\): mend this, or give a folder"):
        check_out("main", project).__enter__()


def test_a_ref_that_is_ahead_stands_for_the_common_ancestor(project: Path) -> None:
    git(project, "checkout", "-q", "-b", "feature")
    (project / "note").write_text("a note")
    began, head = git(project, "rev-parse", "main"), commit(project, "a note")
    with check_out("main", project, head) as one:
        assert (one.name, one.commit, one.note) == ("main", began, None)
    git(project, "checkout", "-q", "main")
    (project / "value").write_text("3")
    now = commit(project, "value 3")
    for name in ("main", "main..."):
        with check_out(name, project, head) as one:
            assert (one.commit, (one.root / "value").read_text()) == (began, "2")
            words = f"compared with the common ancestor {one.label}; --exact compares with main itself"
            assert one.note == f"main has 1 commit that this version lacks: {words}"
    with check_out("main", project) as one:
        assert (one.commit, one.note) == (now, None)
    git(project, "checkout", "-q", "--orphan", "another")
    with check_out("main", project, commit(project, "nothing in common")) as one:
        assert (one.commit, one.note) == (now, None)
    with check_out(".", project, head) as one:
        assert (one.root, one.note) == (project, None)


def test_an_error_or_ctrl_c_removes_the_folder(project: Path) -> None:
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), check_out("main", project):
            raise error
    assert (worktrees(project), list((project / CACHE_FOLDER / VERSIONS).iterdir())) == (1, [])


def test_the_folder_of_a_killed_process_is_removed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"from gpugate.store.version import *\nwith check_out('main', Path('{project}')): os.kill(os.getpid(), 9)"
    run_code(code, status=-9)
    (left,) = (project / CACHE_FOLDER / VERSIONS).glob("[!.]*")
    monkeypatch.setattr(os, "getpid", lambda: 2**22)  # as of a process in another container
    with check_out("main", project) as mine, check_out("main", project):
        assert (left.exists(), mine.root.exists()) == (False, True)
        assert worktrees(project) == 3


def test_a_project_in_a_part_of_the_repository_is_that_part(project: Path) -> None:
    (project / "part").mkdir()
    (project / "part" / "value").write_text("3")
    commit(project, "a part")
    with check_out("main", project / "part") as version:
        assert (version.root / "value").read_text() == "3"
    (project / "value").write_text("4")
    assert hash_changes(project / "part") == hash_changes(project) is not None
    with pytest.raises(CompareError, match="'HEAD~1' has no folder part: give a commit that has it"):
        check_out("HEAD~1", project / "part").__enter__()


def test_the_working_tree_is_named_with_its_changes(project: Path) -> None:
    with check_out(".", project) as version:
        assert (version.root, version.changes) == (project, None)
    (project / "value").write_text("4")
    with check_out(".", project) as version:
        assert version.label.endswith(" with uncommitted changes)")
        assert version.changes == hash_changes(project)
    edited = hash_changes(project)
    (project / "new").write_text("5")
    assert hash_changes(project) not in (edited, None)


def test_files_that_gpugate_makes_are_no_changes_of_the_code(project: Path) -> None:
    assert set(PROFILERS.values()) <= set(OWN_FOLDERS)
    for name in (*OWN_FOLDERS, f"part/{OWN_FOLDERS[0]}/versions"):
        (project / name).mkdir(parents=True)
        (project / name / "made").write_text("1")
    assert hash_changes(project) is None
    (project / "part" / "code").write_text("1")
    assert hash_changes(project) is not None


def test_a_folder_that_git_ignores_has_not_the_commit_of_its_project(project: Path) -> None:
    (project / ".gitignore").write_text("versions/\n")
    old = project / "versions" / "old"
    old.mkdir(parents=True)
    (old / "value").write_text("7")
    for name in ("versions/old", "./versions/old"):
        with check_out(name, project) as version:
            assert (version.root, version.commit, version.label) == (old, None, name)
        git(project, "branch", "versions/old")
    with pytest.raises(
        CompareError, match=r"and a commit: give \./versions/old for the one, or versions/old~0 for the o"
    ):
        check_out("versions/old", project).__enter__()


def test_outside_of_git_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    with check_out(str(tmp_path), tmp_path) as version:
        assert (version.root, version.commit, version.label) == (tmp_path, None, str(tmp_path))


@pytest.mark.parametrize("name", ["no-such-branch", "-x", "--all", "main:value", "value"])
def test_a_name_that_is_no_version_is_one_sentence(project: Path, name: str) -> None:
    with pytest.raises(CompareError) as error, check_out(name, project):
        pass
    assert str(error.value) == f"{name!r} is no commit of {project}: give a branch, tag, commit or folder"
    assert worktrees(project) == 1


def test_a_shallow_clone_is_named_as_such(project: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{project}", str(clone)], check=True)
    with pytest.raises(CompareError, match="run `git fetch --unshallow`, since this clone is shallow"):
        check_out("HEAD~1", clone).__enter__()


def test_a_machine_without_git_is_named_as_such(project: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompareError) as error, check_out("main", project):
        pass
    problem = "git cannot be started (No such file or directory): install git, or give a folder"
    assert str(error.value) == f"'main' is no folder, and {problem}"


def test_submodules_are_refused_since_a_worktree_lacks_them(project: Path) -> None:
    (project / ".gitmodules").write_text('[submodule "x"]\n\tpath = x\n\turl = ../x\n')
    commit(project, "a submodule")
    with pytest.raises(CompareError, match="'main' has submodules, which a worktree lacks: give a folder that has"):
        check_out("main", project).__enter__()


def test_a_hook_of_another_repository_does_not_misdirect_git(project: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    with check_out("main", project) as version:
        assert (version.root / "value").read_text() == "2"
