"""`gpugate verdict NIGHT`: 0 for a green gate, 1 for a red one, 2 for no gate that ended; also of shards."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpugate.commands.cli import main
from gpugate.report.pages import night
from gpugate.results.case import CaseResult
from gpugate.results.fleet_plan import Shard
from gpugate.results.verdict import CASE_CHECKS
from gpugate.store import run_file
from gpugate.workload import Point
from tests.engine.session.test_merging import split, whole_night
from tests.support.stored_runs import case, edit, stored
from tests.support.tiny_project import TinyProject, check_no_traceback

ENDED: dict[str, Any] = {"gate": True, "exit_status": 0}


def sweep(*speedups: float) -> list[CaseResult]:
    """The points of a sweep, all recorded at 3.00x, whose knee a test held."""
    values = (2**power for power in range(len(speedups)))
    points = (
        (Point("batch", value), case(f"batch-{value}", made)) for value, made in zip(values, speedups, strict=True)
    )
    return [replace(one, point=point, held=("knee",)) for point, one in points]


GOOD = [case("pass")]
SKIPPED = [*GOOD, case("skipped", None, skipped="needs a CUDA GPU", lacking=("cuda",))]
NOT_MEASURED = "1 case not measured: needs a CUDA GPU; --allow-missing cuda lets a gate pass without it"
HELD = [case("pass", held=CASE_CHECKS), case("regressed", 2.8, held=("throughput",))]
NIGHTS: dict[str, tuple[list[CaseResult], dict[str, Any], int, str]] = {
    "green": (GOOD, {}, 0, "is green"),
    "red": (GOOD, {"exit_status": 1}, 1, "is red, with exit status 1"),
    "not measured": (SKIPPED, {"accepted": ()}, 1, NOT_MEASURED),
    "accepted": (SKIPPED, {"accepted": ("cuda",)}, 0, "is green"),
    "interrupted": (GOOD, {"interrupted": True}, 2, "was interrupted"),
    "killed": (GOOD, {"exit_status": None}, 2, "has no exit status"),
    "no gate": (GOOD, {"gate": False}, 2, "without --gate"),
    "shard": (GOOD, {"shard": Shard(2, 3)}, 0, "/run.json, shard 2 of 3, whose night --merge makes, is green"),
    "recording": (GOOD, {"recording": True}, 2, "without --gate"),
    "mutated": (GOOD, {"mutated": "wrong:0.5"}, 2, "was mutated by wrong:0.5"),
    # The held verdicts decide, whatever exit status the file has.
    "held": (HELD, {}, 1, "REGRESSED throughput of tiny/regressed/cuda"),
    "not held": ([case("regressed", 2.8, held=("equivalence",))], {}, 0, "is green"),
    "error": ([*GOOD, case("failed", None, error="no memory")], {}, 1, "the error of tiny/failed/cuda"),
    "problem": (GOOD, {"problems": ["no test held a verdict of tiny/x/cuda"]}, 1, "no test held a verdict"),
    "no case": ([], {}, 1, "the gate measured nothing"),
    "knee": (sweep(1.5, 1.5, 3.0), {}, 1, "REGRESSED knee of tiny/batch/cuda"),
}


@pytest.mark.parametrize("kind", NIGHTS)
def test_the_exit_status_is_that_of_the_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    cases, changed, status, words = NIGHTS[kind]
    stored(tmp_path / "run.json", *cases, **{**ENDED, **changed})
    assert main(["verdict", str(tmp_path)]) == status
    out, error = capsys.readouterr()
    said = error if status == 2 else out
    assert said.count("\n") == 1
    assert str(tmp_path / "run.json") in said
    assert words in said


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("cases tiny/slow/cuda verdicts 1 outcome", "PASS", "the measurements of tiny/slow/cuda give other verdicts"),
        ("cases tiny/slow/cuda held", [], "no held verdict of tiny/slow/cuda"),
    ],
)
def test_a_gate_that_was_edited_is_not_green(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, value: object, words: str
) -> None:
    stored(tmp_path / "run.json", case("slow", 0.88), **ENDED)
    edit(tmp_path / "run.json", field, value)
    assert main(["verdict", str(tmp_path)]) == 1
    assert words in capsys.readouterr().out


def test_a_process_that_ends_with_0_leaves_no_green_night(
    tiny: TinyProject, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before its first case, where an older green night is in the folder, and in a step."""
    night = tiny.path / "night"
    gate = ("--gate", "--perf-device=cpu", "-k", "outputs", f"--perf-report={night}")
    assert tiny.run(*gate).status == 0
    assert main(["verdict", str(night)]) == 0, "the stored samples give the verdicts of the session, digit for digit"
    tiny.write("tiny.py", "import os\n\nos._exit(0)")
    assert tiny.run_apart(*gate).status == 0
    assert main(["verdict", str(night)]) == 2
    tiny.workload("import os\n\ndef quick(context):\n    return Side(lambda x: os._exit(0))")
    assert tiny.run_apart(*gate).status == 0
    assert main(["verdict", str(night)]) == 2
    check_no_traceback(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "status", "verdict"),
    [
        (("-k", "nowhere"), pytest.ExitCode.NO_TESTS_COLLECTED, 2),
        (("--perf-budget=none",), pytest.ExitCode.USAGE_ERROR, 0),
        (("--collect-only",), 0, 0),
        (("broken",), pytest.ExitCode.INTERRUPTED, 2),
    ],
)
def test_a_session_without_a_case_leaves_no_verdict_of_an_earlier_night(
    tiny: TinyProject, words: tuple[str, ...], status: int, verdict: int
) -> None:
    stored(tiny.path / "run.json", case("pass"), **ENDED)
    tiny.write("broken/test_broken.py", "raise ValueError('broken')\n")
    assert tiny.run("--perf-device=cpu", "--gate", "--perf-json=run.json", *words).status == status
    assert main(["verdict", str(tiny.path)]) == verdict
    assert (tiny.path / "run.json").exists() == (verdict == 0)


# --- the shards of a night --------------------------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """The folders of the two shards of a green night, in the folder of that night."""
    night = whole_night(tmp_path / "whole.json", case("a"), case("b"), exit_status=0)
    paths = [tmp_path / "night/shards" / str(one.shard.number) for one in split(night, 2)]
    for path, one in zip(paths, split(night, 2), strict=True):
        path.mkdir(parents=True)
        run_file.write(path / "run.json", one.run)
    return paths


def merge(folder: Path, *shards: Path) -> int:
    return main(["verdict", *map(str, shards), "--merge", str(folder / "night")])


def test_shards_become_a_night_with_its_summary_and_its_page(
    tmp_path: Path, shards: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert merge(tmp_path, *shards) == 0
    words = "gate: 2 cases measured (2 PASS)"
    assert capsys.readouterr().out == f"{tmp_path}/night of 2 shards: {words}\n"
    folder = tmp_path / "night"
    assert {path.name for path in folder.iterdir()} >= {"run.json", "summary.md", "night.html", "shards"}
    assert (folder / "summary.md").read_text().startswith("### gate: 2 cases measured (2 PASS)")
    assert main(["verdict", str(folder)]) == 0
    assert main(["replay", str(folder)]) == 0


def test_a_merged_night_whose_page_fails_has_its_run(
    tmp_path: Path, shards: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(night, "_light", lambda run: run.no_such_thing)
    assert merge(tmp_path, *shards) == 2
    assert "night/night.html cannot be made (AttributeError: " in capsys.readouterr().err
    assert len(run_file.read(tmp_path / "night/run.json").cases) == 2


def test_a_folder_without_a_run_is_a_missing_shard(
    tmp_path: Path, shards: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (shards[1] / "run.json").unlink()
    assert merge(tmp_path, *shards) == 1
    said, complaints = capsys.readouterr()
    assert complaints.startswith(f"gpugate verdict: {shards[1]}/run.json does not exist, so its shard ended before ")
    assert "\nERROR: shard 2 of 2 is missing: measure it with --perf-shard 2/2, and merge again\n" in said
    assert "shard 2 of 2 is missing" in (tmp_path / "night/summary.md").read_text()
    assert main(["verdict", str(tmp_path / "night")]) == 2


def test_what_cannot_be_merged_writes_nothing(
    tmp_path: Path, shards: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert merge(tmp_path, shards[0], shards[0]) == 2
    assert merge(tmp_path, tmp_path / "nowhere") == 2
    assert main(["verdict", *map(str, shards)]) == 2
    assert main(["verdict", *map(str, shards), "--merge", str(shards[0])]) == 2
    refused = [line for line in capsys.readouterr().err.splitlines() if "does not exist" not in line]
    said = [
        "both measured",
        "none of the 1 shards has a run",
        "2 nights have no verdict",
        "is the folder of a shard",
    ]
    assert [part in line for part, line in zip(said, refused, strict=True)] == [True] * 4
    assert sorted(tmp_path.rglob("*")) == before
