"""The doctor on a real GPU: it names the GPU, and leaves the CUDA context of this process alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gpugate.commands.cli import main

ROOT = Path(__file__).parents[2]


def findings(document):
    return {finding["name"]: finding for finding in document["findings"]}


@pytest.fixture(scope="module")
def alone():
    """The diagnosis of a doctor in a process of its own."""
    command = [sys.executable, "-m", "gpugate", "doctor", "--json"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    document = json.loads(ended.stdout)
    assert ended.returncode == (0 if document["trustworthy"] else 1)
    return document


def test_it_names_the_gpu_and_looks_at_everything(alone):
    assert alone["environment"]["device_name"] == torch.cuda.get_device_name(0)
    found = findings(alone)
    assert found["GPU"]["state"] == "ok"
    assert {"other processes", "clocks", "yardsticks"} <= found.keys()


def test_the_yardsticks_see_the_gpu(alone):
    assert "pinned copy" in findings(alone)["yardsticks"]["sentence"]


def test_cuda_still_works_in_this_process_after_the_doctor(capsys):
    left = torch.randn(256, 256, device="cuda")
    before = left @ left
    main(["doctor", "--json"])
    assert json.loads(capsys.readouterr().out)["findings"]
    assert torch.equal(left @ left, before)
