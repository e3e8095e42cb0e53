"""`gpugate history` of the store: its selections, the view by commit, and its lines of CSV."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpugate.commands.cli import main
from gpugate.commands.history.csv_lines import write_csv
from gpugate.results.night import Metric
from gpugate.results.provenance import Provenance
from gpugate.store.adding import add_folder
from gpugate.store.database import open_store
from gpugate.store.night_file import read_night
from gpugate.store.store_url import VARIABLE, url_of
from tests.support.made_up_nights import night, timed
from tests.support.stored_runs import MACHINE

COMMITS = ["aaaa1111", "aaaa1111", "bbbb2222", "cccc3333"]
OTHER = replace(MACHINE, power_limit_w=500.0)
Printed = Callable[..., str]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose store has four nights of two machines, of three commits and two branches."""
    path = tmp_path_factory.mktemp("project")
    for number, commit in enumerate(COMMITS):
        branch = "topic" if commit == "bbbb2222" else "main"
        code = Provenance(repository="https://example.org/a.git", commit=commit, branch=branch, host="one")
        cases = [timed("fused", 3.0 + number), timed("graph", 1.5)]
        changed = {"provenance": code, "environment": OTHER if number == 3 else MACHINE}
        night(path / "nights", number, cases, **changed)
    with closing(open_store(url_of(path))) as store:
        add_folder(store, path / "nights")
    return path


@pytest.fixture
def printed(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Printed:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.chdir(project)
    monkeypatch.setenv("TZ", "UTC")  # days of --between are those of the reader
    time.tzset()

    def run(*words: str) -> str:
        assert main(["history", *words]) == 0
        return capsys.readouterr().out

    return run


def names(text: str) -> dict[str, list[str]]:
    return {one["machine"]: [night["name"] for night in one["nights"]] for one in json.loads(text)["machines"]}


NIGHTS = ["night-00", "night-01", "night-02"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], {"nvidia-h200": NIGHTS, "nvidia-h200-500-w": ["night-03"]}),
        (["--machine", "500"], {"nvidia-h200-500-w": ["night-03"]}),
        (["--branch", "topic"], {"nvidia-h200": ["night-02"]}),
        (["--between", "2030-01-02", "2030-01-03"], {"nvidia-h200": NIGHTS[1:]}),
        (["--between", "aaaa", "bbbb2222"], {"nvidia-h200": NIGHTS}),
        (["--between", "bbbb2222", "2030-01-03T03:00:00+00:00"], {"nvidia-h200": ["night-02"]}),
        (["--by", "commit"], {"nvidia-h200": ["aaaa1111", "bbbb2222"], "nvidia-h200-500-w": ["cccc3333"]}),
    ],
)
def test_nights_are_selected(printed: Printed, words: list[str], found: dict[str, list[str]]) -> None:
    assert names(printed("--json", *words)) == found


def test_cases_are_selected(printed: Printed) -> None:
    (machine, _) = json.loads(printed("--json", "--case", "GRAPH"))["machines"]
    assert [case["case_id"] for case in machine["cases"]] == ["tiny/graph/cuda"]


def test_by_commit_the_table_counts_commits_and_names_them(printed: Printed) -> None:
    text = printed("--by", "commit", "--machine", "500")
    assert text.startswith("nvidia-h200-500-w: 1 commit, 2030-01-04 03:00 cccc3333\n")
    assert "over commits" in text
    assert "they need 16 commits, and" in text


def test_folders_and_the_store_have_the_same_history(printed: Printed, project: Path) -> None:
    assert printed(str(project / "nights"), "--json") == printed("--json")


def test_csv_has_a_line_for_each_night_and_case(printed: Printed) -> None:
    lines = list(csv.DictReader(io.StringIO(printed("--export", "csv", "--case", "fused", "--machine", "h200"))))
    assert [(line["time"], line["commit"], line["branch"], line["case"]) for line in lines[:1]] == [
        ("2030-01-01T03:00:00+00:00", "aaaa1111", "main", "tiny/fused/cuda")
    ]
    assert [round(float(line["speedup"]), 1) for line in lines] == [3.0, 4.0, 5.0, 6.0]
    assert all(float(line["speedup_low"]) <= float(line["speedup"]) <= float(line["speedup_high"]) for line in lines)
    assert {line["kernels"] for line in lines} == {"57.0"}
    assert {line["whole_run_speedup"] for line in lines} == {""}


@pytest.mark.parametrize("begins", ["=", "+", "-", "@", "\t=", "\r=", "\n=", " =", "\uff1d"])
def test_no_text_of_a_csv_is_a_formula_and_numbers_stay_numbers(begins: str, tmp_path: Path) -> None:
    text = f"{begins}cmd|' /C calc'!A0\r=cmd"
    origin = Provenance(commit=text, branch=text)
    one = read_night(night(tmp_path, 0, [timed("fused", 3.0)], provenance=origin) / "run.json", text)
    slower = replace(one.cases["tiny/fused/cuda"], metrics={"speedup": Metric(-2.0)})
    line = write_csv([replace(one, machine=text, cases={"tiny/fused/cuda": slower})])
    (cells,) = csv.DictReader(io.StringIO(line, newline=""))
    assert {cells[name] for name in ("commit", "branch", "machine", "night")} == {
        f"'{begins.strip()}cmd|' /C calc'!A0 =cmd"
    }
    assert (cells["case"], cells["speedup"]) == ("tiny/fused/cuda", "-2.0")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--between", "soon", "2030-01-01"], "--between soon is neither a date nor a commit"),
        (["--between", "0001-01-01", "2030-01-01"], "--between 0001-01-01 is neither a date nor a commit"),
        (
            ["--between", "2030-01-01", "9999-12-31T23:00:00-12:00"],
            "--between 9999-12-31T23:00:00-12:00 is neither",
        ),
        (["--between", "dddd", "2030-01-01"], "--between dddd is no commit of the store"),
        (["--branch", "none"], "is selected: give another --machine, --branch or --between"),
        (["--store", "sqlite:///none.sqlite"], "there is no store at none.sqlite"),
        (["--store", "sqlite:///none.sqlite", "nights"], "--store and folders were given"),
    ],
)
def test_an_option_that_selects_nothing_is_one_sentence(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.chdir(project)
    assert main(["history", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_store_without_runs_and_one_that_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["history"]) == 2
    assert "GPUGATE_STORE is off: give --store URL, or folders of nights" in capsys.readouterr().err
    open_store(f"sqlite:///{tmp_path}/a.sqlite").close()
    assert main(["history", "--store", "sqlite:///a.sqlite"]) == 2
    assert "a.sqlite has no run: measure first, or give folders of nights" in capsys.readouterr().err
