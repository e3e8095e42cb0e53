"""A process of duets before pytest starts."""

import io
import json
import sys
from pathlib import Path

import pytest

from gpugate.session import duet_worker
from gpugate.session.duets import DuetPlan
from gpugate.store.codec import to_json
from gpugate.store.version import git


def test_the_search_path_of_the_working_tree_means_the_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a head that is a commit would import the modules of the working tree, which the command's path names."""
    project, head = tmp_path / "project", tmp_path / "head"
    for top in (project, head):
        (top / "services" / "x").mkdir(parents=True)
        assert git(top, "init", "-q") is not None
    monkeypatch.chdir(head / "services" / "x")
    plan = DuetPlan("", 1.0, project=str(project / "services" / "x"))
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(to_json(plan))))
    others = ["/elsewhere", str(project / ".venv/lib/site-packages")]
    monkeypatch.setattr(sys, "path", [str(project / "lib"), *others])
    monkeypatch.setattr(pytest, "main", lambda words, plugins: pytest.ExitCode.USAGE_ERROR)
    assert duet_worker.main([]) == pytest.ExitCode.USAGE_ERROR
    assert sys.path == [str(head / "lib"), *others, str(Path.cwd()), str(Path.cwd() / "src")]
