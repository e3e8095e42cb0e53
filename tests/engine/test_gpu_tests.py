"""The tests that need a GPU, which CI lacks: each of them collects, is skipped there, and its tables are consistent."""

import re
from pathlib import Path

import pytest

from gpugate.faults.fault import OF_RANKS, SPELLING, TIMED
from gpugate.machine.children import run_module
from tests.gpu import conftest
from tests.gpu import test_faults as on_gpu

ROOT = Path(__file__).parents[2]
WORDS = ("tests/gpu", "-p", "no:gpugate.plugin", "-p", "no:cacheprovider", "-q", "-rs")


@pytest.mark.usefixtures("warm_children")
def test_each_collects_and_is_skipped_without_a_gpu() -> None:
    """A case that a GPU alone can choose, such as one of each workload, is not among them."""
    ended = run_module("pytest", WORDS, environment={"CUDA_VISIBLE_DEVICES": ""}, folder=ROOT)
    assert ended.status == 0, ended.output
    files = {path.name for path in (ROOT / "tests/gpu").glob("test_*.py")}
    assert set(re.findall(r"tests/gpu/(test_\w+\.py)", ended.output)) == files
    assert re.search(r"^\d+ skipped", ended.output.splitlines()[-1]), ended.output


def test_without_a_gpu_the_command_for_them_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setenv(conftest.MUST_RUN, "1")
    with pytest.raises(pytest.UsageError, match="these tests need a GPU, and torch sees none: run them where there is"):
        conftest.pytest_collection_modifyitems([])


def test_each_fault_that_is_shown_on_a_gpu_is_a_row_of_the_document_and_a_case() -> None:
    checks = {shown: on_gpu.told(*shown) for shown in on_gpu.SHOWN}
    assert all(found <= set(on_gpu.CHECKS) for found in checks.values())
    assert {kind for (kind, _, _), found in checks.items() if found} == SPELLING.keys() - OF_RANKS - set(TIMED)
    for _, workload, optimization in on_gpu.SHOWN:
        assert "cuda" in on_gpu.case_of(workload, optimization).optimization.device_kinds
