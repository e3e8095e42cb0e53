"""A stored run decided again: the same bytes, without measuring."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpugate.errors import ReplayError
from gpugate.judging.decide_again import decide_again, find_changes
from gpugate.machine.environment import describe
from gpugate.measurement import run as measuring
from gpugate.measurement.record import Yardstick
from gpugate.results.case import CaseResult
from gpugate.results.changes import Flip
from gpugate.results.run import RunResult
from gpugate.results.verdict import Outcome, Verdict
from gpugate.session.measure_case import measure_case
from gpugate.session.perf_session import PerfSession
from gpugate.session.records import Records
from gpugate.store import run_file
from gpugate.store.codec import to_json
from gpugate.workload import Case, Context, Optimization, Side, Size, Workload
from tests.engine.session.test_workers import OPTIONS
from tests.support.stored_runs import PROMISE, case, every_outcome, measured, stored

CPU = torch.device("cpu")
UNTIMED = {"unmeasured", "skipped", "failed"}  # of every_outcome()


def build(context: Context) -> Side:
    return Side(lambda inputs: inputs)


QUICK = Optimization("quick", build, {"cpu": PROMISE.min_speedup or 1.0})
CASE = Case(Workload("tiny", build, lambda _, index: index, {"cpu": Size(1, 1, 1)}, (QUICK,)), QUICK, "cpu")


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


def made_up_session(folder: Path, monkeypatch: pytest.MonkeyPatch) -> PerfSession:
    """Writes `run.json` there; its yardsticks are made up."""
    monkeypatch.setattr(
        PerfSession, "probe", lambda self, taken: self.result.yardsticks.append(Yardstick({"copy": 1.0}, taken))
    )
    options = replace(OPTIONS, processes=2, json_path=folder / "run.json", command="pytest 'my tests'")
    run = RunResult(describe(CPU), "2030-01-01T00:00:00+00:00", seed=1, command=options.command)
    return PerfSession(options, CPU, folder, run, {CASE.id: "test_it.py::test_it"})


@pytest.mark.parametrize(
    "name", ["regressed", "inconclusive", "undecided", "no-baseline", "wrong", "not-engaged", "env-invalid"]
)
def test_what_a_session_decided_is_decided_again_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A session judges 15 digits of a clock and the file keeps six of them: both must be the same six."""
    model = next(one for one in every_outcome() if one.optimization == name)
    found = replace(model.measurement or measured(CASE.id, 3.0), case_id=CASE.id)
    monkeypatch.setattr(measuring, "measure", lambda *_: found)
    monkeypatch.setattr(Records, "find", lambda self, case: model.remembered)
    monkeypatch.setattr("gpugate.session.measure_case.find_environment_problem", lambda *_: model.environment_problem)

    def run_fresh(
        options: object, device: object, root: object, nodes: object, json_path: Path, *_: object
    ) -> RunResult:
        fresh = CaseResult(CASE.id, "tiny", "quick", "baseline", CASE.size, measured(CASE.id, 2.81))
        run_file.write(json_path, RunResult(describe(CPU), "2030-01-01T00:00:00+00:00", 2, cases={CASE.id: fresh}))
        return run_file.read(json_path)

    monkeypatch.setattr("gpugate.session.confirm.run_fresh", run_fresh)
    session = made_up_session(tmp_path, monkeypatch)
    judged = measure_case(session, CASE)
    session.finish(interrupted=False)
    assert Outcome(name.replace("-", "_").upper()) in [verdict.outcome for verdict in judged.verdicts]
    assert (name in ("regressed", "inconclusive")) is bool(judged.attempts)
    extended = ("inconclusive", "undecided")
    assert any(was_extended(one) for one in judged.verdicts) is (name in extended)
    again = decide_again(run_file.read_to_decide_again(tmp_path / "run.json"))
    document = json.loads((tmp_path / "run.json").read_text())["cases"][CASE.id]
    for verdicts in (again.cases[CASE.id].verdicts, judged.verdicts):
        assert json.loads(json.dumps(to_json(verdicts))) == document["verdicts"]
    assert to_json(again.cases[CASE.id].summary) == document["summary"]


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
