"""The night before a run: which folder it is, and what changed since then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpugate.report.night import NoLastNightError, find_last_night
from gpugate.results.run import RunResult
from gpugate.results.shard import Shard
from gpugate.store import run_file
from gpugate.store.night_files import RUN
from tests.conftest import H200, TWO_CORES
from tests.support.stored_runs import case, stored

TONIGHT = "2030-01-09T03:00:00+00:00"


def night(folder: Path, name: str, day: int, **changed: object) -> RunResult:
    (folder / name).mkdir()
    return stored(folder / name / RUN, case("pass"), started_at=f"2030-01-{day:02d}T03:00:00+00:00", **changed)


def tonight(**changed: object) -> RunResult:
    return replace(RunResult(H200, TONIGHT, 1), **changed)


def test_it_is_the_newest_earlier_night_of_the_same_machine_beside_the_folder(tmp_path: Path) -> None:
    night(tmp_path, "older", 6)
    night(tmp_path, "newest", 7)
    night(tmp_path, "later", 10)
    night(tmp_path, "another-machine", 8, environment=TWO_CORES)
    night(tmp_path, "cut-off", 8, interrupted=True)
    night(tmp_path, "with-a-fault", 8, mutated="slow:5")
    night(tmp_path, "a-recording", 8, recording=True)
    night(tmp_path, "a-shard", 8, shard=Shard(1, 2))
    night(tmp_path, "tonight", 9)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / RUN).write_text("{", encoding="utf-8")
    found = find_last_night(tmp_path / "tonight", tonight())
    assert (found[0], found[1].started_at[:10]) == ("newest", "2030-01-07")


def test_without_an_earlier_night_one_sentence_names_the_machine_and_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / RUN).write_text("{", encoding="utf-8")
    with pytest.raises(
        NoLastNightError, match=r"no earlier night of nvidia-h200 .* \(1 cannot be read, such as damaged: "
    ):
        find_last_night(tmp_path / "tonight", tonight())


def test_the_start_of_a_run_is_read_without_its_cases(tmp_path: Path) -> None:
    night(tmp_path, "older", 6)
    path = tmp_path / "older" / RUN
    text = path.read_text(encoding="utf-8")
    path.write_text(text[: text.index('"cases":') + 100], encoding="utf-8")
    start = run_file.read_start(path)
    assert (start.environment, start.started_at, start.interrupted) == (
        replace(H200, packages=start.environment.packages),
        "2030-01-06T03:00:00+00:00",
        False,
    )
    with pytest.raises(NoLastNightError, match=r"last night cannot be read, so nothing is compared with it: .*cut off"):
        find_last_night(tmp_path / "tonight", tonight())
