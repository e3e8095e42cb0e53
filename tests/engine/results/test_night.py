"""Nights: the key of a run, and the nights of one commit as one."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta, timezone

from gpugate.results.night import Night, merge_commits
from tests.engine.report.test_since_last_run import CASE, case, night


def test_a_run_keeps_its_key_and_another_run_has_another() -> None:
    one = night(case(3.0))
    elsewhere = replace(one, started=one.started.astimezone(timezone(timedelta(hours=5))), name="a copy", cases={})
    assert elsewhere.key == one.key
    host = replace(one, provenance=replace(one.provenance, host="another"))
    others = [replace(one, seed=2), replace(one, machine="nvidia-h100"), host]
    assert len({one.key, *(other.key for other in others)}) == 4


def of(commit: str | None, speedup: float, **changed: object) -> Night:
    one = night(case(speedup))
    return replace(one, provenance=replace(one.provenance, commit=commit), **changed)


def test_a_commit_has_the_middle_of_its_nights() -> None:
    merged = merge_commits([of("a", 3.0), of("b", 1.0), of("a", 5.0), of("a", 4.0), of(None, 9.0)])
    assert [(one.name, one.cases[CASE].speedup.median) for one in merged] == [("a", 4.0), ("b", 1.0)]


def test_of_an_even_number_the_lower_night_counts() -> None:
    (merged,) = merge_commits([of("a", 3.0), of("a", 5.0)])
    assert merged.cases[CASE].speedup.median == 3.0


def test_uncommitted_changes_and_machines_are_kept_apart() -> None:
    changed = of("a", 3.0)
    changed = replace(changed, provenance=replace(changed.provenance, changes="0123"))
    merged = merge_commits([of("a", 3.0), changed, of("a", 3.0, machine="another")])
    assert [one.name for one in merged] == ["a", "a+", "a"]
