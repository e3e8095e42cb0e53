"""`gpugate history`: the trend of every case over the nights of a folder or of the store, and its selections."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpugate.commands.cli import main
from gpugate.commands.trend_report import BLOCKS, NEW_LEVEL, sparkline
from gpugate.commands.trends import build_histories
from gpugate.results.run import Provenance
from gpugate.store import run_file
from gpugate.store.database import IN_MEMORY, open_store
from gpugate.store.nights import add_folder
from gpugate.store.store_url import VARIABLE, url_of
from tests.support.stored_runs import HASHES, MACHINE, edit, night, nights, speedups, timed

STEP = [*speedups(14), *speedups(8, 2.85, seed=2)]
Ended = tuple[int, str, str]
History = Callable[..., Ended]


@pytest.fixture
def history(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> History:
    """Runs the command and gives its status, what it printed, and what it said on stderr."""
    monkeypatch.setenv("COLUMNS", "140")

    def run(*words: object) -> Ended:
        status = main(["history", *map(str, words)])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """22 nights of two cases, of which `fused` loses 5 % on the fifteenth: read it, change nothing."""
    path = tmp_path_factory.mktemp("nights")
    nights(path, {"fused": STEP, "graph": speedups(22, 1.4, seed=1)})
    return path


def document(history: History, *words: object) -> dict[str, Any]:
    return dict(json.loads(history(*words, "--json")[1]))


def test_a_row_has_the_newest_night_and_the_night_of_a_new_level_is_marked(folder: Path, history: History) -> None:
    status, out, err = history(folder)
    assert (status, err) == (0, "")
    (fused,) = [line for line in out.splitlines() if line.startswith("fused")]
    assert fused.split()[1:4] == ["22", "10.00", "ms"]
    assert "3.00x -5." in fused
    assert "nvidia-h200: 22 nights, 2030-01-01 03:00 to 2030-01-22 03:00" in out
    (mark,) = [line for line in out.splitlines() if "level changed" in line]
    assert mark.startswith("2030-01-15 03:00: tiny/fused/cuda: level changed: speedup 3.00x -> 2.85x (-5.")
    (machine,) = document(history, folder)["machines"]
    by_case = {name: [change["night"] for change in one["level_changes"]] for name, one in machine["cases"].items()}
    assert by_case == {"tiny/fused/cuda": [14], "tiny/graph/cuda": []}


def test_marks_rest_on_all_nights_and_not_only_on_those_that_are_shown(folder: Path, history: History) -> None:
    (machine,) = document(history, folder, "--last", "9")["machines"]
    marks = [(name, change["night"]) for name, one in machine["cases"].items() for change in one["level_changes"]]
    assert marks == [("tiny/fused/cuda", 1)]
    (machine,) = document(history, folder, "--last", "7")["machines"]
    assert [one["level_changes"] for one in machine["cases"].values()] == [[], []]
    assert "cannot be detected yet" not in history(folder, "--last", "7")[1]


def test_the_line_is_drawn_up_to_the_newest_night(folder: Path) -> None:
    with open_store(IN_MEMORY) as store:
        add_folder(store, folder)
        (machine,) = build_histories(store.read_nights(case="fused"), 100)
    (trend,) = machine.trends
    drawn = sparkline(trend, 42)
    before, after = drawn.split(NEW_LEVEL)
    assert (len(before), len(after)) == (14, 8)
    assert set(after) <= set(BLOCKS[:2])
    assert set(before) <= set(BLOCKS[5:])
    assert sparkline(trend, 10) == drawn[-10:]


def test_the_times_of_the_bill_are_series_beside_the_wall_time(tmp_path: Path, history: History) -> None:
    for number, kernel_ms in enumerate((8.0, None, 8.4)):
        one = timed("fused", 3.0)
        assert one.measurement is not None
        bill = {} if kernel_ms is None else {"kernel_ms": kernel_ms}
        one.measurement = replace(one.measurement, optimized_counters=bill)
        night(tmp_path, number, [one])
    heading, row = (line for line in history(tmp_path)[1].splitlines() if "per step" in line or "fused" in line)
    assert ("GPU work" in heading, "CPU time" in heading, "8.40 ms" in row) == (True, False, True)


def test_too_few_nights_say_how_many_it_takes(tmp_path: Path, history: History) -> None:
    nights(tmp_path, {"fused": speedups(5)})
    out = history(tmp_path)[1]
    assert "level changes of 1 of 1 cases cannot be detected yet: they need 15 nights, and the longest of these" in out
    assert "(docs/nightly.md)" not in out


def test_other_software_and_an_edited_source_are_told_and_stand_beside_the_mark(
    tmp_path: Path, history: History
) -> None:
    nights(tmp_path, {"fused": speedups(12)})
    changed = {"environment": replace(MACHINE, driver="590.1"), "source_hashes": {**HASHES, "tiny": "f" * 16}}
    for number, value in enumerate(speedups(8, 2.8, seed=2)):
        night(tmp_path, 12 + number, [timed("fused", value)], **changed)
    out = " ".join(history(tmp_path)[1].split())
    assert "(-6.7 %); together with driver 580.65.06 -> 590.1; the workload's source changed" in out
    assert "2030-01-13 03:00: driver 580.65.06 -> 590.1" in out
    assert "2030-01-13 03:00: the source of tiny changed" in out
    (machine,) = document(history, tmp_path)["machines"]
    assert machine["cases"]["tiny/fused/cuda"]["source_changed"] == [12]
    assert [one["name"] for one in machine["nights"] if one["changed"]] == ["night-12"]


def test_a_sick_machine_and_a_night_that_was_cut_off_are_told(tmp_path: Path, history: History) -> None:
    nights(tmp_path, {"fused": speedups(3)})
    sick = timed("sick", 2.0, environment_problem="the machine gave 1 instead of 2")
    night(tmp_path, 3, [timed("fused", 3.0), sick], interrupted=True)
    said = history(tmp_path)[1]
    assert "2030-01-04 03:00: night-03 was cut off, after 1 measured case" in said
    unfit = "1 measurement not counted, since the machine was not well (ENV_INVALID): tiny/sick/cuda\n"
    assert unfit in said
    assert "ENV_INVALID" not in history(tmp_path, "-k", "fused")[1]


def test_a_night_that_cannot_be_used_is_named_and_the_others_are(tmp_path: Path, history: History) -> None:
    _, bad = nights(tmp_path, {"fused": speedups(2)})
    (tmp_path / "lost+found").mkdir()  # a folder without a run, which every ext4 volume has
    edit(bad / "run.json", "mutated", "slow:5")
    status, out, err = history(tmp_path)
    assert (status, err.count("\n")) == (0, 1)
    assert f"{bad}/run.json was mutated by slow:5" in err
    assert "1 night, 2030-01-01 03:00" in out
    assert document(history, tmp_path)["refused"]


COMMITS = ["aaaa1111", "aaaa1111", "bbbb2222", "cccc3333"]
OTHER = replace(MACHINE, power_limit_w=500.0)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose store has four nights of two machines, of three commits and two branches."""
    path = tmp_path_factory.mktemp("project")
    for number, commit in enumerate(COMMITS):
        branch = "topic" if commit == "bbbb2222" else "main"
        code = Provenance(commit=commit, branch=branch, host="one")
        cases = [timed("fused", 3.0 + number), timed("graph", 1.5)]
        changed = {"provenance": code, "environment": OTHER if number == 3 else MACHINE}
        night(path / "nights", number, cases, **changed)
    with open_store(url_of(path)) as store:
        add_folder(store, path / "nights")
    return path


@pytest.fixture
def printed(project: Path, history: History, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What the command prints in the project."""
    monkeypatch.delenv(VARIABLE)
    monkeypatch.chdir(project)
    return lambda *words: history(*words)[1]


def names(text: str) -> dict[str, list[str]]:
    return {one["machine"]: [night["name"] for night in one["nights"]] for one in json.loads(text)["machines"]}


def test_nights_and_cases_are_selected(printed: Callable[..., str]) -> None:
    three = ["night-00", "night-01", "night-02"]
    assert names(printed("--json")) == {"nvidia-h200": three, "nvidia-h200-500-w": ["night-03"]}
    one = printed("--json", "--machine", "h200", "--branch", "topic", "--case", "GRAPH")
    assert names(one) == {"nvidia-h200": ["night-02"]}
    assert list(json.loads(one)["machines"][0]["cases"]) == ["tiny/graph/cuda"]
    assert "; of main, topic: --branch selects one\n" in printed()


def test_runs_are_told_from_gates(tmp_path: Path, history: History) -> None:
    for number in range(3):
        night(tmp_path, number, [timed("fused", 3.0)], gate=number < 2)
    assert "nvidia-h200: 3 runs, 2 of them gates, " in history(str(tmp_path))[1]
    assert "nvidia-h200: 2 nights, " in history(str(tmp_path), "--gates")[1]
    same = run_file.read(tmp_path / "night-02/run.json").started_at
    night(tmp_path, 3, [timed("fused", 3.0)], started_at=same)
    assert len(names(history(str(tmp_path), "--last", "1", "--json")[1])["nvidia-h200"]) == 1, "of two in one second"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["unusable"], "no measured case of unusable is selected (unusable/night/run.json cannot be used because"),
        (["n" * 300], "nnn cannot be read (File name too long): give a path that can"),
        (["nights", "-k", "other"], "no measured case of nights is selected: measure first, give other nights, or"),
        (["--branch", "none"], "is selected: measure first, give other nights, or leave out --case, --machine, --br"),
    ],
)
def test_what_selects_nothing_is_one_sentence(
    project: Path, monkeypatch: pytest.MonkeyPatch, history: History, words: list[str], said: str
) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.chdir(project)
    (project / "unusable/night").mkdir(parents=True, exist_ok=True)
    (project / "unusable/night/run.json").write_text("{}")
    status, out, err = history(*words)
    assert (status, out) == (2, "")
    assert said in err
