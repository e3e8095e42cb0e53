"""A layer that kept its float weights is named."""

from pathlib import Path

import pytest
import torch

from gpugate.workload import Context
from workloads import requests

CONTEXT = Context(torch.device("cpu"), items=5, seed=3, cache_dir=Path())


def test_int8_names_a_layer_that_kept_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.ao.quantization.quantize_dynamic", lambda model, layers, dtype: model)
    assert requests.int8(CONTEXT).engaged() == "0, 2 has float weights"
