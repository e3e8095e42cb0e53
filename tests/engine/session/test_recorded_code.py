"""A gate in a git repository: the recorded commit, measured in turns, separates slower code from a slower machine."""

import subprocess
from dataclasses import asdict, replace
from typing import Any

import pytest

from gpugate.errors import CompareError
from gpugate.results.provenance import Provenance
from gpugate.session.recorded_code import choose_ref
from gpugate.store.provenance import read_provenance
from tests.engine.session.test_baseline_story import spread_out
from tests.support.tiny_project import QUICK, TinyProject

GATE = ("--gate", "--perf-device=cpu", "--perf-json=run.json", "--perf-budget=0.3")
SLOWER = QUICK.replace("read_text())", "read_text()) * 1.1")


@pytest.fixture
def recorded_commit(tiny: TinyProject, recorded_project: TinyProject) -> TinyProject:
    """A project whose baseline is of its only commit."""
    tiny.take_baseline(recorded_project)
    tiny.write(".gitignore", ".*/\n__pycache__/\nrun.json*\nbaselines/\n")
    git(tiny, "init", "-q", "-b", "main")
    commit(tiny)
    return tiny


def commit(project: TinyProject) -> None:
    git(project, "add", "-A")
    git(project, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "recorded")
    now = read_provenance(project.path)
    assert now.commit
    assert now.changes is None
    set_provenance(project, now)


def git(project: TinyProject, *words: str) -> None:
    subprocess.run(["git", "-C", str(project.path), *words], check=True, capture_output=True)


def set_provenance(project: TinyProject, provenance: Provenance) -> None:
    def change(document: dict[str, Any]) -> None:
        for record in document["cases"]["quick/cpu"].values():
            record["provenance"] = asdict(provenance)

    project.edit_baseline(change)


def code_of(project: TinyProject) -> Any:
    return project.json()["cases"]["tiny/quick/cpu"]["recorded_code"]


def test_slower_code_fails_although_the_record_is_blunt(recorded_commit: TinyProject) -> None:
    recorded_commit.edit_baseline(spread_out)
    passed = recorded_commit.run(*GATE)
    assert passed.status == 0, passed.text
    assert code_of(recorded_commit)["unchanged"] is True
    recorded_commit.workload(SLOWER)
    failed = recorded_commit.run(*GATE)
    assert failed.status == 1, failed.text
    change = recorded_commit.reasons("throughput")["code_slower"]["change"]
    assert change == pytest.approx(0.1, abs=0.03)
    assert len(code_of(recorded_commit)["processes"]) == 2
    assert "the code is slower: in turns with the recorded code" in failed.text
    cache = recorded_commit.path / ".gpugate-cache" / "versions"
    assert list(cache.iterdir()) == []


def test_a_slower_machine_with_the_recorded_code_is_no_regression(recorded_commit: TinyProject) -> None:
    recorded_commit.quick_ms(3)  # the same code takes longer: the time of a step is committed as data
    commit(recorded_commit)
    provenance = read_provenance(recorded_commit.path)
    set_provenance(recorded_commit, replace(provenance, host="another"))
    ended = recorded_commit.run(*GATE)
    assert ended.status == 1, ended.text
    assert recorded_commit.outcomes()["speedup"] == "ENV_INVALID"
    assert recorded_commit.reasons("speedup")["code_unchanged"]["changed"] == "another host"
    off = recorded_commit.run(*GATE, "--against=off")
    assert recorded_commit.outcomes()["speedup"] == "REGRESSED", off.text
    assert code_of(recorded_commit) is None
    missing = recorded_commit.run(*GATE, "--against=nowhere")
    assert recorded_commit.outcomes()["speedup"] == "REGRESSED", missing.text
    assert "'nowhere' is no commit" in recorded_commit.reasons("speedup")["no_duet"]["problem"]


@pytest.mark.parametrize(
    ("recorded", "problem"),
    [
        (None, "does not contain its commit"),
        (Provenance(), "does not contain its commit"),
        (Provenance(commit="1" * 40, changes="abc"), "with uncommitted changes"),
    ],
)
def test_a_record_that_names_no_code_is_said(recorded: Provenance | None, problem: str) -> None:
    with pytest.raises(CompareError, match=problem):
        choose_ref("auto", recorded)
    assert choose_ref("v1.0", recorded) == "v1.0"


def test_the_recorded_commit_is_the_default() -> None:
    assert choose_ref("auto", Provenance(commit="1" * 40)) == "1" * 40
