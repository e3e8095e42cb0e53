"""Nights as records of PyTorch HUD, and the newest one as a report of Bencher."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpugate.results.run import Provenance
from tests.support.stored_runs import MACHINE, night, timed
from tools.history_exports import main

Printed = Callable[..., Any]


@pytest.fixture
def printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Printed:
    """Runs the tool on two nights of two machines, and returns its JSON."""
    for number, watts in enumerate((700.0, 500.0)):
        code = Provenance(commit="bbbb2222", branch="main", host="one")
        changed = {"provenance": code, "environment": replace(MACHINE, power_limit_w=watts)}
        night(tmp_path, number, [timed("fused", 5.0 + number), timed("graph", 1.5)], **changed)

    def run(*words: str, status: int = 0) -> Any:
        assert main([words[0], str(tmp_path), *words[1:]]) == status
        out, err = capsys.readouterr()
        return err if status else json.loads(out)

    return run


def test_the_hud_gets_a_record_for_each_metric(printed: Printed) -> None:
    records = printed("hud", "--repo", "a/b", "--case", "fused", "--machine", "700")
    (record,) = [one for one in records if one["metric"]["name"] == "speedup"]
    metric = record.pop("metric")
    assert metric["benchmark_values"] == pytest.approx([5.0], rel=1e-3)
    assert metric["target_value"] == 3.0
    assert set(metric["extra_info"]) == {"low", "high"}
    assert record["dependencies"].pop("torch") == {"version": "2.11.0+cu130", "repo": "", "branch": "", "sha": ""}
    picked = {name: record[name] for name in ("timestamp", "schema_version", "repo", "head_sha", "model")}
    assert picked == {
        "timestamp": 1893466800,
        "schema_version": "v3",
        "repo": "a/b",
        "head_sha": "bbbb2222",
        "model": {"name": "tiny", "type": "workload", "backend": "fused"},
    }
    assert record["runners"][0]["gpu_info"] == "NVIDIA H200"


def test_bencher_gets_the_newest_night_of_one_machine(printed: Printed) -> None:
    report = printed("bencher", "--machine", "500")
    assert set(report) == {"tiny/fused/cuda", "tiny/graph/cuda"}
    speedup = report["tiny/fused/cuda"]["speedup"]
    assert speedup["value"] == pytest.approx(6.0, rel=1e-3)
    assert speedup["lower_value"] <= speedup["value"] <= speedup["upper_value"]
    assert report["tiny/fused/cuda"]["kernels"] == {"value": 57.0}
    assert "the nights are of nvidia-h200-500-w, nvidia-h200-700-w: give --machine" in printed("bencher", status=2)
