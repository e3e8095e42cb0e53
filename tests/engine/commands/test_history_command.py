"""`gpugate history`: the trend of every case over the nights of a folder, and what is said of nights that are none."""

import argparse
import json
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpugate.commands.history import command, render
from gpugate.commands.history.render import ASCII_BLOCKS, NEW_LEVEL, sparkline
from gpugate.commands.history.selected_nights import HistoryError
from gpugate.commands.history.trends import build_histories
from gpugate.errors import OptionError
from gpugate.results.night import Night
from gpugate.store.adding import add_folder
from gpugate.store.database import IN_MEMORY, Selection, open_store
from gpugate.store.night_file import NightError
from tests.conftest import TWO_CORES
from tests.support.made_up_nights import HASHES, night, nights, speedups, timed
from tests.support.stored_runs import MACHINE, case, edit

STEP = [*speedups(14), *speedups(8, 2.85, seed=2)]
Ended = tuple[int, str, str]
History = Callable[..., Ended]


@pytest.fixture
def history(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> History:
    """Runs the command and gives its status, what it printed, and what it said on stderr."""
    monkeypatch.setenv("COLUMNS", "140")

    def run(*words: object) -> Ended:
        parser = argparse.ArgumentParser(prog="gpugate history")
        command.add_arguments(parser)
        status = command.run(parser.parse_args([str(word) for word in words]))
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """22 nights of two cases, of which `fused` loses 5 % on the fifteenth: read it, change nothing."""
    path = tmp_path_factory.mktemp("nights")
    nights(path, {"fused": STEP, "graph": speedups(22, 1.4, seed=1)})
    return path


def read_nights(folder: Path, case: str = "") -> tuple[list[Night], tuple[str, ...]]:
    """The nights of a folder, through a store in memory, and the sentences about those that cannot be used."""
    with closing(open_store(IN_MEMORY)) as store:
        added = add_folder(store, folder)
        return store.read_nights(Selection(case=case)), added.refused


def document(history: History, *words: object) -> dict[str, Any]:
    return dict(json.loads(history(*words, "--json")[1]))


def test_a_row_has_the_newest_night_the_line_and_the_anchor(folder: Path, history: History) -> None:
    status, out, err = history(folder)
    assert (status, err) == (0, "")
    (fused,) = [line for line in out.splitlines() if line.startswith("fused")]
    assert fused.split()[1:4] == ["22", "10.00", "ms"]
    assert "3.00x -5." in fused
    assert "nvidia-h200: 22 nights, 2030-01-01 03:00 to 2030-01-22 03:00" in out


def test_the_night_on_which_a_level_changed_is_marked(folder: Path, history: History) -> None:
    out = history(folder)[1]
    (mark,) = [line for line in out.splitlines() if "level changed" in line]
    assert mark.startswith("2030-01-15 03:00: tiny/fused/cuda: level changed: speedup 3.00x -> 2.85x (-5.")
    (machine,) = document(history, folder)["machines"]
    by_case = {one["case_id"]: one["level_changes"] for one in machine["cases"]}
    assert [change["night"] for change in by_case["tiny/fused/cuda"]] == ["night-14"]
    assert by_case["tiny/graph/cuda"] == []


def test_marks_rest_on_all_nights_and_not_only_on_those_that_are_shown(folder: Path, history: History) -> None:
    (machine,) = document(history, folder, "--last", "9")["machines"]
    marks = [(one["case_id"], change["night"]) for one in machine["cases"] for change in one["level_changes"]]
    assert marks == [("tiny/fused/cuda", "night-14")]
    (machine,) = document(history, folder, "--last", "7")["machines"]
    assert [one["level_changes"] for one in machine["cases"]] == [[], []]
    assert "cannot be detected yet" not in history(folder, "--last", "7")[1]


def test_the_line_is_drawn_up_to_the_newest_night(folder: Path) -> None:
    (machine,) = build_histories(read_nights(folder, "fused")[0], 100)
    (trend,) = machine.trends
    drawn = sparkline(trend, 42, ASCII_BLOCKS)
    before, after = drawn.split(NEW_LEVEL)
    assert (len(before), len(after)) == (14, 8)
    assert set(after) <= set("_.")
    assert set(before) <= set("+*#")
    assert sparkline(trend, 10, ASCII_BLOCKS) == drawn[-10:]


def test_noise_does_not_look_like_mountains(tmp_path: Path) -> None:
    nights(tmp_path, {"graph": [1.4, 1.4005, 1.3995, 1.4]})
    (machine,) = build_histories(read_nights(tmp_path)[0], 100)
    assert set(sparkline(machine.trends[0], 42, ASCII_BLOCKS)) <= set("-~=")


def test_k_selects_by_part_of_the_id_and_last_the_newest_nights(folder: Path, history: History) -> None:
    (machine,) = document(history, folder, "-k", "GRAPH", "--last", "5")["machines"]
    assert [one["case_id"] for one in machine["cases"]] == ["tiny/graph/cuda"]
    assert [one["name"] for one in machine["nights"]] == [f"night-{number}" for number in range(17, 22)]


def test_the_series_are_those_of_the_runs(folder: Path, history: History) -> None:
    (machine,) = document(history, folder)["machines"]
    fused = next(one for one in machine["cases"] if one["case_id"] == "tiny/fused/cuda")
    assert fused["speedup"] == pytest.approx(STEP, rel=1e-3)
    bounds = zip(fused["speedup_low"], fused["speedup"], fused["speedup_high"], strict=True)
    assert all(low <= value <= high for low, value, high in bounds)
    assert fused["optimized_ms"] == pytest.approx([10.0] * 22, rel=1e-3)
    assert fused["anchor_speedup"] == 3.0


def test_the_times_of_the_bill_are_series_beside_the_wall_time(tmp_path: Path, history: History) -> None:
    for number, kernel_ms in enumerate((8.0, None, 8.4)):
        one = timed("fused", 3.0)
        assert one.measurement is not None
        bill = {} if kernel_ms is None else {"kernel_ms": kernel_ms}
        one.measurement = replace(one.measurement, optimized_counters=bill)
        night(tmp_path, number, [one])
    (machine,) = document(history, tmp_path)["machines"]
    assert machine["cases"][0]["kernel_ms"] == [8.0, None, 8.4]
    assert machine["cases"][0]["cpu_ms"] == [None] * 3
    heading, row = (line for line in history(tmp_path)[1].splitlines() if "per step" in line or "fused" in line)
    assert ("GPU work" in heading, "CPU time" in heading, "8.40 ms" in row) == (True, False, True)
    lines = history(tmp_path, "--export", "csv")[1].splitlines()
    assert [line.split(",")[lines[0].split(",").index("kernel_ms")] for line in lines[1:]] == ["8.0", "", "8.4"]


def test_too_few_nights_say_how_many_it_takes(tmp_path: Path, history: History) -> None:
    nights(tmp_path, {"fused": speedups(5)})
    out = history(tmp_path)[1]
    assert "level changes cannot be detected yet: they need 15 nights, and here are 5\n" in out
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
    assert machine["cases"][0]["source_changed"] == ["night-12"]
    assert [one["name"] for one in machine["nights"] if one["changed"]] == ["night-12"]


def test_machines_are_kept_apart(tmp_path: Path, history: History) -> None:
    nights(tmp_path, {"fused": speedups(3)})
    night(tmp_path, 3, [timed("fused", 1.2)], environment=TWO_CORES)
    machines = document(history, tmp_path)["machines"]
    assert {one["machine"]: len(one["nights"]) for one in machines} == {
        "cpu-intel-xeon-8481c-2-cores": 1,
        "nvidia-h200": 3,
    }
    assert [one["changed"] for machine in machines for one in machine["nights"]] == [[]] * 4


def test_a_sick_machine_and_what_was_not_measured_are_no_part_of_a_series(tmp_path: Path, history: History) -> None:
    cases = [
        timed("fused", 3.0),
        timed("sick", 2.0, environment_problem="the machine gave 1 instead of 2"),
        case("skipped", None, skipped="needs a CUDA GPU"),
        case("failed", None, error="tiny/failed/cuda: no"),
    ]
    night(tmp_path, 0, cases)
    ((only,), refused) = read_nights(tmp_path)
    assert (list(only.cases), refused) == (["tiny/fused/cuda"], ())
    assert only.unfit == ("tiny/sick/cuda",)
    night(tmp_path, 1, cases)
    unfit = "2 measurements not counted, since the machine was not well (ENV_INVALID): tiny/sick/cuda\n"
    assert unfit in history(tmp_path)[1]
    assert "ENV_INVALID" not in history(tmp_path, "-k", "fused")[1]


def test_a_night_that_was_cut_off_counts_and_is_told(tmp_path: Path, history: History) -> None:
    nights(tmp_path, {"fused": speedups(3)})
    night(tmp_path, 3, [timed("fused", 3.0)], interrupted=True)
    assert "2030-01-04 03:00: night-03 was cut off, after 1 measured case" in history(tmp_path)[1]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-200]), "it is cut off or not JSON"),
        (
            lambda path: edit(path, "cases tiny/fused/cuda verdicts", 1),
            "cases.tiny/fused/cuda.verdicts is not a list",
        ),
        (lambda path: edit(path, "format_version", 99), "was written by a newer gpugate (format 99"),
        (lambda path: edit(path, "started_at", "yesterday"), "started_at is 'yesterday'"),
        (lambda path: edit(path, "cases", [1]), "cases is [1], not an object"),
        (lambda path: edit(path, "environment", ...), "no field 'environment'"),
        (lambda path: edit(path, "mutated", "slow:5"), "was mutated by slow:5"),
        (Path.unlink, "has no run.json"),
    ],
)
def test_a_night_that_cannot_be_used_is_named_and_the_others_are(
    tmp_path: Path, history: History, damage: Callable[[Path], None], said: str
) -> None:
    good, bad = nights(tmp_path, {"fused": speedups(2)})
    damage(bad / "run.json")
    status, out, err = history(tmp_path)
    assert (status, err.count("\n")) == (0, 1)
    assert str(bad) in err
    assert said in err
    assert "1 night, 2030-01-01 03:00" in out
    assert document(history, tmp_path)["refused"]
    assert good.exists()


def test_an_older_night_whose_format_had_less_is_read(tmp_path: Path, history: History) -> None:
    (path,) = nights(tmp_path, {"fused": [3.0]})
    data = json.loads((path / "run.json").read_text())
    del data["asked_tolerance"]
    (seen,) = data["cases"].values()
    seen["verdicts"] = [{"outcome": "PASS", "words": "that a verdict no longer has"}]
    for part, name in (("remembered", "checks"), ("summary", "pair_spread")):
        del seen[part][name]
    (path / "run.json").write_text(json.dumps({**data, "format_version": 3}))
    assert history(tmp_path)[2] == ""
    (machine,) = document(history, tmp_path)["machines"]
    assert machine["cases"][0]["outcomes"] == ["PASS"]


def test_what_may_not_be_read_is_named_and_lost_and_found_is_no_night(
    tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights(tmp_path, {"fused": [3.0]})
    for name in ("lost+found", "secret"):
        (tmp_path / name).mkdir()
    look = Path.stat

    def refused(path: Path, **options: Any) -> Any:
        if path.parent.name in ("lost+found", "secret"):
            raise PermissionError(13, "Permission denied", str(path))
        return look(path, **options)

    monkeypatch.setattr(Path, "stat", refused)  # root may read all, and tests may run as root
    _, out, err = history(tmp_path)
    assert "1 night," in out
    assert err.splitlines() == [
        f"gpugate history: {tmp_path}/secret/run.json cannot be read (Permission denied): "
        "mend its permissions, or delete the night"
    ]


def test_a_folder_that_may_not_be_read_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(NightError, match=r"is no folder that can be read \(Permission denied\): give the one whose"):
        read_nights(tmp_path)


def test_a_workload_whose_case_was_added_later_is_one_table(tmp_path: Path, history: History) -> None:
    other = replace(timed("fused", 2.0), case_id="other/fused/cuda", workload="other")
    night(tmp_path, 0, [timed("fused", 3.0), other])
    night(tmp_path, 1, [timed("fused", 3.0), other, timed("graph", 1.4)])
    lines = history(tmp_path)[1].splitlines()
    assert [line for line in lines if line in ("tiny/cuda", "other/cuda")] == ["tiny/cuda", "other/cuda"]


def test_a_copy_is_no_night_of_its_own(tmp_path: Path, history: History) -> None:
    (path,) = nights(tmp_path, {"fused": [3.0]})
    shutil.copytree(path, tmp_path / "night-again")
    _, out, err = history(tmp_path)
    assert "1 night," in out
    assert "night-again is the same run as night-00" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere is no folder"),
        (["empty"], "empty contains no nights"),
        (["unusable"], "none of the 1 directories of"),
        (["good", "-k", "other"], "has 'other' in its id"),
        (["unmeasured"], "was measured"),
    ],
)
def test_nothing_to_print_is_an_error(tmp_path: Path, history: History, words: list[str], said: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "unusable/night").mkdir(parents=True)
    nights(tmp_path / "good", {"fused": [3.0]})
    night(tmp_path / "unmeasured", 0, [])
    with pytest.raises((HistoryError, NightError), match=said):
        history(tmp_path / words[0], *words[1:])


@pytest.mark.parametrize("number", ["0", "many"])
def test_a_number_of_nights_that_is_none_is_refused(folder: Path, history: History, number: str) -> None:
    with pytest.raises(OptionError, match=f"--last is '{number}': give a whole number from 1 to .*, such as 42"):
        history(folder, f"--last={number}")


def test_files_beside_the_nights_are_nobodys_business(tmp_path: Path, history: History) -> None:
    nights(tmp_path, {"fused": [3.0]})
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / ".git").mkdir()
    assert history(tmp_path)[2] == ""


def test_nights_of_one_name_have_their_own_changes_in_the_json(folder: Path) -> None:
    """A job may write each night to a folder of the same name: the store keeps them apart by their keys."""
    found = [replace(one, name="nightly") for one in read_nights(folder)[0][:3]]
    found[1:] = [replace(one, environment=replace(one.environment, driver="999")) for one in found[1:]]
    (machine,) = json.loads(render.document(build_histories(found, 3), ()))["machines"]
    assert [bool(one["changed"]) for one in machine["nights"]] == [False, True, False]
