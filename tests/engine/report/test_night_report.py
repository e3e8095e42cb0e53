"""The files of `--perf-report`: a run that can be read again, one screen for the morning, and the night before."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from gpugate.errors import OptionError
from gpugate.report.night import (
    MOST_MOVED,
    describe_moves,
    find_last_night,
    night_summary,
    prepare_night,
    write_night,
)
from gpugate.report.view import RunView
from gpugate.results.case import CaseResult
from gpugate.results.fleet_plan import Shard
from gpugate.results.run import CaseNight, Metric, Night, Provenance, RunResult
from gpugate.store import run_file
from gpugate.store.night_files import JUNIT, RUN, SUMMARY
from tests.conftest import H200, TWO_CORES
from tests.engine.store.test_database import night as any_night
from tests.support.stored_runs import case, stored, timed


def run_with(*cases: CaseResult, **changed: object) -> RunResult:
    by_id = {one.case_id: one for one in cases}
    return replace(RunResult(H200, "2026-01-31T04:05:06+00:00", seed=7, cases=by_id, wall_s=182.4), **changed)


@pytest.mark.parametrize(
    ("run", "headline"),
    [
        (run_with(timed("fused", 3.0)), "run without --gate: nothing was judged"),
        (run_with(gate=True), "gate: nothing was measured"),
        (run_with(gate=True, shard=Shard(1, 4)), "gate, shard 1 of 4: nothing was measured"),
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
    write_night(night, gpu_run)
    (night / JUNIT).write_text("<testsuites/>", encoding="utf-8")
    (night / "doctor.txt").write_text("kept", encoding="utf-8")
    prepare_night(night)
    assert sorted(contents(night)) == ["doctor.txt", SUMMARY]
    assert contents(night)[SUMMARY].startswith("**No result**: no case was selected, or")


@pytest.mark.parametrize("do", [prepare_night, lambda folder: write_night(folder, run_with())])
def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path, do: Callable[[Path], None]) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises((OptionError, run_file.RunFileError), match=r"file.* cannot be written \(.*\): give"):
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


# --- the lines about the last run -------------------------------------------------------------------------------------


CASE = "tiny/fused/cuda"


def case_night(speedup: float, optimized_ms: float = 10.0, case_id: str = CASE) -> CaseNight:
    """A case whose intervals are 1 % wide on either side."""
    values = {"speedup": speedup, "optimized_ms": optimized_ms, "reference_ms": speedup * optimized_ms}
    return CaseNight(case_id, None, {name: Metric(one, 0.99 * one, 1.01 * one) for name, one in values.items()})


def night(*cases: CaseNight, **provenance: str) -> Night:
    code = Provenance(commit="1a2b3c4d5e6f7890", branch="main", **provenance)
    started = datetime(2030, 1, 2, 3, 4, tzinfo=timezone.utc)
    return replace(any_night(), started=started, provenance=code, cases={one.case_id: one for one in cases})


def test_a_case_that_moved_has_both_values_and_the_commit() -> None:
    lines = describe_moves(
        night(case_night(3.0), case_night(2.0, case_id="b")), night(case_night(2.7, 11.0), case_night(2.0, case_id="b"))
    )
    assert lines == [
        "since the last run here, 2030-01-02 03:04 of 1a2b3c4d5e6f on main:",
        f"  {CASE}: speedup 3.00x -> 2.70x (-10.0 %), per step 10.00 ms -> 11.00 ms (+10.0 %), outside its noise",
        "  1 case inside its noise",
    ]


def test_the_furthest_come_first_and_the_others_are_counted() -> None:
    ids = [f"tiny/{number}/cuda" for number in range(MOST_MOVED + 4)]
    before = night(*(case_night(3.0, case_id=name) for name in ids[:-1]))
    moved = [case_night(3.0 - 0.1 * number, case_id=name) for number, name in enumerate(ids)]
    lines = describe_moves(before, night(*moved))
    assert [line.split(":")[0].strip() for line in lines[1:-1]] == ids[-2 : -2 - MOST_MOVED : -1]
    assert lines[-1] == (
        "  1 case inside its noise; 2 cases moved less far (gpugate history has all); 1 case not measured then"
    )


def test_runs_without_a_common_case_are_not_compared_and_code_may_be_unknown_or_not_committed() -> None:
    assert describe_moves(night(case_night(3.0)), night(case_night(3.0, case_id="b"))) == []
    old = replace(night(case_night(3.0)), provenance=Provenance())
    assert describe_moves(old, night(case_night(3.0)))[0].startswith(
        "since the last run here, 2030-01-02 03:04 of an unknown"
    )
    (line,) = describe_moves(night(case_night(3.0), changes="abc"), night(case_night(3.0)))
    assert " of 1a2b3c4d5e6f+ on main: " in line
