"""Each test of this folder runs on a GPU. Where torch sees none it is skipped, and `make test-gpu` is an error."""

import os
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parent
MUST_RUN = "GPUGATE_GPU_TESTS_MUST_RUN"  # `make test-gpu` sets it
NO_GPU = "runs on a GPU, and torch sees none"


@pytest.hookimpl(tryfirst=True)  # before `-m` selects by the mark
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    has_gpu = torch.cuda.is_available()
    if not has_gpu and MUST_RUN in os.environ:
        raise pytest.UsageError("these tests need a GPU, and torch sees none: run them where there is one")
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.skipif(not has_gpu, reason=NO_GPU))
