"""`gpugate store add`: the store made again from files, and the runs that are no part of it."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from gpugate.commands.cli import main
from gpugate.store.database import open_store
from gpugate.store.store_url import VARIABLE, url_of
from tests.support.made_up_nights import nights

SERIES = {"fused": [3.0, 3.1, 2.9]}


def count(url: str) -> int:
    with closing(open_store(url, make=False)) as store:
        return store.count_runs()


def test_folders_are_added_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, url = tmp_path / "nights", f"sqlite:///{tmp_path}/a.sqlite"
    nights(folder, SERIES)
    shutil.copy(folder / "night-00/run.json", tmp_path / "copy.json")
    (tmp_path / "runs").mkdir()
    shutil.move(tmp_path / "copy.json", tmp_path / "runs/copy.json")
    assert main(["store", "add", str(folder), str(tmp_path / "runs"), "--store", url]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{folder}: 3 runs added",
        f"{tmp_path}/runs: 0 runs added, 1 run there already",
        f"{tmp_path}/a.sqlite: 3 runs",
    ]
    assert main(["store", "add", str(folder), "--store", url]) == 0
    assert count(url) == 3


def test_one_night_is_added_by_its_folder(tmp_path: Path) -> None:
    path, *_ = nights(tmp_path / "nights", SERIES)
    url = f"sqlite:///{tmp_path}/a.sqlite"
    assert main(["store", "add", str(path), "--store", url]) == 0
    assert count(url) == 1


def test_a_run_that_cannot_be_used_is_named_and_the_others_are_added(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = nights(tmp_path / "nights", SERIES)
    (paths[1] / "run.json").write_text("{", encoding="utf-8")
    url = f"sqlite:///{tmp_path}/a.sqlite"
    assert main(["store", "add", str(tmp_path / "nights"), "--store", url]) == 1
    assert f"gpugate store: {paths[1]}/run.json cannot be used" in capsys.readouterr().err
    assert count(url) == 2


def test_the_store_is_the_nearest_one_upwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    nights(tmp_path / "nights", SERIES)
    open_store(url_of(tmp_path)).close()
    (tmp_path / "deep/down").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep/down")
    assert main(["store", "add", str(tmp_path / "nights")]) == 0
    assert count(url_of(tmp_path)) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere contains no nights"),
        (["empty"], "empty contains no nights"),
        (["nights"], "the store is off: give --store URL"),
    ],
)
def test_what_cannot_be_added_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    (tmp_path / "empty").mkdir()
    nights(tmp_path / "nights", SERIES)
    monkeypatch.chdir(tmp_path)
    options = [] if "off" in said else ["--store", "sqlite:///a.sqlite"]
    assert main(["store", "add", *words, *options]) == 2
    assert said in capsys.readouterr().err
