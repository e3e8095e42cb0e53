"""Torch-TensorRT accepts our builder's arguments and covers ResNet-50 completely, in one engine.

Only TensorRT's last step, building the engine, needs its libraries. Without them the environment variable
TENSORRT_DRYRUN_LAUNCHER may name a script that runs a command with stand-ins for them; everything before that step is
then Torch-TensorRT's own code.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from workloads.parts.tensorrt_engine import parse_dry_run

LAUNCHER = "TENSORRT_DRYRUN_LAUNCHER"
ROOT = Path(__file__).parents[2]
OPERATORS = 228
PROGRAM = """
from pathlib import Path
import torch, torchvision
from workloads.parts.tensorrt_engine import build_engine

model = torchvision.models.resnet50(weights=None).eval().half().cuda()
example = torch.randn(128, 3, 224, 224, device="cuda", dtype=torch.half)
build_engine(model, example, Path("unused"), dryrun=True)
"""


def missing() -> str | None:
    """Returns why the dry run cannot happen here, with the next step; None where it can."""
    if not torch.cuda.is_available():
        return (
            "the dry run partitions the graph on a GPU and this machine has no CUDA device: run it where there is one"
        )
    if importlib.util.find_spec("torch_tensorrt") is None:
        return "the package torch_tensorrt is missing: pip install torch-tensorrt"
    if importlib.util.find_spec("tensorrt") is None and LAUNCHER not in os.environ:
        return f"the package tensorrt is missing: pip install tensorrt, or set {LAUNCHER} to a script with stand-ins"
    return None


@pytest.mark.gpu
def test_resnet50_becomes_one_engine_without_fallback() -> None:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    launcher = ["bash", os.environ[LAUNCHER]] if LAUNCHER in os.environ else []
    command = [*launcher, sys.executable, "-c", PROGRAM]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=540)
    assert child.returncode == 0, child.stderr[-4000:]
    report = parse_dry_run(child.stdout)
    assert (report.supported, report.operators) == (OPERATORS, OPERATORS), child.stdout
    assert len(report.operators_by_engine) == 1, child.stdout
