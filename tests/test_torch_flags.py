"""Torch's global switches are read and written as one value, and the suite's defaults are strict."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from gpugate.measurement.torch_flags import TorchFlags


@pytest.fixture(autouse=True)
def flags_as_found() -> Iterator[None]:
    found = TorchFlags.current()
    yield
    found.apply()


def test_the_defaults_are_strict_fp32_without_autotuning() -> None:
    defaults = TorchFlags()
    assert defaults == TorchFlags(False, False, False, False, defaults.num_threads)
    assert defaults.num_threads >= 1


def test_applied_defaults_reach_torch() -> None:
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.allow_tf32 = True
    TorchFlags().apply()
    assert not torch.backends.cudnn.benchmark
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(
    "changed",
    [
        {"cudnn_benchmark": True},
        {"cudnn_deterministic": True},
        {"cudnn_allow_tf32": True},
        {"matmul_allow_tf32": True},
        {"num_threads": 3},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_every_switch_goes_there_and_back(changed: dict[str, bool]) -> None:
    wanted = replace(TorchFlags(), **changed)
    wanted.apply()
    assert TorchFlags.current() == wanted
    TorchFlags().apply()
    assert TorchFlags.current() == TorchFlags()


def test_the_precision_of_matmuls_is_seen_as_tf32() -> None:
    torch.set_float32_matmul_precision("high")
    assert TorchFlags.current().matmul_allow_tf32
