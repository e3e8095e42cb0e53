"""The table of TensorRT is that of one run, with a column for each side that was measured."""

from dataclasses import replace

import pytest

from gpugate.errors import GpugateError
from gpugate.results.case import CaseResult
from gpugate.results.run import RunResult
from tests.support.stored_runs import MACHINE, STARTED, case, measured
from tools.inference_table import load_sides, write_page

COUNTERS = {
    "kernels": 243.0,
    "kernel_launches": 243.0,
    "graph_launches": 0.0,
    "api_ms": 1.64,
    "longest_kernels_mean_ms": 0.36,
    "peak_bytes": 1.44e9,
    "streams": 1.0,
}
ENGINE = {**COUNTERS, "kernels": 58.0, "kernel_launches": 0.0, "graph_launches": 1.0, "engine_layers": 59.0}


def of_resnet(name: str, speedup: float, counters: dict[str, float]) -> CaseResult:
    case_id = f"resnet50-inference/{name}/cuda"
    found = measured(case_id, speedup, optimized_ms=20 / speedup)
    counted = replace(found, reference_counters=COUNTERS, optimized_counters=counters)
    return replace(case(name), case_id=case_id, workload="resnet50-inference", measurement=counted)


def run_of(*cases: CaseResult) -> RunResult:
    return RunResult(MACHINE, STARTED, 1, cases={one.case_id: one for one in cases})


def test_the_page_has_a_column_for_each_measured_side() -> None:
    page = write_page(run_of(of_resnet("strict-fp32", 0.5, COUNTERS), of_resnet("tensorrt-fp16", 5.0, ENGINE)), "a")
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    rows = {name: values for name, *values in cells}
    assert rows["a step"] == ["20.00 ms", "40.00 ms", "4.00 ms"]
    assert rows["speedup over `eager`"] == ["1.00x", "0.50x", "5.00x"]
    assert rows["speedup over `strict-fp32`"] == ["2.00x", "1.00x", "10.00x"]
    assert rows["launches, of kernels and of graphs"] == ["243", "243", "1"]
    assert rows["peak device memory"] == ["1.44 GB"] * 3
    assert rows["layers of the engine"] == ["", "", "59"]
    assert "`eager` | `strict-fp32` | `tensorrt-fp16`" in page


def test_a_run_without_its_references_is_refused() -> None:
    with pytest.raises(GpugateError, match=r"the run did not measure resnet50-inference/strict-fp32/cuda"):
        load_sides(run_of(of_resnet("tensorrt-fp16", 5.0, ENGINE)))
