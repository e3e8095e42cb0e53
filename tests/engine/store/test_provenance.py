"""The provenance of a run: its commit, its uncommitted changes, its CI job and its host, and no credential."""

from pathlib import Path

import pytest

from gpugate.store import provenance
from gpugate.store.provenance import read_provenance, remote_address
from gpugate.store.version import git
from tests.engine.store.test_version import commit

GITHUB = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "a/b", "GITHUB_RUN_ID": "7"}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    assert git(tmp_path, "init", "-q", "-b", "main") is not None
    (tmp_path / "code.py").write_text("1\n")
    return tmp_path


def test_a_commit_with_its_branch_and_its_remote(repository: Path) -> None:
    first = commit(repository, "first")
    git(repository, "remote", "add", "origin", "https://me:secret@example.org/a/b.git?token=secret")
    found = read_provenance(repository, variables={})
    assert (found.commit, found.changes, found.branch) == (first, None, "main")
    assert found.repository == "https://example.org/a/b.git"
    assert (found.ci_url, found.container, found.gpu_uuid) == (None, None, None)


def test_changes_have_a_hash_but_for_ignored_folders(repository: Path) -> None:
    commit(repository, "first")
    (repository / "baselines").mkdir()
    (repository / "baselines" / "new.json").write_text("{}")
    assert read_provenance(repository, [repository / "baselines"], variables={}).changes is None
    assert read_provenance(repository, variables={}).changes is not None
    (repository / "code.py").write_text("2\n")
    edited = read_provenance(repository, [repository / "baselines"], variables={}).changes
    (repository / "code.py").write_text("3\n")
    assert edited != read_provenance(repository, [repository / "baselines"], variables={}).changes is not None


def test_a_folder_without_git_has_no_commit(tmp_path: Path) -> None:
    found = read_provenance(tmp_path, variables={})
    assert (found.commit, found.changes, found.branch, found.repository) == (None, None, None, None)
    assert found.host


@pytest.mark.parametrize(
    ("variables", "ci_url", "branch"),
    [
        (
            {**GITHUB, "GITHUB_HEAD_REF": "", "GITHUB_REF_NAME": "main"},
            "https://github.com/a/b/actions/runs/7",
            "main",
        ),
        ({"CI_JOB_URL": "https://x:y@ci.example/1", "CI_COMMIT_REF_NAME": "topic"}, "https://ci.example/1", "topic"),
        ({"BUILD_URL": "https://ci.example/job/2/"}, "https://ci.example/job/2/", None),
    ],
)
def test_the_job_of_a_ci_service(tmp_path: Path, variables: dict[str, str], ci_url: str, branch: str | None) -> None:
    found = read_provenance(tmp_path, variables=variables)
    assert (found.ci_url, found.branch) == (ci_url, branch)


def test_an_image_is_named_by_its_variable_and_a_gpu_by_its_id(tmp_path: Path) -> None:
    found = read_provenance(tmp_path, gpu_uuid="GPU-1", variables={"GPUGATE_IMAGE_DIGEST": "sha256:1"})
    assert (found.container, found.gpu_uuid) == ("sha256:1", "GPU-1")


@pytest.mark.parametrize(
    ("remote", "kept"),
    [
        ("git@example.org:a/b.git", "git@example.org:a/b.git"),
        ("example.org:a/b.git", "example.org:a/b.git"),
        ("git@gitlab:a/b.git", "git@gitlab:a/b.git"),
        ("/srv/a.git", None),
        ("../a.git", None),
        ("file:///srv/a.git", None),
        ("file://localhost/srv/a.git", None),
        ("C:/Users/ada/a.git", None),
        ("localhost:/home/ada/a.git", None),
        ("user:token@example.org:a.git", None),
        ("ext::sh -c /home/ada/x", None),
        ("https://[x/a", None),
        ("ssh://git@example.org/a.git", "ssh://example.org/a.git"),
        ("https://token@example.org/a.git", "https://example.org/a.git"),
    ],
)
def test_an_address_loses_its_credentials_and_a_folder_is_none(remote: str, kept: str | None) -> None:
    assert remote_address(remote) == kept


def test_the_host_is_a_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "machine-id").write_text("0123\n")
    monkeypatch.setattr(provenance, "MACHINE_ID", tmp_path / "machine-id")
    known = read_provenance(tmp_path, variables={}).host
    monkeypatch.setattr(provenance, "MACHINE_ID", tmp_path / "none")
    assert known is not None
    assert "0123" not in known
    assert known != read_provenance(tmp_path, variables={}).host
