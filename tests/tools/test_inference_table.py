"""The page of TensorRT is that of its stored runs."""

from dataclasses import replace

import pytest

from gpugate.errors import GpugateError
from gpugate.store import run_file
from tools.inference_table import load_sides, write_page
from tools.machines import H200, ROOT

PATHS = H200.results / "runs/tensorrt.json", H200.results / "runs/tensorrt-tf32.json"


def test_the_page_is_up_to_date_and_runs_without_its_references_are_refused() -> None:
    runs, page = [*map(run_file.read, PATHS)], H200.results / "tensorrt.md"
    assert page.read_text(encoding="utf-8") == write_page(runs, [path.relative_to(ROOT).as_posix() for path in PATHS])
    others = {name: case for name, case in runs[0].cases.items() if "strict" not in name}
    with pytest.raises(GpugateError, match=r"no run measured resnet50-inference/strict-fp32/cuda"):
        load_sides([replace(runs[0], cases=others)])
    warmer = replace(runs[0], environment=replace(runs[0].environment, driver="1.2"))
    with pytest.raises(GpugateError, match=r"different environments: give the runs of one machine"):
        load_sides([runs[1], warmer])
