"""Stored values that JSON can hold and that mean nothing: one sentence with file, field, value and next step.

Each row is an edit of a file that the program wrote itself, and stands for one rule. The ranges of the fields of runs,
records and profiles are in the committed schemas, which test_schemas.py compares with the dataclasses.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpugate.commands.cli import main
from gpugate.store import baseline, profiles_file, run_file
from gpugate.store.json_file import parse
from gpugate.store.nights import NightError, read_night
from gpugate.store.run_file import RunFileError
from tests.support import made_up_nights, stored_runs
from tests.support.stored_runs import edit

CASE = "cases.tiny/pass/cuda"
ROOT = Path(__file__).parents[3]


@pytest.fixture
def stored_run(tmp_path: Path) -> Path:
    stored_runs.stored(tmp_path / "run.json", stored_runs.case("pass"))
    return tmp_path / "run.json"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("started_at", "yesterday", "started_at is 'yesterday', not an ISO 8601 time with the UTC offset"),
        ("started_at", "9999-12-31T23:59:59-12:00", "started_at is '9999-12-31T23:59:59-12:00', not an ISO 8601 time"),
        ("cases tiny/pass/cuda case_id", "tiny/other/cuda", f"{CASE} is of the case 'tiny/other/cuda'"),
        ("cases tiny/pass/cuda summary speedup median", 1e6, f"{CASE}.summary.speedup: the median 1e+06 is not from "),
    ],
)
def test_a_run_with_a_value_that_means_nothing(stored_run: Path, field: str, value: object, words: str) -> None:
    edit(stored_run, field, value)
    with pytest.raises(RunFileError) as refused:
        run_file.read(stored_run)
    sentence = str(refused.value)
    assert sentence.startswith(f"{stored_run} cannot be used because {words}")
    assert sentence.endswith(": write it again with --perf-json")


NO_NAMES = ["../../.git/hooks/x", "/etc/x", "a\\..\\b", "a\0b", "..", "", "a/b/c", "Net", "net ", "n" * 201, ".lock"]


@pytest.mark.parametrize("name", NO_NAMES)
def test_a_name_in_a_file_that_is_no_name_is_refused(stored_run: Path, tmp_path: Path, name: str) -> None:
    path = made_up_nights.night(tmp_path / "nights", 0, [made_up_nights.timed("a", 2.0)]) / "run.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"tiny/a/cuda"', json.dumps(f"{name}/a/cuda")), encoding="utf-8")
    with pytest.raises(NightError, match=r"because .*, not a name for files and tests \(WORKLOAD/OPTI"):
        read_night(path, "one")
    for field in ("workload", "optimization", "compared_with"):
        stored_runs.stored(stored_run, stored_runs.case("pass"))
        edit(stored_run, f"cases tiny/pass/cuda {field}", f"{name}/x" if name == "a/b/c" else name)
        with pytest.raises(
            RunFileError, match=f"cannot be used because {CASE}.{field} is .*, not a name for files and tests"
        ):
            run_file.read(stored_run)


def test_the_names_of_a_case_are_those_of_its_id(stored_run: Path) -> None:
    edit(stored_run, "cases tiny/pass/cuda workload", "other")
    with pytest.raises(RunFileError, match=f"{CASE} is of the case 'tiny/pass/cuda' and of 'other/pass/cuda'"):
        run_file.read(stored_run)


@pytest.mark.parametrize("command", ["replay", "record", "diff"])
def test_every_command_that_reads_a_run_names_it(
    stored_run: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    edit(stored_run, "started_at", "2030-01-02T03:04:05")
    more = {"record": ["--baselines", str(stored_run.parent / "b")], "diff": [str(stored_run)]}.get(command, [])
    assert main([command, str(stored_run.parent), *more]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"gpugate {command}: {stored_run} cannot be used because started_at is ")
    assert "not an ISO 8601 time with the UTC offset" in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("summary speedup median", -3, "summary.speedup.median is -3, not greater than or equal to 1e-30"),
        ("summary speedup low", 5, "summary.speedup: the median "),
    ],
)
def test_one_bad_night_costs_no_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, value: object, words: str
) -> None:
    paths = made_up_nights.nights(tmp_path, {"a": made_up_nights.speedups(9)})
    edit(paths[4] / "run.json", f"cases tiny/a/cuda {field}", value)
    assert main(["history", str(tmp_path), "--json"]) == 0
    said = capsys.readouterr()
    (refused,) = json.loads(said.out)["refused"]
    assert said.err == f"gpugate history: {refused}\n"
    assert refused.startswith(f"{paths[4] / 'run.json'} cannot be used because cases.tiny/a/cuda.")
    assert words in refused
    assert refused.endswith(": delete the night")
    (machine,) = json.loads(said.out)["machines"]
    assert len(machine["nights"]) == 8


@pytest.mark.parametrize(
    "path", sorted((ROOT / "baselines").rglob("*.json")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_a_committed_file_is_written_as_it_was_read(path: Path) -> None:
    """So each record is stored once: a current record that is equal to its anchor is the word `anchor`."""
    file = profiles_file.FILE if "profiles" in path.parts else baseline.FILE
    text = path.read_text(encoding="utf-8")
    assert file.encode(file.decode(parse(text))) == text
