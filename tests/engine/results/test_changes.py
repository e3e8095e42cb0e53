"""The changes between two runs: software, code, verdicts, cases and times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpugate.results.changes import Changes, Flip, find_flips
from gpugate.results.run import Provenance, night_of
from gpugate.results.verdict import Outcome
from tests.support.stored_runs import case, stored


def test_software_code_verdicts_and_cases_that_changed(tmp_path: Path) -> None:
    before = stored(tmp_path / "a.json", case("pass"), case("kept", 2.8), case("lost"))
    after = stored(tmp_path / "b.json", case("pass", 2.8), case("kept", 2.8), case("gained"))
    before.provenance = Provenance(commit="1" * 40)
    after.provenance = Provenance(commit="2" * 40, changes="f" * 64)
    after.environment = replace(after.environment, driver="999")
    after.source_hashes = {"tiny": "another"}
    found = Changes(night_of(before), night_of(after))
    assert found.environment.differences == ("driver 580.65.06 -> 999",)
    assert list(found.describe_code()) == [
        f"commit {'1' * 12} -> {'2' * 12}",
        f"uncommitted changes none -> {'f' * 12}",
        "the source of tiny changed",
    ]
    assert found.edited == ["tiny"]
    assert list(find_flips(before, after)) == [Flip("tiny/pass/cuda", "throughput", Outcome.PASS, Outcome.REGRESSED)]
    assert (found.gained, found.lost) == (["tiny/gained/cuda"], ["tiny/lost/cuda"])


def test_a_case_moved_where_the_intervals_of_both_nights_are_apart(tmp_path: Path) -> None:
    before = stored(tmp_path / "a.json", case("far"), case("near"), case("further"))
    after = stored(tmp_path / "b.json", case("far", 2.9), case("near", 2.9999), case("further", 2.7))
    (first, second) = Changes(night_of(before), night_of(after)).moved
    assert (first.case_id, second.case_id) == ("tiny/further/cuda", "tiny/far/cuda")
    assert first.speedup.share == pytest.approx(-0.1, abs=1e-3)
