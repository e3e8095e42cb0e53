"""A CPU measures few cases without -k: those that pay there, and at most four that teach a loss."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import workloads
from gpugate.workload import Case
from perf_tests import conftest

CASES = [Case(one, each, "cpu") for one in workloads.WORKLOADS for each in one.optimizations]
ON_CPU = {case.id: case for case in CASES if "cpu" in case.optimization.device_kinds}
FIRST = {name for name in ON_CPU if not name.startswith(conftest.CHECKED_ONLY)}


def test_the_first_look_is_short_and_each_name_that_it_leaves_out_exists() -> None:
    promises = [ON_CPU[name].optimization.min_speedup["cpu"] for name in FIRST]
    assert len(FIRST) <= 14
    assert sum(promise < 1 for promise in promises) <= 4
    assert [one for one in conftest.CHECKED_ONLY if not any(name.startswith(one) for name in ON_CPU)] == []


@pytest.mark.parametrize(
    ("keyword", "args", "collected"),
    [("", ["perf_tests"], FIRST), ("video", ["perf_tests"], ON_CPU), ("", ["a.py::test_outputs"], ON_CPU)],
)
def test_a_line_names_the_others_and_a_keyword_or_a_test_selects_them(
    keyword: str, args: Sequence[str], collected: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conftest, "cases_of", lambda name: [ON_CPU[name]])
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    config: Any = SimpleNamespace(option=SimpleNamespace(keyword=keyword), args=args, stash=pytest.Stash(), hook=hook)
    items: list[Any] = [*ON_CPU]
    conftest.pytest_collection_modifyitems(config, items)
    assert set(items) == set(collected)
    line, left_out = conftest.pytest_report_collectionfinish(config) or "", len(ON_CPU) - len(collected)
    assert line.startswith(f"left out: {left_out} cases whose CPU sides only check the code" if left_out else "")
    assert bool(line) == bool(left_out)
