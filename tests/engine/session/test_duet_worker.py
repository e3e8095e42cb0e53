"""A process of duets before pytest starts."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpugate.errors import CompareError
from gpugate.machine import children
from gpugate.measurement.settings import Settings
from gpugate.results.duet import BUDGET_S
from gpugate.session import duet_worker
from gpugate.session.duet_worker import DuetTaker, plan_settings
from gpugate.session.duets import DuetPlan
from gpugate.store.baseline import Record
from gpugate.store.codec import to_json
from gpugate.store.version import git
from tests.conftest import TWO_CORES
from tests.engine.judging.test_duet import record


def test_the_search_path_of_the_working_tree_means_the_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a head that is a commit would import the modules of the working tree, which the command's path names."""
    project, head = tmp_path / "project", tmp_path / "head"
    for top in (project, head):
        (top / "services" / "x").mkdir(parents=True)
        assert git(top, "init", "-q") is not None
    monkeypatch.chdir(head / "services" / "x")
    plan = DuetPlan("", 1.0, project=str(project / "services" / "x"))
    monkeypatch.setattr(children, "task", to_json(plan))
    monkeypatch.setattr(children, "parent", SimpleNamespace(send=print), raising=False)
    others = ["/elsewhere", str(project / ".venv/lib/site-packages")]
    monkeypatch.setattr(sys, "path", [str(project / "lib"), *others])
    monkeypatch.setattr(pytest, "main", lambda words, plugins: pytest.ExitCode.USAGE_ERROR)
    assert duet_worker.main([]) == pytest.ExitCode.USAGE_ERROR
    assert sys.path == [str(head / "lib"), *others, str(Path.cwd()), str(Path.cwd() / "src")]


def settings_of(orders: DuetPlan, pair_sd: float) -> Settings:
    return plan_settings(orders, Record("2030-01-01", "", "", TWO_CORES, tuple(map(tuple, record(pair_sd, 0.0)))))


def test_the_record_of_a_case_plans_its_pairs() -> None:
    quiet, noisy = (settings_of(DuetPlan(""), sd) for sd in (0.002, 0.1))
    assert quiet.planned
    assert noisy.planned
    assert quiet.pairs_per_build < noisy.pairs_per_build
    assert quiet.budget_s < noisy.budget_s
    assert settings_of(DuetPlan("", 0.5), 0.1).budget_s == 0.5


@pytest.mark.parametrize(("given_s", "budget_s"), [(None, BUDGET_S), (40.0, 40.0)])
def test_a_case_without_a_record_is_sampled_until_its_interval_is_narrow(
    given_s: float | None, budget_s: float
) -> None:
    found = plan_settings(DuetPlan("", given_s), None)
    assert (found.budget_s, found.half_width, found.planned) == (budget_s, 0.0075, False)


def test_the_first_message_has_all_cases_that_cannot_be_measured_here() -> None:
    """A process that dies later loses none of them."""
    sent: list[Any] = []
    cases: Any = {name: SimpleNamespace(id=name, spans_gpus=False) for name in ("net/a/cpu", "net/b/cpu")}

    def missing(case: Any) -> Any:
        if case.id == "net/a/cpu":
            raise CompareError("its need cannot be checked")
        return SimpleNamespace(reason="it needs what is not here")

    facts = {"environment": TWO_CORES, "device": SimpleNamespace(type="cpu")}
    perf: Any = SimpleNamespace(**facts, missing=missing, can_measure=lambda case: case.id == "net/a/cpu")
    DuetTaker(DuetPlan("", case_ids=("net/b/cpu", "net/a/cpu")), sent.append)._measure_all(perf, cases, cases)
    assert sent[0]["problems"] == {
        "net/b/cpu": "it needs what is not here",
        "net/a/cpu": "its need cannot be checked",
    }
    assert [*sent[0]["problems"]] == ["net/b/cpu", "net/a/cpu"]
    assert sent[0]["wanted"] == ("net/a/cpu",)
