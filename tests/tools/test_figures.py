"""The pages of figures have the newest process of each case, and agree with the stored runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.stored_runs import case, measured, stored
from tools.figures import load_newest, write_page
from tools.machines import H200, MACHINES, Machine
from tools.targets import TARGETS, list_targets

NAME = "two-layer-net/all/cuda"


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.folder)
def test_the_page_of_figures_is_up_to_date(machine: Machine) -> None:
    page = write_page(machine, load_newest(machine))
    assert (machine.results / "figures.md").read_text(encoding="utf-8") == page, "run python -m tools.figures"


def test_each_target_is_on_the_page() -> None:
    assert [target for target, _ in list_targets(H200)] == list(TARGETS)


def test_each_missed_target_says_what_bounds_it_and_no_other_one_does() -> None:
    found = [(target, target.is_missed(reached.median)) for target, reached in list_targets(H200)]
    assert [target for target, is_missed in found if is_missed != bool(target.bound)] == []


def test_a_case_has_its_newest_process_over_the_reference_of_today(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    result = replace(case("all", measurement=measured(NAME, 2.0)), case_id=NAME, workload="two-layer-net")
    newer = replace(result, measurement=measured(NAME, 4.0))
    other = replace(result, measurement=measured(NAME, 8.0), compared_with="no-sync")
    stored(tmp_path / "runs/a.json", newer, started_at="2026-11-30T02:00:00+00:00")
    stored(tmp_path / "runs/b.json", result, started_at="2026-11-30T01:00:00+00:00")
    stored(tmp_path / "runs/c.json", other, started_at="2026-11-30T03:00:00+00:00")
    found = load_newest(Machine("", "none", str(tmp_path)))
    assert list(found) == [NAME]
    assert found[NAME].run.started_at == "2026-11-30T02:00:00+00:00"
