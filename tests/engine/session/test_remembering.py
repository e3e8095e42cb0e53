"""Every session that measures adds its run to the store, and what the store does never decides a run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpugate.commands.cli import main
from gpugate.results.run import Night
from gpugate.store import nights, run_file
from gpugate.store.database import open_store
from gpugate.store.store_url import VARIABLE, url_of
from tests.support.read_only import refuse_writes
from tests.support.tiny_project import TinyProject

QUICK = "tiny/quick/cpu"


@pytest.fixture
def project(tiny: TinyProject, monkeypatch: pytest.MonkeyPatch) -> TinyProject:
    """A project in which the variable of the store is not set."""
    monkeypatch.delenv(VARIABLE)
    return tiny


def stored(project: TinyProject, url: str = "") -> list[Night]:
    with open_store(url or url_of(project.path), make=False) as store:
        return store.read_nights()


def test_a_run_says_what_moved_since_the_one_before_and_the_newest_of_the_same_code_become_a_record(
    project: TinyProject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project.path)
    assert main(["accept"]) == 2
    monkeypatch.setattr(nights, "MOST_KEPT", 2)
    first = project.run()
    project.quick_ms(2)
    second, third = project.run(), project.run()
    assert [ended.status for ended in (first, second, third)] == [0, 0, 0]
    assert "since the last run here" not in first.text
    assert "since the last run here" in third.text
    moved = next(line for line in second.text.splitlines() if line.startswith(f"  {QUICK}: speedup "))
    assert moved.endswith(", outside its noise")
    assert [list(night.cases) for night in stored(project)] == [[QUICK]] * 3
    capsys.readouterr()
    accept = ["accept", "--case", QUICK, "--reason", "exact sums"]
    assert main(accept) == 2
    assert f"{QUICK} was measured by 2 of the 3 processes" in capsys.readouterr().err
    assert main([*accept, "--processes", "2"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("the kept runs from 20")
    assert " over 2 processes" in said
    newest = nights.find_newest(project.path)[-1]
    run = run_file.read(newest)
    run.cases[QUICK].environment_problem = "the machine was slow"
    run_file.write(newest, run)
    assert main([*accept, "--processes", "2"]) == 2
    assert f"{QUICK} was measured by 1 of the 2 processes" in capsys.readouterr().err
    author = ["-c", "user.name=a", "-c", "user.email=a"]
    for words in (["init", "-q"], ["add", "-A"], [*author, "commit", "-qm", "another version"]):
        subprocess.run(["git", *words], cwd=project.path, check=True)
    project.run(f"--perf-store=sqlite:///{project.path}/another.sqlite")
    assert len(nights.find_newest(project.path)) == 1, "a run is kept whichever store has it"
    project.quick_ms(3)
    project.run()
    subprocess.run(["git", *author, "commit", "-qam", "the same files"], cwd=project.path, check=True)
    project.run()
    assert len(nights.find_newest(project.path)) == 2


def test_a_project_that_cannot_be_written_is_measured_and_remembered_outside(
    project: TinyProject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    refuse_writes(monkeypatch, project.path)
    first, second = project.run("-p", "no:cacheprovider"), project.run("-p", "no:cacheprovider")
    assert (first.status, second.status) == (0, 0), first.text
    (outside,) = (tmp_path / "cache/gpugate").iterdir()
    assert f"{project.path} cannot be written: gpugate keeps cache, store and proofs in {outside}\n" in first.text
    assert "since the last run here" in second.text
    assert sorted(path.name for path in outside.iterdir()) == [".gpugate", ".gpugate-cache"]
    assert not [path for path in project.path.rglob("*") if ".gpugate" in path.name]


def test_a_run_is_the_same_from_its_session_and_from_its_file(project: TinyProject) -> None:
    project.run("--perf-report", "nights/one")
    url = f"sqlite:///{project.path}/again.sqlite"
    from gpugate.store.nights import add_folder

    with open_store(url) as store:
        assert add_folder(store, project.path / "nights").new == 1
        assert store.read_nights() == stored(project)


@pytest.mark.parametrize(
    "options",
    [["--perf-mutate", "slow:1"], ["-k", "cuda"], ["--perf-shard", "1/1"], ["--perf-set", "video=own.mp4"]],
    ids=["a fault", "nothing measured", "a shard", "own inputs"],
)
def test_some_sessions_add_nothing(project: TinyProject, options: list[str]) -> None:
    assert project.run(*options).status != pytest.ExitCode.USAGE_ERROR
    assert not (project.path / ".gpugate").exists()


def test_a_store_that_fails_is_a_warning_and_no_other_status(project: TinyProject) -> None:
    (project.path / "broken.sqlite").write_text("no database, " * 1000, encoding="utf-8")
    ended = project.run("--perf-store", f"sqlite:///{project.path}/broken.sqlite", "--perf-json", "run.json")
    assert ended.status == 0
    (line,) = [line for line in ended.text.splitlines() if "not in the store" in line]
    assert line.startswith(f"warning: this run is not in the store: {project.path}/broken.sqlite cannot be opened (")
    assert line.endswith("give another store, or delete a damaged one and fill it by gpugate store add")
    assert project.json()["exit_status"] == 0


def test_an_error_that_nobody_expected_is_a_warning_too(project: TinyProject, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpugate.store import database

    def fail(url: str) -> None:
        raise RuntimeError(f"of the driver\nand more of {url}")

    monkeypatch.setattr(database, "open_store", fail)
    ended = project.run("--perf-store", "postgresql://me@host/a?password=driver")
    assert ended.status == 0
    said = "warning: this run is not in the store (RuntimeError): give another --perf-store, or --perf-store off"
    assert said in ended.text.splitlines()
