"""The page of TensorRT is that of its stored run."""

from dataclasses import replace

import pytest

from gpugate.errors import GpugateError
from gpugate.store import run_file
from tools.inference_table import load_sides, write_page
from tools.machines import H200, ROOT

PATH = H200.results / "runs/tensorrt.json"


def test_the_page_is_up_to_date_and_a_run_without_its_references_is_refused() -> None:
    run, page = run_file.read(PATH), H200.results / "tensorrt.md"
    assert page.read_text(encoding="utf-8") == write_page(run, PATH.relative_to(ROOT).as_posix())
    others = {name: case for name, case in run.cases.items() if "strict" not in name}
    with pytest.raises(GpugateError, match=r"the run did not measure resnet50-inference/strict-fp32/cuda"):
        load_sides(replace(run, cases=others))
