"""A proof that succeeded is not shown again while its code, the software, the machine and the days allow it."""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpugate.store.store_url import VARIABLE
from tests.support.tiny_project import QUICK, TinyProject

PROVEN = 'Optimization("quick", quick, {"cpu": 0.01}, proofs=(Proof("it learns", proof_of("98 %")),))'
CODE = f"""
from gpugate.workload import Proof
from gpugate.errors import DisprovedError
from learning import lessons
{QUICK}
def proof_of(words):
    def show(context):
        with Path(__file__).with_name("shown").open("a") as file:
            file.write("x")
        if Path(__file__).with_name("disproved").exists():
            raise DisprovedError("12 % right")
        return f"{{words}} after {{lessons()}} lessons"

    return show
"""
LESSONS = "def lessons():\n    return 7\n"
JSON = ("--perf-json", "run.json")


@pytest.fixture
def project(tiny: TinyProject, monkeypatch: pytest.MonkeyPatch) -> TinyProject:
    """A project whose proof counts how often it is shown; the store is its own."""
    monkeypatch.delenv(VARIABLE)
    tiny.write("learning.py", LESSONS)
    tiny.workload(CODE, PROVEN)
    return tiny


def times_shown(project: TinyProject) -> int:
    shown = project.path / "shown"
    return len(shown.read_text()) if shown.exists() else 0


def remembered(project: TinyProject) -> list[Path]:
    return sorted((project.path / ".gpugate/proofs").rglob("*.json"))


def edit_remembered(project: TinyProject, change: Callable[[dict[str, Any]], object]) -> None:
    (path,) = remembered(project)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def proofs_of(project: TinyProject) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = project.json()["cases"]["tiny/quick/cpu"]["measurement"]["proofs"]
    return found


def test_the_second_run_remembers_the_proof_and_says_its_date(project: TinyProject) -> None:
    first = project.run("--perf-report", "one")
    second = project.run("--perf-report", "two", *JSON)
    assert (first.status, second.status, times_shown(project)) == (0, 0, 1)
    started = project.json("one/run.json")["started_at"]
    line = f"proofs: 1 proved on {started[:10]}"
    assert "proofs:" not in first.text
    assert [line in text for text in (second.text, *read(project, "two"))] == [True] * 3
    proof = {"name": "it learns", "words": "98 % after 7 lessons"}
    assert project.json("one/run.json")["cases"]["tiny/quick/cpu"]["measurement"]["proofs"] == [
        {**proof, "problem": None, "proved_at": None}
    ]
    assert proofs_of(project) == [{**proof, "problem": None, "proved_at": started}]
    assert project.reasons("equivalence")["proven_before"] == {
        "proof": "it learns",
        "words": proof["words"],
        "proved_on": started[:10],
    }
    assert {"outputs_agree", "steps_agree"} < set(project.reasons("equivalence"))


def read(project: TinyProject, night: str) -> list[str]:
    """The summary and the page, whose blanks may not break."""
    texts = [(project.path / night / name).read_text(encoding="utf-8") for name in ("summary.md", "night.html")]
    return [text.replace("\N{NO-BREAK SPACE}", " ") for text in texts]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (["--perf-proof-days", "0"], True),
        (["--update-baselines", "-operf_processes=1"], True),
        (["--perf-store", "off"], False),
        (["--perf-set", "video=mine"], False),
        (["--perf-mutate", "slow:1"], False),
    ],
    ids=["no day", "a recording", "no store", "data of the user", "a fault"],
)
def test_some_runs_show_every_proof(project: TinyProject, options: list[str], kept: bool) -> None:
    project.run(*options)
    assert (times_shown(project), len(remembered(project))) == (1, kept)
    project.run()
    before = remembered(project)[0].read_bytes()
    shown = times_shown(project)
    project.run(*options)
    assert times_shown(project) == shown + 1
    project.run()
    assert times_shown(project) == shown + 1
    if not kept:
        assert remembered(project)[0].read_bytes() == before


def edit_proof(project: TinyProject) -> None:
    project.workload(CODE.replace("after", "in"), PROVEN)


def edit_captured_value(project: TinyProject) -> None:
    project.workload(CODE, PROVEN.replace("98 %", "99 %"))


def edit_another_module(project: TinyProject) -> None:
    project.write("learning.py", LESSONS.replace("7", "8"))


def edit_baseline(project: TinyProject) -> None:
    project.write("tiny.py", (project.path / "tiny.py").read_text().replace("return 2 * x", "return 2.0 * x"))


def age(days: float) -> Callable[[TinyProject], None]:
    def change(document: dict[str, Any]) -> None:
        proof = document["proofs"][0]
        proof["proved_at"] = str(datetime.fromisoformat(proof["proved_at"]) - timedelta(days=days))

    return lambda project: edit_remembered(project, change)


def edit_time(text: str) -> Callable[[TinyProject], None]:
    return lambda project: edit_remembered(project, lambda found: found["proofs"][0].update(proved_at=text))


CHANGES: dict[str, Callable[[TinyProject], None]] = {
    "its proof": edit_proof,
    "a value that its proof captured": edit_captured_value,
    "a module that is not installed": edit_another_module,
    "its baseline": edit_baseline,
    "a week": age(7.01),
    "a clock that was wrong": age(-0.1),
    "no time": edit_time("today"),
    "a time without its offset": edit_time("2026-11-23T02:00:00"),
    "a failed proof": lambda project: edit_remembered(project, lambda found: found["proofs"][0].update(problem="")),
    "a damaged file": lambda project: remembered(project)[0].write_text("{") and None,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_shows_the_proof_anew(project: TinyProject, change: Callable[[TinyProject], None]) -> None:
    project.run()
    change(project)
    ended = project.run(*JSON)
    assert (ended.status, times_shown(project)) == (0, 2), ended.text
    assert proofs_of(project)[0]["proved_at"] is None
    project.run()
    assert times_shown(project) == 2


def test_a_comment_a_promise_and_six_days_show_no_proof_anew(project: TinyProject) -> None:
    project.run()
    age(6.9)(project)
    project.workload(f"# a comment\n{CODE}", PROVEN.replace("0.01", "0.02"))
    assert project.run().status == 0
    assert times_shown(project) == 1


def test_another_version_of_any_package_shows_the_proof_anew(
    project: TinyProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.run()
    without_pytest = [one for one in importlib.metadata.distributions() if one.name != "pytest"]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: without_pytest)
    project.run()
    assert times_shown(project) == 2


def test_a_failed_proof_is_shown_again_and_again_and_ends_an_earlier_success(project: TinyProject) -> None:
    project.run()
    project.write("disproved", "")
    assert project.run().status == 0  # remembered
    for shown in (2, 3):
        ended = project.run("--perf-proof-days", "7" if shown == 3 else "0", *JSON)
        assert (ended.status, times_shown(project)) == (1, shown)
        assert project.outcomes()["equivalence"] == "WRONG"
        assert remembered(project) == []


def test_a_worker_and_a_shard_remember_proofs_too(project: TinyProject) -> None:
    for options in (["-n", "1"], ["--perf-shard", "1/1"], []):
        ended = project.run(*options)
        assert (ended.status, times_shown(project)) == (0, 1), ended.text


def test_proofs_are_beside_the_file_of_the_store(project: TinyProject) -> None:
    url = f"sqlite:///{project.path}/elsewhere/all.sqlite"
    for _ in range(2):
        project.run("--perf-store", url)
    assert times_shown(project) == 1
    assert [path.name for path in (project.path / "elsewhere/proofs").rglob("*.json")] == ["cpu.json"]
    assert (project.path / "elsewhere/proofs/.gitignore").read_text() == "*\n"


def test_a_folder_that_cannot_be_written_is_a_warning(project: TinyProject) -> None:
    project.write("elsewhere/proofs", "a file")
    ended = project.run("--perf-store", f"sqlite:///{project.path}/elsewhere/all.sqlite")
    assert ended.status == 0
    (line,) = [line for line in ended.text.splitlines() if line.startswith("warning: proofs are not remembered: ")]
    assert re.search(r"elsewhere/proofs cannot be written \(.*\): give another --perf-store, or --perf-store off$", line)


def test_an_edit_during_a_run_is_not_proved_by_it(project: TinyProject) -> None:
    """The run proves the code that it loaded, not the code that stands in the file when it remembers the proof."""
    write = 'Path(__file__).with_name("learning.py").write_text("def lessons(): return 8")'
    project.workload(CODE.replace("        if Path", f"        {write}\n        if Path", 1), PROVEN)
    for shown in (1, 2):
        assert project.run().status == 0
        assert times_shown(project) == shown


@pytest.mark.parametrize("days", ["-1", "1.5", "week", "", "99999"])
def test_a_number_of_days_that_is_none_is_refused(project: TinyProject, days: str) -> None:
    ended = project.run(f"--perf-proof-days={days}")
    assert ended.status == pytest.ExitCode.USAGE_ERROR
    assert f"--perf-proof-days is {days!r}: give a whole number of days from 0 to 10000, such as 7" in ended.text
