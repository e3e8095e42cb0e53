"""A stored run decided again: the same bytes, without measuring."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpugate.errors import ReplayError
from gpugate.judging.decide_again import decide_again, find_changes
from gpugate.results.changes import Flip
from gpugate.results.run import RunResult
from gpugate.results.verdict import Outcome, Verdict
from gpugate.store import run_file
from tests.support.stored_runs import case, every_outcome, stored

UNTIMED = {"unmeasured", "skipped", "failed"}  # of every_outcome()


def throughput(run: RunResult, name: str) -> Outcome:
    return next(one.outcome for one in run.cases[f"tiny/{name}/cuda"].verdicts if one.check == "throughput")


def was_extended(verdict: Verdict) -> bool:
    return any(reason.facts.get("attempts", 1) != 1 for reason in verdict.reasons)


def test_every_outcome_is_decided_again_byte_for_byte(tmp_path: Path) -> None:
    path, again = tmp_path / "run.json", tmp_path / "again.json"
    run = stored(path, *every_outcome())
    said = {verdict.outcome for one in run.cases.values() for verdict in one.verdicts}
    assert said == set(Outcome), "the made-up run has every outcome there is"
    assert [throughput(run, name) for name in ("confirmed", "outvoted")] == [Outcome.REGRESSED, Outcome.PASS]
    assert {name.split("/")[1] for name, one in run.cases.items() if one.summary is None} == UNTIMED
    extended = {name.split("/")[1] for name, one in run.cases.items() for said in one.verdicts if was_extended(said)}
    assert extended == {"asked-again"}
    spoiled = {name: replace(one, verdicts=[], summary=None) for name, one in run.cases.items()}
    run_file.write(again, decide_again(replace(run, cases=spoiled)))
    assert again.read_bytes() == path.read_bytes()


def test_a_recording_stays_one(tmp_path: Path) -> None:
    run = stored(tmp_path / "run.json", case("no-baseline", remembered=None), recording=True)
    assert throughput(decide_again(run), "no-baseline") is Outcome.PASS


def test_what_was_not_measured_stays_what_it_was(tmp_path: Path) -> None:
    cases = [case("skipped", None, skipped="no"), case("failed", None, error="no"), case("unfinished", None)]
    run = stored(tmp_path / "run.json", *cases, interrupted=True)
    assert list(decide_again(run).cases.values()) == cases


def test_a_case_that_cannot_be_decided_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise KeyError("kernel_launches")

    run = stored(tmp_path / "run.json", case("odd"))
    monkeypatch.setattr("gpugate.judging.decide_again.decide", fail)
    with pytest.raises(
        ReplayError, match=r"^tiny/odd/cuda of 2030-.* cannot be decided \(KeyError: 'kernel_launches'\)"
    ):
        decide_again(run)


def test_changes_are_outcomes_and_words(tmp_path: Path) -> None:
    run = stored(tmp_path / "run.json", case("pass"), case("slower", 2.98))
    assert find_changes(run, decide_again(run)) == ()
    one = run.cases["tiny/pass/cuda"]
    one.verdicts[2] = replace(one.verdicts[2], outcome=Outcome.REGRESSED)
    one.verdicts[3] = replace(one.verdicts[3], reasons=())
    assert find_changes(run, decide_again(run)) == (
        Flip("tiny/pass/cuda", "throughput", Outcome.REGRESSED, Outcome.PASS),
        Flip("tiny/pass/cuda", "counters", Outcome.PASS, Outcome.PASS),
    )


def test_a_verdict_that_was_not_stored_is_a_change(tmp_path: Path) -> None:
    run = stored(tmp_path / "run.json", case("pass"))
    del run.cases["tiny/pass/cuda"].verdicts[1:]
    (first, *_) = find_changes(run, decide_again(run))
    assert first == Flip("tiny/pass/cuda", "speedup", None, Outcome.PASS)
