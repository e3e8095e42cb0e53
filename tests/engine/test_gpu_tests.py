"""The tests that need a GPU, which CI lacks: each of them collects, is skipped there, and its tables are consistent."""

import re
import subprocess
import sys
from pathlib import Path

from gpugate.faults.fault import OF_RANKS, SPELLING, TIMED
from tests.gpu import test_faults as on_gpu

ROOT = Path(__file__).parents[2]
OUTPUT = [sys.executable, "-m", "pytest", "tests/gpu", "-p", "no:gpugate.plugin", "-p", "no:cacheprovider"]


def test_each_collects_and_is_skipped_without_a_gpu() -> None:
    """A case that a GPU alone can choose, such as one of each workload, is not among them."""
    environment = {"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"}
    ended = subprocess.run(
        [*OUTPUT, "-q", "-rs"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stdout
    files = {path.name for path in (ROOT / "tests/gpu").glob("test_*.py")}
    assert set(re.findall(r"tests/gpu/(test_\w+\.py)", ended.stdout)) == files
    assert re.search(r"^\d+ skipped in", ended.stdout.splitlines()[-1]), ended.stdout


def test_without_a_gpu_the_command_for_them_is_an_error() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin", "GPUGATE_GPU_TESTS_MUST_RUN": "1"}
    ended = subprocess.run(OUTPUT, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 4
    assert "these tests need a GPU, and torch sees none: run them where there is one" in ended.stderr


def test_each_fault_that_is_shown_on_a_gpu_is_a_row_of_the_document_and_a_case() -> None:
    checks = {shown: on_gpu.told(*shown) for shown in on_gpu.SHOWN}
    assert all(found <= set(on_gpu.CHECKS) for found in checks.values())
    assert {kind for (kind, _, _), found in checks.items() if found} == SPELLING.keys() - OF_RANKS - set(TIMED)
    for _, workload, optimization in on_gpu.SHOWN:
        assert "cuda" in on_gpu.case_of(workload, optimization).optimization.device_kinds
