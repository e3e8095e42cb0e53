"""Nights from run files: what the store keeps of a run, and of one that an older gpugate wrote."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpugate.machine.environment import machine_key
from gpugate.results.night import UNKNOWN_PROVENANCE, Metric
from gpugate.results.provenance import Provenance
from gpugate.store.night_file import read_night
from tests.conftest import H200, TWO_CORES
from tests.support.made_up_nights import night, timed

CASE = "tiny/fused/cuda"


def edit(path: Path, **changed: Any) -> None:
    document = {**json.loads(path.read_text(encoding="utf-8")), **changed}
    kept = {name: value for name, value in document.items() if value is not ...}
    path.write_text(json.dumps(kept), encoding="utf-8")


def test_the_metrics_of_a_case(tmp_path: Path) -> None:
    path = night(tmp_path, 0, [timed("fused", 3.0)]) / "run.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    cases = document["cases"]
    cases[CASE]["verdicts"] = [{"outcome": "PASS", "numbers": {"speedup_tolerance": 0.02}}]
    cases[CASE]["measurement"]["optimized_cost"] = {"build_s": 1.5, "first_step_s": 0.5, "peak_bytes": 4096}
    cases[CASE]["measurement"] |= {"wall_s": 8.5, "spent_s": {"proving": 3.0, "measuring": 4.0}}
    further = {"wall_s": 4.0, "spent_s": {"proving": 0.5}}
    cases[CASE]["attempts"] = [{"measurement": further}, {"measurement": None}]
    duet = {"wall_s": 2.5, "spent_s": {"proving": 0.25}}
    cases[CASE]["recorded_code"] = {"processes": [{"measured": {CASE: duet}}, {"measured": {}}]}
    edit(path, cases=cases)
    (found,) = read_night(path, "one").cases.values()
    summary = cases[CASE]["summary"]
    assert found.metrics == {
        **{name: Metric(**by_name(summary[name])) for name in ("speedup", "optimized_ms", "reference_ms")},
        "anchor_speedup": Metric(3.0),
        "recorded_speedup": Metric(3.0),
        "speedup_tolerance": Metric(0.02),
        "kernels": Metric(57.0),
        "kernel_launches": Metric(1.0),
        "graph_launches": Metric(0.0),
        "start_up_s": Metric(2.0),
        "peak_bytes": Metric(4096.0),
        "duration_s": Metric(15.0),
        "proving_s": Metric(3.75),
        "needs_host": Metric(1.0),
    }


def test_a_case_on_the_clock_of_the_gpu_does_not_need_its_host(tmp_path: Path) -> None:
    path = night(tmp_path, 0, [timed("fused", 3.0)]) / "run.json"
    cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
    cases[CASE]["measurement"]["timer"] = "cuda events"
    edit(path, cases=cases)
    (found,) = read_night(path, "one").cases.values()
    assert found.metrics.keys().isdisjoint({"needs_host", "duration_s", "proving_s"})


@pytest.mark.parametrize(("copies", "needs_host"), [((0.0, 0.24), False), ((0.25, 0.0), True), ((0.0, 0.25), True)])
def test_a_pipeline_that_copies_little_on_both_sides_does_not_need_its_host(
    tmp_path: Path, copies: tuple[float, float], needs_host: bool
) -> None:
    sides = ({"copy_fraction": share} for share in copies)
    counters = dict(zip(("reference_counters", "optimized_counters"), sides, strict=True))
    case = timed("fused", 3.0)
    assert case.needs_host
    case.measurement = replace(case.measurement, **counters)
    assert case.needs_host is needs_host
    (found,) = read_night(night(tmp_path, 0, [case]) / "run.json", "one").cases.values()
    assert ("needs_host" in found.metrics) is needs_host


def by_name(estimate: dict[str, float]) -> dict[str, float]:
    return {"value": estimate["median"], "low": estimate["low"], "high": estimate["high"]}


@pytest.mark.parametrize("junk", [None, "many", True, 10**400, {"a": 1}])
def test_what_only_newer_formats_have_may_be_anything(tmp_path: Path, junk: object) -> None:
    path = night(tmp_path, 0, [timed("fused", 3.0)]) / "run.json"
    cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
    cases[CASE]["measurement"] = junk
    cases[CASE]["attempts"] = [junk]
    cases[CASE]["recorded_code"] = junk
    cases[CASE]["remembered"]["current"]["speedup"] = junk
    edit(path, cases=cases)
    (found,) = read_night(path, "one").cases.values()
    assert set(found.metrics) == {"speedup", "optimized_ms", "reference_ms", "anchor_speedup"}


def test_a_run_has_its_provenance_and_an_older_one_an_unknown_one(tmp_path: Path) -> None:
    known = Provenance(commit="abc", branch="main")
    path = night(tmp_path, 0, [timed("fused", 3.0)], provenance=known) / "run.json"
    assert read_night(path, "one").provenance == known
    edit(path, provenance=..., memory_bytes=..., format_version=9)
    older = read_night(path, "one")
    assert older.provenance == UNKNOWN_PROVENANCE
    assert (older.provenance.commit, older.version) == ("unknown", "unknown")


def test_a_machine_is_its_product_its_memory_and_its_power_limit(tmp_path: Path) -> None:
    here = replace(H200, power_limit_w=700.0)
    path = night(tmp_path, 0, [timed("fused", 3.0)], environment=here, memory_bytes=150_110_011_392) / "run.json"
    assert read_night(path, "one").machine == "nvidia-h200-140-gib-700-w"
    names = [
        machine_key(replace(H200, device_name="NVIDIA H100 80GB HBM3", power_limit_w=watts), memory)
        for watts, memory in ((700.0, 85 * 10**9), (500.0, 85 * 10**9), (None, None))
    ]
    assert names == [
        "nvidia-h100-80gb-hbm3-79-gib-700-w",
        "nvidia-h100-80gb-hbm3-79-gib-500-w",
        "nvidia-h100-80gb-hbm3",
    ]
    assert machine_key(TWO_CORES, None) == "cpu-intel-xeon-8481c-2-cores"
