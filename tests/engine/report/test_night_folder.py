"""The folder of `--perf-report`: what an earlier night left stays until a case runs, and then goes."""

from pathlib import Path

import pytest

from gpugate.report.night import NightReportError, begin_night, prepare_night, write_night
from gpugate.results.run import RunResult
from gpugate.store.night_files import JUNIT, RUN, SUMMARY


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir() if path.name != ".gitignore"}


def test_a_session_without_a_case_says_so_and_leaves_an_earlier_night(tmp_path: Path, gpu_run: RunResult) -> None:
    night = tmp_path / "new/night"
    prepare_night(night)
    (name, words), *others = contents(night).items()
    assert (name, others) == (SUMMARY, [])
    assert words.startswith("**No case began**: none was selected")
    assert (night / ".gitignore").read_text(encoding="utf-8") == "*\n"
    write_night(night, gpu_run)
    before = contents(night)
    prepare_night(night)
    assert contents(night) == before


def test_what_an_earlier_session_left_does_not_pass_for_one_that_was_killed(tmp_path: Path, gpu_run: RunResult) -> None:
    write_night(tmp_path, gpu_run)
    (tmp_path / JUNIT).write_text("<testsuites/>", encoding="utf-8")
    (tmp_path / "doctor.txt").write_text("kept", encoding="utf-8")
    begin_night(tmp_path)
    assert sorted(contents(tmp_path)) == ["doctor.txt", SUMMARY]
    assert contents(tmp_path)[SUMMARY].startswith("**The run was cut off**")


def test_a_folder_that_cannot_be_cleared_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / RUN).mkdir()
    with pytest.raises(NightReportError, match=r"cannot be written \(.*\): give a folder that can be"):
        begin_night(tmp_path)
