"""A stored run decided again: the same bytes, without measuring."""

from pathlib import Path

import pytest

from gpugate.errors import ReplayError
from gpugate.judging.decide_again import decide_again, find_changes
from gpugate.results.changes import Flip
from gpugate.results.run import RunResult
from gpugate.results.verdict import Outcome
from tests.support.stored_runs import case, stored


def throughput(run: RunResult, name: str) -> Outcome:
    return next(one.outcome for one in run.cases[f"tiny/{name}/cuda"].verdicts if one.check == "throughput")


def test_a_recording_stays_one(tmp_path: Path) -> None:
    run = stored(tmp_path / "run.json", case("no-baseline", remembered=None), recording=True)
    assert throughput(decide_again(run), "no-baseline") is Outcome.PASS


def test_a_case_that_cannot_be_decided_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise KeyError("kernel_launches")

    run = stored(tmp_path / "run.json", case("odd"))
    monkeypatch.setattr("gpugate.judging.decide_again.decide", fail)
    with pytest.raises(
        ReplayError, match=r"^tiny/odd/cuda of 2030-.* cannot be decided \(KeyError: 'kernel_launches'\)"
    ):
        decide_again(run)


def test_a_verdict_that_was_not_stored_is_a_change(tmp_path: Path) -> None:
    run = stored(tmp_path / "run.json", case("pass"))
    del run.cases["tiny/pass/cuda"].verdicts[1:]
    (first, *_) = find_changes(run, decide_again(run))
    assert first == Flip("tiny/pass/cuda", "speedup", None, Outcome.PASS)
