"""A CPU measures few cases without -k: those that pay there, and at most four that teach a loss."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import workloads
from gpugate.machine.children import run_module
from gpugate.workload import Case

pytestmark = pytest.mark.usefixtures("warm_children")
PROJECT = Path(workloads.__file__).parents[1]


def collect(*words: str) -> tuple[set[str], str]:
    """The ids of the cases that pytest would run, and its output."""
    given = ("perf_tests", "-p", "gpugate.plugin", "--perf-device=cpu", "--collect-only", "-q", *words)
    done = run_module("pytest", given, folder=PROJECT)
    return set(re.findall(r"\[(\S+/cpu)\]", done.output)), done.output


def all_cases() -> dict[str, Case]:
    cases = [Case(one, optimization, "cpu") for one in workloads.WORKLOADS for optimization in one.optimizations]
    return {case.id: case for case in cases if "cpu" in case.optimization.device_kinds}


def test_few_cases_without_a_keyword_and_a_line_about_the_others() -> None:
    found, output = collect()
    promises = [all_cases()[name].optimization.min_speedup["cpu"] for name in found]
    assert len(found) <= 19
    assert sum(promise < 1 for promise in promises) <= 4
    left_out = len(all_cases()) - len(found)
    assert f"left out: {left_out} cases whose CPU sides only check the code or take long; -k selects them" in output


def test_a_keyword_selects_the_others_too() -> None:
    found, output = collect("-k", "video or driving")
    assert found >= {name for name in all_cases() if name.startswith(("video", "driving"))}
    assert "left out" not in output
