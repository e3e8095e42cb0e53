"""The provenance of a run: its commit, its uncommitted changes, its branch and its host."""

import subprocess
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from gpugate.store import provenance
from gpugate.store.provenance import find_commit_with, is_unchanged, list_code, read_provenance
from gpugate.store.version import git
from tests.engine.store.test_version import commit


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    assert git(tmp_path, "init", "-q", "-b", "main") is not None
    (tmp_path / "code.py").write_text("1\n")
    return tmp_path


def test_a_commit_with_its_branch(repository: Path) -> None:
    first = commit(repository, "first")
    found = read_provenance(repository, variables={})
    assert (found.commit, found.changes, found.branch) == (first, None, "main")
    assert (found.container, found.gpu_uuid) == (None, None)
    (repository / "new.json").write_text("{}")
    runs = [read_provenance(repository, ignored, variables={}) for ignored in ([repository / "new.json"], [])]
    assert [run.changes is None for run in runs] == [True, False]


@pytest.mark.parametrize(
    ("variables", "branch"),
    [
        ({"GITHUB_HEAD_REF": "", "GITHUB_REF_NAME": "main"}, "main"),
        ({"CI_COMMIT_REF_NAME": "topic"}, "topic"),
        ({}, None),
    ],
)
def test_the_branch_of_a_ci_service_and_a_folder_without_git(
    tmp_path: Path, variables: dict[str, str], branch: str | None
) -> None:
    found = read_provenance(tmp_path, gpu_uuid="GPU-1", variables={**variables, "GPUGATE_IMAGE_DIGEST": "sha256:1"})
    assert (found.commit, found.changes, found.branch) == (None, None, branch)
    assert (found.container, found.gpu_uuid) == ("sha256:1", "GPU-1")


def test_the_host_is_a_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "machine-id").write_text("0123\n")
    monkeypatch.setattr(provenance, "MACHINE_ID", tmp_path / "machine-id")
    known = read_provenance(tmp_path, variables={}).host
    monkeypatch.setattr(provenance, "MACHINE_ID", tmp_path / "none")
    assert known is not None
    assert "0123" not in known
    assert known != read_provenance(tmp_path, variables={}).host


ROWS = "import torch\nfrom kernels import decode\nEXTENSION = load('gemm', ['csrc/gemm.cu'])\n"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose conftest.py, one module of the library beside it, and a module of a submodule are imported."""
    files = {
        "conftest.py": "from kernels.rows import scaled\n",
        "kernels/__init__.py": "",
        "kernels/rows.py": ROWS,
        "kernels/decode.py": "1\n",
        "kernels/unused.py": "1\n",
        "kernels/tiles.json": "1\n",
        "kernels/cfg/sizes.json": "1\n",
        "csrc/gemm.cu": "1\n",
        "csrc/inc/tile.h": "1\n",
        "pyproject.toml": "1\n",
        "README.md": "1\n",
        "tools/plot.py": "1\n",
    }
    folder = tmp_path / "library"
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "first")
    imports(monkeypatch, folder, "conftest.py", "kernels/__init__.py", "kernels/rows.py")
    return folder


def imports(monkeypatch: pytest.MonkeyPatch, folder: Path, *names: str) -> None:
    """Lets this process have imported these files alone, and a module of an environment in the repository."""
    modules = {}
    for name in (*names, ".venv/lib/site-packages/torch.py"):
        modules[name] = ModuleType(name)
        modules[name].__file__, modules[name].__spec__ = str(folder / name), ModuleSpec(name, None)
    monkeypatch.setattr(provenance, "sys", SimpleNamespace(modules=modules))


IS_CODE = {
    **dict.fromkeys(("conftest.py", "kernels/rows.py", "kernels/decode.py", "kernels/tiles.json"), True),
    **dict.fromkeys(("kernels/new.so", "csrc/gemm.cu", "kernels/cfg/sizes.json", "csrc/inc/tile.h"), True),
    **dict.fromkeys(("README.md", "kernels/README.md", "pyproject.toml", "tools/plot.py"), False),
    **dict.fromkeys(("kernels/unused.py", ".venv/lib/site-packages/decode.py"), False),
}


@pytest.mark.parametrize(("name", "is_code"), IS_CODE.items())
def test_imported_code_of_a_library_beside_the_conftest_changes_the_code(
    library: Path, name: str, is_code: bool
) -> None:
    """Also a module that only a worker process imports, and sources of an extension; no other file does."""
    before, path = git(library, "rev-parse", "HEAD") or "", library / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(path.read_text() + "2\n" if path.exists() else "2\n")
    assert is_unchanged(library, before) is not is_code
    after = commit(library, "changed")
    assert is_unchanged(library, before) is not is_code
    assert is_unchanged(library, after)


def test_a_file_that_is_gone_or_renamed_is_a_change(library: Path) -> None:
    """The package may import all its modules by their folder: a module that is gone is then imported no more."""
    before = git(library, "rev-parse", "HEAD") or ""
    (library / "kernels/unused.py").rename(library / "kernels/other.py")
    assert not is_unchanged(library, before)
    (library / "kernels/other.py").rename(library / "kernels/unused.py")
    (library / "README.md").unlink()
    (library / "tools/plot.py").unlink()
    assert is_unchanged(library, before)


def test_code_outside_of_the_project_folder_counts_and_code_of_another_repository_is_unknown(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, before = library / "tools", git(library, "rev-parse", "HEAD") or ""
    (tmp_path / "elsewhere.py").write_text("1\n")
    imports(monkeypatch, library, "kernels/rows.py", "../elsewhere.py")
    assert is_unchanged(project, before)
    (library / "README.md").write_text("2\n")
    assert not is_unchanged(project, before)
    imports(monkeypatch, library, "kernels/rows.py")
    assert is_unchanged(project, before)
    (library / "kernels/rows.py").write_text("2\n")
    assert not is_unchanged(project, before)


def test_a_module_that_git_ignores_is_unknown_and_code_in_a_submodule_is_code(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = ("-c", "protocol.file.allow=always")
    assert git(library, *allowed, "submodule", "add", "-q", f"file://{library}", "part") is not None
    (library / ".gitignore").write_text("kernels/fast.so\n")
    before = commit(library, "a submodule")
    (library / "kernels/fast.so").write_text("1\n")
    for names in (("kernels/rows.py", "kernels/fast.so"), ("part/kernels/rows.py",)):
        imports(monkeypatch, library, *names)
        assert is_unchanged(library, before)
        (library / names[0]).write_text(f"{ROWS}2\n")
        assert not is_unchanged(library, before)
        (library / names[0]).write_text(ROWS)
    (library / "README.md").write_text("2\n")
    imports(monkeypatch, library, "kernels/rows.py", "kernels/fast.so")
    assert not is_unchanged(library, before)


def test_results_are_no_code_and_a_commit_that_is_not_there_has_other_code(library: Path) -> None:
    before = git(library, "rev-parse", "HEAD") or ""
    (library / "kernels/run.json").write_text("1\n")
    assert not is_unchanged(library, before)
    assert is_unchanged(library, before, [library / "kernels/run.json"])
    assert not is_unchanged(library, "1111")


def test_the_commit_that_has_the_recorded_files_is_found_after_a_squash(library: Path, tmp_path: Path) -> None:
    git(library, "checkout", "-q", "-b", "feature")
    (library / "kernels/rows.py").write_text(f"{ROWS}FASTER = 1\n")
    recorded = list_code(library)  # uncommitted
    assert find_commit_with(recorded, library) is None
    committed = commit(library, "faster")
    assert find_commit_with(recorded, library) == committed
    git(library, "checkout", "-q", "main")
    (library / "README.md").write_text("2\n")
    commit(library, "main moved on")
    assert find_commit_with(recorded, library) is None
    git(library, "merge", "-q", "--squash", "feature")
    squashed = commit(library, "faster (#7)")
    (library / "kernels/rows.py").write_text("slower\n")
    commit(library, "later")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", f"file://{library}", str(clone)], check=True)
    assert find_commit_with(recorded, clone) == squashed
    assert find_commit_with((), clone) is None
