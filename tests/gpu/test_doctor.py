"""The doctor on a real GPU: it names the GPU, and leaves the CUDA context of this process alone."""

from pathlib import Path

import pytest
import torch

from gpugate.commands.doctor import Finding, diagnose

pytestmark = pytest.mark.alone
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found() -> dict[str, Finding]:
    """The findings by name; a process of its own measures."""
    return {finding.name: finding for finding in diagnose("auto", ROOT / "baselines")}


def test_it_names_the_gpu_and_looks_at_everything(found: dict[str, Finding]) -> None:
    assert torch.cuda.get_device_name(0) in found["machine"].sentence
    assert found["GPU"].state == "ok"
    assert {"other processes", "clocks"} <= found.keys()
    assert "pinned copy" in found["yardsticks"].sentence


def test_cuda_still_works_in_this_process_after_the_doctor() -> None:
    before = torch.ones(256, device="cuda")
    diagnose("auto", ROOT / "baselines")
    assert float(before.sum()) == 256.0
