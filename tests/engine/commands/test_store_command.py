"""`gpugate store add`: the store made again from files, and the runs that are no part of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpugate.commands.cli import main
from gpugate.results.fleet_plan import Shard
from gpugate.store.database import open_store
from gpugate.store.store_url import VARIABLE, find_file, url_of
from tests.support.stored_runs import night, nights, timed

SERIES = {"fused": [3.0, 3.1, 2.9]}


def count(url: str) -> int:
    with open_store(url, make=False) as store:
        return store.count_runs()


def test_folders_are_added_once_to_the_store_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(VARIABLE)
    folder, url = tmp_path / "nights", url_of(tmp_path)
    first, *_ = nights(folder, SERIES)
    (tmp_path / "runs").mkdir()
    shutil.copy(first / "run.json", tmp_path / "runs/copy.json")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "deep/down").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep/down")
    assert main(["store", "add", str(first)]) == 0
    assert count(url) == 1
    capsys.readouterr()
    assert main(["store", "add", str(folder), str(tmp_path / "runs")]) == 0
    added, there, whole = capsys.readouterr().out.splitlines()
    assert added == f"{folder}: 2 runs added, 1 run there already"
    assert there == f"{tmp_path}/runs: 0 runs added, 1 run there already"
    assert whole.endswith(": 3 runs")
    assert count(url) == 3


def test_a_run_that_cannot_be_used_is_named_and_the_others_are_added(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = nights(tmp_path / "nights", SERIES)
    (paths[1] / "run.json").write_text("{", encoding="utf-8")
    shard = night(tmp_path / "nights", 9, [timed("fused", 3.0)], shard=Shard(2, 3))
    project = tmp_path / "a%20b?c"  # which a URL would take apart
    project.mkdir()
    url = url_of(project)
    assert main(["store", "add", str(tmp_path / "nights"), "--store", url]) == 1
    said = capsys.readouterr().err
    assert f"gpugate store: {paths[1]}/run.json cannot be used" in said
    assert f"{shard}/run.json is shard 2 of 3 of a night: add the night that gpugate verdict --merge makes" in said
    assert count(url) == 2
    assert find_file(url) == project / ".gpugate/store.sqlite"
    assert (project / ".gpugate/store.sqlite").is_file()
