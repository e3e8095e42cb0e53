"""`gpugate history`: the trend of every case over the nights of a folder, and what is said of nights that are none."""

import argparse
import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpugate.commands.history import command
from gpugate.commands.history.render import ASCII_BLOCKS, NEW_LEVEL, sparkline
from gpugate.commands.history.selected_nights import HistoryError
from gpugate.commands.history.trends import build_histories
from gpugate.results.night import Night
from gpugate.store.adding import add_folder
from gpugate.store.database import IN_MEMORY, Selection, open_store
from gpugate.store.night_file import NightError
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
        (lambda path: edit(path, "format_version", 99), "was written by a newer gpugate (format 99"),
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
