"""The files of `--perf-report`: a run that can be read again, one screen for the morning, and the night before."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpugate.errors import OptionError
from gpugate.report.screen import night_summary
from gpugate.report.view import RunView
from gpugate.results.case import CaseResult
from gpugate.results.fleet_plan import Shard
from gpugate.results.run import RunResult
from gpugate.session.night_report import find_last_night, prepare_night, write_pages
from gpugate.store import run_file
from gpugate.store.night_files import JUNIT, RUN, SUMMARY
from tests.conftest import H200, TWO_CORES
from tests.support.stored_runs import case, stored, timed


def run_with(*cases: CaseResult, **changed: object) -> RunResult:
    by_id = {one.case_id: one for one in cases}
    return replace(RunResult(H200, "2026-01-31T04:05:06+00:00", seed=7, cases=by_id, wall_s=182.4), **changed)


@pytest.mark.parametrize(
    ("run", "headline"),
    [
        (run_with(timed("fused", 3.0)), "run without --gate: 1 case measured (1 not judged)"),
        (run_with(gate=True, interrupted=True), "gate: 0 cases measured, interrupted"),
        (run_with(gate=True, shard=Shard(1, 4)), "gate, shard 1 of 4: 0 cases measured"),
    ],
)
def test_the_headline_of_a_run_without_a_verdict(run: RunResult, headline: str) -> None:
    assert night_summary(RunView(run)).startswith(f"### {headline}\n")


def test_no_words_of_a_user_end_the_code_of_a_summary() -> None:
    failed = replace(timed("fused", 3.0), measurement=None, summary=None, error="``` ends\n````\n@you")
    words = night_summary(RunView(run_with(failed, problems=["it failed ```"])))
    fence = words.splitlines()[4].removesuffix("text")
    assert (set(fence), len(fence), words.splitlines()[-1]) == ({"`"}, 5, fence)
    assert "ERROR: it failed ```\n" in words
    assert "@you" in words


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir() if path.name != ".gitignore"}


def test_what_an_earlier_session_left_does_not_pass_for_one_that_was_killed(tmp_path: Path, gpu_run: RunResult) -> None:
    night = tmp_path / "new/night"
    prepare_night(night)
    assert (night / ".gitignore").read_text(encoding="utf-8") == "*\n"
    write_pages(night, gpu_run)
    run_file.write(night / RUN, gpu_run)
    (night / JUNIT).write_text("<testsuites/>", encoding="utf-8")
    (night / "doctor.txt").write_text("kept", encoding="utf-8")
    prepare_night(night)
    assert sorted(contents(night)) == ["doctor.txt", SUMMARY]
    assert contents(night)[SUMMARY].startswith("**No result**: no case was selected, or")


@pytest.mark.parametrize("do", [prepare_night, lambda folder: write_pages(folder, run_with())])
def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path, do: Callable[[Path], None]) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OptionError, match=r"file.* cannot be written \(.*\): give"):
        do(tmp_path / "file/night")


TONIGHT = "2030-01-09T03:00:00+00:00"


def stored_night(folder: Path, name: str, day: int, **changed: object) -> RunResult:
    (folder / name).mkdir()
    return stored(folder / name / RUN, case("pass"), started_at=f"2030-01-{day:02d}T03:00:00+00:00", **changed)


def tonight(**changed: object) -> RunResult:
    return replace(RunResult(H200, TONIGHT, 1), **changed)


def test_it_is_the_newest_earlier_night_of_the_same_machine_beside_the_folder(tmp_path: Path) -> None:
    stored_night(tmp_path, "older", 6)
    stored_night(tmp_path, "newest", 7)
    stored_night(tmp_path, "later", 10)
    stored_night(tmp_path, "another-machine", 8, environment=TWO_CORES)
    stored_night(tmp_path, "cut-off", 8, interrupted=True)
    stored_night(tmp_path, "with-a-fault", 8, mutated="slow:5")
    stored_night(tmp_path, "a-recording", 8, recording=True)
    stored_night(tmp_path, "a-shard", 8, shard=Shard(1, 2))
    stored_night(tmp_path, "tonight", 9)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / RUN).write_text("{", encoding="utf-8")
    found = find_last_night(tmp_path / "tonight", tonight())
    assert not isinstance(found, str)
    assert (found[0], found[1].started_at[:10]) == ("newest", "2030-01-07")


def test_a_night_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    stored_night(tmp_path, "older", 6)  # its start can be read
    path = tmp_path / "older" / RUN
    text = path.read_text(encoding="utf-8")
    path.write_text(text[: text.index('"cases":') + 100], encoding="utf-8")
    words = find_last_night(tmp_path / "tonight", tonight())
    assert str(words).startswith("no earlier night of nvidia-h200 that can be read is beside this folder, so nothing")
